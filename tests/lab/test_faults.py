"""What bad input and faults get on the real cluster: a cause and a way out, and no host is touched."""

from collections.abc import Callable
from contextlib import AbstractContextManager

import pytest

from . import faults
from .api import Lab, Node
from .conftest import Ran

pytestmark = pytest.mark.lab


@pytest.fixture(scope="module")
def legacy(lab: Lab) -> Node:
    """The host that faults are made on."""
    return lab.node("legacy")


CONNECTING: dict[str, tuple[Callable[[Node], AbstractContextManager[None]], int, str, str]] = {
    "no answer": (faults.address_silent, 3, "unreachable", "did not answer within"),
    "sudo needs a password": (faults.sudo_asks_password, 4, "failed", "sudo needs a password"),
    "python3-minimal": (faults.minimal_python, 1, "failed", "has no module"),
}


@pytest.mark.parametrize("case", CONNECTING)
def test_a_host_that_cannot_be_used_says_why_and_does_not_stop_the_other(
    case: str, legacy: Node, gpunode: Callable[..., Ran]
):
    """The bad host's outcome has cause and way out; the other host is planned."""
    fault, code, status, words = CONNECTING[case]
    with fault(legacy):
        ran = gpunode("plan", "--json")

    outcome = ran.of("outcome", "legacy")[0]
    assert ran.code == code, ran
    assert outcome["status"] == status
    assert words in outcome["error"]
    assert outcome["hint"]
    assert ran.of("outcome", "modern")[0]["status"] in ("planned", "right")


def test_a_host_without_python_gets_one_first(legacy: Node, gpunode: Callable[..., Ran]):
    """`plan` names the command; `provision` runs it, and then knows what else the host needs."""
    legacy.exec(["apt-get", "-q", "-y", "remove", "python3-minimal", "libpython3.11-minimal"])
    planned = gpunode("plan", "--json", "--limit", "legacy")
    ran = gpunode("provision", "--yes", "--json", "--no-run", "--limit", "legacy", timeout=800)

    (seen,) = planned.of("outcome", "legacy")
    assert (planned.code, seen["error"]) == (1, "it has no python3")
    assert "apt-get -q -y install python3" in seen["hint"]
    assert ran.code == 0, ran
    assert ran.of("plan", "legacy")[0]["status"] in ("planned", "right")
    assert gpunode("plan", "--json", "--exit-code", "--limit", "legacy").code == 0


def test_a_config_that_does_not_parse_is_refused_and_left_as_it_is(legacy: Node, gpunode: Callable[..., Ran]):
    """File, line and cause are named; not a byte is written."""
    path = "/etc/docker/daemon.json"
    text = '{"log-driver": "json-file",\n "log-opts": {"max-size": "100m",}\n}\n'
    before = legacy.read(path)
    legacy.write(path, text)
    try:
        ran = gpunode("provision", "--yes", "--json", "--limit", "legacy")
        left = legacy.read(path)
    finally:
        legacy.write(path, before)

    outcome = ran.of("outcome", "legacy")[-1]
    assert ran.code == 4, ran
    assert f"{path}:2:" in outcome["error"]
    assert left == text


def test_an_apiserver_that_does_not_answer_stops_before_any_host_is_touched(
    lab: Lab, gpunode: Callable[..., Ran]
):
    """The address and the cause are named."""
    with faults.apiserver_down(lab):
        ran = gpunode("provision", "--yes", "--json")

    assert ran.code == 1, ran
    assert lab.table["server"] in ran.stderr
    assert ran.of("stage") == []
