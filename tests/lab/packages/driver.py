"""The driver's packages as NVIDIA's repository for Debian 12 has them: names, relations and scripts.

Up to branch 580 the metapackages exist with the branch in their name (cuda-drivers-580), from 590 on without; every
dependency is on exactly the same version, so an older branch needs nvidia-driver-pinning-<branch> (or a pin of one's own)
before apt can choose it.
"""

from dataclasses import dataclass
from pathlib import Path

from .deb import Link, Package

FILES = Path(__file__).parent / "files"
LIBRARIES = "/usr/lib/x86_64-linux-gnu"
STATE = "/run/lab-gpus/state"  # how the node's GPUs reach into containers


@dataclass(frozen=True, slots=True)
class Release:
    """A driver release and the newest CUDA that it runs (12040 is 12.4)."""

    number: str
    cuda: int

    @property
    def branch(self) -> int:
        return int(self.number.split(".")[0])

    @property
    def version(self) -> str:
        return f"{self.number}-1"


RELEASES = (
    Release("550.163.01", 12040),
    Release("580.178.04", 13000),
    Release("595.91.07", 13020),
    Release("615.71.05", 13040),  # the first branch with memory limits
)
_SOURCE = {"Source": "nvidia-graphics-drivers"}
_LDCONFIG = {"triggers": "activate-noawait ldconfig\n"}


def packages(release: Release, built: Path) -> list[Package]:
    """Every package of the release; `built` has its compiled files."""
    made = [*_libraries(release, built), *_kernel(release, built), *_tools(release, built), *_metas(release)]
    if release.branch >= 580:
        made += [_pinning(release, str(release.branch)), _pinning(release, release.number)]
    return made


def _make(release: Release, name: str, description: str, *exactly: str, **more: object) -> Package:
    """A package of the release that depends on others of exactly its version (and on `also`)."""
    also = more.pop("also", ())
    fields = {**_SOURCE, **more.pop("fields", {})}
    depends = (*(f"{other} (= {release.version})" for other in exactly), *also)
    return Package(name, release.version, description, depends, fields, **more)


def _library(release: Release, built: Path, name: str, package: str, *exactly: str) -> Package:
    real = f"{name}.so.{release.number}"
    source = built / real if (built / real).exists() else built / "empty.so"
    files = {f"{LIBRARIES}/{real}": source, f"{LIBRARIES}/{name}.so.1": Link(real)}
    return _make(release, package, f"NVIDIA driver library {name}", *exactly, files=files, scripts=_LDCONFIG)


def _libraries(release: Release, built: Path) -> list[Package]:
    return [
        _library(release, built, "libnvidia-ml", "libnvidia-ml1"),
        _library(release, built, "libnvidia-ptxjitcompiler", "libnvidia-ptxjitcompiler1"),
        _library(release, built, "libnvidia-cfg", "libnvidia-cfg1"),
        _library(release, built, "libcuda", "libcuda1", "libnvidia-ptxjitcompiler1"),
    ]


def _kernel(release: Release, built: Path) -> list[Package]:
    firmware = f"/lib/firmware/nvidia/{release.number}"
    state = {f"{firmware}/gsp_lab.bin": Link(STATE)}
    made = [
        _make(
            release,
            "firmware-nvidia-gsp",
            "NVIDIA GSP firmware",
            files={
                f"{firmware}/gsp_ga10x.bin": "stand-in\n",
                f"{firmware}/gsp_tu10x.bin": "stand-in\n",
                **state,
            },
        ),
        _make(
            release,
            "nvidia-modprobe",
            "utility to load NVIDIA kernel modules and create device nodes",
            files={"/usr/bin/nvidia-modprobe": built / "nvidia-modprobe"},
            modes={"/usr/bin/nvidia-modprobe": 0o4755},
        ),
        _make(
            release,
            "nvidia-kernel-support",
            "NVIDIA binary kernel module support files",
            "nvidia-modprobe",
            files={
                "/etc/modprobe.d/nvidia-blacklists-nouveau.conf": "blacklist nouveau\noptions nouveau modeset=0\n",
                "/usr/lib/udev/rules.d/60-nvidia.rules": (FILES / "60-nvidia.rules"),
            },
        ),
    ]
    for name, licence, other in (
        ("nvidia-kernel-dkms", "NVIDIA", "nvidia-kernel-open-dkms"),
        ("nvidia-kernel-open-dkms", "Dual MIT/GPL", "nvidia-kernel-dkms"),
    ):
        source = f"/usr/src/nvidia-{release.number}"
        texts = {"@VERSION@": release.number, "@LICENSE@": licence}
        files = {
            f"{source}/{path.name}": fill(path.read_text(), texts)
            for path in sorted((FILES / "module").iterdir())
        }
        provided = {
            "Provides": f"nvidia-kernel-{release.number}",
            "Conflicts": f"nvidia-kernel-{release.number}, {other}",
        }
        made.append(
            _make(
                release,
                name,
                "NVIDIA kernel module DKMS source",
                "nvidia-kernel-support",
                "firmware-nvidia-gsp",
                also=("dkms (>= 3.0.3-4~)",),
                fields=provided,
                files=files,
                scripts={
                    script: fill((FILES / "scripts" / f"dkms.{script}").read_text(), texts)
                    for script in ("postinst", "prerm")
                },
            )
        )
    return made


