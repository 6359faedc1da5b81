"""A machine's /proc, /sys and the output of its programs, as files: written at every change, so that reads are cheap."""

import contextlib
import json
import os
import re
import shutil
import time
from pathlib import Path

from gpunode.sim.host import mig
from gpunode.sim.host.machine import Machine, Now, SimGpu, UnitNow

DOCKER, CONTAINERD = "20.10.24", "2.2.0"
MODULES = ("nvidia_uvm", "nvidia_modeset", "nvidia_drm")  # which use nvidia
# A driver of Linux' own, by its module -> its name in sysfs
FREE = {"nouveau": "nouveau", "nova_core": "NovaCore"}


def write(folder: Path, machine: Machine, now: Now) -> None:
    """Update the machine's /proc, /sys, /dev and its programs' answers to its current state."""
    root, answers = folder / "root", folder / "answers"
    _kernel(root, now)
    _gpus(root, machine, now)
    _libraries(folder, now)
    _processes(root, now)
    _sockets(root, now)
    _units(answers, now)
    _put(answers / "packages", _packages(now))
    _put(answers / "images", "".join(f"{name} {image}\n" for name, image in now.images.items()))
    _put(answers / "ctr-images", _ctr_images(answers, machine, now))
    _put(answers / "docker-info", _docker_info(now) if now.is_active("docker.service") else None)
    _smi(folder, machine, now)
    _put(answers / "dmesg", "".join(_dmesg(machine, now)))


def _put(path: Path, text: str | None) -> None:
    """Write a file atomically; None removes it."""
    if text is None:
        path.unlink(missing_ok=True)
        return
    path.parent.mkdir(parents=True, exist_ok=True)
    new = path.with_name(f".{path.name}.new")
    new.write_text(text, encoding="utf-8")
    new.replace(path)


def _remove(folder: Path) -> None:
    """Remove a folder that holds only files."""
    for path in folder.iterdir():
        path.unlink()
    folder.rmdir()


def _link(path: Path, target: str | None) -> None:
    with contextlib.suppress(FileNotFoundError):
        path.unlink()
    if target is not None:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.symlink_to(target)


def _kernel(root: Path, now: Now) -> None:
    _put(root / "proc/sys/kernel/random/boot_id", f"{now.boot_id}\n")
    _put(root / "proc/uptime", f"{max(0.0, time.time() - now.booted):.2f} 0.00\n")
    loaded = root / "sys/module"
    loaded.mkdir(parents=True, exist_ok=True)
    for gone in {path.name for path in loaded.iterdir()} - set(now.modules):
        _remove(loaded / gone)
    users = sum(name in MODULES for name in now.modules) + len(now.gpu_users)
    for name, version in now.modules.items():
        _put(loaded / name / "refcnt", f"{users if name == 'nvidia' else 0}\n")
        _put(loaded / name / "version", f"{version}\n" if version else None)
    kind = "Open Kernel Module for x86_64" if now.flavour == "open" else "x86_64 Kernel Module"
    banner = f"NVRM version: NVIDIA UNIX {kind}  {now.modules.get('nvidia')}  Sat Nov 21 00:00:00 UTC 2026\n"
    _put(root / "proc/driver/nvidia/version", banner if "nvidia" in now.modules else None)


def owner(now: Now) -> str | None:
    """The kernel driver that is bound to the GPUs."""
    return next(
        (driver for name, driver in {"nvidia": "nvidia", **FREE}.items() if name in now.modules), None
    )


def _gpus(root: Path, machine: Machine, now: Now) -> None:
    driver = owner(now)
    for gpu in machine.gpus:
        link = root / "sys/bus/pci/devices" / gpu.address / "driver"
        _link(link, f"../../drivers/{driver}" if driver else None)
    devices = (
        {"nvidiactl", *(f"nvidia{n}" for n in range(len(machine.gpus)))} if driver == "nvidia" else set()
    )
    if "nvidia_uvm" in now.modules:
        devices.add("nvidia-uvm")
    (root / "dev").mkdir(exist_ok=True)
    for path in (root / "dev").glob("nvidia*"):
        if path.name not in devices:
            path.unlink()
    for name in devices:
        (root / "dev" / name).touch()


