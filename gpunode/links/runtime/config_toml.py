"""containerd's config.toml: the nvidia runtime beside the others, comments, order and style kept.

Edits are made in the text and then read back: when the result does not say exactly what was meant, it is refused.
"""

import copy
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

from gpunode.errors import CannotPlan
from gpunode.links.runtime.nvidia import BINARY
from gpunode.planning import toml
from gpunode.planning.toml import Kinds, Path, lookup

# Where the CRI plugin's settings are, by the file's `version`; a file without one is version 1.
PLUGINS = {
    1: "cri",
    2: "io.containerd.grpc.v1.cri",
    3: "io.containerd.cri.v1.runtime",
    4: "io.containerd.cri.v1.runtime",
}

# The tables of a runtime, and what is read of them.
RUNTIME: Kinds = {
    (): "table",
    ("runtime_type",): "string",
    ("runtime_engine",): "string",
    ("runtime_root",): "string",
    ("options",): "table",
    ("options", "binaryname"): "string",
}
CRI: Kinds = {
    (): "table",
    ("systemd_cgroup",): "switch",
    ("cni",): "table",
    ("cni", "bin_dir"): "string",
    ("cni", "bin_dirs"): "strings",
    ("containerd",): "table",
    ("containerd", "no_pivot"): "switch",
    ("containerd", "default_runtime_name"): "string",
    **{("containerd", "default_runtime", *key): kind for key, kind in RUNTIME.items()},
    ("containerd", "runtimes"): "table",
    **{("containerd", "runtimes", "*", *key): kind for key, kind in RUNTIME.items()},
}
KINDS: Kinds = {
    ("version",): "number",
    ("imports",): "strings",
    ("disabled_plugins",): "strings",
    ("required_plugins",): "strings",
    ("plugins",): "table",
    ("plugins", "*"): "table",
    **{("plugins", name, *key): kind for name in PLUGINS.values() for key, kind in CRI.items()},
}

DISCARD = "discard_unpacked_layers"
RUNC = "io.containerd.runc.v2"
# They read BinaryName; older ones do not. The last is that of MicroK8s' template, which is filled in with one of the others.
SHIMS = (RUNC, "io.containerd.runc.v1", "${RUNTIME_TYPE}")
OLD = ("io.containerd.runtime.v1.linux", "")
UNREAD = ("runtime_engine", "runtime_root")  # of the old type alone; beside another the CRI plugin fails
# The shims' options as they spell them; containerd compares without case.
SPELLED = "BinaryName CriuImagePath CriuPath CriuWorkPath IoGid IoUid NoNewKeyring NoPivotRoot Root ShimCgroup SystemdCgroup"
OPTIONS = {name.lower(): name for name in SPELLED.split()}


@lru_cache(maxsize=64)  # many hosts have the same text
def read(text: str, path: str) -> Mapping[str, Any]:
    """A file of containerd's as data: of a known version, and each value that is read of its type."""
    data = toml.read(text, path, KINDS, "containerd")
    if data.get("version", 1) not in PLUGINS:
        raise CannotPlan(
            f"{path}: gpunode does not know `version = {data['version']}`, only 1 to 4",
            hint="Set `runtime: none` for this host and add the nvidia runtime by hand.",
        )
    return data


def section(data: Mapping[str, Any], version: int = 1, *, second: bool = False) -> Path:
    """Where a file of this `version` keeps the CRI plugin's `containerd` table; one without a version has this one.

    `second`: it is containerd 2.0 or newer that reads the file. It takes the new section from old files, too, where
    there is one, and the old section as far as the new one says nothing; nothing from version 1; and from version 2
    the snapshotter's settings only where the old section names runtimes, so that naming one would set them.
    """
    version = data.get("version", version)
    old, new = (("plugins", PLUGINS[number], "containerd") for number in (version, 3))
    if not second or version > 2:
        return old
    apart = any(key in lookup(data, old) for key in ("snapshotter", "disable_snapshot_annotations", DISCARD))
    named = lookup(data, (*new, "runtimes")) or not lookup(data, (*old, "runtimes"))
    return new if version == 1 or (named and (apart or lookup(data, new))) else old


def is_right(data: Mapping[str, Any], *, default: bool) -> bool:
    """Whether containerd has the nvidia runtime as desired, by its configuration dump."""
    cri = lookup(data, section(data))
    runtimes = lookup(cri, ("runtimes",))
    runtime = lookup(runtimes, ("nvidia",))
    works = runtime.get("runtime_type") == RUNC and binaries(runtime) == {BINARY}
    if any(runtime.get(key) for key in UNREAD):
        works = False
    name = default_name(cri)
    return works and (name == "nvidia" if default else not is_default(cri) and name in ("default", *runtimes))


