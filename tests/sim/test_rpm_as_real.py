"""dnf and rpm of a simulated host say and do what the real ones do, with the same packages in the same repositories.

The packages are made of the simulation's own catalogue, small, and served on loopback. Debian has all that it takes,
and `make lab` installs it. Compared are exit status, words and what is installed; not sizes, rates, widths of
columns and the order among packages that do not need each other.
"""

from __future__ import annotations

import functools
import http.server
import os
import re
import shlex
import shutil
import subprocess
import threading
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpunode.sim.host import hosts, kinds, rpms
from gpunode.sim.host.rpms import Rpm

MISSING = [name for name in ("dnf", "rpm", "rpmbuild", "createrepo_c") if shutil.which(name) is None]
pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
    pytest.mark.skipif(os.geteuid() != 0, reason="dnf installs into a folder as root only"),
]

REPOSITORIES = {
    "base": "/BaseOS/",
    "streams": "/AppStream/",
    "extra": "/epel/",
    "driver": "/cuda/",
    "tools": "/libnvidia-container/",
}
STORY = (
    "dnf repolist",
    "dnf repolist --all",
    "dnf makecache",
    "dnf list --installed",
    "dnf -q list --installed nosuch",
    "rpm -qa",
    "rpm -q dkms",
    "rpm -q dkms make",
    "rpm -q",
    "rpm -e dkms",
    "rpm --eval %{_arch}",
    "rpm --eval x%{?nosuch}y",
    "rpm --eval %nosuch",
    "dnf remove -y dkms",
    "dnf remove -y",
    "dnf check-update",
    "dnf list nosuch",
    "dnf info nosuch",
    "dnf install -y nosuch",
    "dnf install -y nosuch make none",
    "dnf upgrade -y nosuch",
    "dnf install --assumeno make",
    "dnf install make",
    "dnf -q install -y make",
    "dnf install -y make",
    "dnf install -y make-1:4.3-8.el9.x86_64",
    "dnf list --installed",
    "dnf list make",
    "dnf info make",
    "rpm -q make make.x86_64 make.noarch make-4.3 make-4.3-8.el9 make-1:4.3-8.el9 make-5",
    "rpm -q make*",
    r"rpm -q --qf '%{NAME} %{VERSION}-%{RELEASE} %{ARCH}\n' make",
    r"rpm -q --queryformat='%{name}|%{epoch}|%{EPOCHNUM}|%{EVR}|%{NEVRA}|%{NVR}|%{NEVR}|%{NVRA}\n' make",
    r"rpm -q --qf '%-10{NAME}|%10{NAME}|100%%\t\\\n' make",
    r"rpm -q --qf '%{FOO}\n' make",
    "rpm -q --qf '%{NAME' make",
    "dnf install -y kmod-nvidia-open-dkms-580.178.04 nvidia-driver-cuda-580.178.04",
    "dnf list --installed nvidia* kernel*",
    "dnf list --upgrades",
    "dnf list --available *nvidia*",
    "dnf list --showduplicates libnvidia-ml",
    "dnf check-update libnvidia-ml",
    "dnf check-update",
    r"rpm -qa --qf '%{NAME}\t%{VERSION}-%{RELEASE}\n' nvidia* nosuch",
    "rpm -qa kmod-*",
    "rpm -e libnvidia-cfg",
    "rpm -e make nosuch",
    "dnf install -y nvidia-driver-cuda",
    "dnf install -y nvidia-driver-cuda-3:580.178.04-1.el9.x86_64",
    "dnf upgrade -y libnvidia-ml",
    "dnf install -y libnvidia-ml-580.178.04",
    "dnf upgrade -y",
    "dnf check-update",
    "dnf install -y nvidia-container*",
    "dnf install -y libnvidia-container1",
    "dnf remove -y --setopt=clean_requirements_on_remove=0 nvidia-container-toolkit",
    "dnf install -y nvidia-container-toolkit",
    "dnf remove -y nosuch nvidia-container-toolkit",
    "dnf remove -y kernel-devel-matched",
    "dnf list --installed",
    "dnf install -y --disablerepo=extra kmod-nvidia-open-dkms",
    "dnf install -y --disablerepo=extra nvidia-open-595.91.07",
    "dnf --disablerepo=* install -y make",
    "dnf --disablerepo=* makecache",
    "dnf --disablerepo=nosuch repolist",
    "dnf --enablerepo=nosuch repolist",
    "dnf --repo=driver repolist",
    "rpm -ev nvidia-container-toolkit-base",
    "rpm -qa",
    "dnf clean all",
)


@dataclass(frozen=True)
class Said:
    """How a command ended: its words as sets of lines, what differs for good left out."""

    status: int
    out: list[str]
    err: list[str]