def _tools(release: Release, built: Path) -> list[Package]:
    smi = {"/usr/bin/nvidia-smi": built / "nvidia-smi"}
    daemon = {
        "/usr/bin/nvidia-persistenced": built / "nvidia-persistenced",
        "/lib/systemd/system/nvidia-persistenced.service": FILES / "nvidia-persistenced.service",
    }
    made = [
        _make(
            release,
            "nvidia-persistenced",
            "daemon to maintain persistent software state in the NVIDIA driver",
            "libnvidia-cfg1",
            "nvidia-modprobe",
            also=("adduser",),
            files=daemon,
            scripts=service_scripts(
                ["nvidia-persistenced.service"], (FILES / "scripts/persistenced.postinst").read_text()
            ),
        )
    ]
    if release.branch < 580:
        return [
            *made,
            _make(release, "nvidia-smi", "NVIDIA System Management Interface", "libnvidia-ml1", files=smi),
        ]
    replaced = {
        "Provides": f"nvidia-smi (= {release.version})",
        "Breaks": "nvidia-smi",
        "Replaces": "nvidia-smi",
    }
    return [
        *made,
        _make(
            release,
            "nvidia-driver-cuda",
            "NVIDIA driver CUDA integration components",
            "libcuda1",
            "libnvidia-ml1",
            "nvidia-modprobe",
            "nvidia-persistenced",
            fields=replaced,
            files={**smi, "/usr/bin/nvidia-cuda-mps-control": FILES / "nvidia-cuda-mps-control"},
        ),
    ]


def _metas(release: Release) -> list[Package]:
    compute = (
        ("nvidia-driver-cuda",)
        if release.branch >= 580
        else ("nvidia-smi", "libcuda1", "libnvidia-ml1", "nvidia-persistenced")
    )
    kernel = f"nvidia-kernel-dkms (= {release.version}) | nvidia-kernel-open-dkms (= {release.version})"
    made = [
        _make(
            release, "nvidia-driver", "NVIDIA metapackage", *compute, "nvidia-kernel-support", also=(kernel,)
        )
    ]
    for name, module in (("cuda-drivers", "nvidia-kernel-dkms"), ("nvidia-open", "nvidia-kernel-open-dkms")):
        fields = {"Source": name}
        if release.branch >= 590:
            made.append(
                _make(release, name, "NVIDIA driver meta-package", "nvidia-driver", module, fields=fields)
            )
            continue
        versioned = f"{name}-{release.branch}"
        made.append(_make(release, name, "NVIDIA driver meta-package", versioned, fields=fields))
        made.append(
            _make(
                release,
                versioned,
                f"NVIDIA driver meta-package, branch {release.branch}",
                "nvidia-driver",
                module,
                fields=fields,
            )
        )
    return made


def _pinning(release: Release, to: str) -> Package:
    """The package that keeps apt on a branch ("580") or on one release ("580.178.04")."""
    name = f"nvidia-driver-pinning-{to}"
    version = f"{to}-*" if "." in to else f"{to}.*"
    text = f"Package: src:*nvidia*:any src:cuda-drivers:any src:cuda-compat:any\nPin: version {version}\nPin-Priority: 1000\n"
    fields = {
        "Source": "nvidia-driver-pinning",
        "Provides": "nvidia-driver-pinning",
        "Conflicts": "nvidia-driver-pinning",
    }
    return Package(
        name,
        release.version,
        f"keeps apt on NVIDIA driver {to}",
        (),
        fields,
        {f"/etc/apt/preferences.d/{name}": text},
        architecture="all",
    )


def service_scripts(units: list[str], first: str = "") -> dict[str, str]:
    """Maintainer scripts that enable, start, stop and forget systemd units, as debhelper writes them."""
    names = " ".join(units)
    return {
        "postinst": fill(
            (FILES / "scripts/units.postinst").read_text(), {"@UNITS@": names, "@FIRST@": first}
        ),
        "prerm": fill((FILES / "scripts/units.prerm").read_text(), {"@UNITS@": names}),
        "postrm": fill((FILES / "scripts/units.postrm").read_text(), {"@UNITS@": names}),
    }


def fill(text: str, values: dict[str, str]) -> str:
    """The text with the names replaced by their values."""
    for name, value in values.items():
        text = text.replace(name, value)
    return text
