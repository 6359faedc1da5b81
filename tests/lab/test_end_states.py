"""Hosts as hands leave them: the end states of articles, as far as the lab can have them, and installations that stopped halfway."""

import json
import re
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from . import mirror
from .api import Lab, Node
from .conftest import Ran
from .packages import runfile
from .progress import wait
from .test_runfile import wish

pytestmark = [pytest.mark.lab, pytest.mark.matrix]
VERSION = "580.178.04"
DOCUMENT = Path(__file__).parents[2] / "docs/howto/plugin-by-hand.md"
APT = "DEBIAN_FRONTEND=noninteractive apt-get -qq install --no-install-recommends"
KEY = "/etc/apt/keyrings/nvidia.asc"
# The article's words for daemon.json; the rest of the file is its owner's.
RUNTIME = {
    "default-runtime": "nvidia",
    "runtimes": {"nvidia": {"path": "/usr/bin/nvidia-container-runtime", "runtimeArgs": []}},
}
GATE = "--feature-gates=DevicePlugins=true"


@pytest.fixture(params=["legacy"])
def node(lab: Lab, request) -> Iterator[Node]:
    """A bare host, which is bare again in the end."""
    node = lab.node(request.param)
    node.reset()
    yield node
    node.reset()


@pytest.fixture
def run(lab: Lab, node: Node, gpunode: Callable[..., Ran]) -> Iterator[Callable[..., Ran]]:
    """gpunode on that host alone; `wishes` are variables of the inventory."""
    path = lab.inventory.with_name("end-state.yaml")

    def ran(command: str, *options: str, **wishes: Any) -> Ran:
        more = "".join(f"  {name}: {json.dumps(value)}\n" for name, value in wishes.items())
        path.write_text(lab.inventory.read_text().replace("defaults:\n", f"defaults:\n{more}"))
        return gpunode(command, "--json", "--limit", node.name, *options, inventory=path, timeout=800)

    yield ran
    path.unlink(missing_ok=True)


def sources(lab: Lab, node: Node) -> None:
    """NVIDIA's repositories, by hand and under names of one's own."""
    uri = lab.table["apt"]["uri"]
    node.exec(["mkdir", "-p", "/etc/apt/keyrings"])
    node.write(KEY, Path(lab.table["apt"]["key"]).read_text())
    for name, place in (("cuda", "cuda"), ("nvidia-docker", "toolkit/stable/deb/amd64")):
        node.write(f"/etc/apt/sources.list.d/{name}.list", f"deb [signed-by={KEY}] {uri}/{place} ./\n")
    shell(node, f"apt-get -qq update && {APT} linux-headers-$(uname -r)")


def docker_by_hand(node: Node) -> None:
    """nvidia-docker2, and nvidia as docker's default runtime."""
    shell(node, f"{APT} nvidia-docker2")
    daemon = json.loads(node.read("/etc/docker/daemon.json"))
    node.write("/etc/docker/daemon.json", json.dumps({**daemon, **RUNTIME}, indent=4))
    shell(node, "systemctl restart docker")


def gate_by_hand(node: Node) -> None:
    """On the line of arguments that is there."""
    line = node.read("/etc/default/kubelet").rstrip("\n")
    node.write("/etc/default/kubelet", f"{line} {GATE}\n")
    shell(node, "systemctl daemon-reload && systemctl restart kubelet")


def shell(node: Node, command: str) -> None:
    node.exec(["sh", "-ec", command])


def proven(ran: Ran, gpus: int) -> None:
    """It ended well, and so many GPUs have run vectoradd."""
    assert ran.code == 0, ran
    assert len({row["uuid"] for row in ran.of("vectoradd") if row["result"] == "passed"}) == gpus, ran


def planned(ran: Ran) -> str:
    """Kinds and words of what a plan would change."""
    (plan,) = ran.of("plan")
    return "\n".join(f"{change['kind']}: {change['what']}" for change in plan["changes"])


def test_packages_by_hand_are_taken_over(lab: Lab, node: Node, run: Callable[..., Ran]):
    """Driver, nvidia-docker2, daemon.json and gate are there: nothing of them is installed again, and what the owner set stays."""
    sources(lab, node)
    shell(node, f"{APT} nvidia-driver-pinning-580 && {APT} cuda-drivers-580 && modprobe nvidia")
    docker_by_hand(node)
    gate_by_hand(node)
    daemon = json.loads(node.read("/etc/docker/daemon.json"))
    versions = node.exec(["dpkg-query", "-W", "*nvidia*", "libcuda1"]).stdout

    what = planned(run("plan", toolkit="nvidia-docker2"))
    assert "InstallDriver" not in what
    assert "unload" not in what
    assert "daemon.json" not in what
    proven(run("provision", "--yes", toolkit="nvidia-docker2"), gpus=2)

    assert node.exec(["dpkg-query", "-W", "*nvidia*", "libcuda1"]).stdout == versions
    assert json.loads(node.read("/etc/docker/daemon.json")) == daemon
    assert "--max-pods=50" in node.read("/etc/default/kubelet")
    assert run("plan", "--exit-code", toolkit="nvidia-docker2").code == 0


