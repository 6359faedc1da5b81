"""Debian's own driver on the real cluster: its archive's packages with their scripts, relations and alternatives (`packages/debian.py`)."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from . import mirror
from .api import Lab, Node
from .conftest import Ran
from .packages import debian

pytestmark = [pytest.mark.lab, pytest.mark.matrix]
KEY = "/etc/apt/keyrings/debian.asc"
OWN = {"from": "distribution"}
PACKAGE, DKMS = "nvidia-kernel-dkms", "nvidia-current"


class Kind(NamedTuple):
    """A host, how many GPUs it has, and NVIDIA's driver for them: branch and package."""

    host: str
    gpus: int
    branch: str
    theirs: str


KINDS = (
    Kind("modern", 4, "595", "nvidia-open"),
    Kind("legacy", 2, "580", "cuda-drivers-580"),
)


@pytest.fixture(scope="module", params=KINDS, ids=lambda kind: f"{kind.host}")
def kind(request) -> Kind:
    assert isinstance(request.param, Kind)
    return request.param


@pytest.fixture(scope="module")
def node(lab: Lab, kind: Kind) -> Iterator[Node]:
    """A bare host whose apt knows the archive's components; bare again in the end."""
    node = lab.node(kind.host)
    node.reset()
    with mirror.served(node, debian.repository()) as uri:
        node.exec(["mkdir", "-p", "/etc/apt/keyrings"])
        node.write(KEY, Path(lab.table["apt"]["key"]).read_text())
        node.write("/etc/apt/sources.list.d/components.sources", debian.sources(uri, KEY))
        yield node
    node.reset()


@pytest.fixture(scope="module")
def run(lab: Lab, node: Node, gpunode: Callable[..., Ran]) -> Iterator[Callable[..., Ran]]:
    """gpunode on that host alone; `driver` as the inventory has it."""
    path = lab.inventory.with_name("distribution.yaml")

    def ran(command: str, driver: Any, *options: str) -> Ran:
        wish = f"defaults:\n  driver: {json.dumps(driver)}\n"
        path.write_text(lab.inventory.read_text().replace("defaults:\n", wish))
        return gpunode(command, "--json", "--limit", node.name, *options, inventory=path, timeout=800)

    yield ran
    path.unlink(missing_ok=True)


def proven(ran: Ran, kind: Kind) -> None:
    """It ended well, and every GPU has run vectoradd."""
    assert ran.code == 0, ran
    assert len({row["uuid"] for row in ran.of("vectoradd") if row["result"] == "passed"}) == kind.gpus, ran


def installed(node: Node) -> dict[str, str]:
    """The packages of a driver and their versions; the toolkit's are named like them."""
    rows = node.exec(["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package} ${Version}\n"]).stdout
    versions = {
        name: version for state, name, version in map(str.split, rows.splitlines()) if state == "installed"
    }
    words = ("nvidia", "cuda", "glx")
    return {n: v for n, v in versions.items() if any(word in n for word in words) and "container" not in n}


def is_debians(node: Node, kind: Kind) -> None:
    """Module, library and programs are of Debian's packages, under its names and by its alternatives."""
    packages = installed(node)
    assert PACKAGE in packages
    assert not {
        name for name in packages if name in (kind.theirs, "nvidia-driver-cuda", "nvidia-kernel-open-dkms")
    }
    number = packages[PACKAGE].rpartition("-")[0]
    assert node.read("/sys/module/nvidia/version").strip() == number
    assert f"{DKMS}/{number}" in node.exec(["dkms", "status"]).stdout
    assert f"-i {DKMS} " in node.read("/etc/modprobe.d/nvidia.conf")
    library = node.exec(["readlink", "-f", "/usr/lib/x86_64-linux-gnu/libnvidia-ml.so.1"]).stdout.strip()
    assert library == f"/usr/lib/x86_64-linux-gnu/nvidia/current/libnvidia-ml.so.{number}"
    assert PACKAGE in node.exec(["apt-mark", "showhold"]).stdout.split()


def is_nvidias(node: Node, kind: Kind) -> None:
    """Nothing of Debian's is left that would be in the way of NVIDIA's, whose files are as they came."""
    packages = installed(node)
    assert kind.theirs in packages
    assert not [name for name, version in packages.items() if version.startswith("535")]
    assert node.exec(["sh", "-c", "ls /etc/modprobe.d/nvidia.conf"], check=False).stdout == ""
    assert "nvidia-current" not in node.exec(["dkms", "status"]).stdout
    assert node.exec(["dpkg", "--verify", *packages]).stdout == ""
    assert node.read("/sys/module/nvidia/version").startswith(f"{kind.branch}.")


def test_from_bare_to_every_gpu(node: Node, run: Callable[..., Ran], kind: Kind):
    """And a second run has nothing to do."""
    proven(run("provision", OWN, "--yes"), kind)
    is_debians(node, kind)
    assert run("plan", OWN, "--exit-code").code == 0


def test_its_modules_are_loaded_at_boot(node: Node, run: Callable[..., Ran], kind: Kind):
    """By Debian's names for them."""
    node.reboot()
    node.wait_ready()
    assert run("plan", OWN, "--exit-code").code == 0
    is_debians(node, kind)


def test_it_is_not_replaced_unless_somebody_asks(node: Node, run: Callable[..., Ran], kind: Kind):
    """`driver: auto` names it, and what to write to have it kept or replaced."""
    refused = run("plan", "auto")
    assert refused.code == 4, refused
    error = refused.of("outcome")[-1]
    assert "the distribution's own archive" in str(error["error"])
    assert "driver: {from: distribution}" in str(error["hint"])


def test_nvidias_packages_take_its_place_and_it_theirs(node: Node, run: Callable[..., Ran], kind: Kind):
    """Never both."""
    theirs = {"from": "nvidia", "version": kind.branch}
    proven(run("provision", theirs, "--yes"), kind)
    is_nvidias(node, kind)
    assert run("plan", theirs, "--exit-code").code == 0

    proven(run("provision", OWN, "--yes"), kind)
    is_debians(node, kind)
    assert run("plan", OWN, "--exit-code").code == 0
