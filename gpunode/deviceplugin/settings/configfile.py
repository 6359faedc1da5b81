"""The configuration file of NVIDIA's device plugin (version v1), read as that plugin reads it, but strictly.

A key that neither knows is an error that names it. Keys of NVIDIA's that have no meaning here are listed in
IGNORED and logged.
"""

from __future__ import annotations

import errno
import logging
import os
import stat
from collections.abc import Iterator, Mapping
from difflib import get_close_matches
from pathlib import Path
from types import MappingProxyType
from typing import Any

from . import sharing
from .config import GPU, BadConfig, Config, Contradiction
from .document import Document, Where, Wrong, dotted, kind
from .options import OPTIONS, Option, parse
from .sharing import BOOLEANS, WAYS
from .syntax import Mistake

log = logging.getLogger(__name__)

IGNORED = (
    "flags.gfd",  # gpu-feature-discovery's
    "flags.useNodeFeatureAPI",
    "flags.deviceDiscoveryStrategy",  # only NVML is supported
    "flags.cdiFeatureFlags",
    "flags.plugin.cdiFeatureFlags",
    "flags.plugin.containerDriverRoot",  # CDI specifications are copied from the toolkit's
    "flags.plugin.nvidiaCTKPath",
    "flags.plugin.nvidiaCDIHookPath",
    "imex.required",  # only with channels, which are refused
    "resources",  # renaming is switched off in NVIDIA's plugin too
)
TOP = ("version", "flags", "resources", "sharing", "imex")
SECTIONS = ("flags", "flags.plugin", "sharing", "imex")  # whose keys are settings, or sections again
MOST = 1 << 20  # bytes, as in a ConfigMap
NOTHING: Mapping[str, Any] = MappingProxyType({})


def read(path: Path, over: Mapping[str, Any] = NOTHING) -> Config:
    """The file's configuration, overridden by `over`, values for fields of Config; logs ignored keys.

    Raises BadConfig with every mistake as file:line:column: key: what.
    """
    try:
        raw = content(path)
    except OSError as error:
        raise BadConfig(f"{path}: {error.strerror}") from None
    try:
        document = _document(raw)
        made = _config(document, over)
    except Contradiction:  # of what is not in the file
        raise
    except BadConfig as error:
        raise BadConfig(*(f"{path}:{mistake}" for mistake in error.mistakes)) from None
    for key in (dotted(where) for where, _ in _leaves(document)):
        if key in IGNORED:
            log.warning("%s: %s has no meaning for this plugin", path, key)
    return made


def content(path: Path) -> bytes:
    """The file's bytes. Raises OSError, also for a device or a pipe, which may never end, and for more than MOST."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        raw = file.read(MOST + 1) or b""
    if len(raw) > MOST:
        raise OSError(errno.EFBIG, f"it has more than {MOST >> 20} MiB", str(path))
    return raw


def config(text: str) -> Config:
    """The configuration of a file with this text. Raises BadConfig with every mistake as line:column: key: what. Pure."""
    return _config(_document(text.encode()), NOTHING)


def _document(raw: bytes) -> Document:
    document = Document()
    try:
        document.read(raw)
    except Mistake as mistake:
        raise BadConfig(str(mistake)) from None
    _stop(document)
    return document


def _stop(document: Document) -> None:
    if document.problems:
        raise BadConfig(*document.mistakes)


def _config(document: Document, over: Mapping[str, Any]) -> Config:
    found = _values(document)
    _stop(document)
    try:
        return Config(**{**found, **over})
    except Contradiction as error:
        where = tuple(error.key.split("."))
        if where not in document.keys:
            raise
        document.problem(where, error.what, key=True)
        raise BadConfig(*document.mistakes) from None


def _values(document: Document) -> dict[str, Any]:
    """Values for fields of Config; mistakes are noted in the document."""
    options = {option.key: option for option in OPTIONS if option.key}
    known = (*TOP, *SECTIONS, *options, *IGNORED, *WAYS, "sharing.memory", "imex.channelIDs")
    found: dict[str, Any] = {}
    for where, value in _leaves(document):
        key = dotted(where)
        with document.noting():
            if key == "version":
                if value != "v1":
                    raise Wrong(where, f"expected v1, found {kind(value)}")
            elif key in options:
                found[options[key].field] = _option(document, where, value, options[key])
            elif key in WAYS:
                found |= sharing.replicas(document, where, value, found)
            elif key == "sharing.memory":
                found["memory"] = sharing.memory(where, value)
            elif key == "imex.channelIDs":
                if value:
                    raise Wrong(where, "IMEX channels are not supported")
            elif key not in IGNORED:
                near = get_close_matches(key, known, 1)
                raise Wrong(where, "unknown key" + (f"; is {near[0]} meant?" if near else ""), key=True)
    if "memory" in found and any(share.resource == GPU for share in found.get("shares", ())):
        other = next(key for key in WAYS if tuple(key.split(".")) in document.keys)
        text = (
            f"{GPU} is shared in another way too ({other}, line {document.keys[tuple(other.split('.'))][0]}); a node "
            "shares its whole GPUs in one way, so take one of the two out (resources of MIG devices may stay)"
        )
        document.problem(("sharing", "memory"), text, key=True)
    return found


def _leaves(document: Document) -> Iterator[tuple[Where, Any]]:
    """The settings with their places; empty ones (`~`) are as if they were not there. Notes what should have keys, but
    has none."""

    def walk(part: Any, where: Where) -> Iterator[tuple[Where, Any]]:
        if not isinstance(part, dict):
            what = f"expected keys{'' if where else ' ' + ', '.join(TOP)}, found {kind(part)}"
            document.problem(where, what)
            return
        for name, value in part.items():
            here = (*where, name)
            if value is not None and dotted(here) in SECTIONS:
                yield from walk(value, here)
            elif value is not None:
                yield here, value

    yield from walk({} if document.data is None else document.data, ())


def _option(document: Document, where: Where, value: Any, option: Option) -> Any:
    several = option.kind.startswith("tuple")
    if isinstance(value, dict) or (isinstance(value, list) and not several):
        raise Wrong(where, f"expected {'words' if several else 'one value'}, found {kind(value)}")
    places = [(*where, number) for number in range(len(value))] if isinstance(value, list) else [where]
    for place in places:
        if place not in document.written:
            raise Wrong(place, "expected a word, found a list or mapping")
    text = ",".join(document.written[place] for place in places)
    if option.kind == "bool":
        text = BOOLEANS.get(text.lower(), text)
    try:
        return parse(option, text)
    except ValueError as error:
        raise Wrong(where, str(error)) from None
