"""NVIDIA's own installer of a driver, and the uninstaller that it leaves, on a simulated host."""

from __future__ import annotations

import shutil
import sys

from gpunode.sim.host.answers import FREE
from gpunode.sim.host.programs import kernel
from gpunode.sim.host.state import State

RECORD = "var/lib/nvidia"
UNINSTALLER = '#!/bin/sh\nexec "$GPUNODE_SIM_PYTHON" -I "$GPUNODE_SIM_RUN" nvidia-uninstall "$@"\n'
LOG = "var/log/nvidia-installer.log"


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
        elif not kernel.headers(machine, now):
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
            kernel.load(machine, now, "nvidia")
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
