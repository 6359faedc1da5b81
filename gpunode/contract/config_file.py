"""The configuration file of NVIDIA's device plugin (version v1), read as that plugin reads it, but strictly.

A key that neither knows is an error that names it. Keys of NVIDIA's that have no meaning here are listed in
IGNORED_KEYS and logged.
"""

import errno
import logging
import os
import re
import stat
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from .config import (
    GPU,
    GPU_COUNT,
    GPU_MEM,
    OPTIONS,
    BadConfig,
    Config,
    Contradiction,
    MemorySharing,
    Option,
    Share,
    meant,
    parse_option,
)
from .yaml_text import Document, Mistake, Where, Wrong, format_path, kind

log = logging.getLogger(__name__)

IGNORED_KEYS = (
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
MOST_BYTES = 1 << 20  # bytes, as in a ConfigMap
NOTHING: Mapping[str, Any] = {}


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
        config = _config(document, over)
    except Contradiction:  # of what is not in the file
        raise
    except BadConfig as error:
        raise BadConfig(*(f"{path}:{mistake}" for mistake in error.mistakes)) from None
    for key in (format_path(where) for where, _ in _leaves(document)):
        if key in IGNORED_KEYS:
            log.warning("%s: %s has no meaning for this plugin", path, key)
    return config


def content(path: Path) -> bytes:
    """The file's bytes. Raises OSError, also for a device or a pipe, which may never end, and for more than MOST_BYTES."""
    with open(path, "rb", opener=lambda name, flags: os.open(name, flags | os.O_NONBLOCK)) as file:
        if not stat.S_ISREG(os.fstat(file.fileno()).st_mode):
            raise OSError(errno.EINVAL, "it is no regular file", str(path))
        raw = file.read(MOST_BYTES + 1) or b""
    if len(raw) > MOST_BYTES:
        raise OSError(errno.EFBIG, f"it has more than {MOST_BYTES >> 20} MiB", str(path))
    return raw


def parse(text: str) -> Config:
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
    values = _values(document)
    _stop(document)
    try:
        return Config(**{**values, **over})
    except Contradiction as error:
        where = tuple(error.key.split("."))
        if where not in document.keys:
            raise
        document.problem(where, error.what, key=True)
        raise BadConfig(*document.mistakes) from None


def _values(document: Document) -> dict[str, Any]:
    """Values for fields of Config; mistakes are noted in the document."""
    options = {option.key: option for option in OPTIONS if option.key}
    known = (*TOP, *SECTIONS, *options, *IGNORED_KEYS, *WAYS, "sharing.memory", "imex.channelIDs")
    values: dict[str, Any] = {}
    for where, value in _leaves(document):
        key = format_path(where)
        with document.noting():
            if key == "version":
                if value != "v1":
                    raise Wrong(where, f"expected v1, found {kind(value)}")
            elif key in options:
                values[options[key].field] = _option(document, where, value, options[key])
            elif key in WAYS:
                values |= replica_sharing(document, where, value, values)
            elif key == "sharing.memory":
                values["memory"] = memory_sharing(where, value)
            elif key == "imex.channelIDs":
                if value:
                    raise Wrong(where, "IMEX channels are not supported")
            elif key not in IGNORED_KEYS:
                raise Wrong(where, f"unknown key{meant(key, known)}", key=True)
    if "memory" in values and any(share.resource == GPU for share in values.get("shares", ())):
        other = next(key for key in WAYS if tuple(key.split(".")) in document.keys)
        text = f"{GPU} is shared in another way too ({other}, line {document.keys[tuple(other.split('.'))][0]}); a node shares its whole GPUs in one way: remove one of the two (resources of MIG devices may stay)"
        document.problem(("sharing", "memory"), text, key=True)
    return values


def _leaves(document: Document) -> Iterator[tuple[Where, Any]]:
    """The settings with their places; empty ones (`~`) are skipped. Notes scalars and lists in the place of a section."""

    def walk(part: Any, where: Where) -> Iterator[tuple[Where, Any]]:
        if not isinstance(part, dict):
            what = f"expected keys{'' if where else ' ' + ', '.join(TOP)}, found {kind(part)}"
            document.problem(where, what)
            return
        for name, value in part.items():
            here = (*where, name)
            if value is not None and format_path(here) in SECTIONS:
                yield from walk(value, here)
            elif value is not None:
                yield here, value

    yield from walk({} if document.data is None else document.data, ())


def _option(document: Document, where: Where, value: Any, option: Option) -> Any:
    several = option.kind == tuple[str, ...]
    if isinstance(value, dict) or (isinstance(value, list) and not several):
        raise Wrong(where, f"expected {'words' if several else 'one value'}, found {kind(value)}")
    places = [(*where, number) for number in range(len(value))] if isinstance(value, list) else [where]
    for place in places:
        if place not in document.written:
            raise Wrong(place, "expected a word, found a list or mapping")
    text = ",".join(document.written[place] for place in places)
    if option.kind is bool:
        text = BOOLEANS.get(text.lower(), text)
    try:
        return parse_option(option, text)
    except ValueError as error:
        raise Wrong(where, str(error)) from None


WAYS = ("sharing.timeSlicing", "sharing.mps")
SHARING = ("renameByDefault", "failRequestsGreaterThanOne", "resources")
SHARE = ("name", "replicas", "rename", "devices")
LIMITS = ("memory", "threads")  # of MPS clients; this plugin's own
MEMORY = ("name", "unit", "chunk", "devices", "policy")
MOST_REPLICAS = 70_000  # more make a list that no kubelet accepts (offer.MAX_LIST), even of one GPU
# YAML 1.1's words, which NVIDIA's plugin accepts, too.
BOOLEANS = {"yes": "true", "on": "true", "no": "false", "off": "false"}
# The kubelet's rule for an extended resource (IsExtendedResourceName, pkg/apis/core/v1/helper): a DNS subdomain that is
# not Kubernetes' own, a slash, a name.
RESOURCE = re.compile(
    r"(?!requests\.|.*kubernetes\.io/)[a-z0-9]([-a-z0-9]*[a-z0-9])?(\.[a-z0-9]([-a-z0-9]*[a-z0-9])?)*"
    r"/[A-Za-z0-9]([-.\w]{0,61}[A-Za-z0-9])?",
    re.ASCII,
)


def replica_sharing(
    document: Document, where: Where, section: Any, values: Mapping[str, Any]
) -> dict[str, Any]:
    """Values for fields of Config; `values` are those set so far. Mistakes in entries are noted."""
    mps = where[-1] == "mps"
    if "shares" in values:
        line = document.keys["sharing", "timeSlicing" if mps else "mps"][0]
        ways = " or ".join(WAYS)
        raise Wrong(where, f"a node shares its GPUs by {ways}, not by both (line {line})", key=True)
    _only(where, section, SHARING)
    by_default = _flag((*where, "renameByDefault"), section.get("renameByDefault"))
    fail = _flag((*where, "failRequestsGreaterThanOne"), section.get("failRequestsGreaterThanOne"))
    resources, place = section.get("resources"), (*where, "resources")
    if not isinstance(resources, list) or not resources:
        raise Wrong(place, f"expected a list of name and replicas, found {kind(resources)}")
    shares: list[Share] = []
    for number, entry in enumerate(resources):
        with document.noting():
            share = _share((*place, number), entry, by_default=by_default, mps=mps)
            if not share.devices and share.resource in {
                share.resource for share in shares if not share.devices
            }:
                raise Wrong(
                    (*place, number), f"{share.resource} is listed twice for all its devices; keep one"
                )
            shares.append(share)
    # A second share of a GPU gives an MPS client nothing; NVIDIA's plugin, too, always refuses more than one.
    return {"shares": tuple(shares), "fail_requests_greater_than_one": fail or mps}


def _share(where: Where, entry: Any, *, by_default: bool, mps: bool) -> Share:
    _only(where, entry, (*SHARE, *LIMITS) if mps else SHARE)
    name = entry.get("name")
    if not isinstance(name, str) or not name:
        raise Wrong((*where, "name"), f"expected a resource, e.g. nvidia.com/gpu, found {kind(name)}")
    name = _resource((*where, "name"), name if "/" in name else f"nvidia.com/{name}")
    if mps and name != GPU:
        raise Wrong((*where, "name"), f"MPS is for whole GPUs, {GPU}; found {name}")
    rename = entry.get("rename") or (f"{name}.shared" if by_default else name)
    rename = f"nvidia.com/{rename}" if isinstance(rename, str) and "/" not in rename else rename
    memory, threads = entry.get("memory"), entry.get("threads")
    replicas = _whole((*where, "replicas"), entry.get("replicas"), 2)
    if replicas > MOST_REPLICAS:
        text = f"the kubelet accepts about {MOST_REPLICAS} shares of all GPUs together, found {replicas}"
        raise Wrong((*where, "replicas"), text)
    return Share(
        name,
        replicas,
        _resource((*where, "rename"), rename),
        _devices((*where, "devices"), entry.get("devices", "all")),
        mps=mps,
        memory=None if memory is None else _whole((*where, "memory"), memory, 1, " of MiB"),
        threads=None if threads is None else _percent((*where, "threads"), threads),
    )


def _whole(where: Where, value: Any, least: int, unit: str = "") -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value < least:
        raise Wrong(where, f"expected a whole number{unit} from {least} up, found {kind(value)}")
    return value


def _percent(where: Where, value: Any) -> int:
    if _whole(where, value, 1) > 100:
        raise Wrong(where, f"expected a percentage from 1 to 100, found {value}")
    return int(value)


def memory_sharing(where: Where, section: Any) -> MemorySharing:
    """This plugin's own section `memory`: units of GPUs' memory, as gpushare offers them."""
    _only(where, section, MEMORY)
    resource = _resource((*where, "name"), section.get("name", GPU_MEM))
    if resource in (GPU, GPU_COUNT):
        raise Wrong((*where, "name"), f"{resource} counts GPUs, not memory; the usual name is {GPU_MEM}")
    unit, chunk = _one_of((*where, "unit"), section.get("unit"), ("GiB", "MiB")), section.get("chunk")
    if chunk is not None and unit == "GiB":
        raise Wrong((*where, "chunk"), "only with unit: MiB; of unit GiB each unit is 1024 MiB", key=True)
    if chunk is not None:
        _whole((*where, "chunk"), chunk, 1, " of MiB")
    policy = _one_of((*where, "policy"), section.get("policy"), ("packed", "distributed"))
    return MemorySharing(
        resource,
        1024 if unit == "GiB" else chunk or 1,
        _devices((*where, "devices"), section.get("devices", "all")),
        packed=policy == "packed",
    )


def _one_of(where: Where, value: Any, choices: Sequence[str]) -> str:
    """A choice; the first is the default."""
    if value is None:
        return choices[0]
    if value not in choices:
        raise Wrong(where, f"expected {' or '.join(choices)}, found {kind(value)}")
    return str(value)


def _resource(where: Where, value: Any) -> str:
    if not isinstance(value, str) or not RESOURCE.fullmatch(value):
        raise Wrong(
            where,
            f"expected a resource with its domain, which is not kubernetes.io, e.g. {GPU_MEM}; found {kind(value)}",
        )
    return value


def _devices(where: Where, value: Any) -> tuple[str, ...]:
    if value in ("all", None):
        return ()
    if not isinstance(value, list) or not value:
        raise Wrong(where, f"expected `all` or a list of indexes and UUIDs, found {kind(value)}")
    for number, device in enumerate(value):
        if type(device) not in (int, str):
            raise Wrong((*where, number), f"expected an index or a UUID, found {kind(device)}")
    return tuple(map(str, value))


def _flag(where: Where, value: Any) -> bool:
    word = BOOLEANS.get(value.lower(), value) if isinstance(value, str) else value
    if word not in (None, True, False, "true", "false"):
        raise Wrong(where, f"expected true or false, found {kind(value)}")
    return word in (True, "true")


def _only(where: Where, section: Any, known: tuple[str, ...]) -> None:
    if not isinstance(section, dict):
        raise Wrong(where, f"expected keys {', '.join(known)}, found {kind(section)}")
    for name in section:
        if name not in known:
            what = f"unknown key; known are {', '.join(known)}{meant(name, known)}"
            raise Wrong((*where, name), what, key=True)
