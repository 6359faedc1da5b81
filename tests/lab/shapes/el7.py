"""CentOS 7's layout: os-release, yum.repos.d whose mirrors are gone, EPEL, /etc/sysconfig, NVIDIA's repository rhel7, no python3.

yum is dnf 4 here, and gpunode speaks dnf's dialect to it. The driver's packages have the names, epoch and versions of NVIDIA's,
the kernel modules are built with the package, as there: no headers, no dkms.
source: NVIDIA/yum-packaging-nvidia-driver, branch rhel7
"""

import os
import subprocess
import tempfile
from collections.abc import Mapping
from pathlib import Path

from tests.rpms import Key, Package, build

from .. import builds, cache, gpu
from ..api import Node
from ..packages import _compile, archive, driver, rpm, toolkit
from . import python

VERSION = "460.106.00"
_CUDA = 11020  # the newest that the branch runs
_FULL = f"3:{VERSION}-1.el7"
_KMOD = f"3:3.10.0-1160.r{VERSION}.el7"
CORE = {"nvidia-driver-branch-460-cuda": _FULL, "kmod-nvidia-branch-460": _KMOD}
OS_RELEASE = """NAME="CentOS Linux"
VERSION="7 (Core)"
ID="centos"
ID_LIKE="rhel fedora"
VERSION_ID="7"
PRETTY_NAME="CentOS Linux 7 (Core)"
"""
_GONE = "http://mirrorlist.centos.org/?release=$releasever&arch=$basearch&repo"
BASE = f"""[base]
name=CentOS-$releasever - Base
mirrorlist={_GONE}=os
gpgcheck=1
gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-CentOS-7

[updates]
name=CentOS-$releasever - Updates
mirrorlist={_GONE}=updates
gpgcheck=1
gpgkey=file:///etc/pki/rpm-gpg/RPM-GPG-KEY-CentOS-7
"""
_CONFIG = "[main]\ngpgcheck=1\ninstallonly_limit=5\nclean_requirements_on_remove=True\n"
_KEY = "/etc/pki/rpm-gpg/RPM-GPG-KEY-CentOS-7"
_MODULES = ("nvidia", "nvidia-modeset", "nvidia-drm", "nvidia-uvm")


def repositories() -> Path:
    """A folder to serve over HTTP, with the signed repositories `rhel7`, `toolkit`, `epel` and `os`."""
    programs, running = builds.go(builds.TOOLKIT), os.uname().release

    def make(folder: Path) -> None:
        key = Key(archive.key() / "gnupg")
        with tempfile.TemporaryDirectory() as work:
            build(
                folder / "rhel7", _driver(_compile(Path(work), driver.Release(VERSION, _CUDA)), running), key
            )
        sources = builds.source(builds.TOOLKIT)
        build(folder / "toolkit", rpm._toolkit(toolkit.VERSIONS[-1], programs, sources), key)
        build(folder / "epel", [Package("ocl-icd", "2.2.12-1.el7")], key)
        shell = ("Provides: /bin/sh", "Provides: /sbin/ldconfig")
        plugin = Package("yum-plugin-versionlock", "1.1.31-54.el7_8")
        build(folder / "os", [Package("bash", "4.2.46-34.el7", shell), plugin], key)
        key.close()

    inputs = [
        Path(__file__),
        Path(rpm.__file__).parent,
        Path(build.__code__.co_filename),
        gpu.SOURCES,
        programs,
    ]
    return cache.entry("el7", [*inputs, archive.key() / "key.asc", gpu.compiler(), running], make)


