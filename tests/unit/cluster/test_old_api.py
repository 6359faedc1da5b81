"""API servers without server-side apply, and without dry runs: the same changes, differences and owners, by three-way merges."""

from typing import Any

import pytest

from gpunode.cluster import lease
from gpunode.cluster.api import Api, notes
from gpunode.cluster.api.notes import merge, patch
from gpunode.cluster.objects import apply
from gpunode.cluster.objects.difference import Difference
from gpunode.errors import ClusterError
from gpunode.links import node as nodes
from gpunode.links.node import labels
from gpunode.links.plugin.deployment import Spec, all_objects
from gpunode.model import PluginConfig, PluginImage
from tests import tables

from .conftest import NS, add_node, has
from .fake import FakeApi, Fault

IMAGE, CONFIG = PluginImage("gpunode/device-plugin:0.1.0"), PluginConfig("version: v1")
ALL = Spec(NS, IMAGE, CONFIG).manifests
NEXT = Spec(NS, PluginImage("gpunode/device-plugin:0.2.0")).manifests
MINORS = (8, 9, 12, 16, 19)


@pytest.fixture(params=MINORS, ids=lambda minor: f"1.{minor}")
def old(request, fake: FakeApi) -> FakeApi:
    fake.minor = request.param
    return fake


def edited(fake: FakeApi) -> None:
    """As a user edits the DaemonSet by hand."""
    live = next(item for item in fake.all("DaemonSet") if item["metadata"]["name"] == "gpunode-device-plugin")
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "evil:1"
    live["spec"]["template"]["spec"]["hostNetwork"] = True


def story(api: Api, fake: FakeApi) -> list[tuple[str, str, tuple[str, ...]]]:
    """What a plugin's life shows, change by change."""
    shown: list[Difference] = [*apply.diff(api, ALL), *apply.apply(api, ALL), *apply.diff(api, ALL)]
    edited(fake)
    shown += [*apply.diff(api, ALL), *apply.apply(api, ALL), *apply.apply(api, ALL)]
    shown += [*apply.diff(api, NEXT, all_objects(NS)), *apply.apply(api, NEXT)]
    shown += apply.prune(api, NEXT, all_objects(NS))
    return [
        (change.what, change.action, tuple(line for line in change.lines if line[0] in "+-"))
        for change in shown
        if change.action != "same"
    ]


def test_the_differences_are_those_of_a_new_one(api: Api, fake: FakeApi):
    """Created, edited by hand, another image, a configuration less: the same objects, with and without dry runs line by
    line. (tests/lab/test_api_servers.py has real ones.)"""
    seen = {}
    for minor in (36, 19, 12):
        fake.objects.clear()
        fake.minor = minor
        api.__dict__.pop("served", None)
        seen[minor] = [act for act in story(api, fake) if act[1] != "created"]
    assert seen[19] == seen[12]
    assert [act[:2] for act in seen[19]] == [act[:2] for act in seen[36]]
    assert [act[2] for act in seen[19] if act[0].startswith("Config")] == [
        act[2] for act in seen[36] if act[0].startswith("Config")
    ]


def test_applying_twice_changes_nothing_the_second_time(api: Api, old: FakeApi):
    """What the API server does not know is not wished of it, so nothing looks as if it had been taken off."""
    assert {change.action for change in apply.apply(api, ALL)} == {"created"}
    version = old.version
    assert {change.action for change in (*apply.diff(api, ALL), *apply.apply(api, ALL))} == {"same"}
    assert old.version == version


def test_a_plan_writes_nothing(api: Api, old: FakeApi):
    """Below 1.13 a dry run would write: none is sent, and it is said."""
    would = apply.diff(api, ALL)
    assert {change.action for change in would} == {"created"}
    assert old.objects == {}
    apply.apply(api, ALL)
    edited(old)
    old.requests.clear()
    untried = {change.untried for change in apply.diff(api, ALL)}
    assert untried == ({""} if old.minor >= 13 else {f"Kubernetes v1.{old.minor}.3 has no dry run"})
    writes = [query.get("dryRun") for method, _, query in old.requests if method != "GET"]
    assert writes == (["All"] if old.minor >= 13 else [])


