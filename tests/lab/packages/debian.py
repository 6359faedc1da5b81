"""Debian 12's own driver as a part of its archive: packages of contrib, non-free and non-free-firmware, in a suite of the lab's.

They are the archive's own, fetched by apt and checked by its signatures, with their relations, scripts, triggers and alternatives.
Only what needs a GPU is replaced in them: libraries, programs, module sources, firmware.
"""

import re
import shutil
import subprocess
import tempfile
from pathlib import Path

from .. import cache, gpu, machine
from . import _compile, archive, deb, driver

SUITE = "bookworm"
COMPONENTS = ("contrib", "non-free", "non-free-firmware")
NAMES = (
    "firmware-nvidia-gsp",
    "glx-alternative-mesa",
    "glx-alternative-nvidia",
    "glx-diversions",
    "libcuda1",
    "libnvidia-cfg1",
    "libnvidia-ml1",
    "libnvidia-pkcs11-openssl3",
    "libnvidia-ptxjitcompiler1",
    "nvidia-alternative",
    "nvidia-installer-cleanup",
    "nvidia-kernel-common",
    "nvidia-kernel-dkms",
    "nvidia-kernel-support",
    "nvidia-legacy-check",
    "nvidia-modprobe",
    "nvidia-open-kernel-dkms",
    "nvidia-open-kernel-support",
    "nvidia-persistenced",
    "nvidia-smi",
    "nvidia-support",
    "update-glx",
)
CUDA = 12020  # the newest that branch 535 runs
LIBRARIES = ("libcuda", "libnvidia-ml")  # that do something; others are empty
LICENCES = {"nvidia-kernel-dkms": "NVIDIA", "nvidia-open-kernel-dkms": "Dual MIT/GPL"}


def repository() -> Path:
    """A folder to serve over HTTP, signed by the lab's key."""
    with tempfile.TemporaryDirectory() as folder:
        apt = _Apt(Path(folder))
        versions = apt.run("apt-cache", "policy", *NAMES)

        def build(into: Path) -> None:
            _build(into, apt, Path(folder, "work"))

        inputs: list[str | Path] = [Path(__file__).parent, gpu.SOURCES, Path(gpu.__file__)]
        inputs += [archive.key() / "key.asc", gpu.compiler()]
        inputs.append("\n".join(re.findall(r"(?m)^\S+:$|^  Candidate: .*$", versions)))
        return cache.entry("debian-driver", inputs, build)


def sources(uri: str, keyring: str) -> str:
    """The apt source of it, as Debian's installer writes one."""
    lines = f"Types: deb\nURIs: {uri}\nSuites: {SUITE}\nComponents: {' '.join(COMPONENTS)}\n"
    return f"{lines}Signed-By: {keyring}\n"


class _Apt:
    """apt with lists and a cache of its own, for the components that the hosts' sources do not have."""

    def __init__(self, folder: Path) -> None:
        sources = folder / "debian.sources"
        sources.write_text(
            machine.sources().replace("Components: main", f"Components: {' '.join(COMPONENTS)}")
        )
        (folder / "status").touch()
        for name in ("lists/partial", "cache/archives/partial"):
            (folder / name).mkdir(parents=True)
        settings = {
            "Dir::Etc::sourcelist": sources,
            "Dir::Etc::sourceparts": "-",
            "Dir::State::lists": folder / "lists",
            "Dir::State::status": folder / "status",
            "Dir::Cache": folder / "cache",
            "APT::Sandbox::User": "root",
        }
        self.options = [word for name, value in settings.items() for word in ("-o", f"{name}={value}")]
        self.run("apt-get", "update")

    def run(self, program: str, *words: str, cwd: Path | None = None) -> str:
        command = [program, *self.options, "-q", *words]
        return subprocess.run(command, cwd=cwd, check=True, capture_output=True, text=True).stdout


def _build(into: Path, apt: _Apt, work: Path) -> None:
    work.mkdir()
    apt.run("apt-get", "download", *NAMES, cwd=work)
    version = next(work.glob("libnvidia-ml1_*.deb")).name.split("_")[1]
    release = driver.Release(version.rpartition("-")[0], CUDA)
    built = _compile(work, release)
    made: dict[str, list[Path]] = {component: [] for component in COMPONENTS}
    for path in sorted(work.glob("*.deb")):
        root = work / path.stem
        subprocess.run(["dpkg-deb", "-R", str(path), str(root)], check=True)
        control = (root / "DEBIAN/control").read_text()
        section = re.findall(r"(?m)^Section: (.*)/", control)
        name = re.findall(r"(?m)^Package: (.*)$", control)[0]
        if _replace(name, root, release, built):
            (root / "DEBIAN/md5sums").unlink()
            note = " Stand-in of the gpunode lab: what needs a GPU is not Debian's.\n"
            (root / "DEBIAN/control").write_text(control + note)
            deb.pack(root, path)
        target = into / "pool" / section[0] / path.name
        target.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(path, target)
        made[section[0]].append(target)
    archive.write_suite(into, SUITE, made, "Debian")


def _replace(name: str, root: Path, release: driver.Release, built: Path) -> bool:
    """Put the lab's parts in place of those that need a GPU; whether the package has any."""
    if name in LICENCES:
        (source,) = (root / "usr/src").iterdir()
        for path in source.iterdir():
            if path.name != "dkms.conf":
                shutil.rmtree(path) if path.is_dir() else path.unlink()
        texts = {"@VERSION@": release.number, "@LICENSE@": LICENCES[name]}
        for path in (driver.FILES / "module").iterdir():
            if path.name != "dkms.conf":
                (source / path.name).write_text(driver.fill(path.read_text(), texts))
        return True
    if name == "firmware-nvidia-gsp":
        (folder,) = (root / "lib/firmware/nvidia").iterdir()
        for path in folder.iterdir():
            path.write_text("stand-in\n")
        (folder / "gsp_lab.bin").symlink_to(driver.STATE)
        return True
    parts = {library: built / f"{library}.so.{release.number}" for library in LIBRARIES}
    parts |= {each: built / each for each in ("nvidia-smi", "nvidia-modprobe", "nvidia-persistenced")}
    programs = [path for path in root.rglob("*") if _is_program(path)]
    for path in programs:
        new = parts.get(path.name.partition(".so.")[0], built / "empty.so")
        mode = path.stat().st_mode
        path.write_bytes(new.read_bytes())
        path.chmod(mode & 0o7777)
    return bool(programs)


def _is_program(path: Path) -> bool:
    return path.is_file() and not path.is_symlink() and path.read_bytes()[:4] == b"\x7fELF"
