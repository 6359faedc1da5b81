"""A host whose GPUs nouveau holds: blacklisted, rebooted, and then made right in a second round."""

import json
from collections.abc import Callable

import pytest

from .api import Lab
from .conftest import Ran

pytestmark = pytest.mark.lab
CONFIG = "/etc/lab-gpus.json"


def test_nouveau_makes_room_by_a_reboot(lab: Lab, gpunode: Callable[..., Ran]):
    """One run: the plan names the reboot, waits it out, goes on, and ends right."""
    node = lab.node("legacy")
    node.reset()
    node.write(CONFIG, json.dumps({**json.loads(node.read(CONFIG)), "nouveau": 1}))
    node.reboot()
    planned = gpunode("plan", "--json", "--limit", "legacy")
    ran = gpunode("provision", "--yes", "--json", "--no-run", "--limit", "legacy", timeout=800)

    assert "Reboot" in {change["kind"] for change in planned.of("plan", "legacy")[0]["changes"]}, planned
    assert ran.code == 0, ran
    assert any(line["message"] == "reboot" for line in ran.of("stage", "legacy"))
    assert "blacklist nouveau" in node.read("/etc/modprobe.d/gpunode-nouveau.conf")
    assert node.read("/sys/module/nvidia/version").startswith("580.")
    assert gpunode("plan", "--json", "--exit-code", "--limit", "legacy").code == 0
