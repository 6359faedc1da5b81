"""The driver as NVIDIA's .run file: a makeself archive with an installer that behaves like NVIDIA's.

Its header differs from makeself's as NVIDIA's does: an option that it does not know is the installer's.
"""

import shutil
import subprocess
import tempfile
from pathlib import Path

from .. import cache, gpu
from . import _compile, deb, driver

HEADER = Path("/usr/share/makeself/makeself-header.sh")
# Of the Debian packages; the installer brings no unit, and disables nouveau only where it finds it.
PARTS = (
    "libnvidia-ml1",
    "libnvidia-ptxjitcompiler1",
    "libnvidia-cfg1",
    "libcuda1",
    "firmware-nvidia-gsp",
    "nvidia-modprobe",
    "nvidia-persistenced",
    "nvidia-smi",
    "nvidia-driver-cuda",
)


def files() -> Path:
    """A folder with NVIDIA-Linux-x86_64-<version>.run for each release."""

    def make(folder: Path) -> None:
        for release in driver.RELEASES:
            with tempfile.TemporaryDirectory() as work:
                built = _compile(Path(work), release)
                _archive(folder / name(release.number), release, built, Path(work, "archive"))

    inputs = [Path(__file__).parent, gpu.SOURCES, Path(gpu.__file__), gpu.compiler(), HEADER]
    return cache.entry("runfile", inputs, make)


def name(version: str) -> str:
    return f"NVIDIA-Linux-x86_64-{version}.run"


def _archive(path: Path, release: driver.Release, built: Path, tree: Path) -> None:
    packages = {package.name: package for package in driver.packages(release, built)}
    for part in PARTS:
        if part in packages:
            _unpack(packages[part], tree / "files")
    for module, flavour in (
        ("nvidia-kernel-dkms", "kernel"),
        ("nvidia-kernel-open-dkms", "kernel-open"),
    ):
        _unpack(packages[module], tree)
        (tree / f"usr/src/nvidia-{release.number}").rename(tree / flavour)
    shutil.rmtree(tree / "usr")
    text = (driver.FILES / "nvidia-installer").read_text()
    types = "type" if release.branch >= 555 else "directory"
    installer = tree / "nvidia-installer"
    installer.write_text(text.replace("@VERSION@", release.number).replace("@TYPES@", types))
    installer.chmod(0o755)
    header = tree.with_name("header.sh")
    unknown = '\techo Unrecognized flag : "\\$1" >&2\n\tMS_Help\n\texit 1\n\t;;\n'
    text = HEADER.read_text()
    assert unknown in text
    header.write_text(text.replace(unknown, "\tbreak ;;\n"))
    title = f"NVIDIA Accelerated Graphics Driver for Linux-x86_64 {release.number}"
    words = ["makeself", "--quiet", "--nox11", "--nomd5", "--sha256", "--header", str(header)]
    subprocess.run([*words, str(tree), str(path), title, "./nvidia-installer"], check=True)


def _unpack(package: deb.Package, into: Path) -> None:
    for path, content in package.files.items():
        if not path.endswith(".service"):
            deb.put(into / path.lstrip("/"), content, package.modes.get(path) or deb.mode(path))
