"""Answers of hosts, which are JSON, as the types that their readers declare; and the facts of a probe."""

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpunode.contract import typed
from gpunode.errors import UnexpectedAnswer
from gpunode.model import Facts, Gpu, MigDevice


def read(kind: Any, value: Any, place: str) -> Any:
    """The value as `kind`, as of `contract.typed`. Raises UnexpectedAnswer."""
    try:
        return typed.read(kind, value, place)
    except typed.Unexpected as error:
        raise UnexpectedAnswer(str(error)) from None


def unexpected_value(value: Any, expected: str, place: str) -> UnexpectedAnswer:
    """The error for a value of another type than `expected`."""
    return UnexpectedAnswer(str(typed.Unexpected(value, expected, place)))


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
