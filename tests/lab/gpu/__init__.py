"""Stand-ins for GPUs, below NVML: the PCI bus, the kernel modules, libnvidia-ml, libcuda, nvidia-smi.

`install` puts into a node image what a machine has before any driver: GPUs on its PCI bus and a kernel that can
load modules. The driver itself comes as packages (tests/lab/packages). README.md says what is real.
"""

import copy
import json
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from .. import cache
from . import mig
from .models import MODELS

SOURCES = Path(__file__).parent / "src"
ROOTFS = Path(__file__).parent / "rootfs"
_NODE_TOOL = ("lab-gpu.c", "boot.c", "kernel.c", "json.c", "state.c")
# a network card, and the audio function of a graphics card: NVIDIA's vendor id alone does not make a GPU
OTHER_DEVICES = (
    {
        "pci": "0000:5e:00.0",
        "vendor": "15b3",
        "device": "1021",
        "class": "020000",
        "numa": 0,
        "driver": "mlx5_core",
    },
    {
        "pci": "0000:5f:00.1",
        "vendor": "10de",
        "device": "10f7",
        "class": "040300",
        "numa": 0,
        "driver": "snd_hda_intel",
    },
)
_BUSES = ("19", "3b", "4c", "5d", "9b", "bb", "cb", "db")
_LIBRARIES = {
    "libnvidia-ml": (
        *("nvml.c", "nvml_device.c", "nvml_events.c", "nvml_limits.c", "nvml_mig.c"),
        *("driver.c", "state.c"),
    ),
    "libcuda": ("cuda.c", "ptx.c", "driver.c", "state.c"),
}


def install(
    rootfs: Path,
    gpus: Iterable[Mapping[str, Any]],
    pci: Iterable[Mapping[str, Any]] = OTHER_DEVICES,
    **node: Any,
) -> None:
    """Fill `rootfs`, the folder that is copied over a node's root, with a machine that has these GPUs.

    A GPU is {"model": a key of MODELS, "pci": "0000:3b:00.0", "numa": 0, ...}; every property of the model can be
    overridden; place, UUID, serial and NVLinks have stable defaults; "mig_layout": ["3g.40gb", ...] turns MIG on. `pci` are the other devices on the bus:
    {"pci", "vendor", "device", "class", "numa", "driver"}. `node`: nouveau=1 binds nouveau to the GPUs at boot.
    """
    wishes = list(gpus)
    described = [_describe(gpu, number, len(wishes)) for number, gpu in enumerate(wishes)]
    shutil.copytree(ROOTFS, rootfs, dirs_exist_ok=True, symlinks=True)
    for script in ("usr/local/sbin/dmesg",):
        (rootfs / script).chmod(0o755)
    tool = rootfs / "usr/local/sbin/lab-gpu"
    tool.parent.mkdir(parents=True, exist_ok=True)
    shutil.copy2(cache.entry("gpu-tool", [SOURCES, compiler()], _build_tool) / "lab-gpu", tool)
    configuration = {
        "gpus": sorted(described, key=lambda gpu: gpu["pci"]),
        "pci": [dict(d) for d in pci],
        **node,
    }
    (rootfs / "etc").mkdir(exist_ok=True)
    (rootfs / "etc/lab-gpus.json").write_text(json.dumps(configuration, indent=1) + "\n")
    modules = rootfs / "usr/lib/modules" / os.uname().release
    modules.mkdir(parents=True, exist_ok=True)
    (modules / "modules.order").write_text("")
    builtin = sorted(path.name for path in Path("/sys/module").iterdir())
    (modules / "modules.builtin").write_text("".join(f"kernel/{name}.ko\n" for name in builtin))
    (modules / "modules.builtin.modinfo").write_bytes(b"")


def build_libraries(into: Path, version: str, cuda: int) -> None:
    """Compile libnvidia-ml.so.<version>, libcuda.so.<version> and nvidia-smi of one driver version into a folder."""
    defines = [f'-DVERSION="{version}"', f"-DCUDA={cuda}"]
    stubs = into / "stubs.c"
    stubs.write_text(_stubs(version))
    for name, sources in _LIBRARIES.items():
        _gcc(
            into / f"{name}.so.{version}",
            [*sources, *([str(stubs)] if name == "libnvidia-ml" else [])],
            "-shared",
            "-fPIC",
            "-fvisibility=hidden",
            f"-Wl,-soname,{name}.so.1",
            "-lm",
            *defines,
        )
    _gcc(into / "nvidia-smi", ["nvidia-smi.c"], "-ldl")
    stubs.unlink()


def compiler() -> str:
    """What compiled code depends on besides its sources."""
    return subprocess.run(
        ["gcc", "--version"], check=True, capture_output=True, text=True
    ).stdout.splitlines()[0]


def _describe(gpu: Mapping[str, Any], number: int, count: int) -> dict[str, Any]:
    """All facts of a GPU: its model's, its place's, its own. The first half of the GPUs is at NUMA node 0."""
    wish = dict(gpu)
    model = copy.deepcopy(MODELS[wish.pop("model")])
    bus = _BUSES[number * len(_BUSES) // count % len(_BUSES)]
    place = {
        "pci": f"0000:{bus}:00.0",
        "numa": number * 2 // count,
        "module": number,
        "board": int(bus, 16) << 8,
    }
    layout = wish.pop("mig_layout", None)
    described = {**model, **place, "nvlinks": _links(model.get("nvlink_lanes", 0), number, count), **wish}
    identity = uuid.uuid5(uuid.NAMESPACE_OID, f"lab gpu {described['name']} {described['pci']}")
    described.setdefault("uuid", f"GPU-{identity}")
    described.setdefault("serial", f"{identity.int % 10**13:013d}")
    if layout is not None:
        described["mig"] |= {"enabled": 1, "devices": mig.devices(described, layout)}
    return described


def _links(lanes: int, number: int, count: int) -> list[Any]:
    """The other end of each NVLink: up to four GPUs are linked to each other directly, more through switches."""
    peers = [peer for peer in range(count) if peer != number]
    if not peers:
        return []
    return [peers[lane * len(peers) // lanes] if count <= 4 else "switch" for lane in range(lanes)]


def _stubs(version: str) -> str:
    """Every function of NVML that has no code of its own answers NOT_SUPPORTED, as a real one that cannot.

    A symbol file line is `name` or `name BRANCH`: the first driver branch whose library has the function.
    """
    lines = ['#define STUB(name) __attribute__((weak, visibility("default"))) int name(void) { return 3; }']
    for line in (SOURCES / "nvml_symbols.txt").read_text().splitlines():
        name, _, branch = line.partition(" ")
        if int(branch or 0) <= int(version.partition(".")[0]):
            lines.append(f"STUB({name})")
    return "\n".join(lines) + "\n"


def _build_tool(folder: Path) -> None:
    _gcc(folder / "lab-gpu", _NODE_TOOL, "-static")


def _gcc(output: Path, sources: Iterable[str], *options: str) -> None:
    command = ["gcc", "-O1", "-s", "-Wall", "-Wextra", "-Werror", "-o", str(output), *sources, *options]
    done = subprocess.run(command, cwd=SOURCES, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"gcc of {output.name} failed:\n{done.stderr}")
