"""Manifests into the cluster and out of it, and how their changes read."""

import copy
import json
from typing import Any

import pytest

from gpunode.cluster.api import Api
from gpunode.cluster.objects import apply, difference
from gpunode.errors import ClusterError
from gpunode.links.plugin.deployment import Spec, all_objects
from gpunode.model import PluginConfig, PluginImage, PluginPublish
from tests import tables

from .conftest import NS, has
from .fake import VERBS, FakeApi, Fault, path

IMAGE = PluginImage("gpunode/device-plugin:0.1.0")
CONFIG = PluginConfig("version: v1")
ALL = Spec(NS, IMAGE, CONFIG).manifests


def foreign(kind: str, name: str, namespace: str | None = None, **more: object) -> dict[str, object]:
    """An object of another client."""
    place = {"namespace": namespace} if namespace else {}
    return {"kind": kind, "metadata": {"name": name, **place}, **more}


def test_a_plan_shows_what_would_be_made_and_makes_nothing(api: Api, fake: FakeApi):
    """Into an empty cluster everything is created, and the dry run leaves it empty."""
    differences = apply.diff(api, ALL)
    assert {change.action for change in differences} == {"created"}
    assert "+  name: gpunode-device-plugin" in differences[-2].lines
    assert fake.objects == {}


def test_applying_twice_changes_nothing_the_second_time(api: Api, fake: FakeApi):
    """Idempotence is read off the API server's own answers."""
    assert {change.action for change in apply.apply(api, ALL)} == {"created"}
    version = fake.version
    assert {change.action for change in apply.diff(api, ALL)} == {"same"}
    assert {change.action for change in apply.apply(api, ALL)} == {"same"}
    assert fake.version == version


def test_a_new_image_shows_as_one_changed_line(api: Api, fake: FakeApi):
    """The diff is of what a person wrote, without status, versions and other bookkeeping."""
    apply.apply(api, ALL)
    changed = [
        change
        for change in apply.diff(api, Spec(NS, PluginImage("gpunode/device-plugin:0.2.0"), CONFIG).manifests)
        if change.lines
    ]
    assert [change.what for change in changed] == [
        "DaemonSet gpunode/gpunode-device-plugin",
        "DaemonSet gpunode/gpunode-device-plugin-class",
    ]
    body = [line for line in changed[0].lines if line[0] in "+-" and line[:3] not in {"+++", "---"}]
    assert [line.strip("+- ") for line in body] == [
        "image: gpunode/device-plugin:0.1.0",
        "image: gpunode/device-plugin:0.2.0",
    ]


def test_namespaces_come_first_and_go_last(api: Api, fake: FakeApi, told: list[str]):
    """An order that works in both directions, whatever order the manifests come in."""
    apply.apply(api, list(reversed(ALL)))
    made = [request[1].rsplit("/", 2)[-2] for request in fake.requests if request[0] == "PATCH"]
    assert made == [
        "namespaces",
        "serviceaccounts",
        "configmaps",
        "roles",
        "rolebindings",
        "runtimeclasses",
        "daemonsets",
        "daemonsets",
    ]
    removed = apply.remove(api, ALL, seconds=60, notify=told.append)
    assert removed[-1] == "Namespace gpunode"
    assert len(removed) == len(ALL)
    assert fake.objects == {}
    assert apply.remove(api, ALL, seconds=60, notify=told.append) == ()


def test_rights_that_are_not_wanted_any_more_are_taken_away(api: Api, fake: FakeApi):
    """What an earlier inventory asked for goes, shown before it is done; an object of others' stays."""
    more = Spec(NS, IMAGE, CONFIG, PluginPublish(annotation=True)).manifests
    apply.apply(api, more)
    fake.all("ClusterRoleBinding")[0]["metadata"]["labels"] = {}  # another client has taken it
    apply.apply(api, ALL)
    for do in (apply.diff, apply.prune):
        gone = [change for change in do(api, ALL, more) if change.action == "removed"]
        assert [change.what for change in gone] == [
            "ClusterRole gpunode-device-plugin",
            "ValidatingAdmissionPolicyBinding gpunode-device-plugin",
            "ValidatingAdmissionPolicy gpunode-device-plugin",
        ]
        assert "-  - patch" in gone[0].lines
    assert not has(fake, "ClusterRole", "gpunode-device-plugin")
    assert has(fake, "ClusterRoleBinding", "gpunode-device-plugin")
    assert has(fake, "Role", "gpunode-device-plugin", "default")
    assert {change.action for change in apply.diff(api, ALL, more)} == {"same"}


