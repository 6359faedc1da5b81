"""The machine that the lab runs on: whether it can, what it must have installed, where its Debian comes from."""

import os
import platform
import re
import shutil
import signal
import subprocess
from pathlib import Path

from .process import run
from .progress import CannotRun, step

PACKAGES = (
    "docker.io",
    "containerd",
    "runc",
    "iptables",
    "iproute2",
    "etcd-server",
    "debootstrap",
    "busybox-static",
    "openssh-client",
    "openssl",
    "gnupg",
    "gcc",
    "libc6-dev",
    "python3-pip",
    "chromium-headless-shell",  # looks at the reports
    "createrepo-c",  # these: for the agent on real RPMs, and to compare the simulation's RPM host with
    "dnf",
    "dnf-plugins-core",
    "makeself",  # for the driver as a .run file
    "rpm",
)
MEMORY_GIB = 3  # the running lab takes 1.5, what its tests start the rest
COLD_MEMORY_GIB = 6  # a kubelet is linked in 3 GiB while nothing else of the lab runs
MORE_GIB = 2  # each further lab
DISK_GIB = 8  # the running lab; Go's caches and the lab's take as much again when they are filled
COLD_DISK_GIB = 20
MORE_DISK_GIB = 6  # each further lab
INOTIFY_INSTANCES = 2048
KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")
CGROUPS = Path("/sys/fs/cgroup")


def check() -> None:
    """Raise CannotRun with the reason, if this machine cannot run the lab."""
    if os.geteuid() != 0:
        raise CannotRun("The lab needs root: it starts a container daemon and network bridges.")
    release = platform.freedesktop_os_release() if Path("/etc/os-release").exists() else {}
    if (release.get("ID"), release.get("VERSION_ID")) != ("debian", "12"):
        raise CannotRun(
            f"The lab needs Debian 12; this is {release.get('PRETTY_NAME', 'an unknown system')}."
        )
    if platform.machine() != "x86_64":
        raise CannotRun(f"The lab needs an x86_64 machine; this is {platform.machine()}.")
    if not {"cpu", "memory"} <= _controllers():
        raise CannotRun(
            f"The lab needs the cgroup controllers cpu and memory under {CGROUPS}, of version 1 or 2."
        )
    if "overlay" not in Path("/proc/filesystems").read_text().split():
        raise CannotRun("The lab needs a kernel with overlayfs; /proc/filesystems does not list it.")


def has_cgroup2() -> bool:
    """Whether the machine has cgroup v2 alone; else it has v1, perhaps with v2's tree beside it."""
    return (CGROUPS / "cgroup.controllers").exists()


def cgroups() -> list[Path]:
    """The mounted cgroup trees: the one of v2, or those of v1."""
    trees = [CGROUPS] if has_cgroup2() else sorted(CGROUPS.iterdir())
    return [tree for tree in trees if (tree / "cgroup.procs").exists()]


def _controllers() -> set[str]:
    if has_cgroup2():
        return set((CGROUPS / "cgroup.controllers").read_text().split())
    return {tree.name for tree in cgroups()}


def check_room(labs: int, *, cold: bool) -> None:
    """Raise CannotRun if so many more labs would not fit on this machine now."""
    needed = (COLD_MEMORY_GIB if cold else MEMORY_GIB) + (labs - 1) * MORE_GIB
    if (memory := free_memory()) < needed:
        raise CannotRun(f"{_labs(labs)} {needed} GiB of free memory; this machine has {memory:.1f} GiB.")
    needed = (COLD_DISK_GIB if cold else DISK_GIB) + (labs - 1) * MORE_DISK_GIB
    if (disk := free_disk()) < needed:
        raise CannotRun(f"{_labs(labs)} {needed} GiB of free disk under /var/lib; there are {disk:.1f} GiB.")


def free_memory() -> float:
    """In GiB."""
    return int(re.findall(r"MemAvailable:\s+(\d+)", Path("/proc/meminfo").read_text())[0]) / 2**20


def free_disk() -> float:
    """In GiB, where the labs are."""
    return shutil.disk_usage("/var/lib").free / 2**30


