"""The driver of a simulated host: modprobe, the modules of a boot, and NVIDIA's own installer."""

import re
import shutil
import sys

from gpunode.sim.host import mig
from gpunode.sim.host.answers import FREE, MODULES
from gpunode.sim.host.machine import Machine, Now
from gpunode.sim.host.state import State

RECORD = "var/lib/nvidia"
UNINSTALLER = '#!/bin/sh\nexec "$GPUNODE_SIM_PYTHON" -I "$GPUNODE_SIM_RUN" nvidia-uninstall "$@"\n'
LOG = "var/log/nvidia-installer.log"


def modprobe(state: State, arguments: list[str]) -> int:
    """`modprobe NAME` and `modprobe -r NAME`."""
    name = arguments[-1].replace("-", "_")
    with state.change() as now:
        problem = unload(now, name) if "-r" in arguments else load(state.machine(), now, name)
    if problem:
        sys.stderr.write(f"modprobe: {problem}\n")
        return 1
    return 0


def nvidia_smi(state: State, arguments: list[str]) -> int:
    """`nvidia-smi -i PCI …` and `nvidia-smi mig -i PCI …`, as far as gpunode calls them."""
    if "-lgip" in arguments:
        print("Failed to display GPU instance profiles: Not Supported")  # no table of them is here
        return 6
    words = [word for word in arguments if word != "mig"]
    with state.change() as now:
        status, text = mig.answer(state.machine(), now, words[1], words[2:])
    print(text)
    return status


def load(machine: Machine, now: Now, name: str) -> str | None:
    """Load a module as its package built it; returns modprobe's error, or None."""
    if name in now.modules:
        return None
    driver = installed_driver(now)
    if driver is None or not headers(machine, now):
        return f"FATAL: Module {name} not found in directory /lib/modules/{machine.kernel}"
    if FREE.keys() & now.modules.keys() or "module" in now.faults:
        return f"ERROR: could not insert '{name}': No such device"
    if "nvidia" not in now.modules:
        now.flavour = driver[1]
        also = MODULES if machine.gpus else ()  # by the rule that the packages bring for udev
        now.modules |= dict.fromkeys(("nvidia", *also), driver[0])
    now.modules[name] = driver[0]
    return None


def installed_driver(now: Now) -> tuple[str, str] | None:
    """(version, flavour) of the driver on disk."""
    if now.run:
        version, flavour = now.run.split()
        return version, flavour
    return driver_of_packages({package: entry.version for package, entry in now.packages.items()})


def driver_of_packages(packages: dict[str, str]) -> tuple[str, str] | None:
    """(release, flavour) of the installed driver, from its packages and their versions."""
    for name, version in packages.items():
        if re.fullmatch(r"nvidia(-open)?-kernel(-open)?-dkms|nvidia-dkms-\d+(-open)?", name):
            return version.rsplit("-", 1)[0], "open" if "-open" in name else "proprietary"
    return None


def next_kernel(kernel: str) -> str:
    """The kernel that an upgrade brings: 6.1.0-41-amd64 after 6.1.0-40-amd64."""
    return re.sub(r"-(\d+)-", lambda number: f"-{int(number[1]) + 1}-", kernel)


def headers(machine: Machine, now: Now) -> bool:
    """True if modules could be built for the running kernel."""
    return f"linux-headers-{machine.kernel}" in now.packages


def depmod(state: State, now: Now) -> None:
    """List the driver's module where its packages built one: for the running kernel, unless it lists one already, and for one of the
    next boot with its headers."""
    kernel = state.machine().kernel
    ahead = next_kernel(kernel)
    for each, built in ((kernel, True), (ahead, f"linux-headers-{ahead}" in now.packages)):
        path = state.root / "lib/modules" / each / "modules.dep"
        listed = path.exists() and (each == kernel or path.read_text(encoding="utf-8") != "")
        if installed_driver(now) is not None and built and not listed:
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text("updates/dkms/nvidia.ko:\n", encoding="utf-8")


def unload(now: Now, name: str) -> str | None:
    """Unload a module; returns modprobe's error, or None."""
    if name not in now.modules:
        return None
    users = [module for module in MODULES if module in now.modules]
    if name == "nvidia" and (users or now.gpu_users):
        return f"FATAL: Module {name} is in use."
    del now.modules[name]
    return None


def boot(state: State, now: Now) -> None:
    """Load the modules of a boot: those of modules-load.d, and nouveau or nova unless it is blacklisted."""
    machine = state.machine()
    now.modules = {}
    texts = [path.read_text(encoding="utf-8") for path in (state.root / "etc/modprobe.d").glob("*.conf")]
    blacklisted = any(re.search(rf"^blacklist {machine.free}$", text, re.M) for text in texts)
    if machine.free and machine.gpus and not blacklisted:
        now.modules[machine.free] = ""
    for path in sorted((state.root / "etc/modules-load.d").glob("*.conf")):
        for line in path.read_text(encoding="utf-8").splitlines():
            if line and not line.startswith("#"):
                load(machine, now, line.strip())


def install(state: State, arguments: list[str]) -> int:
    """`nvidia-installer VERSION OPTION...`, as the script in a .run file starts it."""
    version, *options = arguments
    machine, root = state.machine(), state.root
    with state.change() as now:
        error = ""
        if "nvidia" in now.modules and "--allow-installation-with-running-driver" not in options:
            error = "An NVIDIA kernel module 'nvidia' appears to be already loaded in your kernel."
        elif FREE.keys() & now.modules.keys() and "--no-nouveau-check" not in options:
            error = "The Nouveau kernel driver is currently in use by your system."
        elif not {"gcc", "make"} <= set(now.packages):
            error = "Unable to find the development tool `make` in your path"
        elif not headers(machine, now):
            error = "Unable to find the kernel source tree for the currently running kernel."
        (root / LOG).parent.mkdir(parents=True, exist_ok=True)
        (root / LOG).write_text(
            f"-> Installing NVIDIA driver version {version}.\n" + (f"ERROR: {error}\n" if error else "")
        )
        if error:
            sys.stderr.write(f"ERROR: {error}\n")
            return 1
        flavour = "open" if "--kernel-module-type=open" in options else "proprietary"
        now.run, now.library = f"{version} {flavour}", version
        modules = root / "lib/modules" / machine.kernel
        texts = {
            root / RECORD / "log": f"1.0-{version.replace('.', '')} ({version})\n",
            modules / "modules.dep": "updates/dkms/nvidia.ko:\n",
            root / "usr/bin/nvidia-uninstall": UNINSTALLER,
            state.folder / "bin/nvidia-uninstall": UNINSTALLER,
        }
        for path, text in texts.items():
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(text)
            path.chmod(0o755)
        if "--skip-module-load" not in options:
            load(machine, now, "nvidia")
    return 0


def uninstall(state: State, _arguments: list[str]) -> int:
    """`nvidia-uninstall --silent`: what is loaded stays loaded."""
    machine = state.machine()
    with state.change() as now:
        now.run = now.library = ""
        shutil.rmtree(state.root / RECORD)
        (state.root / "lib/modules" / machine.kernel / "modules.dep").unlink()
        for path in (state.root / "usr/bin/nvidia-uninstall", state.folder / "bin/nvidia-uninstall"):
            path.unlink()
    return 0
