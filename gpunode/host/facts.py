"""Facts from the agent's answer. A section that is missing or failed is empty; `errors` has the reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpunode.host import answers
from gpunode.model import Facts, Gpu, MigDevice

Raw = Mapping[str, Any]
NUMBER = r"[0-9]{1,9}"


@dataclass(frozen=True, slots=True)
class Smi:
    """nvidia-smi's rows, a GPU each, and what `nvidia-smi -L` printed; None: it failed."""

    gpus: tuple[tuple[str, ...], ...] = ()
    error: str | None = None
    list: str | None = ""
    list_error: str | None = None


def parse(raw: Raw) -> Facts:
    """The facts of one probe, from the `facts` message of the agent. Raises UnexpectedAnswer for a value of another type."""
    sections = {name: value for name, value in raw.items() if value is not None or name == "boot_default"}
    release = answers.read(Mapping[str, str], sections.get("os", {}), "facts.os")
    seen: Facts = answers.read(Facts, {**sections, "os": _os(release, sections.get("arch", ""))}, "facts")
    smi: Smi = answers.read(Smi, sections.get("smi", {}), "facts.smi")
    mig = _mig(smi.list or "")
    gpus = tuple(_gpu(row, mig, f"facts.smi.gpus[{n}]") for n, row in enumerate(smi.gpus))
    errors = {**seen.errors, **_unlisted(gpus, smi.list_error)}
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
    found: dict[str, tuple[MigDevice, ...]] = {}
    gpu = ""
    for line in listed.splitlines():
        if head := re.match(r"GPU \d+: .*\(UUID: (\S+)\)", line):
            gpu = head[1]
            found[gpu] = ()
        elif part := re.match(rf"\s+MIG (\S+)\s+Device\s+({NUMBER}): \(UUID: (\S+)\)", line):
            found[gpu] = (*found.get(gpu, ()), MigDevice(int(part[2]), part[3], part[1]))
    return found


def _gpu(row: Sequence[str], mig: Mapping[str, tuple[MigDevice, ...]], place: str) -> Gpu:
    if len(row) < 5 or not re.fullmatch(NUMBER, row[0]):
        raise answers.unexpected(list(row), "a row of nvidia-smi", place)
    index, uuid, name, pci, memory, *modes = row
    on, pending = (
        word == "Enabled" for word in (modes or ["", ""])[:2]
    )  # a driver before branch 450 has no MIG
    # nvidia-smi writes the PCI domain with eight digits, sysfs with four; GPUs that share the host's memory say [N/A].
    mib = int(memory) if re.fullmatch(NUMBER, memory) else None
    return Gpu(int(index), uuid, name, pci.lower()[-12:], mib, mig.get(uuid) if on else (), on, pending)


def _unlisted(gpus: Iterable[Gpu], error: str | None) -> dict[str, str]:
    """Why the MIG devices of some GPUs are not known."""
    unknown = ", ".join(gpu.uuid for gpu in gpus if gpu.mig is None)
    return {"mig": f"nvidia-smi -L: {error or f'it does not name {unknown}'}"} if unknown else {}
