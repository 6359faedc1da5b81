"""What is in use on a host of Kubernetes: pods have GPUs that no process uses at the moment."""

import asyncio
import json
import socket
from pathlib import Path
from typing import Any

import pytest

from gpunode.accept.listing import pods_by_device

from ..deviceplugin.test_podresources import Lister, pod
from . import stand_in
from .faults import MODEL

LIST = (
    "import sys; from pathlib import Path; from gpunode.accept import listing; "
    "listing.POD_RESOURCES = (Path(sys.argv[1]),); listing.main()"
)


@pytest.mark.parametrize(
    ("method", "held"),
    [
        ("List", {"GPU-a": "ml/whole", "GPU-b": "ml/shared", "GPU-c": "ml/older"}),
        ("GetAllocatableResources", {}),  # a kubelet that has no such call
    ],
)
def test_the_kubelet_is_asked_which_pods_have_which_gpus(sockets: Path, method: str, held: dict[str, str]):
    pods = (pod("whole", gpu=["GPU-a"]), pod("shared", gpu=["GPU-b::3"]), pod("older", gpu=["GPU-c-_-0"]))

    async def scene() -> None:
        async with Lister(*pods).serving(sockets / "kubelet.sock", method):
            absent, there = sockets / "absent.sock", sockets / "kubelet.sock"
            assert await asyncio.to_thread(pods_by_device, [absent, there], there) == held
            assert (
                await asyncio.to_thread(pods_by_device, [absent], there) is None
            )  # it has another --root-dir
            assert await asyncio.to_thread(pods_by_device, [absent], absent) == {}

    asyncio.run(scene())


def test_gpus_of_idle_pods_are_left_alone(sockets: Path, tmp_path):
    """And all of them, where the kubelet does not say which these are."""
    driver = stand_in.build(tmp_path)
    driver.gpus(MODEL, MODEL)
    path = sockets / "kubelet.sock"

    def errors() -> list[Any]:
        done = driver.run("-c", LIST, str(path))
        return [gpu.get("error") for gpu in json.loads(done.stdout)["gpus"]]

    async def scene() -> None:
        async with Lister(pod("idle", gpu=[driver.uuids[0]])).serving(path):
            assert await asyncio.to_thread(errors) == [
                {"code": "in-use", "text": "in use by the pod ml/idle"},
                None,
            ]

    asyncio.run(scene())
    path.unlink(missing_ok=True)
    with socket.socket(socket.AF_UNIX) as dead:
        dead.bind(str(path))
    assert errors() == [{"code": "in-use", "text": "the kubelet does not say which pods have it"}] * 2
