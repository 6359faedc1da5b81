"""containerd, through its CRI plugin. The file that counts is edited in place: a drop-in of gpunode's would shadow what the
user changes in the main file later."""

import re
from collections.abc import Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from gpunode.errors import CannotPlan
from gpunode.links.runtime import drop_ins, nvidia
from gpunode.links.runtime.config_toml import (
    PLUGINS,
    RUNC,
    containerd_toml,
    default_name,
    is_default,
    is_right,
    nvidia_binaries,
    read,
    section,
    without_nvidia,
)
from gpunode.links.runtime.nvidia import Containers
from gpunode.model import Change, Desired, Expected, Facts, Watch, WriteFile
from gpunode.planning import files, services
from gpunode.planning.templates import template
from gpunode.planning.toml import lookup
from gpunode.planning.versions import numbers

FILE = "/etc/containerd/config.toml"
IMPORTED = ("/etc/containerd/conf.d/", "/etc/containerd/config.d/")
UNITS: tuple[str, ...] = ("containerd.service",)
DUMP = "containerd config dump"
SINCE = (1, 3)  # its module: cmd/containerd-shim-runc-v2 and `config dump`; 1.2.10 has neither

WATCH = Watch(files=(FILE, *(f"{folder}*.toml" for folder in IMPORTED)), units=UNITS)


def check(facts: Facts) -> None:
    if facts.containerd is None and not services.is_loaded(facts, UNITS[0]):
        raise CannotPlan(
            "this kubelet runs its pods with containerd, and there is no containerd on this host",
            hint="Install containerd and let the kubelet start a pod with it, then run again.",
        )
    version = facts.containerd.version if facts.containerd else ""
    if (0,) < numbers(version) < SINCE:
        raise CannotPlan(
            f"containerd {version} has no shim {RUNC}, which starts NVIDIA's runtime",
            hint=f"Upgrade it to {'.'.join(map(str, SINCE))} or newer; or set `runtime: none` and configure it by hand.",
        )


def containers(facts: Facts) -> Containers:
    return read_containers(facts.containerd.dump if facts.containerd else "", "runc")


def read_containers(config: str, runc: str) -> Containers:
    """How a containerd with this configuration starts containers, whichever section and spelling its version has."""
    labelled = re.search(r"^[ \t]*enable_selinux\s*=\s*true", config, re.MULTILINE)
    by_systemd = re.search(r"^[ \t]*(SystemdCgroup|systemd_cgroup)\s*=\s*true", config, re.MULTILINE | re.I)
    return Containers(labelled is not None, by_systemd is not None, runc)


def headline(facts: Facts) -> str:
    return f"containerd {facts.containerd.version}" if facts.containerd else ""


def state(facts: Facts) -> str:
    return headline(facts) or "containerd"


@dataclass(frozen=True, slots=True)
class Brought:
    """The containerd that a product brings: the units that it runs in, the configuration that it was started with, and its runc."""

    product: str
    units: tuple[str, ...]
    path: str
    runc: str

    def containers(self, facts: Facts) -> Containers:
        return read_containers(files.text(facts, self.path) or "", self.runc)

    def headline(self, facts: Facts) -> str:
        return f"containerd of {self.product}" if services.pick(facts, self.units) else ""

    def state(self, facts: Facts) -> str:
        data = self.read(facts)
        name = default_name(lookup(data, section(data))) if data else ""
        return f"containerd of {self.product}" + (f", default runtime {name}" if name else "")

    def read(self, facts: Facts) -> Mapping[str, Any]:
        """The configuration that it was started with. Raises CannotPlan."""
        return read(files.text(facts, self.path) or "", self.path)


def plan(facts: Facts, _desired: Desired, *, default: bool) -> tuple[Change, ...]:
    """Add the runtime where containerd's dump has none; restart while the file is newer than the process."""
    written, paths = _config(facts, default=default), _present(facts)
    reason = services.restart_reason(facts, UNITS[0], paths, changed=bool(written))
    return services.add_restart(written, UNITS[0], reason, "containers keep running", guards=paths)


def take_back(facts: Facts, original: str) -> tuple[WriteFile, ...]:
    """The main file with NVIDIA's runtime as its `original` had it; () where that cannot be."""
    try:
        after = without_nvidia(files.text(facts, FILE) or "", original, FILE, second=_release(facts) >= (2,))
    except CannotPlan:
        return ()
    return files.write(facts, FILE, after, "containerd's runtimes are as before gpunode", check="containerd")


