"""The CDI specifications of nvidia.com/gpu on a host: which counts, what is wrong with it, and others beside it.

Of two folders /run/cdi wins for a device that both have; of a device in two files of one folder there is none.
source: cncf-tags/container-device-interface pkg/cdi/cache.go (refresh), pkg/cdi/spec-dirs.go (DefaultSpecDirs).
"""

from __future__ import annotations

import re
from collections.abc import Iterator

import yaml

from gpunode.contract import yaml_text
from gpunode.model import Facts
from gpunode.wording import few

WRITTEN = "/run/cdi/nvidia.yaml"  # by the toolkit's unit and gpunode's, whatever else is there
FOLDERS = ("/run/cdi/", "/etc/cdi/")  # the first wins
KIND = re.compile(r"""\bkind["']?\s*:\s*["']?nvidia\.com/gpu["']?\s*(,|}|$)""", re.MULTILINE)
UVM = re.compile(r"/dev/nvidia-uvm(?![-\w])")
DRIVER = re.compile(r"/lib(?:cuda|nvidia-ml)\.so\.(\d+(?:\.\d+)+)")


def wrong(facts: Facts) -> str:
    """What is wrong with the specification, the one that the units write before those of others; "" where it is right."""
    found, there = _counting(facts), _files(facts)
    unread = [facts.files[path] for path in there if facts.files[path].content is None]
    if not found and unread:
        why = unread[0].error or "it is no text"
        return f"{unread[0].path} cannot be read: {why}"
    if not found:
        return f"no file in {' or '.join(FOLDERS)} is a CDI specification of nvidia.com/gpu"
    path, text = next(iter(found.items()))
    if old := _older(facts, text):
        return f"{path} is older than the driver: {old}"
    if lacks_uvm(facts):
        return f"{path} does not have /dev/nvidia-uvm, without which no CUDA program starts: it was written before that was made"
    uuids = [part.uuid for gpu in facts.gpus for part in ((gpu.mig or ()) if gpu.mig_on else (gpu,))]
    missing = [uuid for uuid in uuids if uuid not in text]
    if missing and re.search(r"\b(GPU|MIG)-", text):  # before toolkit 1.15 it names devices by number alone
        return f"{path} does not have {', '.join(missing[:4])}: it was written before the GPUs changed"
    return ""


def lacks_uvm(facts: Facts) -> bool:
    """Whether the specification has files that programs share, as nvidia-ctk found them, and not the one of nvidia_uvm."""
    return any("/dev/nvidiactl" in text and not UVM.search(text) for text in _counting(facts).values())


def beside(facts: Facts) -> Iterator[str]:
    """Problems that others' specifications of the same kind cause beside the one that gpunode keeps current."""
    found = _of_gpus(facts)
    kept = found.pop(WRITTEN, None)
    if kept is None:
        return
    mine = _devices(kept)
    for path, text in found.items():
        theirs = _devices(text)
        if path.startswith(FOLDERS[0]):
            if both := sorted(mine & theirs):
                names = few([f"nvidia.com/gpu={name}" for name in both], 3)
                yield f"{path} and {WRITTEN} both have {names}: of two in one folder CDI takes neither, so no container starts with them. Remove {path}."
            continue
        alone, old = sorted(theirs - mine), _older(facts, text)
        if not old and not alone:
            continue
        names = few([f"nvidia.com/gpu={name}" for name in alone], 3)
        lead = f"{names} still come from it" if alone else "nothing comes from it now"
        yield (
            f"{path} is a second CDI specification of nvidia.com/gpu{f', older than the driver ({old})' if old else ''}: "
            f"{WRITTEN} wins for what both have, {lead}. Remove {path}."
        )


def _files(facts: Facts) -> list[str]:
    """Those in CDI's folders, the winning folder's first."""
    return [
        path
        for folder in FOLDERS
        for path, file in facts.files.items()
        if path.startswith(folder) and file.exists
    ]


def _counting(facts: Facts) -> dict[str, str]:
    """The specification that the units write, else those of others."""
    found = _of_gpus(facts)
    return {WRITTEN: found[WRITTEN]} if WRITTEN in found else found


def _of_gpus(facts: Facts) -> dict[str, str]:
    texts = {path: facts.files[path].content or "" for path in _files(facts)}
    return {path: text for path, text in texts.items() if KIND.search(text)}


def _older(facts: Facts, text: str) -> str:
    version = DRIVER.search(text)
    if not version or not facts.library_version or version[1] == facts.library_version:
        return ""
    return f"it names the libraries of {version[1]}, and {facts.library_version} is there"


def _devices(text: str) -> set[str]:
    """The names of a specification's devices; none of one that is broken, which CDI leaves out."""
    try:
        data = yaml_text.data(text)
        return {str(device["name"]) for device in data.get("devices") or ()}
    except (yaml.YAMLError, AttributeError, KeyError, TypeError):
        return set()