def default_name(cri: Mapping[str, Any]) -> str:
    """The runtime of pods without a RuntimeClass. In containerd 1.3 to 1.7 a `default_runtime` table comes first."""
    if lookup(cri, ("default_runtime",)).get("runtime_type"):
        return "default"
    return str(cri.get("default_runtime_name") or "runc")


def binaries(runtime: Mapping[str, Any]) -> set[Any]:
    options = lookup(runtime, ("options",)).items()
    named = [value for name, value in options if name.lower() == "binaryname"]
    return {value for value in (*named, runtime.get("runtime_engine")) if value}


def nvidia_binaries(data: Mapping[str, Any], version: int = 1) -> set[Any]:
    return binaries(lookup(data, (*section(data, version), "runtimes", "nvidia")))


def is_default(cri: Mapping[str, Any]) -> bool:
    """Whether pods without a RuntimeClass get NVIDIA's runtime."""
    name = default_name(cri)
    started = binaries(lookup(cri, ("default_runtime",))) if name == "default" else set()
    return name == "nvidia" or any(str(binary).endswith("/nvidia-container-runtime") for binary in started)


def containerd_toml(
    text: str,
    *,
    default: bool,
    effective: Mapping[str, Any] | None = None,
    path: str = "/etc/containerd/config.toml",
    version: int = 1,
    second: bool = False,
) -> str:
    """The file with the nvidia runtime in it: runc's settings with NVIDIA's binary.

    `default` makes it the default runtime; otherwise a default that is nvidia becomes runc again.
    `effective` is what containerd makes of its files now, where it was asked; `version` is that of a file that names
    none: a drop-in has the main file's. `second`: containerd is 2.0 or newer, and has its own runc beside the
    runtimes that are named.
    """
    data = read(text, path)
    root = section(data, version, second=second)
    cri = lookup(data, root)
    plugin = lookup(effective, section(effective)[:-1]) if effective else lookup(data, root[:-1])
    edits = tuple(_edits(cri, plugin, default=default, keeps_runc=second or root[1] == PLUGINS[3]))
    desired = {**copy.deepcopy(data)}
    for at, value in edits:
        merge(desired, (*root, *at), value)
        text = toml.put(text, (*root, *at), value)
    try:
        same = read(text, path) == desired
    except CannotPlan:
        same = False
    if not same:
        raise CannotPlan(
            f"{path}: gpunode cannot add the nvidia runtime to this file's layout",
            hint=f"Add `[{'.'.join(root)}.runtimes.nvidia]` with BinaryName = {BINARY!r} by hand, "
            "or set `runtime: none` for this host.",
        )
    return text


def without_nvidia(text: str, original: str, path: str, *, second: bool) -> str:
    """The file with the nvidia runtime and the default one as its `original` had them, else without nvidia and with runc. Raises
    CannotPlan."""
    data, first = read(text, path), read(original, path)
    root = section(data, second=second)
    cri, before = lookup(data, root), lookup(first, section(first, second=second))
    own, entry = (lookup(table, ("runtimes", "nvidia")) for table in (cri, before))
    desired = {**copy.deepcopy(data)}
    edits: list[tuple[Path, Any]] = []
    if not entry:
        lookup(desired, (*root, "runtimes")).pop("nvidia", None)  # type: ignore[attr-defined]
        text = toml.drop(text, (*root, "runtimes", "nvidia"))
    elif binaries(own) == {BINARY}:
        edits += _differences(("runtimes", "nvidia"), own, entry)
    name = before.get("default_runtime_name") or "runc"
    if cri.get("default_runtime_name") == "nvidia" != name:
        edits.append((("default_runtime_name",), name))
    for at, value in edits:
        merge(desired, (*root, *at), value)
        text = toml.put(text, (*root, *at), value)
    if read(text, path) != desired:
        raise CannotPlan(f"{path}: gpunode cannot remove the nvidia runtime from this file's layout")
    return text


