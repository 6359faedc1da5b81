"""Installations by hand that were cut off while a package's script built the driver's modules: on apt and dpkg, on dnf and rpm."""

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import mirror, rhel
from .api import Lab, Node
from .conftest import Ran
from .packages import rpm
from .test_end_states import APT, proven, shell, sources

pytestmark = [pytest.mark.lab, pytest.mark.matrix]
GPUS = 4
MAKE = "/usr/bin/make"


@pytest.fixture
def node(lab: Lab) -> Iterator[Node]:
    """A bare host, which is bare again in the end."""
    node = lab.node("modern")
    node.reset()
    yield node
    node.reset()


@pytest.fixture
def run(lab: Lab, node: Node, gpunode: Callable[..., Ran]) -> Iterator[Callable[..., Ran]]:
    """gpunode on that host alone, with the lab's inventory or a text like it."""
    path = lab.inventory.with_name("halfway.yaml")

    def ran(command: str, *options: str, text: str = "") -> Ran:
        path.write_text(text or lab.inventory.read_text())
        return gpunode(command, "--json", "--limit", node.name, *options, inventory=path, timeout=800)

    yield ran
    path.unlink(missing_ok=True)


def cut_off(node: Node, command: str) -> None:
    """Begin an installation as root, and kill it and all that it has started while its module is built."""
    node.exec(["mv", MAKE, f"{MAKE}.real"])
    node.write(MAKE, "#!/bin/sh\nexec sleep infinity\n")
    node.exec(["chmod", "755", MAKE])
    unit = "by-hand"
    node.exec(["systemd-run", "--collect", f"--unit={unit}", "sh", "-c", command])
    node.wait_until("the build of a module", ["pgrep", "-x", "-f", "sleep infinity"], 120)
    node.exec(["systemctl", "kill", "--signal=KILL", unit])
    node.wait_until("the installation's end", ["sh", "-c", f"! systemctl is-active -q {unit}"])
    node.exec(["mv", f"{MAKE}.real", MAKE])


def modules(node: Node) -> str:
    """Those that dkms has."""
    return node.exec(["dkms", "status"]).stdout


def test_dpkg_killed_while_it_configures(lab: Lab, node: Node, run: Callable[..., Ran]):
    """Half configured packages are named, with the commands that end it; nothing is installed before."""
    sources(lab, node)
    cut_off(node, f"{APT} nvidia-open")
    states = node.exec(["dpkg-query", "-W", "-f", "${db:Status-Abbrev} ${Package}\n", "*nvidia*"]).stdout
    assert "iF  nvidia-kernel-open-dkms" in states, states

    refused = run("provision", "--yes")
    assert refused.code == 4, refused
    assert "half installed" in str(refused.of("outcome")[-1]["error"])
    for command in re.findall("`([^`]+)`", str(refused.of("outcome")[-1]["hint"]))[:2]:
        shell(node, f"DEBIAN_FRONTEND=noninteractive {command}")  # as the hint says
    proven(run("provision", "--yes"), GPUS)

    assert node.exec(["dpkg", "--audit"]).stdout == ""
    assert "installed" in modules(node)
    assert run("plan", "--exit-code").code == 0


def test_rpm_killed_in_a_scriptlet(lab: Lab, node: Node, run: Callable[..., Ran]):
    """What is missing is installed; the module that nobody has built is named, with what builds it."""
    with mirror.served(node, rpm.repositories()) as uri:
        rhel.become(node, uri, Path(lab.table["apt"]["key"]))
        repository = (
            f"[cuda]\nname=cuda\nbaseurl={uri}/cuda/\nenabled=1\ngpgcheck=1\ngpgkey=file://{rhel.KEY}\n"
        )
        node.write("/etc/yum.repos.d/cuda.repo", repository)
        install = "dnf -y module enable nvidia-driver:595-open && dnf -y install nvidia-driver-cuda kmod-nvidia-open-dkms"
        node.exec(["depmod"])  # a machine has a list of its modules before any driver
        cut_off(node, install)
        assert "kmod-nvidia-open-dkms" in node.exec(["rpm", "-qa"]).stdout
        assert "installed" not in modules(node)
        node.exec(["rm", "/etc/yum.repos.d/cuda.repo"])

        text = rhel.inventory(lab, uri)
        failed = run("provision", "--yes", text=text)
        assert failed.code == 1, failed
        assert "has no nvidia module" in str(failed.of("outcome")[-1]["error"])
        assert "`dkms autoinstall`" in str(failed.of("outcome")[-1]["hint"])
        node.exec(["dkms", "autoinstall"])
        proven(run("provision", "--yes", text=text), GPUS)

        assert "installed" in modules(node)
        assert node.exec(["dnf", "check"], check=False).stdout == ""
        assert run("plan", "--exit-code", text=text).code == 0