def test_what_others_changed_in_our_objects_is_taken_back(api: Api, fake: FakeApi):
    """A user edited the image by hand: the plan shows it, applying restores it."""
    apply.apply(api, ALL)
    live = next(item for item in fake.all("DaemonSet") if item["metadata"]["name"] == "gpunode-device-plugin")
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "evil:1"
    shown = [line for change in apply.diff(api, ALL) for line in change.lines]
    assert any(line.startswith("-") and "evil:1" in line for line in shown)
    apply.apply(api, ALL)
    assert {change.action for change in apply.diff(api, ALL)} == {"same"}


def test_somebody_elses_daemonset_is_not_overwritten(api: Api, fake: FakeApi):
    """The same name without our label: a refusal with the way out."""
    fake.put(foreign("Namespace", NS))
    fake.put(foreign("DaemonSet", "gpunode-device-plugin", NS, spec={}))
    with pytest.raises(ClusterError) as caught:
        apply.diff(api, ALL)
    assert "exists and is not gpunode's" in caught.value.message
    assert "cluster.namespace" in caught.value.hint


def test_a_runtime_class_of_others_serves_if_it_leads_to_the_same_handler(
    api: Api, fake: FakeApi, told: list[str]
):
    """A GPU operator's RuntimeClass is used and left alone, when removing too; one with another handler is refused."""
    fake.put(foreign("RuntimeClass", "nvidia", handler="nvidia"))
    done = {change.what: change for change in apply.apply(api, ALL)}
    assert (done["RuntimeClass nvidia"].action, done["RuntimeClass nvidia"].is_change) == ("foreign", False)
    apply.remove(api, ALL, seconds=60, notify=told.append)
    assert has(fake, "RuntimeClass", "nvidia")
    assert "RuntimeClass nvidia stays: it is not gpunode's" in told
    fake.put(foreign("RuntimeClass", "nvidia", handler="kata"))
    with pytest.raises(ClusterError, match="has the handler `kata` instead of `nvidia`"):
        apply.diff(api, ALL)


def by_gpunode(kind: str, name: str, namespace: str, **meta: object) -> dict[str, object]:
    """An object with gpunode's label."""
    labels = {"app.kubernetes.io/managed-by": "gpunode"}
    return {"kind": kind, "metadata": {"name": name, "namespace": namespace, "labels": labels, **meta}}


def token(name: str, account: str) -> dict[str, object]:
    """A service account's token as Kubernetes made them before 1.24, and people still do."""
    made = foreign("Secret", name, NS, type="kubernetes.io/service-account-token")
    made["metadata"]["annotations"] = {"kubernetes.io/service-account.name": account}
    return made


def test_a_namespace_with_other_things_in_it_stays(api: Api, fake: FakeApi, told: list[str]):
    """Deleting a namespace deletes all in it, so any other object there keeps it, of whatever kind."""
    apply.apply(api, ALL)
    for row in tables.read("namespaces"):
        guest = row["guest"]
        named = f"Namespace gpunode stays: it also holds {guest['kind']}/{guest['metadata']['name']}"
        fake.put(guest)
        announced = apply.find_removable(api, ALL, notify=told.append)
        assert (told, "Namespace gpunode" in announced) == ([named], False)
        fake.drop(path(guest["kind"], NS, guest["metadata"]["name"]))
        told.clear()
    fake.put(guest)
    assert apply.remove(api, ALL, seconds=60, notify=told.append) == announced
    assert told.count(named) == 1
    assert has(fake, "Namespace", NS)


