"""What a kubelet reports of itself at /configz."""

from __future__ import annotations

import pytest

from gpunode.cluster.api import Api
from gpunode.links.node.link import read_gates

from .fake import FakeApi, Fault, Object

WHERE = "/api/v1/nodes/gpu-1/proxy/configz"


@pytest.mark.parametrize(
    ("answer", "gates"),
    [
        ({"kubeletconfig": {"featureGates": {"A": True, "B": False}}}, {"A": True, "B": False}),
        ({"componentconfig": {"featureGates": {"A": True}}}, {"A": True}),
        ({"kubeletconfig": {"featureGates": None}}, {}),
        ({"kubeletconfig": {}}, {}),
        ({}, "the kubelet answers /configz without its configuration (HTTP 200)"),
    ],
)
def test_gates_are_those_that_the_kubelet_was_told(
    fake: FakeApi, api: Api, answer: Object, gates: object
) -> None:
    fake.objects[WHERE] = answer
    assert read_gates(api, "gpu-1") == gates


def test_a_user_without_the_right_is_told_so(fake: FakeApi, api: Api) -> None:
    """It is no error: few users have it."""
    fake.closed[WHERE] = Fault(
        403, "Forbidden", 'User "ann" cannot get resource "nodes/proxy" in API group ""'
    )
    assert "nodes/proxy" in str(read_gates(api, "gpu-1"))
