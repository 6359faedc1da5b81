"""dnf and rpm of a simulated host: what the real ones say, kept as a table, and what is so afterwards.

`test_rpm_as_real.py` asks the real ones, where they are installed.
"""

from __future__ import annotations

import io
import os
import shlex
import subprocess
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import pytest

from gpunode.sim.host import hosts, kinds, rpms
from gpunode.sim.host.programs.dnf import dnf
from gpunode.sim.host.programs.rpm import rpm
from gpunode.sim.host.programs.transaction import Unsolvable, bring
from gpunode.sim.host.rpms import Rpm
from gpunode.sim.host.state import State


@dataclass(frozen=True)
class Said:
    """How a command ended."""

    status: int
    out: str
    err: str


Ask = Callable[[str], Said]


@pytest.fixture
def state(tmp_path: Path) -> State:
    """An RPM host, and NVIDIA's repositories in its files."""
    hosts.lay_out(tmp_path)
    made = hosts.create(tmp_path, kinds.rpm("rocky"))
    for name in ("cuda", "libnvidia-container"):
        text = f"[{name}]\nname={name}\nbaseurl=http://packages.demo.example/{name}\n"
        (made.root / f"etc/yum.repos.d/{name}.repo").write_text(text)
    return made


@pytest.fixture
def ask(state: State, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch) -> Ask:
    """Runs a command on it; stdin is empty."""
    monkeypatch.setattr("sys.stdin", io.StringIO())

    def ran(command: str) -> Said:
        program, *arguments = shlex.split(command)
        status = {"dnf": dnf, "rpm": rpm}[program](state, arguments)
        return Said(status, *capsys.readouterr())

    return ran


FACTS = [
    ("rpm -q nosuch", 1, "package nosuch is not installed\n", ""),
    ("rpm -q a b", 2, "package a is not installed\npackage b is not installed\n", ""),
    ("rpm -q make nosuch", 1, "make-4.3-8.el9.x86_64\npackage nosuch is not installed\n", ""),
    ("rpm -q make.noarch", 1, "package make.noarch is not installed\n", ""),
    ("rpm -q make-1:4.3-8.el9", 0, "make-4.3-8.el9.x86_64\n", ""),
    ("rpm -q 'make*'", 1, "package make* is not installed\n", ""),
    ("rpm -qa 'make*'", 0, "make-4.3-8.el9.x86_64\n", ""),
    ("rpm -qa nosuch", 0, "", ""),
    ("rpm -q", 1, "", "rpm: no arguments given for query\n"),
    ("rpm -q --qf '%{NAME} %{VERSION}-%{RELEASE} %{ARCH}\\n' make", 0, "make 4.3-8.el9 x86_64\n", ""),
    ("rpm -q --queryformat='%{name}|%{epoch}|%{evr}\\n' make", 0, "make|1|1:4.3-8.el9\n", ""),
    ("rpm -q --qf '%{EPOCH} %{EPOCHNUM} %{NEVRA}\\n' bash", 0, "(none) 0 bash-5.1.8-9.el9.x86_64\n", ""),
    ("rpm -q --qf '%-6{NAME}|%6{NAME}|100%%\\t\\\\' make", 0, "make  |  make|100%\t\\", ""),
    ("rpm -q --qf '%{FOO}' make", 0, "", 'error: incorrect format: unknown tag: "FOO"\n'),
    ("rpm -q --qf '%{NAME' make", 0, "", "error: incorrect format: missing } after %{\n"),
    ("rpm -e nosuch", 1, "", "error: package nosuch is not installed\n"),
    ("rpm --eval %{rhel}", 0, "9\n", ""),
    ("rpm -E %{_arch}%{?dist}%{?nosuch}", 0, "x86_64.el9\n", ""),
    ("rpm --eval %{nosuch}", 0, "%{nosuch}\n", ""),
    ("dnf --version", 0, "4.14.0\n", ""),
    ("dnf list --installed nosuch", 1, "", "Error: No matching Packages to list\n"),
    ("dnf -q list nosuch", 1, "", "Error: No matching Packages to list\n"),
    ("dnf -q info nosuch", 1, "", "Error: No matching Packages to list\n"),
    ("dnf -q check-update", 0, "", ""),
    (
        "dnf -q install -y nosuch",
        1,
        "No match for argument: nosuch\n",
        "Error: Unable to find a match: nosuch\n",
    ),
    (
        "dnf -q install -y a make b",
        1,
        "No match for argument: a\nPackage make-1:4.3-8.el9.x86_64 is already installed.\nNo match for argument: b\n",
        "Error: Unable to find a match: a b\n",
    ),
    (
        "dnf -q upgrade -y nosuch",
        1,
        "No match for argument: nosuch\n",
        "Error: No packages marked for upgrade.\n",
    ),
    (
        "dnf remove -y nosuch",
        0,
        "No match for argument: nosuch\nDependencies resolved.\nNothing to do.\nComplete!\n",
        "No packages marked for removal.\n",
    ),
    (
        "dnf remove -y dnf",
        1,
        "(try to add '--skip-broken' to skip uninstallable packages or '--nobest' to use not only best candidate "
        "packages)\n",
        "Error: \n Problem: The operation would result in removing the following protected packages: dnf\n",
    ),
    ("dnf --enablerepo=nosuch repolist", 1, "", "Error: Unknown repo: 'nosuch'\n"),
    (
        "dnf --disablerepo=* install -y gcc",
        1,
        "",
        'Error: There are no enabled repositories in "/etc/yum.repos.d", "/etc/yum/repos.d", "/etc/distro.repos.d".\n',
    ),
    (
        "dnf frobnicate",
        1,
        "",
        "No such command: frobnicate. Please use /usr/bin/dnf --help\n"
        "It could be a DNF plugin command, try: \"dnf install 'dnf-command(frobnicate)'\"\n",
    ),
    ("dnf list --nosuch", 2, "", "dnf list: error: unrecognized arguments: --nosuch\n"),
    ("dnf install", 2, "", "dnf install: error: the following arguments are required: PACKAGE\n"),
    (
        "dnf --repo=cuda --repo=epel repolist",
        0,
        "repo id  repo name\ncuda     cuda\nepel     Extra Packages for Enterprise Linux 9 - x86_64\n",
        "",
    ),
]