def test_an_edit_by_hand_is_named_and_set_back(api: Api, old: FakeApi):
    """What gpunode wishes; the rest of the edit is its author's."""
    apply.apply(api, ALL)
    edited(old)
    (would,) = [change for change in apply.diff(api, ALL) if change.lines]
    assert [claim.field for claim in would.claims] == [
        '.spec.template.spec.containers[name="device-plugin"].image'
    ]
    assert "-        image: evil:1" in would.lines
    apply.apply(api, ALL)
    spec = old.all("DaemonSet")[0]["spec"]["template"]["spec"]
    assert spec["containers"][0]["image"] == IMAGE.reference
    assert spec["hostNetwork"] is True
    assert {change.action for change in apply.diff(api, ALL)} == {"same"}


def test_what_it_has_not_is_not_wished(api: Api, old: FakeApi):
    """No RuntimeClass, no field of one; where it is a beta, the beta."""
    apply.apply(api, ALL)
    paths = {where for _, where, _ in old.requests if "runtimeclasses" in where}
    assert all("/node.k8s.io/v1beta1/" in where for where in paths)
    assert has(old, "RuntimeClass", "nvidia") == bool(paths) == (old.minor >= 14)
    for daemonset in old.all("DaemonSet"):
        assert daemonset["apiVersion"] == ("apps/v1" if old.minor >= 9 else "apps/v1beta2")
        spec = daemonset["spec"]["template"]["spec"]
        assert ("runtimeClassName" in spec) == (
            old.minor >= 14 and daemonset["metadata"]["name"].endswith("-class")
        )
        assert ("seccompProfile" in spec["containers"][0]["securityContext"]) == (old.minor >= 19)
        assert ("priorityClassName" in spec) == (old.minor >= 17)


def test_labels_of_two_writers_and_of_others_on_one_node(api: Api, old: FakeApi):
    """Each writer's note is its own; nobody's label is taken, and what each leaves out goes."""
    add_node(old, "a", labels={"zone": "x"})

    def now() -> nodes.Node:
        return nodes.fetch(api)[0]

    labels.write(api, now(), {"accelerator": "nvidia-l4"}, writer=labels.ACCELERATOR)
    assert labels.write(api, now(), {"pool": "ml"}) == {"pool": (None, "ml")}
    assert now().applied == {labels.PROVISION: {"pool"}, labels.ACCELERATOR: {"accelerator"}}
    assert labels.holds(now(), {"pool": "ml"})
    with pytest.raises(ClusterError, match="another client set zone=x") as caught:
        labels.write(api, now(), {"zone": "y"})
    assert "field manager" not in caught.value.message
    assert labels.write(api, now(), {"zone": "y"}, overwrite=True) == {
        "pool": ("ml", None),
        "zone": ("x", "y"),
    }
    assert labels.write(api, now(), {}, writer=labels.ACCELERATOR) == {"accelerator": ("nvidia-l4", None)}
    assert labels.write(api, now(), {}) == {"zone": ("y", None)}
    assert not old.all("Node")[0]["metadata"].get("annotations")


def test_a_label_that_somebody_had_set_alike_stays(api: Api, old: FakeApi):
    """With the same value, before gpunode wished it: it is theirs when gpunode's go."""
    add_node(old, "a", labels={"pool": "ml"})
    assert labels.write(api, nodes.fetch(api)[0], {"pool": "ml", "tier": "1"}) == {"tier": (None, "1")}
    version = old.version
    assert labels.write(api, nodes.fetch(api)[0], {"pool": "ml", "tier": "1"}) == {}
    assert old.version == version
    assert labels.write(api, nodes.fetch(api)[0], {}) == {"tier": ("1", None)}
    assert old.all("Node")[0]["metadata"]["labels"]["pool"] == "ml"


def test_a_secrets_values_are_in_no_note(api: Api, old: FakeApi):
    """Their hashes are: an edit is named all the same, and a value that is wished no more goes."""

    def secret(**data: str) -> dict[str, object]:
        meta = {"name": "tls", "namespace": NS, "labels": {"app.kubernetes.io/managed-by": "gpunode"}}
        return {"apiVersion": "v1", "kind": "Secret", "metadata": meta, "data": data}

    def live() -> dict[str, Any]:
        (stored,) = old.all("Secret")
        return stored

    api.apply(secret(key="aGlkZGVu", cert="b3Blbg=="))
    assert "aGlkZGVu" not in str(live()["metadata"])
    api.apply(secret(key="bmV4dA==", cert="b3Blbg=="))  # no Conflict: the value before was ours
    live()["data"]["key"] = "ZWRpdGVk"
    with pytest.raises(ClusterError, match=r"data\.key"):
        api.apply(secret(key="bmV4dA==", cert="b3Blbg=="))
    api.apply(secret(key="bmV4dA=="), force=True)
    assert live()["data"] == {"key": "bmV4dA=="}


