"""The driver and the toolkit as RPMs, as NVIDIA's repositories for RHEL 9 have them: names, epoch, relations, module streams.

Source: NVIDIA/yum-packaging-nvidia-driver (nvidia-driver.spec, nvidia-persistenced.spec, kmod-nvidia-*-dkms.spec) and the
toolkit's own spec. What is in them is what is in the Debian packages, at Debian's places: the host is one.
"""

import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.rpms import Key, Package, build

from .. import builds, cache, gpu
from . import _compile, archive, deb, driver, toolkit

REPOSITORIES = ("cuda", "toolkit", "epel", "base")
CONFIG = "/etc/nvidia-container-runtime/config.toml"
RELEASES = [release for release in driver.RELEASES if release.branch >= 580]
DKMS = """dkms add -m nvidia -v {0} -q --rpm_safe_upgrade || :
dkms build -m nvidia -v {0} -q || :
dkms install -m nvidia -v {0} -q --force || :"""


def repositories() -> Path:
    """A folder to serve over HTTP, with a signed repository in each of REPOSITORIES."""
    programs = builds.go(builds.TOOLKIT)

    def make(folder: Path) -> None:
        key = Key(archive.key() / "gnupg")
        with tempfile.TemporaryDirectory() as work:
            parts = {release.branch: _driver(release, _compile(Path(work), release)) for release in RELEASES}
            streams = {}
            for branch, packages in parts.items():
                for stream, other in (("open", "latest"), ("dkms", "open")):
                    names = [package for package in packages if package.name != f"kmod-nvidia-{other}-dkms"]
                    streams[f"{branch}-{stream}"] = names
            build(folder / "cuda", [each for packages in parts.values() for each in packages], key, streams)
        sources = builds.source(builds.TOOLKIT)
        build(folder / "toolkit", _toolkit(toolkit.VERSIONS[-1], programs, sources), key)
        build(folder / "epel", [Package("dkms", "3.3.0-1.el9")], key)
        shell = ("Provides: /bin/sh", "Provides: /sbin/ldconfig")
        named = [Package(name, "1-1.el9") for name in ("ocl-icd", "opencl-filesystem", "gcc", "make")]
        plugin = Package("python3-dnf-plugin-versionlock", "4.3.0-20.el9")
        build(folder / "base", [Package("bash", "5.1.8-9.el9", shell), plugin, *named], key)
        key.close()

    inputs = [
        Path(__file__).parent,
        Path(build.__code__.co_filename),
        gpu.SOURCES,
        programs,
        archive.key() / "key.asc",
    ]
    return cache.entry("rpm", inputs, make)


def _driver(release: driver.Release, built: Path) -> list[Package]:
    debs = {package.name: package for package in driver.packages(release, built)}
    version, full = f"3:{release.number}", f"3:{release.number}-1.el9"

    def made(
        name: str,
        of: tuple[str, ...],
        needs: tuple[str, ...] = (),
        more: tuple[str, ...] = (),
        **rest: object,
    ) -> Package:
        files, modes = _files(*(debs[text] for text in of))
        lines = (*(f"Requires: {need} = {version}" for need in needs), *more)
        return Package(name, full, lines, "x86_64", files, modes, **rest)

    linker = {"post": "/sbin/ldconfig", "postun": "/sbin/ldconfig"}
    user = debs["nvidia-persistenced"].scripts["postinst"].split("adduser", 1)[1].splitlines()[0]
    daemon = (
        f"getent passwd nvidia-persistenced >/dev/null || adduser{user}\n"
        "systemctl daemon-reload; systemctl enable --now nvidia-persistenced >/dev/null 2>&1 || :"
    )
    modules = [
        made(
            f"kmod-nvidia-{flavour}-dkms",
            (source,),
            ("nvidia-kmod-common",),
            ("Requires: dkms", f"Provides: nvidia-kmod = {version}", f"Conflicts: kmod-nvidia-{other}-dkms"),
            scripts={
                "post": DKMS.format(release.number),
                "preun": f"dkms remove -m nvidia -v {release.number} --all -q || :",
            },
        )
        for flavour, other, source in (
            ("open", "latest", "nvidia-kernel-open-dkms"),
            ("latest", "open", "nvidia-kernel-dkms"),
        )
    ]
    return [
        made(
            "nvidia-driver-cuda",
            ("nvidia-driver-cuda",),
            ("nvidia-driver-cuda-libs", "nvidia-kmod-common", "nvidia-persistenced"),
            ("Requires: opencl-filesystem", "Requires: ocl-icd"),
        ),
        made(
            "nvidia-driver-cuda-libs",
            ("libcuda1", "libnvidia-ptxjitcompiler1"),
            ("libnvidia-ml", "libnvidia-cfg"),
            scripts=linker,
        ),
        made("libnvidia-ml", ("libnvidia-ml1",), scripts=linker),
        made("libnvidia-cfg", ("libnvidia-cfg1",), scripts=linker),
        made("nvidia-persistenced", ("nvidia-persistenced",), ("libnvidia-cfg",), scripts={"post": daemon}),
        made("nvidia-modprobe", ("nvidia-modprobe",)),
        made(
            "nvidia-kmod-common",
            ("firmware-nvidia-gsp", "nvidia-kernel-support"),
            ("nvidia-kmod", "nvidia-modprobe"),
        ),
        *modules,
    ]


def _toolkit(version: str, programs: Path, sources: Path) -> list[Package]:
    debs = {package.name: package for package in toolkit.packages(version, programs, sources)}
    needs = {
        "nvidia-container-toolkit": ("libnvidia-container-tools", "nvidia-container-toolkit-base"),
        "libnvidia-container-tools": ("libnvidia-container1",),
    }
    link = "ln -sf /usr/bin/nvidia-container-runtime-hook /usr/bin/nvidia-container-toolkit"
    units = "systemctl daemon-reload; systemctl enable --now nvidia-cdi-refresh.path nvidia-cdi-refresh.service || :"
    scripts = {
        "nvidia-container-toolkit": {"posttrans": link},
        "nvidia-container-toolkit-base": {
            "post": f"/usr/bin/nvidia-ctk --quiet config --config-file={CONFIG} --in-place",
            "posttrans": f"{units} >/dev/null 2>&1",
        },
    }
    return [
        Package(
            name,
            f"{version}-1",
            tuple(f"Requires: {need} = {version}-1" for need in needs.get(name, ())),
            "x86_64",
            *_files(each),
            scripts.get(name, {}),
        )
        for name, each in debs.items()
    ]


def _files(*packages: deb.Package) -> tuple[dict[str, str | Path], Mapping[str, int]]:
    """The files of Debian packages, and their modes where they are not 644."""
    files: dict[str, str | Path] = {}
    modes: dict[str, int] = {}
    for package in packages:
        for path, content in package.files.items():
            files[path] = f"-> {content.target}" if isinstance(content, deb.Link) else content
            modes[path] = package.modes.get(path) or (0o755 if "/bin/" in path else 0o644)
    return files, modes