@pytest.mark.parametrize(("command", "status", "out", "err"), FACTS, ids=[fact[0] for fact in FACTS])
def test_a_command_says_what_the_real_one_says(
    ask: Ask, command: str, status: int, out: str, err: str
) -> None:
    """Seen of dnf 4.14 and rpm 4.18; %{rhel} and %{dist} are Rocky Linux's."""
    assert ask(command) == Said(status, out, err)


@pytest.mark.parametrize(
    "command", ["dnf history", "dnf", "rpm -qi make", "rpm -i x.rpm", "rpm --whatprovides x"]
)
def test_what_the_simulation_has_not_it_says(ask: Ask, command: str) -> None:
    """It claims nothing of the real one then."""
    said = ask(command)
    assert (said.status, said.out) == (1, "")
    assert "the simulation has" in said.err


def test_installed_packages_are_listed_with_where_they_came_from(ask: Ask) -> None:
    """And in `rpm -qa`, all of them."""
    ask("dnf install -y nvidia-container-toolkit")
    listed = ask("dnf list --installed").out.splitlines()
    assert listed[0] == "Installed Packages"
    rows = {row.split()[0]: row.split()[1:] for row in listed[1:]}
    assert rows["nvidia-container-toolkit.x86_64"] == ["1.20.1-1", "@libnvidia-container"]
    assert rows["bash.x86_64"][1] == "@anaconda"
    assert len(ask("rpm -qa").out.splitlines()) == len(rows)


