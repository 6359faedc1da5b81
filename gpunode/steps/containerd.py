"""containerd: the nvidia runtime in the CRI plugin's configuration."""

from __future__ import annotations

from collections.abc import Mapping
from fnmatch import fnmatchcase
from typing import Any

from gpunode import compat
from gpunode.model import Change, Desired, Expected, Facts, Service, WriteFile
from gpunode.render import Unfit, containerd_toml, template
from gpunode.render.containerd import binaries, is_default, is_right, lookup, parse, section
from gpunode.steps import files

FILE = "/etc/containerd/config.toml"
IMPORTED = ("/etc/containerd/conf.d/", "/etc/containerd/config.d/")
UNIT = "containerd.service"
DUMP = "containerd config dump"
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
    if effective and is_right(effective, DUMP, default=default):
        return ()
    main = contents[FILE].get("version", 1)
    second = _release(facts) >= (2,)
    path = _last_with_runtimes(contents, main, merged=second)
    text = files.text(facts, path)
    if text is None:
        text = template("etc/containerd/config.toml", version=_version(facts))
    after = containerd_toml(
        text,
        default=default,
        effective=effective,
        path=path,
        version=main,
        second=second,
    )
    why = "pods get GPUs from the nvidia runtime" + (", here as the default one" if default else "")
    there = lookup(
        contents.get(path, {}), (*section(contents.get(path, {}), path, main), "runtimes", "nvidia")
    )
    if any(str(binary).startswith(files.OPERATOR) for binary in binaries(there)):
        why += f"; {files.WRITES_BACK}"
    expected = Expected(
        "nvidia", "nvidia" if default else _other_default(effective, parse(after, path), main, second=second)
    )
    return files.write(facts, path, after, why, check="containerd", expected=expected)


def _other_default(
    effective: Mapping[str, Any], after: Mapping[str, Any], version: int, *, second: bool
) -> str | None:
    """The runtime that takes the place of nvidia as the default; None where nvidia is not."""
    if not is_default(lookup(effective, section(effective, FILE))):
        return None
    return str(
        lookup(after, section(after, FILE, version, second=second)).get("default_runtime_name") or "runc"
    )


def _present(facts: Facts) -> tuple[str, ...]:
    """The main file, which may be absent, then those of the watched folders that containerd imports."""
    there = [path for path, file in sorted(facts.files.items()) if path.startswith(IMPORTED) and file.exists]
    patterns = parse(facts.containerd.dump, DUMP).get("imports") if facts.containerd and there else None
    if isinstance(patterns, list):  # 1.x lists the files, 2.x the patterns
        there = [path for path in there if any(fnmatchcase(path, str(pattern)) for pattern in patterns)]
    return (FILE, *there)


def _effective(facts: Facts) -> Mapping[str, Any]:
    """What containerd makes of its files; {} when it was not asked."""
    if facts.containerd is None:
        return {}
    if facts.containerd.error:
        raise Unfit(
            f"containerd does not accept its configuration: {facts.containerd.error.strip()}",
            hint=f"Mend {FILE} until `containerd config dump` works, then run again; it was not touched.",
        )
    return parse(facts.containerd.dump, DUMP)


def _enabled(effective: Mapping[str, Any], contents: Mapping[str, Mapping[str, Any]]) -> None:
    for path, data in {**contents, DUMP: effective}.items():
        disabled = [name for name in data.get("disabled_plugins", []) if name in CRI]
        if disabled:
            raise Unfit(
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
    sections = {path: section(data, path, version, second=merged)[:depth] for path, data in contents.items()}
    found = [path for path, data in contents.items() if lookup(data, sections[path])]
    return found[-1] if found else FILE


def _version(facts: Facts) -> int:
    """The version of a file that containerd reads and that is not there yet."""
    return 3 if _release(facts) >= (2,) else 2


def _release(facts: Facts) -> tuple[int, ...]:
    return compat.numbers(facts.containerd.version) if facts.containerd else ()


def _restart(facts: Facts, *, changed: bool) -> str | None:
    unit = facts.units.get(UNIT)
    if unit is None or unit.active != "active":
        return "it is not running"
    if changed:
        return "it reads its configuration at its start"
    stale = [path for path in _present(facts) if files.newer(facts, path, UNIT)]
    return f"{stale[0]} is newer than the running one" if stale else None
