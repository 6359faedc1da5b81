"""nvidia-container-toolkit's packages: NVIDIA's own programs, units and maintainer scripts, from its Go module.

libnvidia-container is not Go: its two packages are stand-ins that satisfy the exact dependencies.
"""

from pathlib import Path

from .deb import Package
from .driver import FILES, LIBRARIES, service_scripts

VERSIONS = ("1.19.1", "1.20.1")  # the programs are those of the newest in each


def packages(version: str, programs: Path, module: Path) -> list[Package]:
    """The four packages of a version. `programs`: the compiled commands; `module`: the toolkit's sources."""
    debian = f"{version}-1"
    systemd, scripts = module / "deployments/systemd", module / "packaging/debian"
    exactly = f"(= {debian})"
    hook = Package(
        "nvidia-container-toolkit",
        debian,
        "NVIDIA Container toolkit",
        (
            f"nvidia-container-toolkit-base {exactly}",
            f"libnvidia-container-tools {exactly}",
            "libnvidia-container-tools (<< 2.0.0)",
        ),
        {
            "Breaks": "nvidia-container-runtime (<= 3.5.0-1), nvidia-container-runtime-hook",
            "Replaces": "nvidia-container-runtime (<= 3.5.0-1), nvidia-container-runtime-hook",
        },
        {"/usr/bin/nvidia-container-runtime-hook": programs / "nvidia-container-runtime-hook"},
        {name: _script(scripts / f"nvidia-container-toolkit.{name}") for name in ("postinst", "postrm")},
    )
    units = service_scripts(["nvidia-cdi-refresh.path", "nvidia-cdi-refresh.service"])
    own = _script(scripts / "nvidia-container-toolkit-base.postinst").removesuffix("exit 0\n")
    base = Package(
        "nvidia-container-toolkit-base",
        debian,
        "NVIDIA Container Toolkit Base",
        (),
        {
            "Breaks": "nvidia-container-runtime (<= 3.5.0-1), nvidia-container-runtime-hook, nvidia-container-toolkit (<= 1.10.0-1)",
            "Replaces": "nvidia-container-runtime (<= 3.5.0-1), nvidia-container-runtime-hook",
        },
        {
            **{
                f"/usr/bin/{name}": programs / name
                for name in ("nvidia-container-runtime", "nvidia-ctk", "nvidia-cdi-hook")
            },
            **{
                f"/lib/systemd/system/{unit}": systemd / unit
                for unit in ("nvidia-cdi-refresh.service", "nvidia-cdi-refresh.path")
            },
            "/lib/systemd/system/nvidia-cdi-refresh.service.d/10-container-engines.conf": systemd
            / "10-container-engines.conf",
            "/lib/udev/rules.d/99-nvidia-cdi-refresh.rules": module
            / "deployments/udev/99-nvidia-cdi-refresh.rules",
            "/etc/nvidia-container-toolkit/nvidia-cdi-refresh.env": systemd / "nvidia-cdi-refresh.env",
        },
        {**units, "postinst": own + units["postinst"].removeprefix("#!/bin/sh\nset -e\n")},
    )
    cli = (FILES / "nvidia-container-cli").read_text().replace("@VERSION@", version)
    return [
        hook,
        base,
        Package(
            "libnvidia-container-tools",
            debian,
            "NVIDIA container runtime library (command-line tools)",
            (f"libnvidia-container1 {exactly}",),
            files={"/usr/bin/nvidia-container-cli": cli},
        ),
        Package(
            "libnvidia-container1",
            debian,
            "NVIDIA container runtime library",
            files={f"{LIBRARIES}/libnvidia-container.so.{version}": "stand-in\n"},
        ),
    ]


def docker2() -> Package:
    """nvidia-docker2 as it ended: empty, it only pulls in the toolkit."""
    return Package(
        "nvidia-docker2",
        "2.14.0-1",
        "NVIDIA Docker wrapper (transitional)",
        ("nvidia-container-toolkit (>= 1.14.0-1)",),
        architecture="all",
    )


def _script(path: Path) -> str:
    return path.read_text().replace("#DEBHELPER#\n", "")