def test_the_driver_comes_with_its_packages_and_goes_with_them(state: State, ask: Ask) -> None:
    """nvidia-smi, the library and the module, as on a host with apt."""
    environment = hosts.environment(state, state.machine())

    def run(command: str) -> subprocess.CompletedProcess[str]:
        words = ["/bin/sh", "-c", command]
        return subprocess.run(words, env=environment, capture_output=True, text=True, check=False)

    assert run("nvidia-smi").returncode == 127
    assert run("modprobe nvidia").returncode == 1
    said = ask("dnf install -y nvidia-driver-cuda-580.178.04")
    assert said.status == 0
    assert "Installing dependencies:" in said.out
    assert said.out.endswith("\nComplete!\n")
    assert "/usr/lib64/libnvidia-ml.so.1" in run("ldconfig -p").stdout
    assert (state.root / "lib64/libnvidia-ml.so.1").resolve().name == "libnvidia-ml.so.580.178.04"
    assert run("modprobe nvidia && nvidia-smi").stdout.count("H100") == 2
    assert (
        "Open Kernel Module for x86_64  580.178.04" in (state.root / "proc/driver/nvidia/version").read_text()
    )
    assert ask("rpm -q nvidia-driver-cuda").out == "nvidia-driver-cuda-580.178.04-1.el9.x86_64\n"
    ask("dnf remove -y libnvidia-ml")
    assert run("nvidia-smi").returncode == 127
    assert not run("ldconfig -p").stdout
    assert not [name for name in state.now().packages if "nvidia" in name or name in ("dkms", "gcc")]


def test_a_driver_for_another_kernel_than_the_running_one_is_not_loaded(state: State, ask: Ask) -> None:
    """dkms built it for the kernel whose headers are there."""
    ask("dnf install -y nvidia-driver-cuda")
    with state.change() as now:
        now.packages["kernel-devel"].version = "5.14.0-611.el9"
    words = ["/bin/sh", "-c", "modprobe nvidia"]
    done = subprocess.run(
        words, env=hosts.environment(state, state.machine()), capture_output=True, text=True, check=False
    )
    assert "Module nvidia not found in directory /lib/modules/5.14.0-570.el9.x86_64" in done.stderr


def versions(state: State) -> set[str]:
    """The driver releases that parts of are installed."""
    packages = rpms.installed(state.machine(), state.now().packages).values()
    return {one.parts[1] for one in packages if one.parts[0] == "3"}


def test_all_parts_of_a_driver_change_their_release_together(state: State, ask: Ask) -> None:
    """Whichever of them is named."""
    ask("dnf install -y nvidia-driver-cuda-580.178.04")
    assert versions(state) == {"580.178.04"}
    said = ask("dnf check-update libnvidia-ml")
    assert said.status == 100
    assert said.out.split() == ["libnvidia-ml.x86_64", "3:620.10.01-1.el9", "cuda"]
    assert "Upgrade  8 Packages" in ask("dnf install -y nvidia-driver-cuda").out
    assert versions(state) == {"620.10.01"}
    assert "Downgrading:" in ask("dnf install -y libnvidia-ml-595.91.07").out
    assert versions(state) == {"595.91.07"}
    assert ask("dnf upgrade -y").status == 0
    assert versions(state) == {"620.10.01"}
    assert "Nothing to do." in ask("dnf upgrade -y").out


def test_what_only_a_removed_package_needed_goes_with_it(state: State, ask: Ask) -> None:
    """Not what a user asked for."""
    ask("dnf install -y libnvidia-container1")
    ask("dnf install -y nvidia-container-toolkit")
    ask("dnf remove -y nvidia-container-toolkit")
    assert [name for name in state.now().packages if "nvidia" in name] == ["libnvidia-container1"]


def test_rpm_removes_nothing_that_others_need(ask: Ask) -> None:
    """It says who needs it; the epoch is in it, as rpm has it there."""
    ask("dnf install -y nvidia-driver-cuda-580.178.04")
    said = ask("rpm -e nvidia-persistenced")
    need = "nvidia-persistenced = 3:580.178.04 is needed by (installed) nvidia-driver-cuda-3:580.178.04-1.el9.x86_64"
    assert said == Said(1, "", f"error: Failed dependencies:\n\t{need}\n")
    assert ask("rpm -e nvidia-driver-cuda nvidia-persistenced") == Said(0, "", "")
    assert ask("rpm -q nvidia-persistenced").status == 1


@pytest.mark.parametrize(
    ("command", "answer", "status"),
    [("dnf install gcc", "", 1), ("dnf install gcc", "n\n", 1), ("dnf install gcc", "y\n", 0)],
)
def test_it_asks_before_it_changes_anything(
    ask: Ask, monkeypatch: pytest.MonkeyPatch, command: str, answer: str, status: int
) -> None:
    """No answer is a no."""
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    said = ask(command)
    assert said.status == status
    assert "Is this ok [y/N]: " in said.out
    assert said.err == ("Operation aborted.\n" if status else "")
    assert ask("rpm -q gcc").status == status


