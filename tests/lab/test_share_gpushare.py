"""Over from gpushare with its pods running, and back, as docs/howto/from-gpushare.md has it.

gpushare's plugin is a stand-in that the kubelet cannot tell from it (pkg/gpu/nvidia: ids, one size for all GPUs, variables),
but that is told which GPU a pod was given. Its extender is the annotations that it writes.
"""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpunode.contract.promises import ASSIGNED, ASSUMED, DEV, INDEX, POD

from . import test_share
from .api import Lab
from .conftest import Ran
from .pods import LOOK, Pods, pods
from .progress import wait
from .test_share import MEM, notes
from .test_share_life import as_noted, bound

pytestmark = [pytest.mark.lab, pytest.mark.matrix]

inventory = test_share.inventory  # its fixture

NODE, UNITS = "legacy", 16
CHOSEN = "/run/gpushare-index"  # of the host: the GPU of the next container
THEIRS = Path(__file__).with_name("gpushare.py").read_text()


def theirs(lab: Lab, made: Pods) -> str:
    """gpushare's plugin runs on the node, which counts its GPUs as gpushare patches it."""
    uuids = lab.node(NODE).exec(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]).stdout.split()
    lab.node(NODE).exec(["sh", "-c", f"echo 0 > {CHOSEN}"])
    folders = {"sockets": "/var/lib/kubelet/device-plugins", "run": "/run"}
    container = {
        "name": "plugin",
        "image": made.image,
        "args": ["-c", THEIRS, ",".join(uuids), str(UNITS)],
        "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}],
        "securityContext": {"runAsUser": 0},
        "volumeMounts": [
            {"name": "sockets", "mountPath": folders["sockets"]},
            {"name": "run", "mountPath": "/host"},
        ],
    }
    spec = {
        "nodeName": NODE,
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
        "volumes": [{"name": name, "hostPath": {"path": path}} for name, path in folders.items()],
    }
    name = made.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "gpushare"}, "spec": spec})
    wait("gpushare's plugin", lambda: "registered" in made.log(name), 90)
    count = {"aliyun.com/gpu-count": str(len(uuids))}
    lab.request(
        "PATCH", f"/api/v1/nodes/{NODE}/status", {"status": {"capacity": count, "allocatable": count}}
    )
    wait("its memory", lambda: lab.units(NODE, MEM) == UNITS * len(uuids), 90)
    return name


def placed(lab: Lab, made: Pods, name: str, index: int, units: int) -> str:
    """A pod that gpushare bound and gave this GPU."""
    lab.node(NODE).exec(["sh", "-c", f"echo {index} > {CHOSEN}"])
    container = {
        "name": "look",
        "image": made.image,
        "args": ["-c", LOOK],
        "resources": {"limits": {MEM: units}},
    }
    spec = {
        "nodeName": NODE,
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "tolerations": [{"operator": "Exists"}],
        "containers": [container],
    }
    said = {INDEX: str(index), DEV: str(UNITS), POD: str(units), ASSIGNED: "true", ASSUMED: str(10**18)}
    meta = {"name": name, "annotations": said}
    made.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
    (seen,) = made.seen(name)
    assert len(seen.uuids) == 1
    return name


def container(made: Pods, name: str) -> str:
    return str(made.get(name)["status"]["containerStatuses"][0]["containerID"])


@pytest.fixture
def bare(lab: Lab, gpunode: Callable[..., Ran]) -> Iterator[None]:
    """Hosts with driver and toolkit, and no plugin; afterwards with gpunode's."""
    for command in ("provision --no-run", "plugin remove"):
        ran = gpunode(command, "--yes", "--json")
        assert ran.code == 0, ran
    yield
    with pods(lab):
        pass  # what is left goes
    ran = gpunode("provision", "--yes", "--json", "--no-run")
    assert ran.code == 0, ran


def test_over_from_gpushare_and_back_with_pods_running(
    lab: Lab, bare: None, made: Pods, gpunode: Callable[..., Ran], inventory: Path
):
    """Their pods go on, and count; nobody gets what they have; each side reads the other's annotations."""

    def rows(command: str, kind: str) -> list[dict[str, Any]]:
        ran = gpunode(f"share {command}", "--json", inventory=inventory)
        assert ran.code in (0, 1), ran
        return [row for row in ran.of(kind) if row["node"] == NODE]

    def shown() -> dict[str, tuple[int, int, int]]:
        shares = [row for row in rows("inspect", "share") if row["resource"] == MEM]
        return {row["gpu"]: (row["promised"], row["total"], row["used"]) for row in shares}

    plugin = theirs(lab, made)
    old = [placed(lab, made, "old-0", 1, 6), placed(lab, made, "old-1", 0, 9)]
    before = [container(made, name) for name in old]
    assert shown() == {"0": (9, 16, 9), "1": (6, 16, 6)}  # by its plugin's answer, which the kubelet keeps
    assert rows("fsck", "fsck") == []

    made.delete(plugin)
    ran = gpunode("provision --no-run --limit p100,h100", "--yes", "--json", inventory=inventory)
    assert ran.code == 1, ran  # the GPUs are not proven while they are reserved
    assert "memory of a GPU that gpushare chose" in ran.stdout
    ran = gpunode("share enable", "--yes", "--json", inventory=inventory)
    assert ran.code in (0, 1), ran
    assert ran.of("summary")[-1]["asking"] == 1
    wait("every GPU to be reserved", lambda: lab.units(NODE, MEM) == 0, 120)
    assert [container(made, name) for name in old] == before
    assert shown() == {"0": (9, 16, 9), "1": (6, 16, 6)}
    assert rows("fsck", "fsck") == []
    waits = made.make("waits", NODE, 4, MEM)
    assert f"Insufficient {MEM}" in made.unschedulable(waits)
    as_noted(made, made.make("elsewhere", "modern", 4, MEM))

    made.delete(*old)
    wait("the waiting pod to be bound", lambda: bound(made, waits) == NODE, 120)
    as_noted(made, waits)
    running = container(made, waits)

    for command in ("share disable", "plugin remove"):
        ran = gpunode(command, "--yes", "--json", inventory=inventory)
        assert ran.code == 0, ran
    theirs(lab, made)
    assert container(made, waits) == running
    shares = notes(made, waits)
    assert (shares[DEV], shares[POD]) == ("16", "4")
    placed(lab, made, "theirs-again", 1 - int(shares[INDEX]), 6)
