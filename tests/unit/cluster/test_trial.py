"""What would refuse a run's pods is named by its plan; each sentence of API servers and schedulers has its code and its fix."""

import json
from typing import Any, Literal

import pytest

from gpunode import report
from gpunode.cluster import admission as trial
from gpunode.cluster import obstacles, pods
from gpunode.cluster.api import Api
from gpunode.cluster.objects import apply
from gpunode.cluster.objects.difference import Difference
from gpunode.engine import cluster_diff
from gpunode.engine.member import Member
from gpunode.links import plugin
from gpunode.links.plugin import Spec
from gpunode.model import Cluster, Desired, Host, Inventory, Outcome, PluginImage, Ssh, Title
from tests import tables

from .conftest import NS, add_node
from .fake import FakeApi, Fault

IMAGE, NEWER = PluginImage("plugin:1"), PluginImage("plugin:2")
QUOTA = 'pods "x" is forbidden: exceeded quota: gpus, requested: pods=1, used: pods=1, limited: pods=1'
LEVEL = 'pods "x" is forbidden: violates PodSecurity "baseline:latest": hostPath volumes (volume "v")'
POLICY = "ValidatingAdmissionPolicy 'no-gpus' with binding 'no-gpus' denied request: failed expression: false"
HOOK = 'admission webhook "owner.example.com" denied the request: no owner'
OTHER = 'pods "x" is forbidden: the moon is full'
RIGHTS = (
    'pods is forbidden: User "u" cannot create resource "pods" in API group "" in the namespace "gpunode"'
)
BLIND = 'admission webhook "owner.example.com" does not support dry run'


def shown(api: Api, capsys, image: PluginImage = IMAGE) -> list[dict[str, Any]]:
    """The lines of a plan's JSON that are errors and notes."""
    members = [Member(Host("n1", Ssh("n1")), Outcome("n1", "right"))]
    reporter = report.make(json=True, quiet=True)
    cluster_diff.plan(
        api, Inventory("inventory.yaml", (), Cluster(plugin=image)), members, reporter, strict=False
    )
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    return [line for line in lines if line["type"] in ("error", "note")]


def there(api: Api, fake: FakeApi, *kinds: str, image: PluginImage = IMAGE) -> None:
    """A node, and the plugin's objects of these kinds."""
    add_node(fake, "n1", 1)
    apply.apply(api, [manifest for manifest in Spec(NS, image).manifests if manifest["kind"] in kinds])


def created(fake: FakeApi) -> list[dict[str, str]]:
    """The queries of pods that were to be made."""
    return [query for verb, where, query in fake.requests if verb == "POST" and where.endswith("/pods")]


@pytest.mark.parametrize(
    ("code", "text", "known"),
    [
        (403, QUOTA, "quota-exceeded"),
        (403, LEVEL, "pod-security"),
        (422, POLICY, "policy-denied"),
        (400, HOOK, "webhook-denied"),
        (403, OTHER, trial.UNKNOWN),
    ],
)
def test_a_plan_names_what_would_refuse_its_pods(
    api: Api, fake: FakeApi, capsys, code: int, text: str, known: str
):
    """Once for all pods with one cause, with its code and what to do; nothing is made."""
    there(api, fake, "Namespace")
    fake.refused["POST", f"/api/v1/namespaces/{NS}/pods"] = Fault(code, "Forbidden", text)
    (line,) = shown(api, capsys)
    assert line["code"] == known
    assert line["error"].startswith(f"pods like {NS}/gpunode-device-plugin would not be admitted: ")
    assert text in line["error"]
    assert line["hint"]
    assert all(query["dryRun"] == "All" for query in created(fake))
    assert len(created(fake)) == 3  # of two DaemonSets, and vectoradd's


@pytest.mark.usefixtures("other_words")
def test_the_cause_is_read_from_the_api_servers_words_and_not_from_ours(api: Api, fake: FakeApi, capsys):
    there(api, fake, "Namespace")
    fake.refused["POST", f"/api/v1/namespaces/{NS}/pods"] = Fault(403, "Forbidden", QUOTA)
    (line,) = shown(api, capsys)
    assert line["code"] == "quota-exceeded"


@pytest.mark.parametrize(
    ("code", "text"), [(400, BLIND), (504, "request did not complete within requested timeout")]
)
def test_what_cannot_be_tried_is_reported(api: Api, fake: FakeApi, capsys, code: int, text: str):
    """A webhook with side effects is not called for a dry run, and a busy API server says nothing of the pods."""
    there(api, fake, "Namespace")
    fake.refused["POST", f"/api/v1/namespaces/{NS}/pods"] = Fault(code, "", text)
    (line,) = shown(api, capsys)
    assert line["type"] == "note"
    assert text in line["message"]


def test_rights_are_no_obstacle(api: Api, fake: FakeApi, capsys):
    """They are asked for by themselves; a user may also look only."""
    there(api, fake, "Namespace")
    fake.refused["POST", f"/api/v1/namespaces/{NS}/pods"] = Fault(403, "Forbidden", RIGHTS)
    assert shown(api, capsys) == []


def test_nothing_is_tried_in_a_namespace_that_comes_with_the_plan(api: Api, fake: FakeApi, capsys):
    """Nobody has put a quota there, and its label is gpunode's."""
    there(api, fake)
    fake.refused["POST", f"/api/v1/namespaces/{NS}/pods"] = Fault(403, "Forbidden", QUOTA)
    assert shown(api, capsys) == []
    assert created(fake) == []


