"""A host with CentOS 7's layout, from bare to a finished pod on every GPU, by NVIDIA's packages of branch 460 and a Python of the inventory."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.rpms import MISSING

from . import mirror
from .api import Lab, Node
from .conftest import Ran
from .shapes import el7, python

pytestmark = [
    pytest.mark.lab,
    pytest.mark.matrix,
    pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}"),
]
GPUS = 2
LOCKS = "/etc/dnf/plugins/versionlock.list"


@pytest.fixture(scope="module")
def node(lab: Lab, tmp_path_factory) -> Iterator[tuple[Node, str]]:
    """A bare host of this layout, and where it finds archives; a bare Debian again in the end."""
    node = lab.node("legacy")
    node.reset()
    served = tmp_path_factory.mktemp("served")
    for folder in el7.repositories().iterdir():
        (served / folder.name).symlink_to(folder)
    (served / python.NAME).symlink_to(python.build() / python.NAME)
    with mirror.served(node, served) as address:
        el7.become(node, address, Path(lab.table["apt"]["key"]))
        yield node, address
    node.reset()


@pytest.fixture(scope="module")
def run(lab: Lab, node: tuple[Node, str], gpunode: Callable[..., Ran]) -> Iterator[Callable[..., Ran]]:
    """gpunode on that host alone; `without` takes repositories away that the inventory names."""
    path = lab.inventory.with_name("centos7.yaml")
    before, _, rest = lab.inventory.read_text().partition("  repositories:\n")
    places = {"driver": "rhel7", "toolkit": "toolkit", "system": "os"}

    def ran(command: str, *options: str, without: str = "") -> Ran:
        named = {
            name: {"uri": f"{node[1]}/{place}", "key": "apt-key.asc"}
            for name, place in places.items()
            if name != without
        }
        wishes = {"driver": "460", "python": python.wish(node[1]), "repositories": named}
        lines = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in wishes.items())
        path.write_text(before + lines + rest[rest.index("groups:") :])
        return gpunode(command, "--json", "--limit", "legacy", *options, inventory=path, timeout=800)

    yield ran
    path.unlink(missing_ok=True)


def rpms(node: Node) -> dict[str, str]:
    """NVIDIA's packages in rpm's database, with their epoch."""
    rows = node.exec(["rpm", "-qa", "--qf", "%{NAME} %{EVR}\\n", "*nvidia*"]).stdout.splitlines()
    return dict(row.split() for row in rows)


def test_a_host_without_python3_is_named_with_what_to_do(run: Callable[..., Ran], node: tuple[Node, str]):
    """Nothing is changed before the user agrees."""
    planned = run("plan")
    outcome = planned.of("outcome")[-1]
    assert "it has no python3" in outcome["error"], str(planned)
    assert "/opt/gpunode/python" in outcome["hint"]
    assert node[0].exec(["ls", "/opt/gpunode"], check=False).returncode != 0


def test_without_a_mirror_its_own_repositories_are_gone(run: Callable[..., Ran]):
    """By the standalone Python, which curl has fetched; no package is touched."""
    refused = run("provision", "--yes", without="system")
    assert refused.code == 4, str(refused)
    outcome = refused.of("outcome")[-1]
    assert "CentOS-Base.repo: the repositories of CentOS Linux 7 (Core) are gone" in outcome["error"]
    assert "repositories.system" in outcome["hint"]


def test_from_bare_to_every_gpu(run: Callable[..., Ran], node: tuple[Node, str]):
    """NVIDIA's names and prebuilt modules; nothing is built, and dpkg has none of it."""
    done = run("provision", "--yes")
    assert done.code == 0, str(done)
    assert len({row["uuid"] for row in done.of("vectoradd") if row["result"] == "passed"}) == GPUS, str(done)

    host, packages = node[0], rpms(node[0])
    assert el7.CORE.items() <= packages.items(), packages
    assert packages["nvidia-container-toolkit"] == "1.20.1-1"
    locks = host.read(LOCKS)
    assert all(f"{name}-{version}" in locks for name, version in el7.CORE.items()), locks
    assert "nvidia" not in host.exec(["dpkg-query", "-W", "-f", "${Package}\n"]).stdout
    assert "nvidia" not in host.exec(["dkms", "status"]).stdout
    assert host.read("/sys/module/nvidia/version").strip() == el7.VERSION
    assert "--max-pods=50" in host.read("/etc/sysconfig/kubelet")
    assert host.read("/etc/yum.repos.d/CentOS-Base.repo") == el7.BASE


def test_a_second_plan_is_empty_and_the_whole_chain_holds(run: Callable[..., Ran]):
    """Every link is inspected."""
    assert run("plan", "--exit-code").code == 0
    verified = run("verify")
    assert verified.code == 0, str(verified)
    assert {link["status"] for link in verified.of("link", "legacy")} == {"ok"}


def test_after_a_reboot_the_plan_is_empty(run: Callable[..., Ran], node: tuple[Node, str]):
    """The prebuilt modules are loaded again."""
    node[0].reboot()
    node[0].wait_ready()
    assert run("plan", "--exit-code").code == 0
    assert node[0].read("/sys/module/nvidia/version").strip() == el7.VERSION