def _config(facts: Facts, *, default: bool) -> tuple[WriteFile, ...]:
    contents = {path: read(files.text(facts, path) or "", path) for path in _present(facts)}
    effective: Mapping[str, Any] = read(facts.containerd.dump, DUMP) if facts.containerd else {}
    right = bool(effective) and is_right(effective, default=default)
    aligned = drop_ins.align(facts, contents, FILE, right=right)
    main = contents[FILE].get("version", 1)
    second = _release(facts) >= (2,)
    if aligned:
        facts = files.overlay(facts, {change.path: change.content for change in aligned})
        contents = {path: read(files.text(facts, path) or "", path) for path in contents}
        effective = drop_ins.merge_files(contents, main, second=second)
        right = is_right(effective, default=default)
    elif facts.containerd and facts.containerd.error:
        raise CannotPlan(
            f"containerd does not accept its configuration: {facts.containerd.error.strip()}",
            hint=f"Fix {FILE} until `containerd config dump` works, then run again; gpunode left it unchanged.",
        )
    _check_enabled(effective, contents)
    if right:
        return aligned
    path = _last_with_runtimes(contents, main, merged=second)
    text = files.text(facts, path)
    if text is None:
        text = template("etc/containerd/config.toml", version=3 if second else 2)
    after = containerd_toml(
        text, default=default, effective=effective, path=path, version=main, second=second
    )
    before, merged = contents.get(path, {}), read(after, path)
    cri, cri_after = (lookup(data, section(data, main, second=second)) for data in (before, merged))
    why = nvidia.reason(default=default, binaries=nvidia_binaries(before, main))
    wrong = "configures the nvidia runtime in a way that does not work"
    if "nvidia" not in lookup(cri, ("runtimes",)):
        wrong = "does not hold the nvidia runtime"
    elif cri.get("default_runtime_name") != cri_after.get("default_runtime_name"):
        wrong = f"{'does not name' if default else 'names'} nvidia as its default runtime"
    name = "nvidia" if default else None
    if not default and is_default(lookup(effective, section(effective))):  # another takes its place
        name = str(cri_after.get("default_runtime_name") or "runc")
    expected = Expected("nvidia", name)
    return (
        *aligned,
        *files.write(facts, path, after, why, wrong=wrong, check="containerd", expected=expected),
    )


def _present(facts: Facts) -> tuple[str, ...]:
    """The main file, which may be absent, then those of the watched folders that containerd imports."""
    imported = tuple(path for folder in IMPORTED for path in files.below(facts, folder))
    if facts.containerd is None or not imported:
        return (FILE, *imported)
    # 1.x dumps the files that it read. 2.x dumps its default imports, too, and follows only those of a file.
    own = facts.containerd.error or _release(facts) >= (2,)
    main = read((files.text(facts, FILE) if own else facts.containerd.dump) or "", FILE)
    patterns = main.get("imports", [] if own else None)
    if isinstance(patterns, list):
        every = [str(PurePosixPath(FILE).parent / str(pattern)) for pattern in patterns]
        imported = tuple(path for path in imported if any(fnmatchcase(path, pattern) for pattern in every))
    return (FILE, *imported)


def _check_enabled(effective: Mapping[str, Any], contents: Mapping[str, Mapping[str, Any]]) -> None:
    for path, data in {**contents, DUMP: effective}.items():
        disabled = [name for name in data.get("disabled_plugins", []) if name in PLUGINS.values()]
        if disabled:
            raise CannotPlan(
                f'{path}: disabled_plugins holds "{disabled[0]}": the kubelet cannot use this containerd',
                hint=f"Take it out of disabled_plugins in {FILE} (packages of docker put it there) and restart "
                "containerd, then run again.",
            )


def _last_with_runtimes(contents: Mapping[str, Mapping[str, Any]], version: int, *, merged: bool) -> str:
    """The file that has the last word on runtimes. An imported one replaces all that the main file says of the CRI
    plugin; with containerd 2.0 and newer they are `merged`, and it replaces what it names.

    One without a version has the main file's: containerd merges them first.
    """
    depth = None if merged else -1
    having = [
        path for path, data in contents.items() if lookup(data, section(data, version, second=merged)[:depth])
    ]
    return having[-1] if having else FILE


def _release(facts: Facts) -> tuple[int, ...]:
    return numbers(facts.containerd.version) if facts.containerd else ()