def _edits(
    cri: Mapping[str, Any], plugin: Mapping[str, Any], *, default: bool, keeps_runc: bool
) -> Iterator[tuple[Path, Any]]:
    """What to set in the file's `containerd` table. `plugin` is the CRI plugin's settings as they are in effect."""
    own = lookup(cri, ("runtimes",))
    running = lookup(plugin, ("containerd",))
    known = lookup(running, ("runtimes",)) or {"runc": {"runtime_type": RUNC}}
    name = default_name(running)
    changes_default = is_default(running) if not default else name != "nvidia"
    named = str(cri.get("default_runtime_name") or "runc")
    desired = "nvidia" if default else "runc" if named == "nvidia" else named
    if default and (plugin.get("systemd_cgroup") or running.get("no_pivot")):
        key = "systemd_cgroup" if plugin.get("systemd_cgroup") else "no_pivot"
        raise CannotPlan(
            f"containerd's `{key}` is only for runtimes of type {OLD[0]}, and nvidia as the default runtime is {RUNC}",
            hint=f"Take `{key}` out and set it in the runtimes' options (SystemdCgroup, NoPivotRoot), then run again.",
        )
    if "runc" not in own and not keeps_runc and (not own or desired == "runc"):
        yield ("runtimes", "runc"), _compact(lookup(known, ("runc",))) or {"runtime_type": RUNC}
    nvidia = _nvidia(lookup(own, ("nvidia",)), _runc(own, running, known, plugin))
    if "nvidia" not in own:
        yield ("runtimes", "nvidia"), nvidia
    else:
        yield from _differences(("runtimes", "nvidia"), own["nvidia"], nvidia)
    if name == "default" and changes_default:
        yield ("default_runtime", "runtime_type"), ""
    if desired != named or (default and "default_runtime_name" not in cri):
        yield ("default_runtime_name",), desired


def _nvidia(entry: Mapping[str, Any], runc: Mapping[str, Any]) -> dict[str, Any]:
    """The nvidia runtime: the file's own entry without settings that keep its binary from starting, else a copy of runc's."""
    options = lookup(entry, ("options",))
    if entry.get("runtime_type") not in SHIMS or not options:
        options = {**runc["options"], **options}
    spelled = [name for name in options if name.lower() == "binaryname"] or ["BinaryName"]
    unread = {key: "" for key in UNREAD if entry.get(key)}
    options = {**options, **dict.fromkeys(spelled, BINARY)}
    return {**(entry or runc), **unread, "runtime_type": RUNC, "options": options}


def _runc(
    own: Mapping[str, Any], running: Mapping[str, Any], known: Mapping[str, Any], plugin: Mapping[str, Any]
) -> dict[str, Any]:
    """The settings to start from: those of the default runtime if it is runc or the like, else of `runc`."""
    base: Mapping[str, Any] = {}
    for name in (default_name(running), "runc"):
        asked = lookup(known, (name,)) or lookup(running, (f"{name}_runtime",))
        table = lookup(own, (name,)) or _compact(asked)
        if name != "nvidia" and table and table.get("runtime_type", "") in (*SHIMS, *OLD):
            base = table
            break
    else:
        asked = {}
    options = lookup(base, ("options",)) if base.get("runtime_type") in SHIMS else {}
    options = {OPTIONS.get(name.lower(), name): value for name, value in options.items()}
    cgroup = {OPTIONS.get(name.lower()): value for name, value in lookup(asked, ("options",)).items()}
    if (
        "SystemdCgroup" not in options
        and cgroup.get("SystemdCgroup", plugin.get("systemd_cgroup")) is not None
    ):
        options["SystemdCgroup"] = cgroup.get("SystemdCgroup", plugin.get("systemd_cgroup"))
    rest = {key: value for key, value in base.items() if key not in (*UNREAD, "options")}
    return {"runtime_type": RUNC, **rest, "options": options}


def _compact(table: Mapping[str, Any]) -> dict[str, Any]:
    """A runtime as containerd dumps it, without what is not set there."""
    compact: dict[str, Any] = {}
    for key, value in table.items():
        if key == "options":
            compact[key] = {
                name: option for name, option in value.items() if option or name == "SystemdCgroup"
            }
        elif value and (key, value) != ("sandboxer", "podsandbox"):
            compact[key] = value
    return compact


def _differences(
    path: Path, present: Mapping[str, Any], desired: Mapping[str, Any]
) -> Iterator[tuple[Path, Any]]:
    for key, value in desired.items():
        if isinstance(value, Mapping) and isinstance(present.get(key), Mapping):
            yield from _differences((*path, key), present[key], value)
        elif key not in present or present[key] != value:
            yield (*path, key), value


def merge(data: dict[str, Any], path: Path, value: Any) -> None:
    """Set a value at `path`; a mapping is merged into the table there."""
    *parents, last = path
    for part in parents:
        data = data.setdefault(part, {})
    if isinstance(value, Mapping) and isinstance(data.get(last), dict):
        for key, part in value.items():
            merge(data[last], (key,), part)
    else:
        data[last] = copy.deepcopy(value)
