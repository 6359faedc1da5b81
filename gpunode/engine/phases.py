"""Where the time of a host goes, from the start of its batch to its proof, by phase."""

import time
from collections.abc import Mapping

# Kinds of changes → their phase.
WORK: Mapping[str, str] = {
    "Packages": "packages",
    "InstallDriver": "drivers",
    "UninstallDriver": "drivers",
    "Reboot": "reboots",
    "Service": "restarts",
    "KernelModule": "modules",
    "MigLayout": "modules",
    "LoadImage": "images",
    "RemoveImage": "images",
    "WriteFile": "files",
    "RemoveFile": "files",
    "ForgetHost": "files",
    "SelinuxBoolean": "files",
}
IMAGES, PROBES, REBOOTS = "images", "probes", "reboots"
WAITS = "waits"  # for work to end, for the batch's other hosts, for a Ready node
PLUGIN, PODS, ACCEPTANCE = "plugin", "pods", "acceptance"
PHASES = (*dict.fromkeys(WORK.values()), PLUGIN, PODS, ACCEPTANCE, PROBES, WAITS)
LEAST = 0.5  # seconds that people are shown


class Laps:
    """A stopwatch: `end` adds the time since the last end, or first since it was `begun`, to a phase."""

    def __init__(self, begun: float | None = None) -> None:
        self.seconds: dict[str, float] = {}
        self._last = time.monotonic() if begun is None else begun

    def end(self, phase: str) -> float:
        """The seconds that were added."""
        now = time.monotonic()
        lap, self._last = now - self._last, now
        self.add(phase, lap)
        return lap

    def add(self, phase: str, seconds: float) -> None:
        self.seconds[phase] = self.seconds.get(phase, 0.0) + seconds


class Spent(dict[str, float]):
    """Seconds by phase, in the order of PHASES; for people as text."""

    def __init__(self, *parts: Mapping[str, float]) -> None:
        sums = {name: sum(part.get(name, 0.0) for part in parts) for name in PHASES}
        super().__init__({name: round(seconds, 3) for name, seconds in sums.items() if seconds > 0})

    def __str__(self) -> str:
        return ", ".join(f"{name} {seconds:.0f} s" for name, seconds in self.items() if seconds >= LEAST)
