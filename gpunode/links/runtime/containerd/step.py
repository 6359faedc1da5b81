"""containerd: the nvidia runtime in the CRI plugin's configuration.

The file that counts is edited in place. A drop-in of gpunode's would shadow what the user changes in the main file later.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from fnmatch import fnmatchcase
from pathlib import PurePosixPath
from typing import Any

from gpunode.errors import CannotPlan
from gpunode.links.runtime.containerd import drop_ins
from gpunode.links.runtime.containerd.config_toml import (
    binaries,
    containerd_toml,
    is_default,
    is_right,
    lookup,
    section,
)
from gpunode.links.runtime.containerd.source import read
from gpunode.model import Change, Desired, Expected, Facts, File, Service, Watch, WriteFile
from gpunode.planning import files, services
from gpunode.planning.templates import template
from gpunode.planning.versions import numbers

FILE = "/etc/containerd/config.toml"
IMPORTED = ("/etc/containerd/conf.d/", "/etc/containerd/config.d/")
UNIT = "containerd.service"
DUMP = "containerd config dump"
CRI = ("cri", "io.containerd.grpc.v1.cri", "io.containerd.cri.v1.runtime")

WATCH = Watch(files=(FILE, *(f"{folder}*.toml" for folder in IMPORTED)), units=(UNIT,))


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Add the runtime where containerd's dump has none; restart while the file is newer than the process."""
    if desired.runtime != "containerd" or desired.runtime_mode == "none":
        return ()
    written = _config(facts, default=desired.runtime_mode == "default")
    reason = services.restart(facts, UNIT, _present(facts), changed=bool(written))
    if not reason:
        return written
    note, fault = "containers keep running", "" if written else None
    return (*written, Service(UNIT, reason, restart=True, guards=_present(facts), note=note, fault=fault))


def _config(facts: Facts, *, default: bool) -> tuple[WriteFile, ...]:
    contents = {path: read(files.text(facts, path) or "", path) for path in _present(facts)}
    effective: Mapping[str, Any] = read(facts.containerd.dump, DUMP) if facts.containerd else {}
    right = bool(effective) and is_right(effective, default=default)
    aligned = drop_ins.aligned(facts, contents, FILE, right=right)
    main = contents[FILE].get("version", 1)
    second = _release(facts) >= (2,)
    if aligned:
        written = {one.path: File(one.path, exists=True, content=one.content) for one in aligned}
        facts = replace(facts, files={**facts.files, **written})
        contents = {path: read(files.text(facts, path) or "", path) for path in contents}
        effective = drop_ins.merged(contents, main, second=second)
        right = is_right(effective, default=default)
    elif facts.containerd and facts.containerd.error:
        raise CannotPlan(
            f"containerd does not accept its configuration: {facts.containerd.error.strip()}",
            hint=f"Fix {FILE} until `containerd config dump` works, then run again; it was not touched.",
        )
    _enabled(effective, contents)
    if right:
        return aligned
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
    before, merged = contents.get(path, {}), read(after, path)
    there = lookup(before, section(before, main, second=second))
    nvidia = lookup(before, (*section(before, main), "runtimes", "nvidia"))
    if any(str(binary).startswith(files.OPERATOR) for binary in binaries(nvidia)):
        why += f"; {files.WRITES_BACK}"
    wrong = "configures the nvidia runtime in a way that does not work"
    if "nvidia" not in lookup(there, ("runtimes",)):
        wrong = "does not hold the nvidia runtime"
    elif there.get("default_runtime_name") != lookup(merged, section(merged, main, second=second)).get(
        "default_runtime_name"
    ):
        wrong = f"{'does not name' if default else 'names'} nvidia as its default runtime"
    other = None if default else _other_default(effective, merged, main, second=second)
    expected = Expected("nvidia", "nvidia" if default else other)
    added = files.write(facts, path, after, why, wrong=wrong, check="containerd", expected=expected)
    return (*aligned, *added)


def _other_default(
    effective: Mapping[str, Any], after: Mapping[str, Any], version: int, *, second: bool
) -> str | None:
    """The runtime that takes the place of nvidia as the default; None where nvidia is not."""
    if not is_default(lookup(effective, section(effective))):
        return None
    return str(lookup(after, section(after, version, second=second)).get("default_runtime_name") or "runc")


def _present(facts: Facts) -> tuple[str, ...]:
    """The main file, which may be absent, then those of the watched folders that containerd imports."""
    there = [path for path, file in sorted(facts.files.items()) if path.startswith(IMPORTED) and file.exists]
    if facts.containerd is None or not there:
        return (FILE, *there)
    # 1.x dumps the files that it read. 2.x dumps its default imports, too, and follows only those of a file.
    own = facts.containerd.error or _release(facts) >= (2,)
    main = read((files.text(facts, FILE) if own else facts.containerd.dump) or "", FILE)
    patterns = main.get("imports", [] if own else None)
    if isinstance(patterns, list):
        every = [str(PurePosixPath(FILE).parent / str(pattern)) for pattern in patterns]
        there = [path for path in there if any(fnmatchcase(path, pattern) for pattern in every)]
    return (FILE, *there)


def _enabled(effective: Mapping[str, Any], contents: Mapping[str, Mapping[str, Any]]) -> None:
    for path, data in {**contents, DUMP: effective}.items():
        disabled = [name for name in data.get("disabled_plugins", []) if name in CRI]
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
    sections = {path: section(data, version, second=merged)[:depth] for path, data in contents.items()}
    found = [path for path, data in contents.items() if lookup(data, sections[path])]
    return found[-1] if found else FILE


def _version(facts: Facts) -> int:
    """The version for a file that containerd reads and that does not exist yet."""
    return 3 if _release(facts) >= (2,) else 2


def _release(facts: Facts) -> tuple[int, ...]:
    return numbers(facts.containerd.version) if facts.containerd else ()