def test_what_kubernetes_has_in_every_namespace_keeps_none(api: Api, fake: FakeApi, told: list[str]):
    """Neither does what it made for gpunode's own objects, nor what nobody can delete, nor what has happened."""
    apply.apply(api, ALL)
    owner = [{"kind": "DaemonSet", "name": "gpunode-device-plugin", "uid": "of-before"}]
    for native in (
        foreign("ConfigMap", "kube-root-ca.crt", NS),
        foreign("ServiceAccount", "default", NS),
        token("default-token-x7k2p", "default"),
        token("gpunode-device-plugin-token-x7k2p", "gpunode-device-plugin"),
        by_gpunode("Pod", "gpunode-device-plugin-x7k2p", NS, ownerReferences=owner),
        by_gpunode("Pod", "vectoradd-1", NS),
        foreign("PodMetrics", "vectoradd-1", NS),
        foreign("Event", "gpunode-device-plugin.17", NS),
    ):
        fake.put(native)
    assert apply.remove(api, ALL, seconds=60, notify=told.append)[-1] == "Namespace gpunode"
    assert not [text for text in told if "stays" in text]


FORBIDDEN = Fault(403, "Forbidden", 'User "jane" cannot list resource "secrets" in API group ""')
NO_LIST = "Namespace gpunode stays: its dependents are unknown: "


@pytest.mark.parametrize(
    ("where", "fault", "why"),
    [
        (f"/api/v1/namespaces/{NS}/secrets", FORBIDDEN, "does not let the user `jane` list secrets"),
        (
            f"/apis/ml.example.org/v1/namespaces/{NS}/trainjobs",
            Fault(500, "", "no endpoints available"),
            "no endpoints available",
        ),
        ("/apis/ml.example.org/v1", Fault(503, "", "service unavailable"), "service unavailable"),
        ("/apis", Fault(503, "", "service unavailable"), "service unavailable"),
    ],
    ids=["forbidden", "unwell", "a group that is away", "nothing told"],
)
def test_what_cannot_be_listed_keeps_the_namespace(
    api: Api, fake: FakeApi, told: list[str], where: str, fault: Fault, why: str
):
    """Not to know is no reason to delete."""
    apply.apply(api, ALL)
    fake.closed[where] = fault
    removed = apply.remove(api, ALL, seconds=60, notify=told.append)
    assert "Namespace gpunode" not in removed
    (stays,) = [text for text in told if text.startswith("Namespace")]
    assert stays.startswith(NO_LIST)
    assert why in stays


def test_a_kind_that_can_be_deleted_and_not_listed_keeps_the_namespace(
    api: Api, fake: FakeApi, told: list[str], monkeypatch
):
    """Deleting the namespace would delete unlisted objects."""
    apply.apply(api, ALL)
    monkeypatch.setitem(VERBS, "TrainJob", ["delete"])
    assert "Namespace gpunode" not in apply.remove(api, ALL, seconds=60, notify=told.append)
    assert f"{NO_LIST}trainjobs.ml.example.org cannot be listed" in told


def test_who_may_not_look_at_all_pods_leaves_the_runtime_class(api: Api, fake: FakeApi, told: list[str]):
    """Whether others name it cannot be told then."""
    apply.apply(api, ALL)
    no = 'User "jane" cannot list resource "pods" in API group ""'
    fake.closed["/api/v1/pods"] = Fault(403, "Forbidden", no)
    assert "RuntimeClass nvidia" not in apply.remove(api, ALL, seconds=60, notify=told.append)
    (stays,) = [text for text in told if text.startswith("RuntimeClass")]
    assert "does not let the user `jane` list pods in the whole cluster" in stays


TEMPLATE = {"template": {"spec": {"runtimeClassName": "nvidia"}}}