def test_a_driver_of_the_installer_by_hand_is_taken_over(lab: Lab, node: Node, run: Callable[..., Ran]):
    """As `sh NVIDIA-Linux-x86_64-*.run` left it, without dkms: it is not run again."""
    sources(lab, node)
    by_installer(node, "--kernel-module-type=proprietary")
    docker_by_hand(node)
    before = node.exec(["stat", "-c", "%Y", "/var/lib/nvidia/log"]).stdout
    wishes = {
        "toolkit": "nvidia-docker2",
        "driver": wish(VERSION, file=str(runfile.files() / runfile.name(VERSION))),
    }

    what = planned(run("plan", **wishes))
    assert "InstallDriver" not in what
    proven(run("provision", "--yes", **wishes), gpus=2)

    assert node.exec(["stat", "-c", "%Y", "/var/lib/nvidia/log"]).stdout == before
    assert run("plan", "--exit-code", **wishes).code == 0


def by_installer(node: Node, *options: str) -> None:
    """The installer is run by hand."""
    with mirror.served(node, runfile.files()) as address:
        fetch = f"import urllib.request; urllib.request.urlretrieve('{address}/{runfile.name(VERSION)}', '/root/driver.run')"
        node.exec(["python3", "-c", fetch])
    node.exec(["sh", "/root/driver.run", "--silent", "--no-dkms", *options])


def test_the_plugin_by_docker_run_registers(
    lab: Lab, node: Node, run: Callable[..., Ran], gpunode: Callable[..., Ran]
):
    """As docs/howto/plugin-by-hand.md has it: the kubelet counts the GPUs without any object of the cluster."""
    proven(run("provision", "--yes"), gpus=2)
    removed = gpunode("plugin remove", "--yes", "--json")
    assert removed.code == 0, removed
    offers(lab, node, "0")
    shell(node, documented().replace("gpunode-deviceplugin ", f"{image(node)} "))
    offers(lab, node, "2")
    assert "registered with the kubelet" in node.exec(["docker", "logs", "gpunode-plugin"]).stderr
    node.exec(["docker", "rm", "-f", "gpunode-plugin"])


def documented() -> str:
    """The command as docs/howto/plugin-by-hand.md has it."""
    text = DOCUMENT.read_text()
    (command,) = re.findall(r"(?m)^docker run (?:.*\\\n)*.*$", text)
    return str(command)


def image(node: Node) -> str:
    """The plugin's, which gpunode has loaded."""
    rows = node.exec(["docker", "images", "--format", "{{.Repository}}:{{.Tag}}"]).stdout.splitlines()
    return next(row for row in rows if "deviceplugin" in row.replace("-", ""))


def offers(lab: Lab, node: Node, count: str) -> None:
    """Wait until the node has so many GPUs to give away."""

    def there() -> bool:
        status = lab.request("GET", f"/api/v1/nodes/{node.name}")["status"]
        return bool(status["allocatable"].get("nvidia.com/gpu", "0") == count)

    wait(f"{count} GPUs of {node.name}", there, 120)


@pytest.mark.parametrize("node", ["modern"], indirect=True)
def test_packages_half_installed_are_named_and_taken_over_when_finished(
    lab: Lab, node: Node, run: Callable[..., Ran]
):
    """Unpacked and not configured, as a machine that lost its power in the middle has them."""
    sources(lab, node)
    shell(node, f"{APT} --download-only nvidia-open")
    shell(node, "cd /var/cache/apt/archives && dpkg --unpack *nvidia*.deb libcuda1*.deb")
    assert (
        "install ok unpacked"
        in node.exec(["dpkg-query", "-W", "-f", "${Status}\n", "*nvidia*"], check=False).stdout
    )

    refused = run("provision", "--yes")
    assert refused.code == 4, refused
    assert "half installed" in str(refused.of("outcome")[-1]["error"])

    shell(node, "DEBIAN_FRONTEND=noninteractive apt-get -qq --fix-broken install")  # as the hint says
    proven(run("provision", "--yes"), gpus=4)

    assert node.exec(["dpkg", "--audit"]).stdout == ""
    assert run("plan", "--exit-code").code == 0


@pytest.mark.parametrize("node", ["modern"], indirect=True)
def test_an_installers_driver_without_its_record_is_refused(lab: Lab, node: Node, run: Callable[..., Ran]):
    """Nobody can uninstall it cleanly any more, so nothing is installed over it."""
    sources(lab, node)
    by_installer(node, "--kernel-module-type=open")
    shell(node, "rm -r /var/lib/nvidia /usr/bin/nvidia-uninstall")

    refused = run("provision", "--yes")

    assert refused.code == 4, refused
    assert "without packages" in str(refused.of("outcome")[-1]["error"])
    assert "nvidia" not in node.exec(["dpkg-query", "-W", "-f", "${Package} "]).stdout
