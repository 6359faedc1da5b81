"""CRI-O: the nvidia runtime in a drop-in, or where the files have it already."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.links.runtime import toolkit
from gpunode.links.runtime.containerd.config_toml import lookup
from gpunode.links.runtime.containerd.source import parse
from gpunode.links.runtime.crio.settings import FOLDER, HINT, MAIN, TABLE, Settings, paths, read
from gpunode.model import Change, Desired, Facts, Service, Watch, WriteFile
from gpunode.planning import files, services, toml
from gpunode.planning.templates import template
from gpunode.planning.versions import is_installed

UNIT = "crio.service"
BINARY = "/usr/bin/nvidia-container-runtime"
DROP_IN = f"{FOLDER}99-gpunode.conf"
USUAL = ("docker-runc", "runc", "crun")  # what the toolkit looks for where its file names none
# Of the runtime below: they name its own binary.
NOT_COPIED = ("runtime_path", "platform_runtime_paths", "runtime_config_path")

WATCH = Watch(files=(MAIN, f"{FOLDER}*"), units=(UNIT,))


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Add the runtime; restart CRI-O while a file is newer than the process."""
    if desired.runtime != "crio" or desired.runtime_mode == "none":
        return ()
    default = desired.runtime_mode == "default"
    waits = default and _waits(facts, desired)
    written = tuple(_files(facts, default=default and not waits, waits=waits))
    reason = services.restart(facts, UNIT, paths(facts), changed=bool(written))
    if not reason:
        return written
    guards, fault = tuple(change.path for change in written), "" if written else None
    note = "containers keep running"
    return (*written, Service(UNIT, reason, restart=True, guards=guards, note=note, fault=fault))


def _waits(facts: Facts, desired: Desired) -> bool:
    """Whether NVIDIA's runtime would not find the one below it yet: every new pod of the node would fail with it.

    The toolkit that this plan installs brings its configuration, where the next round names that one.
    """
    if read(facts).default == "nvidia" or files.text(facts, files.TOOLKIT_CONFIG) is not None:
        return False
    comes = any(not is_installed(facts.packages, spec) for spec in desired.toolkit)
    return comes and low_level(facts) not in USUAL


def known(facts: Facts) -> list[str]:
    """What NVIDIA's runtime starts below it, the first that it finds, by the toolkit's configuration."""
    found = lookup(toolkit.read(facts), ("nvidia-container-runtime",)).get("runtimes")
    return list(found or USUAL)


def _files(facts: Facts, *, default: bool, waits: bool) -> Iterator[WriteFile]:
    now = read(facts)
    texts = {path: files.text(facts, path) or "" for path in paths(facts)}
    why = "pods get GPUs from the nvidia runtime" + (", here as the default one" if default else "")
    if waits:
        why += "; as the default one once the toolkit's configuration names what is below it"
    runtime = _nvidia(now)
    there = now.runtimes.get("nvidia")
    after = dict(texts)
    if there is not None and _works(there):
        runtime = {}
    elif there is not None:
        path = now.setters["nvidia"]
        after[path] = toml.put(texts[path], (*TABLE, "runtimes", "nvidia"), runtime)
        if there.get("runtime_path", "").startswith(files.OPERATOR):
            why += f"; {files.WRITES_BACK}"
        runtime = {}
    wished = "nvidia" if default else now.below if now.default == "nvidia" else now.default
    name = wished if wished != now.default else ""
    setter = now.setters.get("default_runtime", "")
    if name and setter and (setter.rpartition("/")[2] > DROP_IN.rpartition("/")[2] or setter == DROP_IN):
        after[setter] = toml.put(
            after[setter], (*TABLE, "default_runtime"), name
        )  # a drop-in would come too early
        name = ""
    if name or runtime:
        before = after.get(DROP_IN, "")
        text = before or template("etc/crio/crio.conf.d/99-gpunode.conf")
        if name:
            text = toml.put(text, (*TABLE, "default_runtime"), name)
        if runtime:
            text = toml.put(text, (*TABLE, "runtimes", "nvidia"), runtime)
        after[DROP_IN] = text
    for path, text in after.items():
        if text != texts.get(path, ""):
            parse(text, path, HINT)
            yield from files.write(facts, path, text, why, wrong="does not have the nvidia runtime as wished")


def _works(runtime: Mapping[str, Any]) -> bool:
    return runtime.get("runtime_path") == BINARY and runtime.get("runtime_type", "oci") in ("", "oci")


def _nvidia(now: Settings) -> dict[str, Any]:
    """NVIDIA's runtime with the settings of the one below it, whose conmon is in a folder of its own on most hosts."""
    below = now.runtimes.get(now.below, {})
    kept = {key: value for key, value in below.items() if key not in NOT_COPIED}
    return {"runtime_path": BINARY, **kept, "runtime_type": "oci"}


def low_level(facts: Facts) -> str:
    """What NVIDIA's runtime must start: a name for PATH, or the binary that CRI-O's own packages have outside it."""
    now = read(facts)
    path = now.runtimes.get(now.below, {}).get("runtime_path") or now.below
    return path.rpartition("/")[2] if path.startswith(("/usr/bin/", "/usr/sbin/")) else path
