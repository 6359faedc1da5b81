"""The lab's signed apt repositories: NVIDIA's driver and container toolkit under their real names, and kernel headers."""

import shutil
import subprocess
import tempfile
from pathlib import Path

from .. import builds, cache, gpu
from . import archive, driver, toolkit
from . import kernel as kernel_packages

REPOSITORIES = ("cuda", "toolkit/stable/deb/amd64", "os")


def repository(cache_root: Path, toolkit_bin: Path, kernel: str) -> Path:
    """A folder to serve over HTTP: `key.asc`, and the flat repositories `cuda`, `toolkit/stable/deb/amd64` and `os`.

    `toolkit_bin` has the compiled commands of the toolkit, `kernel` is the nodes' `uname -r`.
    """
    assert cache_root == cache.root()

    def build(folder: Path) -> None:
        shutil.copy(archive.key() / "key.asc", folder / "key.asc")
        with tempfile.TemporaryDirectory() as work:
            packages = [
                p
                for release in driver.RELEASES
                for p in driver.packages(release, _compile(Path(work), release))
            ]
            archive.write(folder / REPOSITORIES[0], packages, "NVIDIA")
        sources = builds.source(builds.TOOLKIT)  # units and maintainer scripts are not in the programs
        packages = [
            p for version in toolkit.VERSIONS for p in toolkit.packages(version, toolkit_bin, sources)
        ]
        archive.write(folder / REPOSITORIES[1], [*packages, toolkit.docker2()], "NVIDIA")
        archive.write(folder / REPOSITORIES[2], [kernel_packages.headers(kernel)], "Debian")

    inputs: list[str | Path] = [
        Path(__file__).parent,
        gpu.SOURCES,
        Path(gpu.__file__),
        archive.key() / "key.asc",
        toolkit_bin,
        kernel,
        gpu.compiler(),
    ]
    return cache.entry("apt", inputs, build)


def _compile(work: Path, release: driver.Release) -> Path:
    built = work / release.number
    built.mkdir()
    gpu.build_libraries(built, release.number, release.cuda)
    (built / "empty.c").write_text("int lab_stand_in;\n")
    for name, source, options in (
        ("empty.so", built / "empty.c", ["-shared", "-fPIC"]),
        ("nvidia-modprobe", driver.FILES / "nvidia-modprobe.c", []),
        ("nvidia-persistenced", driver.FILES / "nvidia-persistenced.c", [f'-DVERSION="{release.number}"']),
    ):
        subprocess.run(
            ["gcc", "-O1", "-s", "-Wall", "-Werror", "-o", built / name, source, *options], check=True
        )
    return built