def test_a_runtime_class_that_others_name_stays(api: Api, fake: FakeApi, told: list[str]):
    """Without it no new pod of theirs would be let in; who names another class, or is gpunode's, does not keep it."""
    apply.apply(api, ALL)
    fake.put(foreign("Pod", "other", "ml", spec={"runtimeClassName": "kata"}))
    fake.put(by_gpunode("Pod", "vectoradd-1", NS) | {"spec": {"runtimeClassName": "nvidia"}})
    for user, item in {
        "Pod ml/train": foreign("Pod", "train", "ml", spec={"runtimeClassName": "nvidia"}),
        "Deployment ml/serve": foreign("Deployment", "serve", "ml", spec=TEMPLATE),
        "CronJob ml/nightly": foreign("CronJob", "nightly", "ml", spec={"jobTemplate": {"spec": TEMPLATE}}),
        "TrainJob ml/resnet": foreign("TrainJob", "resnet", "ml", spec={"workers": [TEMPLATE]}),
        "TrainRuntime torch": foreign("TrainRuntime", "torch", None, spec=TEMPLATE),
        "DaemonSet gpunode/a-copy": by_gpunode("DaemonSet", "a-copy", NS) | {"spec": TEMPLATE},
    }.items():
        put = fake.put(item)
        told.clear()
        assert "RuntimeClass nvidia" not in apply.find_removable(api, ALL, notify=told.append)
        assert told[0] == (stays := f"RuntimeClass nvidia stays: it is named by {user}")
        fake.drop(path(put["kind"], put["metadata"].get("namespace"), put["metadata"]["name"]))
    fake.put(item)
    assert "RuntimeClass nvidia" not in apply.remove(api, ALL, seconds=60, notify=told.append)
    assert told.count(stays) == 2
    assert has(fake, "RuntimeClass", "nvidia")
    fake.drop(path("DaemonSet", NS, "a-copy"))
    assert "RuntimeClass nvidia" in apply.remove(api, ALL, seconds=60, notify=told.append)


def test_an_object_that_does_not_go_away_is_named(api: Api, fake: FakeApi, told: list[str]):
    """A finalizer or a dead node holds it: an error after the deadline, not a wait without end."""
    apply.apply(api, ALL)
    fake.fail("DELETE", "daemonsets", Fault(200, "", "kept"))
    with pytest.raises(ClusterError, match="gpunode-device-plugin-class still exists 1 s after"):
        apply.remove(api, ALL, seconds=1, notify=told.append)


def test_without_permission_nothing_is_half_done(api: Api, fake: FakeApi):
    """The first refusal ends it, and says which right is missing."""
    no = 'User "jane" cannot patch resource "namespaces" in API group "" at the cluster scope'
    fake.fail("PATCH", "namespaces", Fault(403, "Forbidden", no))
    with pytest.raises(ClusterError, match="does not let the user `jane` patch namespaces"):
        apply.apply(api, ALL)
    assert fake.objects == {}


def test_a_cluster_that_is_right_is_asked_twice_for_each_object(api: Api, fake: FakeApi):
    """What is there, and what would be: one pass. Of what may be left from before, only whether it is there."""
    apply.apply(api, ALL)
    fake.requests.clear()
    assert {change.action for change in apply.diff(api, ALL, ALL)} == {"same"}
    of: dict[str, list[str]] = {}
    for method, where, _ in fake.requests:
        of.setdefault(where, []).append(method)
    assert len(of) == len(ALL)
    assert all(methods == ["GET", "PATCH"] for methods in of.values())
    assert all(query.get("dryRun") == "All" for method, _, query in fake.requests if method == "PATCH")


def test_of_a_namespace_that_is_not_there_nothing_more_is_asked(api: Api, fake: FakeApi):
    """Nothing can be in it, nor be tried there."""
    would = apply.diff(api, ALL, all_objects(NS))
    assert not any(f"/namespaces/{NS}/" in where for _, where, _ in fake.requests)
    untried = {change.what for change in would if change.untried == f"namespace {NS} does not exist yet"}
    assert untried == {change.what for change in would if f" {NS}/" in change.what}


