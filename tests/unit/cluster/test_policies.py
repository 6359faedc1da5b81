"""Admission policies that hold the plugin's and the extender's accounts in. What they refuse: tests/lab/test_policies.py."""

from __future__ import annotations

import re

import pytest

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.objects import apply
from gpunode.contract.promises import ALLOCATION, ASSIGNED, ASSUMED, DEV, INDEX, MEMORY_ANNOTATION, POD
from gpunode.contract.status import ANNOTATION
from gpunode.links.plugin.deployment import Spec, everything
from gpunode.links.scheduler import deployment
from gpunode.links.scheduler.deployment import Spec as ExtenderSpec
from gpunode.links.scheduler.deployment import rights_to_remove
from gpunode.model import PluginImage, PluginPublish, Share
from gpunode.share.waiting import ROOM

from .conftest import NS, has
from .fake import FakeApi

POLICY, BINDING = "ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"
IMAGE = PluginImage("i:1")
WRITES = PluginPublish(annotation=True)
PLUGIN = Spec(NS, IMAGE, None, WRITES).manifests
EXTENDER = ExtenderSpec(NS, IMAGE, Share(resource="x.io/mem"), dict.fromkeys(deployment.FILES, "")).manifests


def named(made: list[Object], kind: str) -> dict[str, Object]:
    return {one["metadata"]["name"]: one for one in made if one["kind"] == kind}


@pytest.mark.parametrize(
    ("publish", "held"),
    [
        (PluginPublish(), False),
        (PluginPublish(metrics=True), False),
        (WRITES, True),
        (PluginPublish(promises=True), True),
    ],
)
def test_whoever_may_write_nodes_is_held_in(publish: PluginPublish, held: bool) -> None:
    """And no other, as a policy costs each write a look."""
    made = Spec(NS, IMAGE, None, publish).manifests
    rules = [rule for one in made if one["kind"] == "ClusterRole" for rule in one["rules"]]
    assert any("patch" in rule["verbs"] for rule in rules) is held
    assert (
        set(named(made, POLICY))
        == set(named(made, BINDING))
        == ({"gpunode-device-plugin"} if held else set())
    )


def test_a_policy_is_for_the_account_of_the_pods_and_denies() -> None:
    for made in (PLUGIN, EXTENDER):
        accounts = {
            f"system:serviceaccount:{NS}:{one['spec']['template']['spec']['serviceAccountName']}"
            for one in made
            if one["kind"] in ("DaemonSet", "Deployment")
        }
        for name, one in named(made, POLICY).items():
            (condition,) = one["spec"]["matchConditions"]
            assert set(re.findall(r'"(.*?)"', condition["expression"])) == accounts
            assert one["spec"]["failurePolicy"] == "Fail"
            bound = named(made, BINDING)[name]["spec"]
            assert bound == {"policyName": name, "validationActions": ["Deny"]}


def test_every_write_that_the_roles_allow_has_a_policy() -> None:
    """By resource: a right that is added later needs one, too."""
    for made in (PLUGIN, EXTENDER):
        rules = [rule for one in made if one["kind"] == "ClusterRole" for rule in one["rules"]]
        writes = {
            resource
            for rule in rules
            if {"create", "patch", "update", "delete"} & set(rule["verbs"])
            for resource in rule["resources"]
        }
        held = {
            resource
            for one in named(made, POLICY).values()
            for rule in one["spec"]["matchConstraints"]["resourceRules"]
            for resource in rule["resources"]
        }
        assert held == writes


def test_the_annotations_that_are_written_are_those_that_may_be() -> None:
    notes = {
        MEMORY_ANNOTATION,
        ALLOCATION,
        INDEX,
        DEV,
        POD,
        ASSIGNED,
        ASSUMED,
    }
    every = {**named(PLUGIN, POLICY), **named(EXTENDER, POLICY)}

    def keys(name: str) -> set[str]:
        own = [one for one in every[name]["spec"].get("variables", []) if one["name"] == "own"]
        text = own[0]["expression"] if own else every[name]["spec"]["validations"][0]["expression"]
        return set(re.findall(r'"(.*?)"', text))

    assert keys("gpunode-device-plugin") == {ANNOTATION, MEMORY_ANNOTATION}
    assert keys("gpunode-share") == notes | {ROOM}
    assert keys("gpunode-share-binding") == notes
    assert '"x.io/mem" in ' in str(every["gpunode-share"]["spec"]["validations"])


@pytest.mark.parametrize(("minor", "demanded"), [(29, False), (30, True)])
def test_rights_to_policies_are_demanded_only_where_there_are_any(
    api: Api, fake: FakeApi, minor: int, demanded: bool
) -> None:
    """Who removes the extender may have a ClusterRole of before."""
    fake.minor = minor
    resources = {one.resource for one in rights_to_remove(api, NS)}
    assert any("admissionpolicies" in one for one in resources) == demanded
    assert "deployments.apps" in resources


@pytest.mark.parametrize("minor", [16, 29, 30, 36])
def test_policies_are_applied_where_the_api_server_has_them(api: Api, fake: FakeApi, minor: int) -> None:
    """The group's v1 is older than they are. Where there are none, it is said once, with the right that is given."""
    fake.minor = minor
    changes = apply.diff(api, PLUGIN)
    words = apply.unguarded(api, PLUGIN, changes)
    apply.apply(api, PLUGIN)
    assert (
        has(fake, POLICY, "gpunode-device-plugin")
        is has(fake, BINDING, "gpunode-device-plugin")
        is (minor >= 30)
    )
    assert bool(words) is (minor < 30)
    if words:
        assert words.startswith(
            f"Kubernetes v1.{minor}.3 has no admission policies (1.30 has): RBAC alone limits"
        )
        assert not any("validating" in where for _, where, _ in fake.requests), "nobody may have the right"
    apply.apply(api, PLUGIN)
    plain = [one for one in apply.diff(api, PLUGIN) if one.action != "same"]
    assert (plain, apply.unguarded(api, PLUGIN, plain)) == ([], "")
    apply.remove(api, everything(NS), seconds=5, tell=lambda _: None)
    assert not has(fake, POLICY, "gpunode-device-plugin")


def test_the_extender_prefers_nodes_of_the_control_plane() -> None:
    """Where any has a place for it: its token is safer there."""
    (deployment,) = [one for one in EXTENDER if one["kind"] == "Deployment"]
    spec = deployment["spec"]["template"]["spec"]
    preferred = spec["affinity"]["nodeAffinity"]["preferredDuringSchedulingIgnoredDuringExecution"]
    keys = [term["key"] for one in preferred for term in one["preference"]["matchExpressions"]]
    assert keys == ["node-role.kubernetes.io/control-plane", "node-role.kubernetes.io/master"]
    assert set(keys) <= {one.get("key") for one in spec["tolerations"]}