def check_go() -> None:
    """Raise CannotRun if what the cache does not have cannot be compiled here."""
    version = run(["go", "env", "GOVERSION"]).strip() if shutil.which("go") else "none in PATH"
    if not re.match(r"go1\.(2[6-9]|[3-9]\d)", version):
        raise CannotRun(f"The lab compiles Kubernetes with Go 1.26; this machine has {version}.")


def install() -> None:
    """Install the Debian packages that are missing, without starting any of their services."""
    missing = [name for name in PACKAGES if not _installed(name)]
    if not missing:
        return
    with step(f"apt-get install {' '.join(missing)}"):
        _refresh()
        policy = Path("/usr/sbin/policy-rc.d")
        ours = not policy.exists()
        if ours:
            policy.write_text("#!/bin/sh\nexit 101\n")
            policy.chmod(0o755)
        held = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT, signal.SIGTERM})  # for apt, too
        try:
            run(
                [
                    "apt-get",
                    "install",
                    "-y",
                    "--no-install-recommends",
                    "-o",
                    "Dpkg::Options::=--force-confold",
                    "-o",
                    "DPkg::Lock::Timeout=300",  # another checkout may be at it
                    *missing,
                ],
                env={**os.environ, "DEBIAN_FRONTEND": "noninteractive"},
            )
        finally:
            if ours:
                policy.unlink()
            signal.pthread_sigmask(signal.SIG_SETMASK, held)


def raise_limits() -> None:
    """Let more systemds, kubelets and containerds watch files than one machine usually has (two labs fill 128)."""
    limit = Path("/proc/sys/fs/inotify/max_user_instances")
    if int(limit.read_text()) < INOTIFY_INSTANCES:
        limit.write_text(f"{INOTIFY_INSTANCES}\n")


def sources() -> str:
    """apt sources for a node: the Debian 12 archives that this machine itself uses, main only."""
    uris: dict[str, str] = {}  # suite -> URI
    for file in sorted(Path("/etc/apt/sources.list.d").glob("*.sources")):
        for stanza in re.split(r"\n\s*\n", file.read_text()):
            fields = dict(re.findall(r"(?m)^(\w[\w-]*):[ \t]*(.+)$", stanza))
            for suite in fields.get("Suites", "").split():
                uris.setdefault(suite, fields.get("URIs", "").split()[0])
    lists = [Path("/etc/apt/sources.list"), *sorted(Path("/etc/apt/sources.list.d").glob("*.list"))]
    for file in filter(Path.exists, lists):
        for uri, suite in re.findall(r"(?m)^deb\s+(?:\[[^]]*\]\s+)?(\S+)\s+(\S+)", file.read_text()):
            uris.setdefault(suite, uri)
    wanted = ("bookworm", "bookworm-updates", "bookworm-security")
    if "bookworm" not in uris:
        raise CannotRun(
            "The lab takes Debian from this machine's apt sources; none of them has the suite bookworm."
        )
    return "".join(
        f"Types: deb\nURIs: {uris[suite]}\nSuites: {suite}\nComponents: main\nSigned-By: {KEYRING}\n\n"
        for suite in wanted
        if suite in uris
    )


def mirror() -> str:
    """The archive that debootstrap reads."""
    return str(re.findall(r"URIs: (\S+)\nSuites: bookworm\n", sources())[0])


def apt_options() -> str:
    """apt settings that a node must share with this machine to accept the same archives (a frozen mirror's dates)."""
    lines = [
        line
        for line in run(["apt-config", "dump"]).splitlines()
        if re.match(r"Acquire::(Check-Valid-Until|Check-Date) ", line)
    ]
    return "".join(f"{line}\n" for line in lines)


def versions(packages: list[str]) -> str:
    """The versions that the archives offer now: part of the key of what is built from them."""
    policy = run(["apt-cache", "policy", *packages])
    if policy.count("Candidate:") < len(packages):
        _refresh()
        policy = run(["apt-cache", "policy", *packages])
    return "\n".join(re.findall(r"(?m)^\S+:$|^  Candidate: .*$", policy))


def _labs(labs: int) -> str:
    return "One lab needs" if labs == 1 else f"{labs} labs need"


def _refresh() -> None:
    run(["apt-get", "update"])


def _installed(name: str) -> bool:
    query = ["dpkg-query", "-W", "-f", "${db:Status-Status}", name]
    return subprocess.run(query, capture_output=True, text=True, check=False).stdout == "installed"