NO_DRY_RUN = {
    "webhook": Fault(400, "BadRequest", 'admission webhook "w.example" does not support dry run'),
    "gate": Fault(400, "BadRequest", "the dryRun beta feature is disabled"),
    "right": Fault(
        403,
        "Forbidden",
        'daemonsets.apps "x" is forbidden: User "jane" cannot patch resource "daemonsets" in API group "apps" '
        'in the namespace "gpunode"',
    ),
}


@pytest.mark.parametrize(
    ("which", "strict", "why"),
    [
        ("webhook", True, 'admission webhook "w.example" does not support dry run'),
        ("webhook", False, 'admission webhook "w.example" does not support dry run'),
        ("gate", True, "the dryRun beta feature is disabled"),
        ("right", False, "the user `jane` may not patch daemonsets.apps in namespace gpunode"),
    ],
)
def test_an_object_that_cannot_be_tried_is_compared(
    api: Api, fake: FakeApi, which: str, strict: bool, why: str
):
    """It is said why; a change is found all the same, and the other objects are tried."""
    apply.apply(api, ALL)
    live = next(item for item in fake.all("DaemonSet") if item["metadata"]["name"] == "gpunode-device-plugin")
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "theirs:1"
    fake.fail("PATCH", "daemonsets/gpunode-device-plugin?", NO_DRY_RUN[which])
    would = apply.diff(api, ALL, strict=strict)
    (untried,) = [change for change in would if change.untried]
    assert (untried.what, untried.untried) == ("DaemonSet gpunode/gpunode-device-plugin", why)
    assert {"-        image: theirs:1", f"+        image: {IMAGE.reference}"} <= set(untried.lines)
    assert {change.action for change in would if change is not untried} == {"same"}


@pytest.mark.parametrize(
    ("fault", "strict"),
    [
        (NO_DRY_RUN["right"], True),
        (Fault(403, "Forbidden", 'daemonsets.apps "x" is forbidden: exceeded quota: q'), False),
        (Fault(422, "Invalid", "spec.selector: field is immutable"), False),
    ],
    ids=["right", "quota", "invalid"],
)
def test_what_would_be_refused_is_refused_beforehand(api: Api, fake: FakeApi, fault: Fault, strict: bool):
    """By who is about to apply it: before anything is touched. A missing right is no refusal for who only looks."""
    apply.apply(api, ALL)
    fake.fail("PATCH", "daemonsets", fault)
    with pytest.raises(ClusterError):
        apply.diff(api, ALL, strict=strict)


Object = dict[str, Any]


def config_map(**data: str) -> Object:
    return {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "c", "namespace": "n"},
        "data": data,
    }


def container(**fields: Any) -> Object:
    template = {"spec": {"containers": [{"name": "c", **fields}]}}
    return {"kind": "DaemonSet", "metadata": {"name": "d"}, "spec": {"template": template}}


def test_a_text_of_several_lines_is_compared_line_by_line():
    """The plugin's configuration is one value of a ConfigMap."""
    before, after = config_map(a="x: 1\ny: 2\n"), config_map(a="x: 1\ny: 3\n")
    shown = difference.change(before, after)
    assert (shown.what, shown.action) == ("ConfigMap n/c", "changed")
    assert [line for line in shown.lines if line[0] in "+-"] == ["-    y: 2", "+    y: 3"]