def test_metadata_is_read_once_and_then_has_an_age(state: State, ask: Ask) -> None:
    """Until it is cleaned away."""
    assert "Rocky Linux 9 - BaseOS" in ask("dnf list gcc").out
    for path in (state.root / "var/cache/dnf").iterdir():
        os.utime(path, (path.stat().st_atime, path.stat().st_mtime - 3601))
    assert ask("dnf list gcc").out.startswith("Last metadata expiration check: 1:00:0")
    assert "Rocky Linux 9 - BaseOS" in ask("dnf makecache").out
    ask("dnf clean all")
    assert "Rocky Linux 9 - BaseOS" in ask("dnf list gcc").out


@pytest.mark.parametrize("fault", ["a host that nobody knows", "the network is down"])
def test_a_repository_that_does_not_answer_stops_it(state: State, ask: Ask, fault: str) -> None:
    """With its id and address; nothing is changed."""
    place = state.root / "etc/yum.repos.d/aaa.repo"
    place.write_text("[aaa]\nname=A\nbaseurl=http://nosuch.example/cuda\n")
    if fault == "the network is down":
        with state.change() as now:
            now.faults["repository-unreachable"] = "1"
    else:
        place.write_text("[aaa]\nname=A\nbaseurl=http://nosuch.example/repo\n")
    before = state.now()
    said = ask("dnf install -y gcc")
    assert said.status == 1
    assert "Errors during downloading metadata for repository 'aaa':\n  - Curl error (6)" in said.err
    assert said.err.endswith("Cannot download repodata/repomd.xml: All mirrors were tried\n")
    assert state.now() == before
    assert ask("dnf list --installed bash").status == 0


def test_a_repository_file_that_is_none_is_passed_over(state: State, ask: Ask) -> None:
    """With a warning that names it."""
    (state.root / "etc/yum.repos.d/x.repo").write_text("name=x\n")
    said = ask("dnf repolist")
    assert said.status == 0
    assert said.err == "Warning: failed loading '/etc/yum.repos.d/x.repo', skipping.\n"


def test_a_repository_is_added_by_its_address_or_by_that_of_its_file(state: State, ask: Ask) -> None:
    """As dnf config-manager names them."""
    for url in ("http://packages.demo.example/cuda", "http://packages.demo.example/tools/toolkit.repo"):
        assert ask(f"dnf config-manager --add-repo {url}") == Said(0, f"Adding repo from: {url}\n", "")
    name = "packages.demo.example_cuda"
    assert (state.root / f"etc/yum.repos.d/{name}.repo").read_text() == (
        f"[{name}]\nname=created by dnf config-manager from http://packages.demo.example/cuda\n"
        "baseurl=http://packages.demo.example/cuda\nenabled=1\n"
    )
    assert (
        "baseurl=http://packages.demo.example/tools\n"
        in (state.root / "etc/yum.repos.d/toolkit.repo").read_text()
    )


TOP, MID = Rpm("top", "1-1", requires=("mid = 1",)), Rpm("mid", "1-1", requires=("nothing-has",))
TWO = [Rpm("two", f"{number}-1", requires=("nothing-has",)) for number in (1, 2)]


@pytest.mark.parametrize(
    ("wanted", "why"),
    [
        (MID, "conflicting requests\n  - nothing provides nothing-has needed by mid-1-1.x86_64"),
        (
            TOP,
            "package top-1-1.x86_64 requires mid = 1, but none of the providers can be installed\n"
            "  - conflicting requests\n  - nothing provides nothing-has needed by mid-1-1.x86_64",
        ),
        (TWO[0], "conflicting requests\n  - nothing provides nothing-has needed by two-1-1.x86_64"),
        (
            TWO[1],
            "cannot install the best candidate for the job\n  - nothing provides nothing-has needed by two-2-1.x86_64",
        ),
    ],
)
def test_what_cannot_be_installed_has_its_reason(wanted: Rpm, why: str) -> None:
    """In the solver's words, as seen of dnf 4.14."""
    with pytest.raises(Unsolvable) as caught:
        bring({}, [wanted], [TOP, MID, *TWO])
    assert str(caught.value) == why
