"""Answers of hosts, which are JSON, read into the types that their readers declare; and the facts of a probe."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import MISSING, dataclass, fields, is_dataclass, replace
from functools import cache
from types import NoneType, UnionType
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints

from gpunode.errors import UnexpectedAnswer
from gpunode.model import Facts, Gpu, MigDevice

LARGEST = {int: 1 << 63, float: 1e11}  # of times in seconds the year 5138, which every calendar has
NAMES = {
    str: "text",
    bool: "true or false",
    int: "a whole number",
    float: f"a number up to {LARGEST[float]:g}",
}


def read(kind: Any, value: Any, place: str) -> Any:
    """The value as `kind`: str, bool, int, float, Literal, X | None, tuple[X, ...], Mapping[str, X], or a dataclass of these.

    Members that a dataclass does not declare are left out; `name` or `path` of an object in a mapping is its key. Text has no
    halves of surrogates, which cannot be printed. Raises UnexpectedAnswer.
    """
    origin, inner = get_origin(kind), get_args(kind)
    if kind is Any:
        return value
    if origin in (Union, UnionType):
        return (
            None
            if value is None
            else read(next(item for item in inner if item is not NoneType), value, place)
        )
    if origin is Literal:
        if value not in inner:
            raise unexpected_value(value, f"one of {', '.join(inner)}", place)
        return value
    if kind in NAMES:
        return _read_simple(kind, value, place)
    if origin is tuple:
        if not isinstance(value, list):
            raise unexpected_value(value, "a list", place)
        return tuple(read(inner[0], item, f"{place}[{n}]") for n, item in enumerate(value))
    if not isinstance(value, dict):
        raise unexpected_value(value, "an object", place)
    if declared := _members_of(kind):
        members = {
            name: read(member, value.get(name), f"{place}.{name}")
            for name, (member, needed) in declared.items()
            if needed or name in value
        }
        return kind(**members)
    return {
        read(str, key, place): read(inner[1], _with_key(inner[1], key, item), f"{place}[{key}]")
        for key, item in value.items()
    }


def _read_simple(kind: Any, value: Any, place: str) -> Any:
    if kind is str and isinstance(value, str):
        return value.encode(errors="replace").decode()
    if kind is bool and isinstance(value, bool):
        return value
    number = isinstance(value, (int, kind)) and not isinstance(value, bool)
    if number and kind in LARGEST and abs(value) <= LARGEST[kind]:  # so not NaN
        return kind(value)
    raise unexpected_value(value, NAMES[kind], place)


@cache
def _members_of(kind: Any) -> Mapping[str, tuple[Any, bool]]:
    """The type of each member of a dataclass, and whether it has no default; {} for what is none."""
    kinds = get_type_hints(kind) if is_dataclass(kind) else {}
    return {
        member.name: (kinds[member.name], member.default is MISSING and member.default_factory is MISSING)
        for member in (fields(kind) if kinds else ())
    }


def _with_key(kind: Any, key: str, value: Any) -> Any:
    name = next(iter(_members_of(kind)), "")
    return {**value, name: key} if name in ("name", "path") and isinstance(value, dict) else value


def unexpected_value(value: Any, expected: str, place: str) -> UnexpectedAnswer:
    """The error for a value of another type than `expected`."""
    return UnexpectedAnswer(f"{_describe(value)} where {expected} is expected, in {place:.200}")


def _describe(value: Any) -> str:
    if isinstance(value, (dict, list)):
        return "an object" if isinstance(value, dict) else "a list"
    names = {None: "nothing", True: "true", False: "false"}
    return names[value] if value is None or isinstance(value, bool) else f"{value!r:.60}"


Raw = Mapping[str, Any]
NUMBER = r"[0-9]{1,9}"


@dataclass(frozen=True, slots=True)
class Smi:
    """nvidia-smi's rows, a GPU each, and what `nvidia-smi -L` printed; None: it failed."""

    gpus: tuple[tuple[str, ...], ...] = ()
    error: str | None = None
    list: str | None = ""
    list_error: str | None = None
    fabric: tuple[tuple[str, ...], ...] = ()  # index, state, status
    profiles: str = ""  # what `nvidia-smi mig -lgip` printed


