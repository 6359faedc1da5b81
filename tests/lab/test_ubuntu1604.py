"""A host with Ubuntu 16.04's layout, from bare to a finished pod on every GPU, by NVIDIA's branch 460 and a Python of the inventory."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from . import mirror
from .api import Lab, Node
from .conftest import Ran
from .shapes import python, xenial

pytestmark = [pytest.mark.lab, pytest.mark.matrix]
GPUS = 2


@pytest.fixture(scope="module")
def node(lab: Lab, tmp_path_factory) -> Iterator[tuple[Node, str]]:
    """A bare host of this layout, and where it finds archives; a bare Debian again in the end."""
    node = lab.node("legacy")
    node.reset()
    served = tmp_path_factory.mktemp("served")
    for folder in xenial.repositories().iterdir():
        (served / folder.name).symlink_to(folder)
    (served / "libnvidia-container").symlink_to(node.slot.state / "apt/toolkit")
    (served / python.NAME).symlink_to(python.build() / python.NAME)
    with mirror.served(node, served) as address:
        xenial.become(node, address, Path(lab.table["apt"]["key"]))
        yield node, address
    node.reset()


@pytest.fixture(scope="module")
def run(lab: Lab, node: tuple[Node, str], gpunode: Callable[..., Ran]) -> Iterator[Callable[..., Ran]]:
    """gpunode on that host alone; no repository is named, as its apt takes keys by `apt-key add` only."""
    path = lab.inventory.with_name("ubuntu1604.yaml")
    before, _, rest = lab.inventory.read_text().partition("  repositories:\n")
    wishes = {"driver": "460", "python": python.wish(node[1])}
    lines = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in wishes.items())
    path.write_text(before + lines + rest[rest.index("groups:") :])

    def ran(command: str, *options: str) -> Ran:
        return gpunode(command, "--json", "--limit", "legacy", *options, inventory=path, timeout=800)

    yield ran
    path.unlink(missing_ok=True)


def test_a_python_of_3_5_is_named_with_what_to_do(run: Callable[..., Ran], node: tuple[Node, str]):
    """Nothing is changed before the user agrees."""
    planned = run("plan")
    outcome = planned.of("outcome")[-1]
    assert "its python3 is 3.5.2; 3.6 or newer is needed" in outcome["error"], str(planned)
    assert "/opt/gpunode/python" in outcome["hint"]
    assert node[0].exec(["ls", "/opt/gpunode"], check=False).returncode != 0


def test_from_bare_to_every_gpu(run: Callable[..., Ran], node: tuple[Node, str]):
    """By the standalone Python, which wget has fetched, and by NVIDIA's packages of the owner's lists."""
    done = run("provision", "--yes")
    assert done.code == 0, str(done)
    passed = {row["uuid"] for row in done.of("vectoradd") if row["result"] == "passed"}
    assert len(passed) == GPUS, str(done)

    host = node[0]
    where = host.exec(["/opt/gpunode/python/bin/python3", "-c", "import json; print(json.__file__)"]).stdout
    assert where.startswith("/opt/gpunode/python/lib/python3.11/")
    rows = host.exec(["dpkg-query", "-W", "-f", "${Version}\n", *xenial.CORE]).stdout.split()
    assert rows == [xenial.PACKAGE] * len(xenial.CORE)
    held = host.exec(["apt-mark", "showhold"]).stdout.split()
    assert {"cuda-drivers-460", "nvidia-container-toolkit"} <= set(held)
    assert host.read("/sys/module/nvidia/version").strip() == xenial.VERSION
    lists = host.exec(["ls", "/etc/apt/sources.list.d"]).stdout.split()
    assert lists == ["cuda.list", "nvidia-container-toolkit.list"]


def test_a_second_plan_is_empty_and_the_whole_chain_holds(run: Callable[..., Ran]):
    """Every link is inspected."""
    assert run("plan", "--exit-code").code == 0
    verified = run("verify")
    assert verified.code == 0, str(verified)
    assert {link["status"] for link in verified.of("link", "legacy")} == {"ok"}


def test_after_a_reboot_the_plan_is_empty(run: Callable[..., Ran], node: tuple[Node, str]):
    """The Python that was unpacked is still the one."""
    node[0].reboot()
    node[0].wait_ready()
    assert run("plan", "--exit-code").code == 0
    assert node[0].read("/sys/module/nvidia/version").strip() == xenial.VERSION
