"""NVIDIA's own installer on the real cluster, by a .run file of the lab that behaves like NVIDIA's: beside apt, and beside dnf."""

import hashlib
import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import mirror, rhel
from .api import Lab, Node
from .conftest import Ran
from .packages import rpm, runfile

pytestmark = [pytest.mark.lab, pytest.mark.matrix]
GPUS = 4
OLD, NEW = "580.178.04", "595.91.07"
# The installed packages, and their files that are not as they came.
LISTS = {
    "apt": ["dpkg-query", "-W", "-f", "${db:Status-Status} ${Package}\\n"],
    "dnf": ["rpm", "-qa", "--qf", "installed %{NAME}\\n"],
}
CHANGED = {"apt": ["dpkg", "--verify"], "dnf": ["rpm", "--verify", "--nomtime"]}
META = {"apt": "nvidia-open-580", "dnf": "kmod-nvidia-open-dkms"}


@pytest.fixture(scope="module", params=["apt", "dnf"])
def system(request) -> str:
    """Whose packages the host has."""
    return str(request.param)


@pytest.fixture(scope="module")
def node(lab: Lab) -> Node:
    return lab.node("modern")


@pytest.fixture(scope="module")
def run(lab: Lab, node: Node, system: str, gpunode: Callable[..., Ran]) -> Iterator[Callable[..., Ran]]:
    """gpunode on that host alone, which is bare at first and in the end; `driver` as the inventory has it."""
    path = lab.inventory.with_name("runfile.yaml")
    node.reset()
    with mirror.served(node, rpm.repositories()) as uri:
        if system == "dnf":
            rhel.become(node, uri, Path(lab.table["apt"]["key"]))
        text = rhel.inventory(lab, uri) if system == "dnf" else lab.inventory.read_text()

        def ran(command: str, driver: dict[str, str], *options: str) -> Ran:
            path.write_text(text.replace("defaults:\n", f"defaults:\n  driver: {json.dumps(driver)}\n"))
            return gpunode(command, "--json", "--limit", node.name, *options, inventory=path)

        yield ran
    path.unlink(missing_ok=True)
    node.reset()


@pytest.fixture(scope="module")
def address(node: Node) -> Iterator[str]:
    """Where the host finds the .run files."""
    with mirror.served(node, runfile.files()) as address:
        yield address


def wish(version: str, **where: str) -> dict[str, str]:
    """The inventory's `driver` for a release."""
    digest = hashlib.sha256((runfile.files() / runfile.name(version)).read_bytes()).hexdigest()
    return {"from": "run", "version": version, "sha256": digest, **where}


def proven(ran: Ran, name: str) -> None:
    """It ended well, and every GPU has run vectoradd."""
    assert ran.code == 0, ran
    assert ran.status(name) == "changed"
    passed = {row["uuid"] for row in ran.of("vectoradd") if row["result"] == "passed"}
    assert len(passed) == GPUS, ran


def is_by_installer(node: Node, version: str, system: str) -> None:
    """The driver is there as its installer leaves it, and no package of one."""
    assert f"({version})" in node.read("/var/lib/nvidia/log").splitlines()[0]
    assert node.read("/sys/module/nvidia/version").strip() == version
    assert f"nvidia/{version}" in node.exec(["dkms", "status"]).stdout
    libraries = node.exec(["sh", "-c", "ls /usr/lib/x86_64-linux-gnu/libnvidia-ml.so.*.*"]).stdout.split()
    assert [path.rpartition(".so.")[2] for path in libraries] == [version]
    assert not packages(node, system)


def packages(node: Node, system: str) -> set[str]:
    """Those of a driver that are installed; the toolkit's are named like them."""
    rows = [row.split() for row in node.exec(LISTS[system]).stdout.splitlines()]
    names = {name for status, name in rows if status == "installed" and ("nvidia" in name or "cuda" in name)}
    return {name for name in names if "container" not in name}


def test_from_bare_by_a_mirror_to_every_gpu(node: Node, address: str, run: Callable[..., Ran], system: str):
    """The host fetches the file; nothing of it stays behind."""
    driver = wish(OLD, url=f"{address}/{runfile.name(OLD)}")
    proven(run("provision", driver, "--yes"), node.name)
    is_by_installer(node, OLD, system)
    assert run("plan", driver, "--exit-code").code == 0
    assert (
        node.exec(["find", "/var/lib/gpunode", "-name", "payload-*", "-o", "-name", "unpacked"]).stdout == ""
    )


def test_a_mirror_that_lies_is_named_and_the_driver_stays(
    node: Node, address: str, run: Callable[..., Ran], system: str
):
    """The checksum is of the release that is wished, the file of another: it is not run, and the old driver not uninstalled."""
    driver = wish(NEW, url=f"{address}/{runfile.name(OLD)}")
    failed = run("provision", driver, "--yes")
    assert failed.code == 1, failed
    assert failed.status(node.name) == "failed"
    assert driver["sha256"] in str(failed.of("outcome", node.name)[-1]["error"])
    is_by_installer(node, OLD, system)
    node.exec(["nvidia-smi", "-L"])


def test_another_version_by_a_file_takes_its_place(node: Node, run: Callable[..., Ran], system: str):
    """It is sent from the operator's machine."""
    driver = wish(NEW, file=str(runfile.files() / runfile.name(NEW)))
    proven(run("provision", driver, "--yes"), node.name)
    is_by_installer(node, NEW, system)
    assert run("plan", driver, "--exit-code").code == 0


def test_packages_take_its_place_and_it_theirs(
    node: Node, address: str, run: Callable[..., Ran], system: str
):
    """Never both: what the installer brought is gone, and the packages' files are as they came; and back. An undo of that as well."""
    driver = {"from": "nvidia", "version": "580"}
    proven(run("provision", driver, "--yes"), node.name)
    assert node.exec(["test", "-e", "/usr/bin/nvidia-uninstall"], check=False).returncode
    assert META[system] in packages(node, system)
    assert node.exec([*CHANGED[system], *packages(node, system)]).stdout == ""
    assert run("plan", driver, "--exit-code").code == 0

    back = wish(NEW, url=f"{address}/{runfile.name(NEW)}")
    proven(run("provision", back, "--yes"), node.name)
    is_by_installer(node, NEW, system)
    assert run("plan", back, "--exit-code").code == 0

    undone = run("undo last", back, "--yes")
    assert undone.code == 0, undone
    assert node.exec(["test", "-e", "/usr/bin/nvidia-uninstall"], check=False).returncode
    assert node.exec([*CHANGED[system], *packages(node, system)]).stdout == ""
    assert run("plan", driver, "--exit-code").code == 0
