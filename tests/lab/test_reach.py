"""Ways to a host, over the real sshd."""

from collections.abc import Callable

import pytest

from .api import Lab
from .conftest import Ran

pytestmark = pytest.mark.lab


def test_a_host_behind_a_jump_host_is_reached_through_it(lab: Lab, gpunode: Callable[..., Ran]):
    """modern sees the connection come from legacy."""
    legacy, modern = lab.node("legacy"), lab.node("modern")
    path = lab.inventory.with_name("jump.yaml")
    path.write_text(
        lab.inventory.read_text().replace(
            "{name: modern,", f"{{name: modern, ssh: {{jump: ops@{legacy.address}}},"
        )
    )
    try:
        ran = gpunode("plan", "--json", "--limit", "modern", inventory=path)
    finally:
        path.unlink()
    journal = modern.exec(["journalctl", "-q", "--no-pager", "-o", "cat", "-t", "sshd", "-n", "30"]).stdout

    assert ran.code in (0, 5), ran
    assert ran.status("modern") in ("planned", "right")
    assert f"Accepted publickey for ops from {legacy.address}" in journal
