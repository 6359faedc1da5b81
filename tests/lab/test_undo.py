"""Undo on real hosts, from bare: of a driver's upgrade, of the provision before it with a file edited meanwhile, and then `forget`. Files,
packages, holds, units and modules are as before, but for LEFT. In the matrix each undo is killed again and again."""

import inspect
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

import pytest
import yaml

from gpunode.engine import history
from tests.snapshots import differences, files

from .api import Lab, Node
from .conftest import Ran

pytestmark = pytest.mark.lab

HOSTS = ("legacy", "modern")
RECORDS = r"(file|folder) /var/lib/gpunode(/.*)?"  # which forget alone removes
# What any installation and removal of packages leaves, and what a host at work changes by itself.
LEFT = (
    r"(file|folder) /var/(log|cache|tmp|lib/(apt|cni|dkms/.*/log|dockershim|dpkg|systemd))(/.*)?",
    r"(file|folder) /var/lib/kubelet/(?!config\.yaml|kubeadm-flags\.env).*",
    r"file /usr/lib/modules/[^/]+/modules\..*",  # depmod's
    r"file /etc/ld\.so\.cache",
    r"folder /usr/libexec/kubernetes(/.*)?",  # the kubelet's
    r"file /etc/(passwd|group|g?shadow)-?",  # nvidia-persistenced's user
    r"(file|folder) /etc/nvidia-container-runtime(/config\.toml)?",  # the toolkit's scripts make it, and leave it
)
PROGRAM = f"""import json
{inspect.getsource(files)}
print(json.dumps(files("/", "/var/lib/kubelet")))"""
ACTIVE = "systemctl list-units --type=service --state=active --plain --no-legend"
# Lines of a name and the rest.
QUERIES = {
    "package": "dpkg-query -W -f '${Package} ${Version}\n'",
    "hold": "apt-mark showhold",
    "module": "ls /sys/module | grep nvidia",
    "unit": "systemctl list-unit-files --plain --no-legend | grep -v transient",
    "active": f"{ACTIVE} | grep -oE '^(docker|containerd|kubelet|nvidia|gpunode)[^ ]*'",
}
# A line for each time that the undo is killed: where on each host, so that together they are all states of each kind.
KILLED = (
    {"legacy": ("write_file", "torn"), "modern": ("write_file", "noted")},
    {"legacy": ("write_file", "made"), "modern": ("service", "noted")},
    {"legacy": ("service", "made"), "modern": ("packages", "noted", "nvidia-")},
    {"legacy": ("packages", "made", "nvidia-"), "modern": ("packages", "made", "nvidia-")},
    {"legacy": ("remove_file", "ended"), "modern": ("remove_file", "made")},
)
UPGRADE_KILLED = ({"modern": ("packages", "made", "nvidia-")}, {"modern": ("kernel_module", "made")})
EDITED = "/etc/modules-load.d/gpunode.conf"
ARGUMENTS = "/etc/default/kubelet"  # with a gate that keeps modern's kubelet from starting
STARTING = r"active kubelet\.service"  # at times, while that gate lets it end and systemd starts it again


def snapshot(node: Node) -> dict[str, str]:
    """What is on a host, by a name for each thing."""
    seen: dict[str, str] = json.loads(node.exec(["python3", "-c", PROGRAM]).stdout)
    for kind, command in QUERIES.items():
        for line in node.exec(["sh", "-c", f"{command} || :"]).stdout.splitlines():
            name, _, rest = line.partition(" ")
            seen[f"{kind} {name}"] = rest.strip()
    return seen


def booted(node: Node) -> None:
    """Wait until all that a boot starts has come up, or has failed to."""
    node.wait_until("its boot", ["sh", "-c", "systemctl is-system-running | grep -q -e running -e degraded"])


def kill(run: Callable[..., Ran], points: Mapping[str, Sequence[str]], command: str, **more: Path) -> None:
    """The command, whose applies are killed there."""
    ran = run(command, "--yes", "--json", die=points, **more)
    ends = {host: str(ran.of("outcome", host)[-1].get("error")) for host in points}
    assert all("killed" in end for end in ends.values()), (points, ran)


@pytest.fixture
def bare(lab: Lab) -> Iterator[dict[str, dict[str, str]]]:
    """What is on each host when it is bare, as it is in the end."""
    for name in HOSTS:
        lab.node(name).reset()
    for name in HOSTS:
        booted(lab.node(name))
    yield {name: snapshot(lab.node(name)) for name in HOSTS}
    for name in HOSTS:
        lab.node(name).reset()


@pytest.fixture
def of_branch(lab: Lab) -> Iterator[Callable[[str], Path]]:
    """An inventory by the driver's branch on modern."""
    path = lab.inventory.with_name("undo.yaml")

    def write(branch: str) -> Path:
        inventory = yaml.safe_load(lab.inventory.read_text())
        inventory["groups"]["h100"]["driver"] = branch
        path.write_text(yaml.safe_dump(inventory))
        return path

    yield write
    path.unlink(missing_ok=True)


def provision(gpunode: Callable[..., Ran], inventory: Path, *options: str) -> str:
    """The id of the run."""
    ran = gpunode("provision", "--yes", "--json", "--no-run", *options, inventory=inventory)
    assert ran.code == 0, ran
    return history.find_last(inventory).id


@pytest.mark.parametrize(
    "killed", [False, pytest.param(True, marks=pytest.mark.matrix)], ids=["whole", "killed"]
)
def test_two_hosts_are_as_before_gpunode_but_for_a_file_that_was_edited_meanwhile(
    lab: Lab,
    gpunode: Callable[..., Ran],
    bare: dict[str, dict[str, str]],
    of_branch: Callable[[str], Path],
    killed: bool,
):
    """After an undo of the driver's upgrade, an undo of the provision before it, and `forget`."""
    provisioned = provision(gpunode, of_branch("580"))
    node = lab.node("modern")
    before = snapshot(node)
    upgrade = f"undo {provision(gpunode, of_branch('595'), '--limit', 'modern')}"
    assert node.read("/sys/module/nvidia/version").startswith("595.")
    for points in UPGRADE_KILLED if killed else ():
        kill(gpunode, points, upgrade)
    undone = gpunode(upgrade, "--yes", "--json")
    assert undone.code == 0, undone
    assert node.read("/sys/module/nvidia/version").startswith("580.")
    assert differences(before, snapshot(node), (*LEFT, RECORDS)) == []

    lab.node("legacy").write(EDITED, "nvidia\n")
    undo = f"undo {provisioned}"
    for points in KILLED if killed else ():
        kill(gpunode, points, undo)
    undone = gpunode(undo, "--yes", "--json")
    assert undone.code == 0, undone
    kept = {row["host"]: row["what"] for row in undone.of("left") if row["code"] == "kept"}
    assert kept == {"legacy": EDITED, "modern": ARGUMENTS}
    left = {"legacy": [f"file {EDITED}"], "modern": [f"file {ARGUMENTS}"]}
    after = {name: snapshot(lab.node(name)) for name in HOSTS}
    assert all("active kubelet.service" in after[name] for name in HOSTS)
    changes = {name: differences(bare[name], after[name], (*LEFT, RECORDS, STARTING)) for name in HOSTS}
    assert changes == left
    forgotten = gpunode(f"forget {' '.join(HOSTS)} -i", "--yes", "--json")
    assert forgotten.code == 0, forgotten
    after = {name: snapshot(lab.node(name)) for name in HOSTS}
    assert {name: differences(bare[name], after[name], (*LEFT, STARTING)) for name in HOSTS} == left