def test_a_node_that_was_deleted_meanwhile_is_not_born_again(api: Api, old: FakeApi):
    """As with server-side apply."""
    add_node(old, "a")
    (node,) = nodes.fetch(api)
    old.drop("/api/v1/nodes/a")
    with pytest.raises(ClusterError, match="Node a was deleted since it was read"):
        labels.write(api, node, {"pool": "ml"})
    assert old.all("Node") == []


def test_a_change_in_between_is_merged_again(api: Api, old: FakeApi):
    """Kubelets write their nodes all the time: a Conflict is no failure."""
    add_node(old, "a")
    (node,) = nodes.fetch(api)
    old.fail("PATCH", "/nodes/a", Fault(409, "Conflict", "the object has been modified"))
    assert labels.write(api, node, {"pool": "ml"}) == {"pool": (None, "ml")}


def test_an_object_keeps_its_note_through_an_upgrade(api: Api, fake: FakeApi):
    """The new API server knows nobody who set these fields: the note does. A label that was ours still goes."""
    fake.minor = 19
    add_node(fake, "a")
    labels.write(api, nodes.fetch(api)[0], {"pool": "ml", "tier": "1"})
    apply.apply(api, ALL)
    fake.minor = 36
    api.__dict__.pop("served")
    assert labels.write(api, nodes.fetch(api)[0], {"tier": "1"}) == {"pool": ("ml", None)}
    assert {change.action for change in apply.diff(api, ALL)} <= {"same", "changed"}
    apply.apply(api, ALL)
    assert {change.action for change in apply.diff(api, ALL)} == {"same"}


def test_a_broken_note_takes_nothing_from_anybody(api: Api, fake: FakeApi):
    """Then only what is wished now is known to be ours."""
    fake.minor = 16
    add_node(fake, "a")
    labels.write(api, nodes.fetch(api)[0], {"pool": "ml"})
    fake.update("Node", "a", metadata={"annotations": {notes.PREFIX + "gpunode": "{"}})
    assert labels.write(api, nodes.fetch(api)[0], {"tier": "1"}) == {"tier": (None, "1")}


def test_an_api_server_below_the_floor_is_refused_by_version(api: Api, fake: FakeApi):
    """With the floor; before anything is written."""
    fake.minor = 7
    with pytest.raises(
        ClusterError, match=r"this Kubernetes is v1\.7\.3; gpunode's cluster side needs 1\.8 or"
    ):
        apply.apply(api, ALL)
    assert fake.objects == {}


@pytest.mark.parametrize(("minor", "api_version"), [(36, "v1"), (14, "v1"), (12, "v1beta1"), (11, "")])
def test_the_lease_is_that_of_its_version(
    api: Api, fake: FakeApi, told: list[str], minor: int, api_version: str
):
    """Before 1.12 there is none, which is said."""
    fake.minor = minor
    with lease.hold(api, "me", told.append):
        pass
    paths = {where for _, where, _ in fake.requests if "leases" in where}
    assert all(f"/coordination.k8s.io/{api_version}/" in where for where in paths)
    assert bool(paths) == bool(api_version)
    assert (told == []) == bool(api_version)


Object = dict[str, Any]


def containers(*items: Object) -> Object:
    return {"spec": {"containers": list(items)}}


@tables.rows("merges", taken=[])
def test_a_wish_is_merged(live: Object, last: Object, wish: Object, result: Object, taken: list[str]):
    """What was last wished tells ours from others'; the patch leads there, and a second merge changes nothing."""
    assert merge(live, last, wish) == (result, tuple(taken))
    assert merge(result, wish, wish) == (result, ())
    assert _patched(live, patch(live, result)) == result


def _patched(value: Any, fields: Any) -> Any:
    """RFC 7386, as it is written there."""
    if not isinstance(fields, dict):
        return fields
    done = dict(value) if isinstance(value, dict) else {}
    for key, field in fields.items():
        if field is None:
            done.pop(key, None)
        else:
            done[key] = _patched(done.get(key), field)
    return done