def parse_facts(raw: Raw) -> Facts:
    """The facts of one probe, from the `facts` message of the agent. Raises UnexpectedAnswer for a value of another type."""
    sections = {name: value for name, value in raw.items() if value is not None or name == "boot_default"}
    release = read(Mapping[str, str], sections.get("os", {}), "facts.os")
    seen: Facts = read(Facts, {**sections, "os": _os(release, sections.get("arch", ""))}, "facts")
    smi: Smi = read(Smi, sections.get("smi", {}), "facts.smi")
    mig = _mig(smi.list or "")
    gpus = tuple(_gpu(row, mig, f"facts.smi.gpus[{n}]") for n, row in enumerate(smi.gpus))
    fabric = {row[0]: ", ".join(row[1:]) for row in smi.fabric if row}
    # |   0  MIG 1g.10gb        19     7/7        9.75       No     14     0     0   |
    listed = re.findall(r"\|\s+(\d+)\s+MIG (\d\S*)\s", smi.profiles)
    profiles = {gpu.index: tuple(name for index, name in listed if index == str(gpu.index)) for gpu in gpus}
    gpus = tuple(
        replace(gpu, fabric=fabric.get(str(gpu.index), ""), profiles=profiles[gpu.index]) for gpu in gpus
    )
    errors = dict(seen.errors)
    if unlisted := ", ".join(gpu.uuid for gpu in gpus if gpu.mig is None):
        errors["mig"] = f"nvidia-smi -L: {smi.list_error or f'it does not name {unlisted}'}"
    return replace(seen, gpus=gpus, smi_error=smi.error, errors=errors)


def _os(release: Mapping[str, str], arch: Any) -> Raw:
    name = release.get("ID", "")
    return {
        "id": name,
        "version": release.get("VERSION_ID", ""),
        "pretty": release.get("PRETTY_NAME", name),
        "arch": arch,
    }


def _mig(listed: str) -> dict[str, tuple[MigDevice, ...]]:
    """UUID of a GPU -> its MIG devices, as `nvidia-smi -L` prints them: each in a line of its own below its GPU.

    GPU 0: NVIDIA A100-SXM4-40GB (UUID: GPU-…)
      MIG 1g.5gb      Device  0: (UUID: MIG-…)

    (https://docs.nvidia.com/datacenter/tesla/mig-user-guide/)
    """
    devices: dict[str, tuple[MigDevice, ...]] = {}
    gpu = ""
    for line in listed.splitlines():
        if head := re.match(r"GPU \d+: .*\(UUID: (\S+)\)", line):
            gpu = head[1]
            devices[gpu] = ()
        elif part := re.match(rf"\s+MIG (\S+)\s+Device\s+({NUMBER}): \(UUID: (\S+)\)", line):
            devices[gpu] = (*devices.get(gpu, ()), MigDevice(int(part[2]), part[3], part[1]))
    return devices


def _gpu(row: Sequence[str], mig: Mapping[str, tuple[MigDevice, ...]], place: str) -> Gpu:
    if len(row) < 5 or not re.fullmatch(NUMBER, row[0]):
        raise unexpected_value(list(row), "a row of nvidia-smi", place)
    index, uuid, name, pci, memory, *modes = row
    on, pending = (
        word == "Enabled" for word in (modes or ["", ""])[:2]
    )  # a driver before branch 450 has no MIG
    # nvidia-smi writes the PCI domain with eight digits, sysfs with four; GPUs that share the host's memory say [N/A].
    mib = int(memory) if re.fullmatch(NUMBER, memory) else None
    capable = modes[:1] in (["Enabled"], ["Disabled"])
    return Gpu(
        int(index), uuid, name, pci.lower()[-12:], mib, mig.get(uuid) if on else (), on, pending, capable
    )
