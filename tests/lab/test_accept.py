"""`gpunode accept` on real kubelets: the plugin's image measures the stand-in GPUs, whose kernels really run."""

import json
from collections.abc import Callable

import pytest

from .api import Lab
from .conftest import Ran

pytestmark = pytest.mark.lab
SLOW = "gpus.0.memory_gbps"


@pytest.fixture(autouse=True)
def records(tmp_path, monkeypatch) -> None:
    """Records are the test's own."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))


def test_every_gpu_of_the_lab_is_measured_and_a_slow_one_named(lab: Lab, gpunode: Callable[..., Ran]):
    """In pods, one a node; the node's annotation has the verdict, and verify shows it."""
    ready = gpunode("provision", "--yes", "--json", "--no-run", timeout=800)
    assert ready.code == 0, ready
    ran = gpunode("accept", "--json", "--level", "quick")
    assert ran.code == 0, ran
    gpus = ran.of("acceptance")
    assert {gpu["result"] for gpu in gpus} == {"accepted"}
    assert all(gpu["memory"] and gpu["compute"] and gpu["to_gpu"] for gpu in gpus), ran
    assert {host["result"] for host in ran.of("accepted")} == {"accepted"}
    legacy = lab.node("legacy")
    legacy.exec(["lab-gpu", "set", SLOW, "100"])
    try:
        slow = gpunode("accept", "--json", "--level", "quick", "--limit", "legacy")
    finally:
        legacy.exec(["lab-gpu", "unset", SLOW])
    assert slow.code == 1, slow
    assert [gpu["problems"] for gpu in slow.of("acceptance")] == [["memory-slow"], []]
    node = lab.request("GET", "/api/v1/nodes/legacy")
    stamp = json.loads(node["metadata"]["annotations"]["gpunode.dev/accepted"])
    assert (stamp["verdict"], len(stamp["uuids"]), len(stamp["failed"])) == ("failed", 1, 1)
    verified = gpunode("verify", "--json", "--no-run", "--limit", "legacy")
    link = next(link for link in verified.of("link", "legacy") if "not accepted" in link["text"])
    assert stamp["failed"][0] in link["cause"], verified
