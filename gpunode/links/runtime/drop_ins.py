"""Drop-ins with another `version` than the main file: what containerd makes of them, and their text in its version.

Source: LoadConfig of services/server/config (1.3 to 1.7) and cmd/containerd/server/config (2.0 to 2.4). To 2.2 all files have
one version, the last that is named; 1.x refuses a plugin of version 1 in version 2, and 1.7.17 and newer one above 2. 2.0 to 2.2 migrate the whole where that is below 3,
so a drop-in of version 3 keeps a main file of version 2 from it (containerd#12891). 2.3.0 to 2.3.4 refuse a drop-in above its
main file (reverted by containerd#13939); from 2.3 on each file is migrated alone.
"""

import copy
import re
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import PurePath
from typing import Any

from gpunode.errors import CannotPlan
from gpunode.links.runtime import nvidia
from gpunode.links.runtime.config_toml import PLUGINS, binaries, merge, read
from gpunode.model import Containerd, Facts, WriteFile
from gpunode.planning import files, toml
from gpunode.planning.toml import lookup
from gpunode.planning.versions import numbers
from gpunode.wording import few

REFUSALS = re.compile(
    r"higher than root config version|unsupported config version|config version equal to or less than"
)
# What a CRI section of version 1 or 2 holds and one of version 3 does not (plugins/cri: the migrations of images, server).
MOVED = {
    *("sandbox_image", "registry", "image_decryption", "max_concurrent_downloads", "image_pull_progress_timeout"),
    *("image_pull_with_sync_fs", "stats_collect_period", "disable_tcp_service", "stream_server_address"),
    *("stream_server_port", "stream_idle_timeout", "enable_tls_streaming", "x509_key_pair_streaming"),
    *("containerd.snapshotter", "containerd.disable_snapshot_annotations", "containerd.discard_unpacked_layers"),
}  # fmt: skip
OURS = {"containerd.default_runtime_name", "runc", "nvidia"}  # gpunode decides between the two
NVIDIA_CTK = "99-nvidia.toml"  # nvidia-container-toolkit: cmd/nvidia-ctk/runtime/configure


def align(
    facts: Facts, contents: Mapping[str, Mapping[str, Any]], main: str, *, right: bool
) -> tuple[WriteFile, ...]:
    """Every drop-in that containerd misreads for its version, in the version of the file `main`. `right`: its nvidia runtime
    works, so that only settings that are lost count. Raises CannotPlan where a drop-in has no equal in that version.
    """
    if facts.containerd is None or not files.text(facts, main):
        return ()
    version = contents[main].get("version", 1)
    writes: list[WriteFile] = []
    for path, data in contents.items():
        own = data.get("version", version)
        effect = _effect(own, version, facts.containerd, main, right=right) if path != main else ""
        if not effect:
            continue
        why = f"it has version {own} and {main} version {version}, so {effect}{_writer(data, own, path)}"
        text = _in_version(files.text(facts, path) or "", data, path, version, why)
        writes += files.write(facts, path, text, why, wrong=why.replace("it has", "has", 1))
    if numbers(facts.containerd.version) < (2,):
        after = {**contents, **{change.path: read(change.content, change.path) for change in writes}}
        _check_kept(after, {change.path: change.why for change in writes}, version)
    # containerd judges the last: before, another drop-in may still be one that it refuses
    return (*writes[:-1], *(replace(change, check="containerd") for change in writes[-1:]))


def merge_files(contents: Mapping[str, Mapping[str, Any]], version: int, *, second: bool) -> dict[str, Any]:
    """What containerd makes of files of one version; 1.x takes a plugin's section from the last file that has one."""
    whole: dict[str, Any] = {"plugins": {}}
    for data in contents.values():
        for name, settings in lookup(data, ("plugins",)).items():
            if not second:
                whole["plugins"].pop(name, None)
            merge(whole, ("plugins", name), settings)
    return {**whole, "version": version}


def _effect(own: object, main: object, containerd: Containerd, file: str, *, right: bool) -> str:
    """What this containerd does with a drop-in of version `own` below a main file of version `main`; "": nothing wrong."""
    if own == main or not isinstance(own, int) or not isinstance(main, int) or {own, main} - {*PLUGINS}:
        return ""
    release, name = numbers(containerd.version), f"containerd {containerd.version}"
    if containerd.error and own > main and REFUSALS.search(containerd.error):
        return f"{name} does not start"
    if release < (2,) and main < 3:
        return f"{name} reads both as version {own}" if own < 3 else f"{name} does not read its CRI settings"
    if release >= (2, 3) or release < (2,) or main == 1:
        return ""
    if own > main:
        return f"{name} ignores the CRI settings of {file}"
    return "" if right else f"{name} ignores its CRI settings where {file} has some"