def _libraries(host: Path, now: Now) -> None:
    place = "usr/lib/x86_64-linux-gnu"
    folder = host / "root" / place
    known = f"\tlibnvidia-ml.so.1 (libc6,x86-64) => /{place}/libnvidia-ml.so.1\n"
    _put(host / "answers/ldconfig", known if now.library else None)
    for name in ("libnvidia-ml.so", "libcuda.so"):
        for path in folder.glob(f"{name}.*"):
            if path.name not in (f"{name}.1", f"{name}.{now.library}"):
                path.unlink()
        _link(folder / f"{name}.1", f"{name}.{now.library}" if now.library else None)
        if now.library:
            (folder / f"{name}.{now.library}").touch()


def _processes(root: Path, now: Now) -> None:
    alive = {str(unit.pid) for unit in now.units.values() if unit.pid}
    alive |= {str(user.pid) for user in now.gpu_users}
    for path in (root / "proc").iterdir():
        if path.name.isdigit() and path.name not in alive:
            shutil.rmtree(path)
    kubelet = now.units.get("kubelet.service", UnitNow())
    if kubelet.pid:
        _put(root / f"proc/{kubelet.pid}/cmdline", "".join(f"{word}\0" for word in now.arguments))
    for user in now.gpu_users:
        process = root / f"proc/{user.pid}"
        if not process.exists():
            _put(process / "cmdline", "".join(f"{word}\0" for word in user.argv))
            _put(
                process / "cgroup",
                f"0::/kubepods.slice/kubepods-pod{user.pod.replace('-', '_')}.slice/{user.id}\n",
            )
            _link(process / "fd/3", "/dev/nvidiactl")


def _sockets(root: Path, now: Now) -> None:
    for unit, path in (
        ("docker.service", "run/docker.sock"),
        ("containerd.service", "run/containerd/containerd.sock"),
    ):
        _put(root / path, "" if now.is_active(unit) else None)


def _units(answers: Path, now: Now) -> None:
    booted = time.time() - time.monotonic()  # of this computer, whose clock the host has
    for name, unit in now.units.items():
        # systemd restarts a unit that crashes; NRestarts counts since then.
        since = f"@{int(unit.failed)}" if unit.sub == "auto-restart" else ""
        shown = {
            "LoadState": "loaded",
            "ActiveState": unit.active,
            "SubState": unit.sub,
            "UnitFileState": "enabled" if unit.enabled else "disabled",
            "ActiveEnterTimestampMonotonic": int((unit.since - booted) * 1e6) if unit.since else 0,
            "NRestarts": f"{unit.restarts}{since}",
            "MainPID": unit.pid,
        }
        _put(answers / "units" / name, "".join(f"{key}={value}\n" for key, value in shown.items()) + "\n")
        _put(answers / "journal" / name, "".join(f"{int(when)} {line}\n" for when, line in unit.journal))
    crashing = any(unit.sub == "auto-restart" for unit in now.units.values())
    _put(answers / "crashing", "" if crashing else None)
    missing = "LoadState=not-found\nActiveState=inactive\nSubState=dead\nUnitFileState=\n"
    _put(answers / "units/.missing", f"{missing}ActiveEnterTimestampMonotonic=0\nNRestarts=0\nMainPID=0\n\n")


def _packages(now: Now) -> str:
    return "".join(
        f"{'hi' if package.held else 'ii'} \t{name}\t{package.version}\tamd64\n"
        for name, package in sorted(now.packages.items())
    )


def _docker_info(now: Now) -> str:
    info = {
        "ServerVersion": DOCKER,
        "Runtimes": {name: {} for name in now.runtime.handlers},
        "DefaultRuntime": now.runtime.default,
        "CgroupDriver": now.runtime.cgroup_driver,
        "ContainersRunning": len(now.containers)
        + len({container.pod for container in now.containers}),  # and sandboxes
        "LiveRestoreEnabled": False,
    }
    return f"{json.dumps(info)}\n"


