"""A host of RHEL's kind on the real cluster: by the real dnf and rpm from bare to a finished pod on every GPU."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rpms import MISSING

from . import mirror, rhel
from .api import Lab, Node
from .conftest import Ran
from .packages import rpm

pytestmark = [
    pytest.mark.lab,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]
GPUS = 4
LAYERS = [
    "PCI",
    "module",
    "library",
    "NVML",
    "toolkit",
    "runtime",
    "kubelet",
    "node",
    "plugin",
    "capacity",
    "pod",
]
LOCKS = "/etc/dnf/plugins/versionlock.list"


@pytest.fixture(scope="module")
def uri(lab: Lab) -> Iterator[str]:
    """The host is bare, of this kind, and its repositories are served; in the end it is a bare Debian again."""
    node = lab.node("modern")
    node.reset()
    with mirror.served(node, rpm.repositories()) as address:
        rhel.become(node, address, Path(lab.table["apt"]["key"]))
        yield address
    node.reset()


@pytest.fixture(scope="module")
def run(lab: Lab, uri: str, gpunode: Callable[..., Ran]) -> Iterator[Callable[..., Ran]]:
    """gpunode, on that host alone; `driver` as the inventory has it."""
    path = lab.inventory.with_name("rpm.yaml")

    def ran(command: str, *options: str, driver: str = "auto") -> Ran:
        text = rhel.inventory(lab, uri)
        path.write_text(text.replace("defaults:\n", f"defaults:\n  driver: {json.dumps(driver)}\n"))
        return gpunode(command, "--limit", "modern", *options, inventory=path)

    yield ran
    path.unlink(missing_ok=True)


@pytest.fixture(scope="module")
def provisioned(run: Callable[..., Ran]) -> Ran:
    return run("provision", "--yes", "--json")


@pytest.fixture
def node(lab: Lab, provisioned: Ran) -> Node:
    return lab.node("modern")


def rpms(node: Node) -> dict[str, str]:
    """NVIDIA's packages in rpm's database, with their epoch."""
    shape = "%{NAME} %{EVR}\\n"
    rows = node.exec(["rpm", "-qa", "--qf", shape, "*nvidia*"]).stdout.splitlines()
    return dict(row.split() for row in rows)


def test_provision_takes_it_from_bare_to_verified(provisioned: Ran):
    """Every GPU is allocatable and has run vectoradd."""
    assert provisioned.code == 0, provisioned
    assert provisioned.status("modern") == "changed"
    passed = {row["uuid"] for row in provisioned.of("vectoradd") if row["result"] == "passed"}
    assert len(passed) == GPUS


def test_rpm_has_the_driver_and_dpkg_nothing(node: Node):
    """With epoch 3, of one release, without a display server's part; the module is what dkms built of it."""
    packages = rpms(node)
    driver = {name: version for name, version in packages.items() if "container" not in name}
    assert set(driver.values()) == {"3:595.91.07-1.el9"}
    assert {"nvidia-driver-cuda", "kmod-nvidia-open-dkms", "libnvidia-ml"} <= set(driver)
    assert packages["nvidia-container-toolkit"] == "1.20.1-1"
    assert "nvidia" not in node.exec(["dpkg-query", "-W", "-f", "${Package}\\n"]).stdout
    assert "595.91.07" in node.exec(["dkms", "status"]).stdout
    assert "Open Kernel Module" in node.read("/proc/driver/nvidia/version")
    assert "stream=595-open\n" in node.read("/etc/dnf/modules.d/nvidia-driver.module")


def test_a_second_plan_is_empty_and_the_whole_chain_holds(provisioned: Ran, run: Callable[..., Ran]):
    """The empty plan is the product."""
    planned = run("plan", "--json", "--exit-code")
    assert planned.code == 0, planned
    verified = run("verify", "--json")
    assert verified.code == 0, verified
    links = verified.of("link", "modern")
    assert [link["layer"] for link in links] == [*LAYERS, "work"]
    assert {link["status"] for link in links} == {"ok"}


def test_an_upgrade_of_everything_by_the_user_leaves_the_driver(node: Node):
    """Its versions are locked, and dnf does not fail over it."""
    before = rpms(node)
    assert node.read(LOCKS).count("-3:595.91.07-1.el9.*") == len(
        [v for v in before.values() if v.startswith("3:")]
    )
    node.exec(["dnf", "-y", "upgrade"])
    assert rpms(node) == before


def test_another_branch_is_another_stream(provisioned: Ran, node: Node, run: Callable[..., Ran]):
    """The old packages go, the new ones come from the stream, and pods run on every GPU again."""
    again = run("provision", "--yes", "--json", driver="580")
    assert again.code == 0, again
    assert {v for v in rpms(node).values() if v.startswith("3:")} == {"3:580.178.04-1.el9"}
    assert node.read("/sys/module/nvidia/version").startswith("580.")
    assert "stream=580-open\n" in node.read("/etc/dnf/modules.d/nvidia-driver.module")
    assert run("plan", "--exit-code", driver="580").code == 0
