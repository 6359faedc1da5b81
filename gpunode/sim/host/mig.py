"""MIG of a simulated host: its GPUs' mode and devices, as nvidia-smi makes them, and a boot leaves them."""

import re
import uuid
from dataclasses import replace
from pathlib import Path

from gpunode.sim.host.machine import Machine, Now, SimGpu

SCRIPT = "etc/gpunode-mig.sh"
PERSISTS = ("20b2", "20b7")  # the mode of A100 and A30 is there after a boot
CAPABLE = (*PERSISTS, "2330", "2335", "2901")  # PCI ids: H100, H200, B200


def parts(gpu: SimGpu, now: Now) -> tuple[SimGpu, ...]:
    """The GPU's MIG devices; their UUIDs follow from it, their number and profile."""
    return tuple(
        replace(
            gpu,
            uuid=f"MIG-{uuid.uuid5(uuid.NAMESPACE_OID, f'{gpu.uuid} {number} {profile}')}",
            name=f"{gpu.name} MIG {profile}",
            memory_mib=int(re.findall(r"\.(\d+)gb", profile)[0]) * 1024,
        )
        for number, profile in enumerate(now.mig.get(gpu.uuid, ()))
    )


def listed(gpu: SimGpu, now: Now) -> str:
    """What `nvidia-smi -L` prints below a GPU."""
    rows = enumerate(zip(now.mig.get(gpu.uuid, ()), parts(gpu, now), strict=True))
    return "".join(f"  MIG {profile:11} Device {n:2}: (UUID: {part.uuid})\n" for n, (profile, part) in rows)


def boot(machine: Machine, now: Now) -> None:
    """What a reboot leaves of it."""
    now.mig = {gpu.uuid: [] for gpu in machine.gpus if gpu.uuid in now.mig and gpu.device in PERSISTS}


def at_boot(root: Path, machine: Machine, now: Now) -> None:
    """What gpunode's script does, for GPUs without MIG devices."""
    path = root / SCRIPT
    text = path.read_text(encoding="utf-8") if path.exists() and "nvidia" in now.modules else ""
    addresses = {gpu.address: gpu.uuid for gpu in machine.gpus}
    for address, profiles in re.findall(r"(?m)^layout (\S+) (\S+)$", text):
        now.mig[addresses[address]] = now.mig.get(addresses[address]) or profiles.split(",")


def answer(machine: Machine, now: Now, address: str, words: list[str]) -> tuple[int, str]:
    """Exit status and output of nvidia-smi about the GPU at a PCI address, as far as gpunode asks and tells it about MIG."""
    gpu = next((gpu for gpu in machine.gpus if gpu.address == address), None)
    if gpu is None or "nvidia" not in now.modules:
        return 6, "No devices were found"
    verb, on, devices = words[0], gpu.uuid in now.mig, now.mig.get(gpu.uuid, [])
    if verb.startswith("--query-gpu="):
        values = {"uuid": gpu.uuid, "mig.mode.current": "Enabled" if on else "Disabled"}
        return 0, ", ".join(values[name] for name in verb.partition("=")[2].split(","))
    if verb == "-mig":
        if words[1] == "1":
            now.mig.setdefault(gpu.uuid, [])
        else:
            now.mig.pop(gpu.uuid, None)
        return 0, "All done."
    if not on:
        return 6, "No MIG-enabled devices found."
    if verb == "-cgi":
        now.mig[gpu.uuid] = [*devices, *words[1].split(",")]
        return 0, f"Successfully created GPU instances on GPU {address}"
    if verb == "-dgi":
        now.mig[gpu.uuid] = []
    rows = "\n".join(f"|   0  MIG {profile}   19   {n + 1}   0:1  |" for n, profile in enumerate(devices))
    return (0, rows) if rows else (6, "No GPU instances found: Not Found")