def _ctr_images(answers: Path, machine: Machine, now: Now) -> str:
    """`ctr images ls`: it names manifests; the id is in what `ctr content get` gives for one."""
    lines = ["REF TYPE DIGEST SIZE PLATFORMS LABELS\n"]
    for name, image in now.images.items() if machine.runtime == "containerd" else ():
        manifest = "sha256:" + image.removeprefix("sha256:")[::-1]
        lines.append(
            f"{full_name(name)} application/vnd.oci.image.manifest.v1+json {manifest} 70.1 MiB linux/amd64 -\n"
        )
        _put(answers / "content" / manifest, json.dumps({"config": {"digest": image}}))
    return "".join(lines)


def full_name(reference: str) -> str:
    """A reference as containerd completes it."""
    first, slash, _ = reference.partition("/")
    if not slash:
        return f"docker.io/library/{reference}"
    return reference if "." in first or ":" in first else f"docker.io/{reference}"


def _smi(folder: Path, machine: Machine, now: Now) -> None:
    """nvidia-smi exists if a package contains it, or NVIDIA's installer brought it; its output and exit status are in two files."""
    program = folder / "bin/nvidia-smi"
    installed = bool(now.run or {"nvidia-smi", "nvidia-driver-cuda"} & set(now.packages)) or any(
        re.fullmatch(r"nvidia-utils-\d+", name) for name in now.packages
    )
    program.parent.mkdir(exist_ok=True)
    _link(program, "../../../programs/installed/nvidia-smi" if installed else None)
    status, text = nvml(machine, now)
    _put(folder / "answers/nvidia-smi", text)
    _put(folder / "answers/nvidia-smi.status", f"{status}\n")
    for gpu in machine.gpus:
        _put(folder / "answers/mig" / gpu.uuid, mig.listed(gpu, now) or None)


def nvml(machine: Machine, now: Now) -> tuple[int, str]:
    """nvidia-smi's exit status and output for the agent's query."""
    if "nvidia" not in now.modules:
        message = "couldn't communicate with the NVIDIA driver. Make sure that the latest NVIDIA driver is installed"
        return 9, f"NVIDIA-SMI has failed because it {message} and running.\n\n"
    if now.library and now.library != now.modules["nvidia"]:
        version = ".".join(now.library.split(".")[:2])
        return (
            18,
            f"Failed to initialize NVML: Driver/library version mismatch\nNVML library version: {version}\n",
        )
    lost = [gpu for gpu in machine.gpus if gpu.uuid in now.lost]
    if lost:
        where = f"GPU{machine.gpus.index(lost[0])}: {_bus(lost[0])}: GPU is lost"
        return (
            15,
            f"Unable to determine the device handle for {where}.  Reboot the system to recover this GPU\n",
        )
    mode = {True: "Enabled", False: "Disabled"}
    modes = {gpu: mode[gpu.uuid in now.mig] if gpu.device in mig.CAPABLE else "[N/A]" for gpu in machine.gpus}
    rows = (
        f"{n}, {gpu.uuid}, {gpu.name}, {_bus(gpu)}, {gpu.memory_mib}, {mode}, {mode}\n"
        for n, (gpu, mode) in enumerate(modes.items())
    )
    return 0, "".join(rows)


def _bus(gpu: SimGpu) -> str:
    return f"0000{gpu.address.upper()}"


def _dmesg(machine: Machine, now: Now) -> list[str]:
    address = {gpu.uuid: gpu.address for gpu in machine.gpus}
    return [
        f"[{time.time() - now.booted:12.6f}] NVRM: Xid (PCI:{address[uuid].rpartition('.')[0]}): {number}, pid=0\n"
        for uuid, number in now.xids
    ]


def pid() -> int:
    """A process id for a unit that starts; it is not one of this computer's."""
    return int.from_bytes(os.urandom(2), "big") + 70_000
