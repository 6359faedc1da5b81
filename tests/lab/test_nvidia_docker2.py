"""`toolkit: nvidia-docker2` on a host with docker."""

from collections.abc import Callable
from pathlib import Path

import pytest

from .api import Lab
from .conftest import Ran

pytestmark = pytest.mark.lab


def test_nvidia_docker2_comes_with_the_toolkit_and_leaves_daemon_json_to_its_owner(
    lab: Lab, gpunode: Callable[..., Ran], inventory: Callable[..., Path]
):
    """Its last version is empty; without the wish it is removed again, and the GPUs work throughout."""
    node = lab.node("legacy")
    wish = inventory(lambda text: text.replace("{name: legacy,", "{name: legacy, toolkit: nvidia-docker2,"))
    limited = ("--yes", "--json", "--limit", "legacy")
    plain = gpunode("provision", *limited, timeout=800)
    assert plain.code == 0, plain
    before = node.read("/etc/docker/daemon.json")
    wished = gpunode("provision", *limited, inventory=wish, timeout=800)

    assert wished.code == 0, wished
    assert node.exec(["dpkg-query", "-W", "-f", "${Version}", "nvidia-docker2"]).stdout == "2.14.0-1"
    assert node.read("/etc/docker/daemon.json") == before
    assert gpunode("plan", "--json", "--exit-code", "--limit", "legacy", inventory=wish).code == 0
    again = gpunode("provision", *limited, timeout=800)
    assert again.code == 0, again
    assert "nvidia-docker2" not in node.exec(["dpkg-query", "-W", "-f", "${Package} ", "nvidia-*"]).stdout