def become(node: Node, uri: str, key: Path) -> None:
    """A bare host becomes a bare one of this layout, whose own repositories are gone but EPEL."""
    install = "DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends"
    node.exec(["sh", "-ec", f"apt-get -qq update && {install} curl dnf dnf-plugins-core rpm"])
    for path, text in {
        "/usr/lib/os-release": OS_RELEASE,
        "/etc/centos-release": "CentOS Linux release 7.9.2009 (Core)\n",
        "/etc/dnf/dnf.conf": _CONFIG,
        "/etc/dnf/plugins/local.conf": "[main]\nenabled = 0\n",  # a package of its own there
    }.items():
        node.write(path, text)
    node.exec(["mkdir", "-p", "/etc/yum.repos.d", "/etc/pki/rpm-gpg", "/etc/sysconfig"])
    node.write(_KEY, key.read_text())
    node.write("/etc/yum.repos.d/CentOS-Base.repo", BASE)
    epel = f"[epel]\nname=Extra Packages for Enterprise Linux 7\nbaseurl={uri}/epel/\nenabled=1\ngpgcheck=1\n"
    node.write("/etc/yum.repos.d/epel.repo", f"{epel}gpgkey=file://{_KEY}\n")
    node.exec(["sh", "-ec", "ln -s dnf-3 /usr/bin/yum; mv /etc/default/kubelet /etc/sysconfig/kubelet"])
    unit = "/etc/systemd/system/kubelet.service.d/10-kubeadm.conf"
    node.exec(["sed", "-i", "s,/etc/default/kubelet,/etc/sysconfig/kubelet,", unit])
    node.exec(["systemctl", "daemon-reload"])
    python.hide(node)
    # CentOS' yum has a Python of its own, too.
    node.exec(["sed", "-i", f"1s,.*,#!{python.HIDDEN}/python3.11,", "/usr/bin/dnf-3"])


def _driver(built: Path, running: str) -> list[Package]:
    """With the files of a release, as it was compiled."""
    debs = {package.name: package for package in driver.packages(driver.Release(VERSION, _CUDA), built)}

    def made(name: str, of: tuple[str, ...], needs: tuple[str, ...] = (), post: str = "") -> Package:
        files, modes = rpm._files(*(debs[text] for text in of))
        lines = tuple(f"Requires: {need}" for need in needs)
        return Package(name, _FULL, lines, "x86_64", files, modes, {"post": post} if post else {})

    head, linker = "nvidia-driver-branch-460", "/sbin/ldconfig"
    user = debs["nvidia-persistenced"].scripts["postinst"].split("adduser", 1)[1].splitlines()[0]
    daemon = (
        f"getent passwd nvidia-persistenced >/dev/null || adduser{user}\n"
        "systemctl daemon-reload; systemctl enable --now nvidia-persistenced >/dev/null 2>&1 || :"
    )
    libs = ("libcuda1", "libnvidia-ptxjitcompiler1", "libnvidia-cfg1")
    support, modes = rpm._files(debs["firmware-nvidia-gsp"], debs["nvidia-kernel-support"])
    kmod = Package(
        "kmod-nvidia-branch-460",
        _KMOD,
        (f"Provides: nvidia-kmod = 3:{VERSION}", "Requires: nvidia-modprobe-branch-460"),
        "x86_64",
        {**support, **_modules(built, running)},
        modes,
        {"post": f"depmod -a {running} || :", "postun": f"depmod -a {running} || :"},
    )
    exact = f"= 3:{VERSION}"
    return [
        made(f"{head}-NVML", ("libnvidia-ml1",), post=linker),
        made(f"{head}-cuda-libs", libs, (f"{head}-NVML {exact}",), post=linker),
        made(
            f"{head}-cuda",
            ("nvidia-smi",),
            (
                f"{head}-cuda-libs {exact}",
                f"nvidia-kmod {exact}",
                f"nvidia-persistenced-branch-460 {exact}",
                "ocl-icd",
            ),
        ),
        made("nvidia-persistenced-branch-460", ("nvidia-persistenced",), post=daemon),
        made("nvidia-modprobe-branch-460", ("nvidia-modprobe",)),
        kmod,
    ]


def _modules(built: Path, running: str) -> Mapping[str, str | Path]:
    """The prebuilt modules by their places."""
    release = built / "utsrelease.h"
    release.write_text(f'#define UTS_RELEASE "{running}"\n')
    source = built / "module.c"
    source.write_text((driver.FILES / "module/module.c").read_text())
    modules: dict[str, str | Path] = {}
    for name in _MODULES:
        words = [f"-DNAME={name.replace('-', '_')}", *(["-DALIASES"] if name == "nvidia" else [])]
        options = [
            "-c",
            "-ffreestanding",
            f"-DVERSION={VERSION}",
            '-DLICENSE="NVIDIA"',
            "-include",
            str(release),
        ]
        target = built / f"{name}.ko"
        subprocess.run(["gcc", *options, *words, "-o", str(target), str(source)], check=True)
        modules[f"/lib/modules/{running}/extra/{name}.ko"] = target
    return modules
