"""Facts from the agent's answer. A section that is missing or failed is empty; `errors` has the reason."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from typing import Any

from gpunode.model import (
    Containerd,
    Docker,
    Facts,
    File,
    Gpu,
    GpuUser,
    InstalledRun,
    Kubelet,
    MigDevice,
    Module,
    Os,
    Package,
    PciDevice,
    Run,
    Unconfirmed,
    Unit,
)

Raw = Mapping[str, Any]


def parse(raw: Raw) -> Facts:
    """The facts of one probe, from the `facts` message of the agent."""
    docker, containerd, kubelet = raw.get("docker"), raw.get("containerd"), raw.get("kubelet")
    smi = raw.get("smi") or {"gpus": [], "error": None}
    mig = _mig(smi.get("list") or "")
    gpus = tuple(_gpu(row, mig) for row in smi["gpus"])
    running = raw.get("running")
    cgroup = raw.get("cgroup")
    return Facts(
        time=float(raw["time"]),
        hostname=raw["hostname"],
        os=_os(raw.get("os") or {}, raw.get("arch") or ""),
        kernel=raw["kernel"],
        boot_id=raw["boot_id"],
        machine_id=raw.get("machine_id") or "",
        product_uuid=raw.get("product_uuid") or "",
        uptime=float(raw["uptime"]),
        cgroup=cgroup if cgroup in ("v1", "hybrid", "v2") else "v1",
        secure_boot=raw.get("secure_boot"),
        pci=tuple(PciDevice(**device) for device in raw.get("pci") or ()),
        modules={name: Module(**module) for name, module in (raw.get("modules") or {}).items()},
        kernels=dict(raw.get("kernels") or {}),
        boot_default=raw.get("boot_default", ""),
        module_files=tuple(raw.get("module_files") or ()),
        versions=dict(raw.get("versions") or {}),
        unlinked=tuple(raw.get("unlinked") or ()),
        module_banner=raw.get("module_banner"),
        library_version=raw.get("library_version"),
        gpus=gpus,
        smi_error=smi["error"],
        half_installed=tuple(raw.get("half_installed") or ()),
        packages={name: Package(name, **entry) for name, entry in (raw.get("packages") or {}).items()},
        files={path: File(path, **entry) for path, entry in (raw.get("files") or {}).items()},
        units={name: _unit(name, entry) for name, entry in (raw.get("units") or {}).items()},
        docker=_docker(docker) if docker else None,
        containerd=Containerd(**containerd) if containerd else None,
        kubelet=_kubelet(kubelet) if kubelet else None,
        containers=raw.get("containers"),
        gpu_users=tuple(_gpu_user(user) for user in raw.get("gpu_users") or ()),
        images=dict(raw.get("images") or {}),
        installed_run=InstalledRun(**run) if (run := raw.get("installed_run")) else None,
        running=Run(running["run"], float(running["since"]), running["by"]) if running else None,
        unconfirmed=tuple(Unconfirmed(**entry) for entry in raw.get("unconfirmed") or ()),
        errors={**(raw.get("errors") or {}), **_unlisted(gpus, smi.get("list_error"))},
    )


def _os(release: Raw, arch: str) -> Os:
    name = release.get("ID", "")
    return Os(
        id=name,
        version=release.get("VERSION_ID", ""),
        pretty=release.get("PRETTY_NAME", name),
        codename=release.get("VERSION_CODENAME", ""),
        arch=arch,
        id_like=tuple(release.get("ID_LIKE", "").split()),
    )


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
        elif part := re.match(r"\s+MIG (\S+)\s+Device\s+(\d+): \(UUID: (\S+)\)", line):
            found[gpu] = (*found.get(gpu, ()), MigDevice(int(part[2]), part[3], part[1]))
    return found


def _gpu(row: list[str], mig: Mapping[str, tuple[MigDevice, ...]]) -> Gpu:
    index, uuid, name, pci, memory, *modes = row
    on, pending = (word == "Enabled" for word in (modes or ["", ""]))  # a driver before branch 450 has no MIG
    # nvidia-smi writes the PCI domain with eight digits, sysfs with four; GPUs that share the host's memory say [N/A].
    mib = int(memory) if memory.isdigit() else None
    return Gpu(int(index), uuid, name, pci.lower()[-12:], mib, mig.get(uuid) if on else (), on, pending)


def _unlisted(gpus: Iterable[Gpu], error: str | None) -> dict[str, str]:
    """Why the MIG devices of some GPUs are not known."""
    unknown = ", ".join(gpu.uuid for gpu in gpus if gpu.mig is None)
    return {"mig": f"nvidia-smi -L: {error or f'it does not name {unknown}'}"} if unknown else {}


def _unit(name: str, entry: Raw) -> Unit:
    return Unit(name, **{key: value for key, value in entry.items() if key != "pid"})


def _gpu_user(entry: Raw) -> GpuUser:
    return GpuUser(**{**entry, "gpus": tuple(entry.get("gpus") or ())})


def _docker(entry: Raw) -> Docker:
    lists = {key: tuple(entry.get(key) or ()) for key in ("runtimes", "v1_containers")}
    return Docker(**{**entry, **lists})


def _kubelet(entry: Raw) -> Kubelet:
    return Kubelet(
        entry["version"], tuple(entry["arguments"]), entry["unit_text"], tuple(entry.get("journal") or ())
    )