def _writer(data: Mapping[str, Any], version: int, path: str) -> str:
    """How to stop the program that wrote the file from writing it so again, as the end of a hint; "" where it is unknown."""
    entry = lookup(data, ("plugins", PLUGINS[version], "containerd", "runtimes", "nvidia"))
    if nvidia.is_operators(binaries(entry)):
        # NVIDIA/aicr#1688: its toolkit copies the version of `containerd config dump`, which is migrated
        return f"; {nvidia.WRITES_BACK}: set RUNTIME_CONFIG_SOURCE=file in the toolkit's env"
    if PurePath(path).name == NVIDIA_CTK:
        return "; nvidia-ctk writes a file of this name: run it with --config-source=file"
    return ""


def _in_version(text: str, data: Mapping[str, Any], path: str, version: int, why: str) -> str:
    """The drop-in's text in this version: its number, and the CRI plugin's name."""
    old, new = PLUGINS[data["version"]], PLUGINS[version]
    new_data: dict[str, Any] = copy.deepcopy({**data, "version": version})
    plugins = new_data.get("plugins", {})
    text = toml.put(text, ("version",), version)
    if old != new and old in plugins:
        new_data["plugins"] = {new if name == old else name: settings for name, settings in plugins.items()}
        text = re.sub(rf"(?<=[\s.\[])(['\"]?){re.escape(old)}\1(?=[\s.\]=])", rf"\g<1>{new}\1", text)
        if "." in new:
            text = re.sub(rf"(?<=[\s.\[]){re.escape(new)}(?=[\s.\]=])", f'"{new}"', text)
        cni = lookup(new_data, ("plugins", new, "cni"))
        if version < 3 and cni.get("bin_dir") == "" and len(cni.get("bin_dirs", ())) == 1:
            # A dump has both. containerd 2.x makes bin_dirs of any bin_dir of version 2, older ones read it alone.
            merge(new_data, ("plugins", new, "cni", "bin_dir"), cni["bin_dirs"][0])
            text = toml.put(text, ("plugins", new, "cni", "bin_dir"), cni["bin_dirs"][0])
    lost = sorted(_foreign(new_data, data["version"], version))
    if not lost and read(text, path) == new_data:
        return text
    what = f"{few(lost, 3)} in it has" if lost else "the way it is written has"
    raise CannotPlan(
        f"{path}: {why}; {what} no equal in version {version}",
        hint=f"Write {path} in version {version} by hand, or remove it; then run again. It was not touched.",
    )


def _foreign(data: Mapping[str, Any], own: int, version: int) -> Iterator[str]:
    """What a file of version `own` holds that is elsewhere, or nowhere, in this `version`."""
    cri = lookup(data, ("plugins", PLUGINS[version]))
    if own < 3 <= version:
        yield from (key for key in MOVED if key.rpartition(".")[2] in lookup(cri, tuple(key.split(".")[:-1])))
    if version < 3 and "bin_dir" in lookup(cri, ("cni",)) and not cri["cni"]["bin_dir"]:
        yield "cni.bin_dirs"
    names = [
        *lookup(data, ("plugins",)),
        *data.get("disabled_plugins", ()),
        *data.get("required_plugins", ()),
    ]
    if 1 in (own, version):  # which names plugins otherwise
        yield from (name for name in names if name != PLUGINS[version])


def _check_kept(contents: Mapping[str, Mapping[str, Any]], written: Mapping[str, str], version: int) -> None:
    """Refuse where containerd 1.x would lose settings of other files: the last CRI section replaces those before it, down
    to the last that is in force now. Files of `written` (why, by path) are not.
    """
    name = PLUGINS[version]
    cri = {
        path: lookup(data, ("plugins", name))
        for path, data in contents.items()
        if name in lookup(data, ("plugins",))
    }
    having = [*cri]
    while len(having) > 1 and (path := having[-1]) in written:
        other = having.pop(-2)
        lost = sorted(_losses(cri[other], cri[path]))
        if lost:
            raise CannotPlan(
                f"{path}: {written[path]}; in version {version} it would replace the CRI settings of {other}, and does not "
                f"keep {few(lost, 3)}",
                hint=f"Move what {path} sets into {other} and remove it, then run again. It was not touched.",
            )
        if other not in written:
            return


def _losses(own: Mapping[str, Any], other: Mapping[str, Any], above: str = "") -> Iterator[str]:
    """The keys, in dotted form, that `other` lacks or has otherwise; but for what gpunode sets right itself."""
    for name, value in own.items():
        key = f"{above}{name}"
        if name not in other:
            yield key
        elif isinstance(value, Mapping) and isinstance(other[name], Mapping):
            if key != "containerd.runtimes.nvidia":
                yield from _losses(value, other[name], f"{key}.")
        elif value != other[name] and {key, str(value), str(other[name])} != OURS:
            yield key
