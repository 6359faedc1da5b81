"""Ubuntu 16.04's layout: os-release, sources.list, NVIDIA's repository ubuntu1604, a Python 3.5, NVIDIA's key by `apt-key add`.

The driver's packages have the names and relations of NVIDIA's for Ubuntu, as far as the compute part goes.
source: github.com/NVIDIA/ubuntu-packaging-nvidia-driver
"""

import os
import tempfile
from pathlib import Path

from .. import cache, gpu
from ..api import Node
from ..packages import _compile, archive, deb, driver, kernel
from . import python

VERSION = "460.106.00"
PACKAGE = f"{VERSION}-0ubuntu1"
CORE = ("nvidia-dkms-460", "nvidia-utils-460", "libnvidia-compute-460", "nvidia-compute-utils-460")
OS_RELEASE = """NAME="Ubuntu"
VERSION="16.04.7 LTS (Xenial Xerus)"
ID=ubuntu
ID_LIKE=debian
PRETTY_NAME="Ubuntu 16.04.7 LTS"
VERSION_ID="16.04"
VERSION_CODENAME=xenial
UBUNTU_CODENAME=xenial
"""
LSB_RELEASE = """DISTRIB_ID=Ubuntu
DISTRIB_RELEASE=16.04
DISTRIB_CODENAME=xenial
DISTRIB_DESCRIPTION="Ubuntu 16.04.7 LTS"
"""
DRIVER = "compute/cuda/repos/ubuntu1604/x86_64"
TOOLKIT = "libnvidia-container/stable/deb/amd64"
_CUDA = 11020  # the newest that the branch runs
# What each package has of the lab's own, by their names for Debian, and needs of its own version.
_PARTS: dict[str, tuple[tuple[str, ...], tuple[str, ...]]] = {
    "nvidia-kernel-common-460": (("nvidia-kernel-support", "firmware-nvidia-gsp", "nvidia-modprobe"), ()),
    "nvidia-dkms-460": (("nvidia-kernel-dkms",), ("nvidia-kernel-common-460",)),
    "libnvidia-compute-460": (("libcuda1", "libnvidia-ml1", "libnvidia-ptxjitcompiler1"), ()),
    "libnvidia-cfg1-460": (("libnvidia-cfg1",), ()),
    "nvidia-compute-utils-460": (("nvidia-persistenced",), ("libnvidia-compute-460", "libnvidia-cfg1-460")),
    "nvidia-utils-460": (("nvidia-smi",), ("libnvidia-compute-460",)),
    "nvidia-driver-460": ((), (*CORE, "libnvidia-cfg1-460")),
    "cuda-drivers-460": ((), ("nvidia-driver-460",)),
}


def repositories() -> Path:
    """A folder to serve over HTTP, signed by the lab's key: the archive below ubuntu/, NVIDIA's repository below DRIVER."""
    running = os.uname().release

    def make(folder: Path) -> None:
        ubuntu = folder / "ubuntu"
        ubuntu.mkdir()
        main = {"main": [kernel.headers(running).build(ubuntu)], "restricted": []}
        archive.write_suite(ubuntu, "xenial", main, "Ubuntu")
        archive.write_suite(ubuntu, "xenial-updates", {"main": [], "restricted": []}, "Ubuntu")
        with tempfile.TemporaryDirectory() as work:
            archive.write(folder / DRIVER, _packages(Path(work)), "NVIDIA")

    inputs: list[str | Path] = [Path(__file__), Path(driver.__file__).parent, gpu.SOURCES]
    return cache.entry("xenial", [*inputs, archive.key() / "key.asc", gpu.compiler(), running], make)


def become(node: Node, uri: str, key: Path) -> None:
    """A bare host becomes a bare one of this layout, whose owner has added NVIDIA's lists and key."""
    needs = "wget make patch libc6-dev linux-libc-dev"
    install = f"DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends {needs}"
    node.exec(["sh", "-ec", f"apt-get -qq update && {install}"])  # what Ubuntu's main would have
    node.exec(["sh", "-ec", "rm /etc/apt/sources.list.d/*; rm -rf /var/lib/apt/lists/*"])
    suites = ("xenial", "xenial-updates")
    for path, text in {
        "/usr/lib/os-release": OS_RELEASE,
        "/etc/lsb-release": LSB_RELEASE,
        "/etc/debian_version": "stretch/sid\n",
        "/etc/apt/sources.list": "".join(f"deb {uri}/ubuntu {suite} main restricted\n" for suite in suites),
        "/etc/apt/sources.list.d/cuda.list": f"deb {uri}/{DRIVER} /\n",
        "/etc/apt/sources.list.d/nvidia-container-toolkit.list": f"deb {uri}/{TOOLKIT} /\n",
    }.items():
        node.write(path, text)
    node.exec(["apt-key", "add", "-"], input=key.read_text())
    python.old(node)


def _packages(work: Path) -> list[deb.Package]:
    release = driver.Release(VERSION, _CUDA)
    debs = {package.name: package for package in driver.packages(release, _compile(work, release))}
    made = []
    for name, (parts, needs) in _PARTS.items():
        own = [debs[part] for part in parts]
        scripts = [package.scripts for package in own if package.scripts]
        more = ("dkms", "gcc", "libc6-dev") if name == "nvidia-dkms-460" else ()
        made.append(
            deb.Package(
                name,
                PACKAGE,
                f"NVIDIA driver {VERSION}, as Ubuntu packages it",
                (
                    *(f"{need} (= {PACKAGE})" for need in needs),
                    *more,
                    *(["adduser"] if "utils" in name else []),
                ),
                {"Source": "nvidia-graphics-drivers-460"},
                {path: content for package in own for path, content in package.files.items()},
                scripts[0] if scripts else {},
                {path: mode for package in own for path, mode in package.modes.items()},
            )
        )
    return made
