"""Creates simulated hosts: a root folder with the files of a real host of its kind, and its first state."""

import os
import shutil
import sys
import time
import uuid
from pathlib import Path

from gpunode.sim.host import apt, driver, systemd
from gpunode.sim.host.machine import Machine, Now, PackageNow, UnitNow
from gpunode.sim.host.state import State

OVERLAY = Path(__file__).parent / "overlay"
PROGRAMS = Path(__file__).parent / "programs"
LOOK = ("cat", "grep", "head", "ls", "tail")  # of this computer, for users who log in to a host
REAL = ("cat", "date")  # of this computer, with its python3: all that a host's programs need
FOLDERS = ("run", "dev", "proc/driver", "sys/firmware", "sys/module", "etc/modprobe.d", "etc/modules-load.d")


def lay_out(demo: Path) -> None:
    """Create the folder of programs that all hosts of a demo share."""
    programs = demo / "programs"
    shutil.copytree(PROGRAMS, programs)
    for path in programs.glob("*/*"):
        path.chmod(0o755)
    for name in REAL:
        (programs / "common" / name).symlink_to(shutil.which(name) or f"/bin/{name}")
    (programs / "real").mkdir()
    for name in LOOK:
        (programs / "real" / name).symlink_to(shutil.which(name) or f"/bin/{name}")
        if name != "cat":
            (programs / "look" / name).symlink_to("cat")
    (programs / "common/python3").symlink_to(Path(sys.executable).resolve())


def create(demo: Path, machine: Machine) -> State:
    """Create a bare host that has run for some days."""
    state = State(demo / "hosts" / machine.name)
    for part in ("common", machine.runtime, machine.os):
        shutil.copytree(OVERLAY / part, state.root, dirs_exist_ok=True)
    for name in FOLDERS:
        (state.root / name).mkdir(parents=True, exist_ok=True)
    (state.root / "lib").symlink_to("usr/lib")
    _write_answers(state, machine)
    _bus(state.root, machine)
    units = [
        "containerd.service",
        *(["docker.service"] if machine.runtime == "docker" else []),
        "kubelet.service",
    ]
    now = Now(boot_id=str(uuid.uuid4()), booted=time.time() - 3 * 86400)
    now.units = {name: UnitNow() for name in units}
    now.packages = {"kubelet": PackageNow(f"{machine.kubelet}-1.1", held=True)}
    if machine.has:
        packages = apt.with_all_dependencies(machine.has, machine.os, machine.kernel)
        now.packages |= {name: PackageNow(version) for name, version in packages.items()}
        release = driver.driver_of_packages(packages)
        if release:
            now.library = release[0]
            (state.root / "etc/modules-load.d/nvidia.conf").write_text("nvidia\n", encoding="utf-8")
    state.create(machine, now)
    with state.change() as fresh:
        driver.boot(state, fresh)
        for name in units:
            systemd.start(state, fresh, name)
    return state


def _write_answers(state: State, machine: Machine) -> None:
    """Write the files and answers that never change."""
    old = machine.runtime == "docker"
    texts = {
        "root/etc/hostname": machine.name,
        "root/etc/machine-id": uuid.uuid4().hex,
        "root/sys/class/dmi/id/product_uuid": str(uuid.uuid4()),
        "root/proc/sys/kernel/hostname": machine.name,
        "root/proc/sys/kernel/osrelease": machine.kernel,
        "root/sys/fs/cgroup/cgroup.controllers": "cpuset cpu io memory pids",
        "answers/kubelet-version": f"Kubernetes v{machine.kubelet}",
        "answers/containerd-version": f"containerd github.com/containerd/containerd {'1.6.20' if old else 'v2.2.0'} 5b4ad7b",
    }
    for name, text in texts.items():
        path = state.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{text}\n", encoding="utf-8")


def _bus(root: Path, machine: Machine) -> None:
    devices = root / "sys/bus/pci/devices"
    devices.mkdir(parents=True)
    for gpu in machine.gpus:
        device = devices / gpu.address
        device.mkdir()
        facts = {
            "vendor": "0x10de",
            "device": f"0x{gpu.device}",
            "class": "0x030200",
            "numa_node": str(gpu.numa),
        }
        if gpu.subsystem:
            facts["subsystem_device"] = f"0x{gpu.subsystem}"
        for name, text in facts.items():
            (device / name).write_text(f"{text}\n", encoding="utf-8")


def user_environment(state: State, machine: Machine) -> dict[str, str]:
    """The environment of a user's command: in addition, programs that read the host's files."""
    variables = environment(state, machine)
    programs = state.folder.parents[1] / "programs/look"
    return variables | {"PATH": os.pathsep.join((str(programs), variables["PATH"]))}


def environment(state: State, machine: Machine) -> dict[str, str]:
    """The environment of a command on the host: its own root and programs, none of this computer's."""
    demo = state.folder.parents[1]
    parts = ("docker", "containerd") if machine.runtime == "docker" else ("containerd",)
    return {
        "GPUNODE_ROOT": str(state.root),
        "GPUNODE_SIM_PYTHON": sys.executable,
        "GPUNODE_SIM_RUN": str(PROGRAMS.with_name("run.py")),
        "PATH": os.pathsep.join(
            [
                str(state.folder / "bin"),
                *(str(demo / "programs" / part) for part in ("debian", *parts, "common")),
            ]
        ),
        "HOME": str(state.root),
        "PYTHONDONTWRITEBYTECODE": "1",
    }
