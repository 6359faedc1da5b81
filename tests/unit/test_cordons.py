"""The host's file of cordoned GPUs as gpunode plans it; the GPUs that pods should get."""

from dataclasses import replace

import pytest

from gpunode.contract.cordons import Cordon, dumps
from gpunode.engine.member import Member
from gpunode.engine.proof import describe_proof
from gpunode.errors import CannotPlan
from gpunode.links.plugin import cordons
from gpunode.links.pod.vectoradd import NodeResult, Result
from gpunode.model import Facts, File, Gpu, Host, Outcome, RemoveFile, Ssh, WriteFile
from tests import cases

A = Cordon("ada@ws", "its fan is broken", "2026-11-26T00:31:00Z")
LATER = replace(A, since="2026-11-27T00:00:00Z")
B = Cordon("bob@ws", "burn-in", "2026-11-26T00:40:00Z")


def facts(text: str | None) -> Facts:
    """Of a host with two GPUs and this file."""
    file = File(cordons.PATH, exists=text is not None, content=text)
    gpus = tuple(Gpu(number, f"GPU-{name}", "P100", "", 16384) for number, name in enumerate("ab"))
    return replace(cases.facts("legacy"), files={cordons.PATH: file}, gpus=gpus)


@pytest.mark.parametrize(
    ("before", "cordon", "after"),
    [
        ({}, A, {"GPU-a": A}),
        ({"GPU-b": B}, A, {"GPU-a": A, "GPU-b": B}),
        ({"GPU-a": B}, A, {"GPU-a": A}),
        ({"GPU-a": A}, LATER, None),  # it is cordoned already, since earlier
        ({"GPU-a": A, "GPU-b": B}, None, {"GPU-b": B}),
        ({"GPU-a": A}, None, {}),
        ({"GPU-b": B}, None, None),
    ],
)
def test_only_the_named_gpu_changes(
    before: dict[str, Cordon], cordon: Cordon | None, after: dict[str, Cordon] | None
):
    changes = cordons.plan(facts(dumps(before) if before else None), "GPU-a", cordon)
    if after is None:
        assert changes == ()
        return
    (change,) = changes
    if after:
        assert isinstance(change, WriteFile)
        assert change.content == dumps(after)
    else:
        assert isinstance(change, RemoveFile)


def test_a_file_that_cannot_be_read_is_not_overwritten():
    with pytest.raises(CannotPlan, match=r"cordoned-gpus\.json"):
        cordons.plan(facts("{"), "GPU-a", A)


@pytest.mark.parametrize(("text", "uuids"), [(None, ["GPU-a", "GPU-b"]), (dumps({"GPU-a": A}), ["GPU-b"])])
def test_pods_should_get_the_other_gpus(text: str | None, uuids: list[str]):
    member = Member(Host("h", Ssh("h")), Outcome("h", "right", facts(text)))
    assert [gpu.uuid for gpu in member.gpus] == uuids


def test_the_proof_of_a_host_counts_its_cordoned_gpus():
    """They had no pod, and a green line must not hide that."""
    passed = NodeResult("n", (Result("n", "pod", "GPU-b", "P100", True, 1.0, "", ()),), expected=("GPU-b",))
    member = Member(Host("h", Ssh("h")), Outcome("h", "right", facts(dumps({"GPU-a": A}))), result=passed)
    assert describe_proof(member) == ("verified", "1 GPU, vectoradd passed on each; 1 cordoned")
