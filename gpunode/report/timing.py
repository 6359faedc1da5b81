"""Where the time of a run went. Pure."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

# Kinds of changes → what people call the work; stages are `the rest`.
WORK: Mapping[str, str] = {
    "Packages": "packages",
    "InstallDriver": "drivers",
    "UninstallDriver": "drivers",
    "Reboot": "reboots",
    "Service": "restarts",
    "KernelModule": "modules",
    "LoadImage": "images",
    "WriteFile": "files",
    "RemoveFile": "files",
}
REST, CLUSTER = "probes and waiting", "the cluster"
LEAST = 5.0  # seconds that are worth a word


@dataclass(frozen=True, slots=True)
class Moment:
    """At `at` seconds, `host` (None: the cluster) began a change of this kind, or a stage (""); "end": it was done."""

    at: float
    host: str | None
    kind: str


def sum_by_work(moments: Sequence[Moment], end: float) -> dict[str, float]:
    """Seconds by work, the longest first. Hosts work side by side: each moment is divided among them, so the sum is no more
    than the run took."""
    doing: dict[str | None, str] = {}
    seconds: dict[str, float] = {}
    times = [*moments, Moment(end, None, "end")]
    before = 0.0
    for moment in times:
        active = {host: kind for host, kind in doing.items() if host is not None} or doing
        for kind in active.values():
            seconds[kind] = seconds.get(kind, 0.0) + (moment.at - before) / len(active)
        before = moment.at
        if moment.kind == "end":
            doing.pop(moment.host, None)
        else:
            doing[moment.host] = CLUSTER if moment.host is None else WORK.get(moment.kind, REST)
    return dict(sorted(seconds.items(), key=lambda entry: -entry[1]))


def sentence(seconds: Mapping[str, float]) -> str:
    """`time went to packages 2:10, reboots 1:05 …`; "" where nothing took long."""
    parts = [
        f"{work} {int(value) // 60}:{int(value) % 60:02d}"
        for work, value in seconds.items()
        if value >= LEAST
    ]
    return f"time went to {', '.join(parts)}" if parts else ""
