"""CRI-O: the nvidia runtime in a drop-in, or where the files have it already.

crio.conf(5), crio.conf.d(5): crio.conf first, then crio.conf.d in the order of names; of an option the last one counts, and
a runtime's table replaces an earlier one of its name.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from gpunode.errors import CannotPlan
from gpunode.links.runtime import nvidia
from gpunode.links.runtime.nvidia import BINARY, Containers
from gpunode.model import Change, Desired, Facts, Watch, WriteFile
from gpunode.planning import files, services, toml
from gpunode.planning.templates import template
from gpunode.planning.versions import is_installed

MAIN = "/etc/crio/crio.conf"
FOLDER = "/etc/crio/crio.conf.d/"
DROP_IN = f"{FOLDER}99-gpunode.conf"
UNITS: tuple[str, ...] = ("crio.service",)
TABLE = ("crio", "runtime")
DEFAULT, NVIDIA = (*TABLE, "default_runtime"), (*TABLE, "runtimes", "nvidia")
KINDS: toml.Kinds = {
    TABLE[:1]: "table",
    TABLE: "table",
    DEFAULT: "string",
    (*TABLE, "selinux"): "switch",
    (*TABLE, "cgroup_manager"): "string",
    (*TABLE, "runtimes"): "table",
    (*TABLE, "runtimes", "*"): "table",
    (*TABLE, "runtimes", "*", "runtime_path"): "string",
    (*TABLE, "runtimes", "*", "runtime_type"): "string",
}
BELOW = ("crun", "runc")  # what it brings, the preferred one first
USUAL = ("docker-runc", "runc", "crun")  # what the toolkit looks for where its file names none
# Of the runtime below: they name its own binary.
NOT_COPIED = ("runtime_path", "platform_runtime_paths", "runtime_config_path")

WATCH = Watch(files=(MAIN, f"{FOLDER}*"), units=UNITS)


@dataclass(frozen=True, slots=True)
class Settings:
    """Its settings for runtimes, merged as it merges them. `default`: the default runtime, "" for CRI-O's own. `setters`: the
    file that each option comes from, by `default_runtime` or a runtime's name. `cgroups`: who keeps them."""

    default: str = ""
    labelled: bool = False
    cgroups: str = "systemd"
    runtimes: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    setters: Mapping[str, str] = field(default_factory=dict)

    @property
    def below(self) -> str:
        """The runtime that starts containers without NVIDIA's, or below it."""
        if self.default and self.default != "nvidia":
            return self.default
        return next((name for name in BELOW if name in self.runtimes), "crun")


def read(facts: Facts) -> Settings:
    """What all files come to. Raises CannotPlan for one that is not TOML."""
    default, labelled, cgroups = "", False, "systemd"
    runtimes: dict[str, Mapping[str, Any]] = {}
    setters: dict[str, str] = {}
    for path in _paths(facts):
        table = toml.lookup(_parse(files.text(facts, path) or "", path), TABLE)
        if "default_runtime" in table:
            default, setters["default_runtime"] = table["default_runtime"], path
        labelled = table.get("selinux", labelled)
        cgroups = table.get("cgroup_manager", cgroups)
        runtimes |= table.get("runtimes", {})
        setters |= dict.fromkeys(table.get("runtimes", {}), path)
    return Settings(default, labelled, cgroups, runtimes, setters)


def _parse(text: str, path: str) -> Mapping[str, Any]:
    return toml.read(text, path, KINDS, "CRI-O")


def _paths(facts: Facts) -> tuple[str, ...]:
    return (MAIN, *files.below(facts, FOLDER))


def low_level(facts: Facts) -> str:
    """What NVIDIA's runtime must start: a name for PATH, or the binary that CRI-O's own packages have outside it."""
    now = read(facts)
    path = now.runtimes.get(now.below, {}).get("runtime_path") or now.below
    return path.rpartition("/")[2] if path.startswith(("/usr/bin/", "/usr/sbin/")) else path


def check(facts: Facts) -> None:
    if not services.is_loaded(facts, UNITS[0]):
        raise CannotPlan(
            "this kubelet runs its pods with CRI-O, and there is no crio.service",
            hint="Install CRI-O and let the kubelet start a pod with it, then run again.",
        )


def containers(facts: Facts) -> Containers:
    now, below = read(facts), low_level(facts)
    runc = below if below.rpartition("/")[2] == "runc" else ""
    return Containers(now.labelled, now.cgroups == "systemd", runc)


def headline(facts: Facts) -> str:
    return "CRI-O" if services.is_loaded(facts, UNITS[0]) else ""


def state(facts: Facts) -> str:
    return f"CRI-O, default runtime {read(facts).default or 'its own'}"


def plan(facts: Facts, desired: Desired, *, default: bool) -> tuple[Change, ...]:
    """Add the runtime; restart CRI-O while a file is newer than the process."""
    waits = default and _waits(facts, desired)
    written = tuple(_files(facts, default=default and not waits, waits=waits))
    reason = services.restart_reason(facts, UNITS[0], _paths(facts), changed=bool(written))
    return services.add_restart(written, UNITS[0], reason, "containers keep running")


def _waits(facts: Facts, desired: Desired) -> bool:
    """Whether NVIDIA's runtime would not find the one below it yet: every new pod of the node would fail with it.

    The toolkit of this plan brings the configuration; the next round adds the runtime to it.
    """
    if read(facts).default == "nvidia" or files.text(facts, nvidia.TOOLKIT_CONFIG) is not None:
        return False
    comes = any(not is_installed(facts.packages, spec) for spec in desired.toolkit)
    return comes and low_level(facts) not in USUAL


def _files(facts: Facts, *, default: bool, waits: bool) -> Iterator[WriteFile]:
    now = read(facts)
    before = {path: files.text(facts, path) or "" for path in _paths(facts)}
    after = dict(before)
    entry = now.runtimes.get("nvidia")
    adds, why = entry is None, nvidia.reason(default=default)
    works = entry is None or (
        entry.get("runtime_path") == BINARY and entry.get("runtime_type", "oci") in ("", "oci")
    )
    if entry is not None and not works:
        path = now.setters["nvidia"]
        after[path] = toml.put(after[path], NVIDIA, _nvidia(now))
        why = nvidia.reason(default=default, binaries=[entry.get("runtime_path", "")])
    if waits:
        why += "; as the default one once the toolkit's configuration names what is below it"
    handler = "nvidia" if default else now.below if now.default == "nvidia" else now.default
    name = handler if handler != now.default else ""
    setter = now.setters.get("default_runtime", "")
    if name and setter and setter.rpartition("/")[2] >= DROP_IN.rpartition("/")[2]:
        after[setter] = toml.put(after[setter], DEFAULT, name)  # a drop-in would come too early
        name = ""
    if name or adds:
        text = after.get(DROP_IN) or template("etc/crio/crio.conf.d/99-gpunode.conf")
        if name:
            text = toml.put(text, DEFAULT, name)
        if adds:
            text = toml.put(text, NVIDIA, _nvidia(now))
        after[DROP_IN] = text
    for path, text in after.items():
        if text != before.get(path, ""):
            _parse(text, path)
            yield from files.write(facts, path, text, why, wrong="does not have the planned nvidia runtime")


def _nvidia(now: Settings) -> dict[str, Any]:
    """NVIDIA's runtime with the settings of the one below it, whose conmon is in a folder of its own on most hosts."""
    below = now.runtimes.get(now.below, {})
    kept = {key: value for key, value in below.items() if key not in NOT_COPIED}
    return {"runtime_path": BINARY, **kept, "runtime_type": "oci"}
