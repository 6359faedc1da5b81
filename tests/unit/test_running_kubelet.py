"""What verify says where the running kubelet goes by other gates than those that gpunode wished."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace

import pytest

from gpunode.engine import chain as pipeline
from gpunode.engine import decision as desired
from gpunode.links.kubelet import link as kubelet
from gpunode.model import Outcome, Verdict
from tests import cases

OK = Verdict("node", "ok", "gpu-1 is Ready")


def outcome(over: Mapping[str, object] | None = None, arguments: str = "") -> Outcome:
    """Of a host that was made right, with a wish; then its process has these arguments."""
    host = cases.host("legacy", {"feature_gates": {"KubeletPodResources": False}})
    seen = cases.facts("legacy", over)
    seen = cases.applied(seen, pipeline.plan(host, seen, desired.decide(host, seen, None)).changes)
    wish = desired.decide(host, seen, None)
    if arguments and seen.kubelet:
        seen = replace(seen, kubelet=replace(seen.kubelet, arguments=tuple(arguments.split())))
    return Outcome(host.name, "right", seen, wish, pipeline.plan(host, cases.facts("legacy"), wish))


def test_a_gate_in_force_changes_nothing() -> None:
    assert kubelet.wished(outcome()) == {"KubeletPodResources": False}
    assert kubelet.in_force(OK, outcome(), {"KubeletPodResources": False, "Other": True}) == OK


@pytest.mark.parametrize(
    ("arguments", "told", "shown", "where"),
    [
        (
            "/usr/bin/kubelet --feature-gates=KubeletPodResources=true",
            {"KubeletPodResources": True},
            "KubeletPodResources=true",
            "its process was started with --feature-gates=KubeletPodResources=true",
        ),
        (
            "/usr/bin/kubelet --config=/opt/kubelet.yaml",
            {},
            "no KubeletPodResources",
            "its process reads /opt/kubelet.yaml, and its unit would start it with /var/lib/kubelet/config.yaml",
        ),
        (
            "/usr/bin/kubelet",
            {"KubeletPodResources": True},
            "KubeletPodResources=true",
            "no argument of its process has it; kubelet.service would start it with that",
        ),
    ],
)
def test_a_gate_that_is_not_in_force_is_named_with_where_its_value_comes_from(
    arguments: str, told: Mapping[str, bool], shown: str, where: str
) -> None:
    link = kubelet.in_force(OK, outcome(arguments=arguments), told)
    assert (link.layer, link.status) == ("node", "broken")
    assert link.text == f"the running kubelet goes by {shown}"
    assert link.cause == f"KubeletPodResources=false is wished: {where}"
    assert "systemctl restart kubelet.service" in link.fix


def test_a_file_that_the_kubelet_has_not_read_is_named() -> None:
    """Its time may be older than the process: copied, or written while the clock was behind."""
    unit = "[Service]\nExecStart=/usr/bin/kubelet --config=/var/lib/kubelet/config.yaml\n"
    text = "kind: KubeletConfiguration\nfeatureGates: {KubeletPodResources: false}\n"
    seen = {"files": {"/var/lib/kubelet/config.yaml": text}, "kubelet": {"unit_text": unit}}
    link = kubelet.in_force(OK, outcome(seen), {"KubeletPodResources": True})
    assert (
        "/var/lib/kubelet/config.yaml has it, and the kubelet has not read that since its start" in link.cause
    )


def test_a_kubelet_that_cannot_be_asked_is_reported_and_breaks_nothing() -> None:
    link = kubelet.in_force(OK, outcome(), "ann may not get nodes/proxy")
    assert (link.status, link.text) == ("ok", OK.text)
    assert link.cause == (
        "whether KubeletPodResources is in force is known from files and arguments alone: ann may not get nodes/proxy"
    )