@pytest.mark.parametrize(("allocation", "said"), [("plugin", True), ("dra", False)])
def test_a_layout_is_the_plugins_concern_where_it_offers_the_gpus(
    api: Api, fake: FakeApi, capsys, allocation: Literal["plugin", "dra"], said: bool
):
    there(api, fake)
    desired = Desired("containerd", "default", {}, {}, mig={"0000:3b:00.0": ("1g.10gb",)})
    member = Member(Host("n1", Ssh("n1"), allocation=allocation), Outcome("n1", "right", desired=desired))
    inventory = Inventory("inventory.yaml", (), Cluster(plugin=IMAGE))
    cluster_diff.plan(api, inventory, [member], report.make(json=True, quiet=True), strict=False)
    assert ("migStrategy" in capsys.readouterr().out) is said


def test_a_new_namespace_hides_no_other_object_of_its_name(capsys):
    new = Difference(Title("Namespace", "nvidia"), "created", ())
    other = Difference(Title("RuntimeClass", "nvidia"), "created", (), untried="its webhook has side effects")
    inside = Difference(Title("Secret", "x", "nvidia"), "created", (), untried="there is no namespace")
    cluster_diff._report_untried([new, other, inside], report.make(json=True, quiet=True))
    out = capsys.readouterr().out
    assert ("RuntimeClass nvidia" in out, "no namespace" in out) == (True, False)


def test_an_api_server_without_dry_runs_makes_no_pods(api: Api, fake: FakeApi, capsys):
    """Kubernetes 1.12 and older would make them. The plan says what was not tried."""
    fake.minor = 12
    there(api, fake, "Namespace")
    assert "could not dry-run" in str(shown(api, capsys))
    assert created(fake) == []


def test_what_the_plan_itself_puts_right_is_no_obstacle(api: Api, fake: FakeApi, capsys):
    """The namespace's level that a user changed."""
    there(api, fake, "Namespace")
    labels = fake.objects[f"/api/v1/namespaces/{NS}"]["metadata"]["labels"]
    labels["pod-security.kubernetes.io/enforce"] = "baseline"
    fake.refused["POST", f"/api/v1/namespaces/{NS}/pods"] = Fault(403, "Forbidden", LEVEL)
    assert shown(api, capsys) == []


def test_pods_that_take_the_place_of_others_need_no_room_of_their_own(api: Api, fake: FakeApi, capsys):
    """A DaemonSet ends the old pod before it makes the new one; one that stays as it is makes none. vectoradd's are new."""
    there(api, fake)
    apply.apply(api, Spec(NS, IMAGE).manifests)
    fake.refused["POST", f"/api/v1/namespaces/{NS}/pods"] = Fault(403, "Forbidden", QUOTA)
    for image, tried in ((IMAGE, 1), (NEWER, 3)):
        fake.requests.clear()
        (line,) = shown(api, capsys, image)
        assert line["error"].startswith(f"pods like {NS}/vectoradd would")
        assert len(created(fake)) == tried


def test_what_comes_with_the_plan_is_not_asked_of_its_pods(api: Api, fake: FakeApi):
    """Neither the service account nor the RuntimeClass is there yet; admission would stop at them."""
    there(api, fake, "Namespace")
    spec = Spec(NS, IMAGE)
    sent: list[dict[str, Any]] = []
    make = api.create
    api.create = lambda manifest, **more: sent.append(manifest) or make(manifest, **more)
    trial.try_pods(api, spec.manifests, plugin.plan(api, spec), [])
    apply.apply(api, [item for item in spec.manifests if item["kind"] in ("ServiceAccount", "RuntimeClass")])
    trial.try_pods(api, spec.manifests, plugin.plan(api, spec), [])
    for field in ("serviceAccountName", "runtimeClassName"):
        before, after = ([field in pod["spec"] for pod in part] for part in (sent[:2], sent[2:]))
        assert not any(before)
        assert any(after)


POD = 'pods "x" is forbidden: '
WEBHOOKS = [
    'admission webhook "validation.gatekeeper.sh" denied the request: [must-have-owner] missing owner',
    'admission webhook "image-signature.example.com" denied the request without explanation',
]


@tables.rows("admission")
def test_what_admission_forbids_has_a_code_and_a_fix(text: str, code: str, fix: str):
    """The words stay the API server's, also in the event that a DaemonSet gets."""
    for words in (POD + text, f"Error creating: {POD}{text}"):
        reason = obstacles.match_admission(words)
        assert (reason.code, reason.what) == (code, words)
        assert fix in reason.fix


@pytest.mark.parametrize("text", WEBHOOKS)
def test_a_webhook_that_refuses_is_named(text: str):
    """It has no `is forbidden`, and any status."""
    reason = obstacles.match_admission(text)
    assert reason.code == "webhook-denied"
    assert text.split('"')[1] in reason.fix


def test_what_is_not_known_has_no_reason():
    """An event of another kind."""
    assert obstacles.match_admission('Error creating: Post "https://10.96.0.1": EOF') is None
    assert obstacles.match_scheduling("no nodes available to schedule pods") is None


@tables.rows("unscheduled")
def test_what_the_scheduler_writes_has_a_code_and_a_fix(text: str, code: str, fix: str):
    """Of releases from 1.8 on."""
    pod = {
        "metadata": {"name": "x"},
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": text}]},
    }
    reason = pods.obstacle(pod)
    assert reason.code == code
    assert fix in reason.fix
    assert pods.problem(pod) == f"not scheduled: {text}"