OTHERWISE = (
    r"^(usage: .*| {8,}.*)$",  # what options there are
    r"^(Total.*size|Installed size|Freed space|Size +): .*|^Total .*|^-{5,}$|^(URL|License|Description) +: .*",
    r"^.* (B/s|k?B/s|[kMG]B/s) \| .*$|^Last metadata expiration check: .*",
    r"^rpm: (RPM should not be used|However assuming).*",  # Debian's
    r"^\d+ files removed$|^Cache was expired$",
    r" +(?:[\d.]+ +[kMG]?|Size)$",
)


def lines(text: str) -> list[str]:
    """In an order of their own, with a space between words."""
    for pattern in OTHERWISE:
        text = re.sub(pattern, "", text, flags=re.M)
    text = re.sub(r"\bArchitecture\b(?! *:)", "Arch", text)
    text = re.sub(r"(\S) +\d+/(\d+) $", r"\1 of \2", text, flags=re.M)  # the step's number
    return sorted(" ".join(line.split()) for line in text.splitlines() if line.strip(" ="))


def spec(package: Rpm) -> str:
    epoch, version, release = package.parts
    head = {
        "Name": package.name,
        "Epoch": epoch or "0",
        "Version": version,
        "Release": release,
        "Summary": package.summary,
        "License": "none",
        "BuildArch": package.arch,
    }
    if not epoch:
        del head["Epoch"]
    rows = [f"{key}: {value}" for key, value in head.items()]
    rows += [f"Requires: {need}" for need in package.requires]
    rows += [f"Provides: {name} = {package.version}" for name in package.provides]
    return "\n".join([*rows, "%description", package.summary, "%files", ""])


def build(folder: Path, packages: Iterable[Rpm]) -> None:
    """A repository of these."""
    specs = []
    for one in packages:
        path = folder / "specs" / f"{one.nevra}.spec"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(spec(one))
        specs.append(str(path))
    defines = ["--define", f"_topdir {folder}/build", "--define", f"_rpmdir {folder}"]
    subprocess.run(["rpmbuild", "-bb", "--quiet", *defines, *specs], check=True, capture_output=True)
    subprocess.run(["createrepo_c", "-q", str(folder)], check=True, capture_output=True)


class Quiet(http.server.SimpleHTTPRequestHandler):
    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture(scope="module")
def repositories(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    """The .repo file of repositories with the catalogue's packages."""
    folder = tmp_path_factory.mktemp("repositories")
    machine = kinds.rpm("real")
    for place in REPOSITORIES.values():
        build(folder / place.strip("/"), rpms.held(place, machine) or ())
    handler = functools.partial(Quiet, directory=str(folder))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        url = f"http://127.0.0.1:{server.server_port}"
        yield (
            "\n".join(
                f"[{name}]\nname=The {name} one\nbaseurl={url}{place}\ngpgcheck=0\nenabled=1\n"
                for name, place in REPOSITORIES.items()
            )
            + f"[off]\nname=Off\nbaseurl={url}/epel/\nenabled=0\n"
        )
        server.shutdown()
        thread.join()


@pytest.fixture(scope="module")
def told(repositories: str, tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Said, Said]]:
    """The story, lived by both: what the real programs said, and what the stand-ins said."""
    folder = tmp_path_factory.mktemp("story")
    state = hosts.create(folder, kinds.rpm("simulated"))
    hosts.lay_out(folder)
    with state.change() as now:
        now.packages = {}
    shutil.rmtree(state.root / "etc/yum.repos.d")
    real = folder / "real"
    for root in (state.root, real):
        (root / "etc/yum.repos.d").mkdir(parents=True)
        (root / "etc/yum.repos.d/all.repo").write_text(repositories)
    (real / "etc/dnf").mkdir()
    defaults = (
        "[main]\nclean_requirements_on_remove=True\nbest=True\nskip_if_unavailable=False\n"  # of Rocky Linux
    )
    (real / "etc/dnf/dnf.conf").write_text(defaults)
    here = {
        "dnf": ["dnf", f"--installroot={real}", "--releasever=9", "--noplugins"],
        "rpm": ["rpm", f"--root={real}"],
    }
    environment = hosts.environment(state, state.machine())
    found = {}
    for step in STORY:
        program, *arguments = shlex.split(step)
        both = []
        for words, env in (
            ([*here[program], *arguments], {**os.environ, "LC_ALL": "C.UTF-8"}),
            (["/bin/sh", "-c", 'exec "$@"', "sh", program, *arguments], environment),
        ):
            done = subprocess.run(
                words, env=env, capture_output=True, text=True, check=False, stdin=subprocess.DEVNULL, cwd="/"
            )
            both.append(
                Said(
                    done.returncode,
                    *(lines(text.replace(str(real), "")) for text in (done.stdout, done.stderr)),
                )
            )
        found[f"{len(found)}: {step}"] = (both[0], both[1])
    return found


@pytest.mark.parametrize("step", [f"{number}: {step}" for number, step in enumerate(STORY)])
def test_the_stand_in_says_what_the_real_one_says(told: dict[str, tuple[Said, Said]], step: str) -> None:
    """Step by step of one story."""
    real, simulated = told[step]
    assert simulated == real
