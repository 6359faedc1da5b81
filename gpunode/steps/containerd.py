"""containerd: the nvidia runtime in the CRI plugin's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from gpunode import compat
from gpunode.model import Change, Desired, Facts, Service, WriteFile
from gpunode.render import Unfit, containerd_toml, template
from gpunode.render.containerd import is_right, lookup, parse, section
from gpunode.steps import files

FILE = "/etc/containerd/config.toml"
IMPORTED = ("/etc/containerd/conf.d/", "/etc/containerd/config.d/")
UNIT = "containerd.service"
CRI = ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")

FILES = (FILE, *(f"{folder}*.toml" for folder in IMPORTED))
UNITS = (UNIT,)
PACKAGES = ()


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """The runtime added where containerd, asked, does not know it; a restart while the file is newer than it."""
    if desired.runtime != "containerd" or desired.runtime_mode == "none":
        return ()
    changes: list[Change] = list(_config(facts, default=desired.runtime_mode == "default"))
    reason = _restart(facts, changed=bool(changes))
    if reason:
        note = "containers go on running"
        changes.append(Service(UNIT, reason, restart=True, guards=_present(facts), note=note))
    return tuple(changes)


def _config(facts: Facts, *, default: bool) -> tuple[WriteFile, ...]:
    contents = {path: parse(files.text(facts, path) or "", path) for path in _present(facts)}
    effective = _effective(facts)
    _enabled(effective, contents)
    if effective and is_right(effective, "containerd config dump", default=default):
        return ()
    main = contents[FILE].get("version", 1)
    path = _last_with_runtimes(contents, main)
    text = files.text(facts, path)
    if text is None:
        text = template("etc/containerd/config.toml", version=_version(facts))
    runc = lookup(effective, (*section(effective, FILE), "runtimes", "runc", "options")) if effective else {}
    after = containerd_toml(
        text, default=default, systemd_cgroup=runc.get("SystemdCgroup"), path=path, version=main
    )
    why = "pods get GPUs from the nvidia runtime" + (", here as the default one" if default else "")
    return files.write(facts, path, after, why, check="containerd")


def _present(facts: Facts) -> tuple[str, ...]:
    """The main file, which may be absent, then those it may import that are there."""
    imported = [p for p, f in sorted(facts.files.items()) if p.startswith(IMPORTED) and f.exists]
    return (FILE, *imported)


def _effective(facts: Facts) -> Mapping[str, Any]:
    """What containerd makes of its files; {} when it was not asked."""
    if facts.containerd is None:
        return {}
    if facts.containerd.error:
        raise Unfit(
            f"containerd does not accept its configuration: {facts.containerd.error.strip()}",
            hint=f"Mend {FILE} until `containerd config dump` works, then run again; it was not touched.",
        )
    return parse(facts.containerd.dump, "containerd config dump")


def _enabled(effective: Mapping[str, Any], contents: Mapping[str, Mapping[str, Any]]) -> None:
    for path, data in {**contents, "containerd config dump": effective}.items():
        disabled = [name for name in data.get("disabled_plugins", []) if name in CRI]
        if disabled:
            raise Unfit(
                f'{path}: disabled_plugins holds "{disabled[0]}": the kubelet cannot use this containerd',
                hint=f"Take it out of disabled_plugins in {FILE} (packages of docker put it there) and restart "
                "containerd, then run again.",
            )


def _last_with_runtimes(contents: Mapping[str, Mapping[str, Any]], version: int) -> str:
    """The file that has the last word on runtimes: an imported one replaces the main file's section.

    One without a version has the main file's: containerd merges them first.
    """
    found = [path for path, data in contents.items() if lookup(data, section(data, path, version))]
    return found[-1] if found else FILE


def _version(facts: Facts) -> int:
    """The version of a file that containerd reads and that is not there yet."""
    release = compat.numbers(facts.containerd.version) if facts.containerd else ()
    return 3 if release >= (2,) else 2


def _restart(facts: Facts, *, changed: bool) -> str | None:
    unit = facts.units.get(UNIT)
    if unit is None or unit.active != "active":
        return "it is not running"
    if changed:
        return "it reads its configuration at its start"
    stale = [path for path in _present(facts) if files.newer(facts, path, UNIT)]
    return f"{stale[0]} is newer than the running one" if stale else None