@pytest.mark.parametrize(
    "noise",
    [
        {"managedFields": [{"manager": "x"}]},
        {"resourceVersion": "7", "generation": 3, "uid": "u", "creationTimestamp": "t"},
        {"annotations": {"deprecated.daemonset.template.generation": "4"}},
        {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": '{"password": "hunter2"}'}},
    ],
)
def test_bookkeeping_of_others_is_no_difference(noise: Object):
    """Of the API server and of kubectl; nor is the status."""
    plain = config_map(a="b")
    busy = {**plain, "metadata": {**plain["metadata"], **noise}, "status": {"phase": "Active"}}
    assert difference.change(busy, plain).action == "same"
    assert difference.removal(busy).lines == difference.removal(plain).lines


@tables.rows("secrets")
def test_a_secret_appears_by_its_size(item: Object):
    """Whether it comes, goes, changes, or stands beside what changes."""
    other = copy.deepcopy(item)
    other["metadata"]["labels"] = {"x": "y"}
    longer = json.loads(json.dumps(item).replace("hunter2", "hunter2hunter2"))
    for shown in (
        difference.creation(item),
        difference.removal(item),
        difference.change(item, other),
        difference.change(item, longer),
        difference.comparison(item, longer, "why"),
    ):
        assert "hunter2" not in str(shown.lines)
        assert shown.lines
    assert "characters>" in str(difference.creation(item).lines)


def test_a_secret_that_changes_is_not_silent():
    """The person sees that something does, and not what."""
    assert difference.change(config_map(a="password: aaaa\n"), config_map(a="password: bbbb\n")).lines == (
        "(a secret changes)",
    )


def test_what_is_no_secret_is_shown():
    """Keys that only sound like it."""
    item = container(
        volumes=[{"name": "v", "secret": {"secretName": "shown"}}],
        automountServiceAccountToken=False,
        env=[{"name": "FAIL_ON_INIT_ERROR", "value": "false"}],
    )
    lines = "\n".join(difference.creation(item).lines)
    assert "secretName: shown" in lines
    assert "automountServiceAccountToken: false" in lines
    assert "characters>" not in lines


def test_objects_of_ours_hold_no_secret():
    """Nothing of what gpunode applies is hidden from who is asked."""
    publish = PluginPublish(events=True, annotation=True, metrics=True)
    for manifest in Spec(
        "n", PluginImage("i:1", "id"), PluginConfig("version: v1\n", mps_root="/m"), publish
    ).manifests:
        assert "characters>" not in "\n".join(difference.creation(manifest).lines)


def test_labels_read_as_what_goes_and_what_comes():
    """As `kubectl label` takes them."""
    changes = {"a": (None, "1"), "b": ("1", "2"), "c": ("3", None)}
    shown = difference.labelling("gpu-1", changes)
    assert (shown.what, shown.action) == ("Node gpu-1", "labelled")
    assert shown.lines == ("+a=1", "-b=1", "+b=2", "-c=3")
    assert difference.labelling("gpu-1", {}).action == "same"


COMPARED = {
    "the same": (container(image="i"), container(image="i"), ()),
    "a default": (container(image="i"), container(image="i", terminationMessagePath="/dev/x"), ()),
    "somebody's variable": (
        container(env=[{"name": "A", "value": "1"}]),
        container(env=[{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]),
        (),
    ),
    "another image": (container(image="i"), container(image="j"), ("-      - image: j", "+      - image: i")),
    "a variable taken away": (
        container(env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]),
        container(env=[{"name": "A", "value": "1"}]),
        ("+        - name: B", "+          value: '2'"),
    ),
    "a list that is one value": (
        container(args=["a", "b"]),
        container(args=["b", "a", "c"]),
        ("+        - a", "-        - a", "-        - c"),
    ),
    "a field of another type": (
        container(env=[]),
        container(env={}),
        ("-      - env: {}", "+      - env: []"),
    ),
}


@pytest.mark.parametrize("what", COMPARED)
def test_without_a_dry_run_what_is_wished_is_compared_with_what_is_there(what: str):
    """As far as it is wished: defaults, and what others added, are no difference."""
    wish, live, lines = COMPARED[what]
    shown = difference.comparison(live, wish, "why")
    assert tuple(line for line in shown.lines if line[0] in "+-") == lines
    assert shown.untried == "why"


def test_without_a_dry_run_what_is_not_there_is_new():
    """It is reported as not tried."""
    shown = difference.comparison(None, config_map(a="b"), "why")
    assert (shown.action, shown.untried) == ("created", "why")
