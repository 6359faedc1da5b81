"""The RPM host's story: gpunode refuses it by name, leaves it as it is, and the way out that it names leads on."""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from gpunode.sim.demo import Demo
from gpunode.sim.host import kinds
from gpunode.sim.show import farewell
from gpunode.verify import host_links
from tests.sim.fleets import Fleet, serving

REPOSITORY = "http://packages.demo.example"


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """A demo of that host alone, for gpunode's own commands."""
    with Demo([kinds.rpm("rocky-1")]) as running:
        yield running


def files(root: Path) -> dict[str, str]:
    """All that is on a host: a file's content, a link's target, a folder."""
    found = {}
    for path in root.rglob("*"):
        if path.is_symlink():
            found[str(path)] = str(path.readlink())
        elif path.is_file():
            found[str(path)] = f"{path.stat().st_mode:o} {hashlib.sha256(path.read_bytes()).hexdigest()}"
        else:
            found[str(path)] = f"{path.stat().st_mode:o}"
    return found


@pytest.mark.parametrize(
    ("words", "code"),
    [(["plan"], 4), (["provision", "--yes"], 4), (["verify"], 1)],
    ids=["plan", "provision", "verify"],
)
def test_it_is_refused_by_name_with_a_way_out_and_left_as_it_was(
    demo: Demo, words: list[str], code: int
) -> None:
    """Not a file is other than before, and no package."""
    state = demo.states["rocky-1"]
    before, now = files(state.root), state.now()
    command = [sys.executable, "-m", "gpunode", words[0], str(demo.inventory), *words[1:]]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == code, done.stdout + done.stderr
    assert "Rocky Linux 9.6 (Blue Onyx) on amd64: gpunode installs packages on Debian" in done.stdout
    assert "Install driver and toolkit by hand and set `driver: none` and `toolkit: none`" in done.stdout
    assert files(state.root) == before
    assert state.now() == now


def test_a_demo_that_is_kept_shows_how_to_look_at_its_packages(demo: Demo) -> None:
    """The command works as it is printed."""
    if shutil.which("ssh") is None:
        pytest.skip("no ssh here")
    lines = [line for line in farewell(demo).splitlines() if "dnf list --installed" in line]
    done = subprocess.run(
        ["sh", "-c", "\n".join(lines)], cwd=demo.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 0, done.stderr
    assert "kubelet.x86_64" in done.stdout


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """The same host, for what gpunode makes of it."""
    with serving(tmp_path, [kinds.rpm("rocky-1")]) as served:
        yield served


def ask(fleet: Fleet, command: str) -> tuple[int | None, str]:
    """A command over SSH, as a user gives it."""
    connection = fleet.dialer.connect(fleet.hosts()[0])
    try:
        remote = connection.start(command, [])
        text = b"".join(remote.lines()).decode()
        return remote.end()[0], text
    finally:
        connection.close()


def test_its_facts_are_known_all_the_same(fleet: Fleet) -> None:
    """System, GPUs, kubelet, and rpm's packages."""
    assert ask(fleet, "rpm -q nvidia-driver") == (1, "package nvidia-driver is not installed\n")
    assert ask(fleet, f"sudo dnf config-manager --add-repo {REPOSITORY}/libnvidia-container")[0] == 0
    assert ask(fleet, "sudo -n dnf install -y nvidia-container-toolkit")[0] == 0
    outcome = fleet.look()["rocky-1"]
    assert outcome.status == "refused"
    facts = outcome.facts
    assert facts is not None
    assert not facts.errors
    assert (facts.os.id, facts.os.version, len(facts.pci)) == ("rocky", "9.6", 2)
    assert facts.kubelet
    assert facts.kubelet.version == "1.36.3"
    assert facts.packages["nvidia-container-toolkit"].version == "1.20.1-1"


def test_the_way_out_that_the_refusal_names_leads_to_a_gpu_node(fleet: Fleet) -> None:
    """Driver and toolkit by hand, with dnf; gpunode does the rest if the inventory says `none`."""
    for name in ("cuda", "libnvidia-container"):
        ask(fleet, f"dnf config-manager --add-repo {REPOSITORY}/{name}")
    assert ask(fleet, "dnf install -y nvidia-driver-cuda nvidia-container-toolkit")[0] == 0
    assert ask(fleet, "modprobe nvidia") == (0, "")
    told = [replace(host, driver="none", toolkit="none") for host in fleet.hosts()]
    wiser = replace(fleet, inventory=replace(fleet.inventory, hosts=tuple(told)))
    outcome = wiser.provision()["rocky-1"]
    assert (outcome.status, outcome.error) == ("changed", None)
    assert not outcome.plan
    assert all(link.status == "ok" for link in host_links(outcome)), host_links(outcome)
    assert "DevicePlugins" not in (fleet.states["rocky-1"].root / "etc/sysconfig/kubelet").read_text()
