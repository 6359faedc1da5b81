"""The scheduler extender in the cluster, and the scheduler beside the cluster's own that asks it."""

import time
from collections.abc import Iterable, Mapping
from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from gpunode import report
from gpunode.cluster import rights
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import KINDS
from gpunode.cluster.objects import difference
from gpunode.cluster.objects.apply import ORDER
from gpunode.commands import share_enable as share
from gpunode.commands import share_inspect as shares
from gpunode.errors import ClusterError, GpunodeError, Problem
from gpunode.inventory import load
from gpunode.links.scheduler import deployment
from gpunode.links.scheduler.allocations import Mismatch
from gpunode.links.scheduler.deployment import NAME, STAYS, Spec, rights_to_remove
from gpunode.links.scheduler.plan import VOLUME
from gpunode.model import Cluster, Inventory, PluginImage, SecondScheduler, Share
from gpunode.sim import controllers
from gpunode.wording import Advice

from .conftest import pod
from .fake import FakeApi, Fault


@pytest.mark.parametrize("archive", [None, "plugin.tar"])
def test_two_replicas_of_which_one_is_ready(archive: str | None):
    """Replaced both at once; where the image is loaded by gpunode, on the nodes that have it."""
    image = PluginImage("plugin:1", archive)
    spec = Spec(
        "ns", image, Share(policy="distributed", resource="example.com/mem"), deployment.make_certificates()
    )
    made = {manifest["kind"]: manifest for manifest in spec.manifests}

    assert set(made) <= set(ORDER)
    assert {manifest["metadata"].get("namespace", "ns") for manifest in spec.manifests} == {"ns"}
    wanted = made["Deployment"]["spec"]
    assert wanted["replicas"] == 2
    assert wanted["strategy"] == {"type": "Recreate"}
    pod = wanted["template"]["spec"]
    (container,) = pod["containers"]
    assert container["args"][-2:] == ["--resource=example.com/mem", "--policy=distributed"]
    assert container["securityContext"]["runAsNonRoot"] is True
    assert ("nodeSelector" in pod) == (archive is not None)
    assert {item["key"] for item in pod["volumes"][0]["secret"]["items"]} == {"ca.crt", "tls.crt", "tls.key"}
    assert made["Service"]["spec"]["selector"].items() <= wanted["template"]["metadata"]["labels"].items()
    rules = made["ClusterRole"]["rules"]
    assert [(rule["resources"], rule["verbs"]) for rule in rules] == [
        (["nodes", "pods"], ["get", "list", "watch"]),
        (["pods/binding"], ["create"]),
        (["pods/status"], ["patch"]),
    ]


ROLES = {
    role["metadata"]["name"]: role
    for part in (Path(__file__).parents[3] / "docs/rights.md").read_text().split("```yaml\n")[1:]
    if "kind: ClusterRole\n" in part
    for role in [yaml.safe_load(part.split("```")[0])]
}


def given(roles: Iterable[Mapping[str, Any]]) -> set[tuple[str, str]]:
    """Verb and resource, as `get deployments.apps`."""
    return {
        (verb, f"{resource}.{group}" if group else resource)
        for role in roles
        for rule in role["rules"]
        for group in rule["apiGroups"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
    }


def test_the_documents_roles_are_what_share_and_a_notebook_take(api: Api):
    """To write, to remove, to ask; and the API server lets nobody give rights that he does not have."""
    base, more = given([ROLES["gpunode-operator"]]), given([ROLES["gpunode-share-operator"]])
    spec = Spec("ns", PluginImage("any"), Share(), dict.fromkeys(deployment.FILES, ""))
    own = [manifest for manifest in spec.manifests if manifest["kind"] in ("Role", "ClusterRole")]
    kinds = {KINDS[manifest["kind"]].resource for manifest in spec.manifests}
    applied = {(verb, kind) for verb in ("get", "patch", "create") for kind in kinds}
    asked = (*rights.of_share("ns"), *rights_to_remove(api, "ns"), *rights.of_notebook("ns"))
    needed = given(own) | applied | {(rule.verb, rule.resource) for rule in asked}
    assert needed - base - more == set()
    repair = {("patch", "pods")}
    maintenance = {(verb, kind) for verb, kind in more if verb in ("list", "watch", "delete")}
    assert more - needed - repair - maintenance == set()


def test_a_plan_shows_no_key():
    """Neither new nor changed."""
    rule, other = (
        next(
            each
            for each in Spec("ns", PluginImage("i"), Share(), deployment.make_certificates()).manifests
            if each["kind"] == "Secret"
        )
        for _ in range(2)
    )
    shown = [difference.creation(rule), difference.change(rule, other), difference.removal(rule)]
    assert [each.action for each in shown] == ["created", "changed", "removed"]
    text = "\n".join(line for each in shown for line in each.lines)
    assert NAME in text
    assert not any(value in text for value in rule["data"].values())


def test_a_repair_leaves_a_pod_alone_that_has_its_name_from_another_by_now(api: Api, fake: FakeApi):
    """A StatefulSet makes its pods again by the same names."""
    fake.put(pod("train-0", node="a", namespace="ml", gpus=1))
    (before,) = fake.all("Pod")
    finding = Mismatch(Problem("elsewhere", "", subject="a"), "ml/train-0", {"x": "1"})
    shown = report.make(json=False, quiet=True)
    seen = [deepcopy(before)]
    seen[0]["metadata"] |= {"uid": "another", "resourceVersion": "0"}
    assert not shares._repair(api, finding, seen, shown)
    assert shares._repair(api, finding, [deepcopy(before)], shown)
    (now,) = fake.all("Pod")
    assert now["metadata"]["annotations"] == {"x": "1"}


@pytest.mark.parametrize(
    ("reason", "patience", "refusal", "fix"),
    [
        ("FailedCreate", "REFUSED", "pods is forbidden: exceeded quota: few", "The ResourceQuota `few`"),
        ("Simulated", "FINAL", controllers.WHY, "describe deployments share"),
    ],
)
def test_pods_that_the_cluster_does_not_make_are_not_waited_for_to_the_end(
    api: Api, fake: FakeApi, monkeypatch, reason: str, patience: str, refusal: str, fix: str
):
    """As of a quota, or in the simulation, where nobody tries again: the Deployment has the reason, and it is told meanwhile."""
    monkeypatch.setattr(deployment, patience, 0.0)
    condition = {"type": "ReplicaFailure", "status": "True", "reason": reason, "message": refusal}
    state = {"conditions": [condition]}
    fake.put({"kind": "Deployment", "metadata": {"name": "share", "namespace": "gpunode"}, "status": state})
    with pytest.raises(ClusterError) as caught:
        deployment.wait_for_deployment(
            api, "share", "gpunode", what="the extender", seconds=600, notify=print, hint=STAYS
        )
    assert f"for the extender: the cluster creates no pods: {refusal}" in caught.value.message
    assert fix in caught.value.hint
    assert isinstance(caught.value.hint, Advice)
    assert "`gpunode share disable x.yaml` removes the objects" in caught.value.hint.on("x.yaml")


def test_a_wait_for_a_deployment_names_its_limit(api: Api, fake: FakeApi, monkeypatch):
    """Beside what stands in the way so far."""
    told: list[str] = []
    ready = {"observedGeneration": 1, "updatedReplicas": 2, "replicas": 2, "readyReplicas": 1}
    share = {
        "kind": "Deployment",
        "metadata": {"name": "share", "namespace": "gpunode"},
        "spec": {"replicas": 2},
    }
    fake.put(share)
    # This module's sleep alone: another thread's would make the Deployment ready before the wait.
    clock = SimpleNamespace(monotonic=time.monotonic, sleep=lambda _: fake.put({**share, "status": ready}))
    monkeypatch.setattr(deployment, "time", clock)
    deployment.wait_for_deployment(
        api, "share", "gpunode", what="the extender", seconds=180, notify=told.append
    )
    assert told == ["waiting for the extender, up to 3 min"]


IMAGE = "registry.example.org/kube-scheduler:v1.36.3"
SPEC = deployment.Spec("ns", PluginImage("any"), Share(), {})
API: Any = SimpleNamespace(get=lambda *_: {"spec": {"clusterIP": "10.96.0.7"}})


def manifests(desired: SecondScheduler, version: int = 36, spec: deployment.Spec = SPEC) -> dict[str, Any]:
    """Its objects by kind."""
    made = deployment.second_scheduler(API, spec, desired, version, seconds=1).manifests
    return {manifest["kind"]: manifest for manifest in made}


@pytest.mark.parametrize(
    ("version", "form", "more"),
    [
        (19, "v1beta1", {"healthzBindAddress": "127.0.0.1:10251", "metricsBindAddress": "127.0.0.1:10251"}),
        (22, "v1beta2", {"healthzBindAddress": "127.0.0.1:10251", "metricsBindAddress": "127.0.0.1:10251"}),
        (24, "v1beta3", {}),
        (36, "v1", {}),
    ],
)
def test_it_has_a_name_and_a_lease_of_its_own(version: int, form: str, more: dict[str, str]):
    """And goes by its account's token, not by a kubeconfig. 1.19 would take endpoints for a lock, to which its Role has no rights."""
    made = manifests(SecondScheduler("a/scheduler", "ours"), version)
    (text,) = made["ConfigMap"]["data"].values()
    document = yaml.safe_load(text)
    (extender,) = document.pop("extenders")
    assert document == {
        "apiVersion": f"kubescheduler.config.k8s.io/{form}",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {
            "leaderElect": True,
            "resourceLock": "leases",
            "resourceName": deployment.SECOND,
            "resourceNamespace": "ns",
        },
        "profiles": [{"schedulerName": "ours"}],
        **more,
    }
    assert extender["urlPrefix"] == "https://10.96.0.7/share"
    assert extender["tlsConfig"]["keyFile"] == "/etc/gpunode-share/client.key"
    assert not extender["ignorable"]


def test_its_pods_are_new_ones_with_other_settings_or_certificates():
    """A scheduler reads both once."""

    def template(desired: SecondScheduler, spec: deployment.Spec = SPEC) -> Any:
        return manifests(desired, spec=spec)["Deployment"]["spec"]["template"]

    base = template(SecondScheduler(IMAGE))
    others = [
        template(SecondScheduler(IMAGE, "ours")),
        template(SecondScheduler(IMAGE), replace(SPEC, secret={"ca.crt": "new"})),
        template(SecondScheduler(IMAGE + "4")),
    ]
    assert base not in others
    (container,) = base["spec"]["containers"]
    mounted = {mount["mountPath"] for mount in container["volumeMounts"]}
    assert mounted == {"/etc/kube-scheduler", deployment.FOLDER}
    assert container["image"] == IMAGE


def test_it_may_what_the_clusters_own_may_and_its_lease():
    """By the API server's own roles, which name the Lease of the cluster's scheduler alone."""
    made = deployment.second_objects("ns")
    roles = {item["roleRef"]["name"] for item in made if item["kind"] == "ClusterRoleBinding"}
    assert roles == {"system:kube-scheduler", "system:volume-scheduler"}
    subjects = [subject for rule in made for subject in rule.get("subjects", [])]
    assert {(subject["name"], subject["namespace"]) for subject in subjects} == {(deployment.SECOND, "ns")}
    (role,) = [item for item in made if item["kind"] == "Role"]
    assert [rule.get("resourceNames") for rule in role["rules"]] == [None, [deployment.SECOND]]


@pytest.mark.parametrize(
    ("image", "server", "version"),
    [
        (IMAGE, 36, 36),
        (IMAGE, 37, 36),
        ("kube-scheduler:1.30.2-eks-1", 30, 30),
        ("localhost:5000/kube-scheduler", 30, 30),
        ("a/kube-scheduler:stable", 28, 28),
        (f"a/kube-scheduler:v1.19.16@sha256:{'0' * 64}", 20, 19),
        (IMAGE, 35, None),
        (IMAGE, 38, None),
        ("a/kube-scheduler:v1.18.2", 18, None),
        ("a/kube-scheduler:v1.18.2", 19, None),
    ],
)
def test_only_a_version_that_works_with_the_server_is_taken(image: str, server: int, version: int | None):
    """Not newer than it, and at most one older; a tag without one counts as the server's."""
    if version is not None:
        assert deployment.minor(SecondScheduler(image), server) == version
        return
    with pytest.raises(ClusterError) as caught:
        deployment.minor(SecondScheduler(image), server)
    assert image in caught.value.message
    assert f"1.{server}" in caught.value.hint


@pytest.mark.parametrize("volumes", [None, [{"name": "usr"}], [{"name": f"{VOLUME}0a1b"}]])
def test_schedulers_on_hosts_that_ask_too_are_named(volumes: list[dict[str, str]] | None):
    """`share disable` would take the extender from under them."""
    pod = {"spec": {"nodeName": "cp-1"} | ({"volumes": volumes} if volumes else {})}
    api: Any = SimpleNamespace(find=lambda *_, **__: ([pod], ""))
    if volumes and volumes[0]["name"].startswith(VOLUME):
        with pytest.raises(ClusterError, match="cp-1 ask the extender, too"):
            share._refuse_asking_hosts(api)
    else:
        share._refuse_asking_hosts(api)


@pytest.mark.parametrize("wish", [None, SecondScheduler(IMAGE)])
def test_one_that_is_not_wished_for_any_more_is_removed(wish: SecondScheduler | None):
    """Shown in the extender's plan; `share disable` removes it in any case."""
    spec = deployment.Spec("ns", PluginImage("any"), Share(scheduler=wish), {})
    kinds = {item["kind"] for item in deployment.extender(spec, seconds=1).surplus}
    assert ("Deployment" in kinds) == (wish is None)
    names = {item["metadata"]["name"] for item in deployment.all_objects("ns")}
    assert {deployment.NAME, deployment.SECOND} <= names


@pytest.mark.parametrize("there", [True, False], ids=["namespace", "no namespace"])
def test_who_may_not_bind_its_roles_is_reported_before_anything_is_changed(
    api: Api, fake: FakeApi, monkeypatch, there: bool
):
    """Nothing but dry runs reaches the API server, and nobody is asked."""
    roles = "clusterrolebindings/gpunode-share-scheduler"
    why = f'{roles} is forbidden: user "u" (groups=[]) is attempting to grant RBAC permissions not currently held:'
    for name in ("kube-system", *(["gpunode"] if there else [])):
        fake.put({"kind": "Namespace", "metadata": {"name": name, "labels": {}}})
    fake.fail("PATCH", roles, Fault(403, "Forbidden", f"{why}\n{{Resources:[bindings]}}"))

    def asked(*_: Any, **__: Any) -> None:
        raise AssertionError("asked before")

    monkeypatch.setattr(share, "confirm", asked)
    cluster = Cluster(plugin=PluginImage("plugin:1"), share=Share(scheduler=SecondScheduler(IMAGE)))
    reporter = SimpleNamespace(cluster=lambda *_: None, event=None)
    session: Any = SimpleNamespace(inventory=Inventory("i.yaml", (), cluster), reporter=reporter)
    held: Any = None
    with pytest.raises(ClusterError, match="rights that the user lacks"):
        share._enable(session, api, held, yes=True)
    writes = [ask for ask in fake.requests if ask[0] != "GET" and "selfsubjectaccessreviews" not in ask[1]]
    assert writes
    assert all(query.get("dryRun") == "All" for _, _, query in writes)


@pytest.mark.parametrize("host_asks", [False, True])
@pytest.mark.parametrize("kind", ["Deployment", "ServiceAccount"])
def test_one_that_the_inventory_does_not_name_is_removed_without_a_host_of_the_control_plane(
    api: Api, fake: FakeApi, monkeypatch, kind: str, host_asks: bool
):
    """Also what an interrupted removal left. Where schedulers on hosts ask, too, these are visited first."""
    monkeypatch.setattr(share, "confirm", lambda *_, **__: None)
    (left,) = [item for item in deployment.second_objects("gpunode") if item["kind"] == kind]
    fake.put(left)
    if host_asks:
        asking = {"nodeName": "cp-1", "volumes": [{"name": f"{VOLUME}0a1b"}], "containers": []}
        meta = {"name": "s", "namespace": "kube-system", "labels": {"component": "kube-scheduler"}}
        fake.put({"kind": "Pod", "metadata": meta, "spec": asking})
    totals: list[dict[str, int]] = []
    reporter = SimpleNamespace(
        plans=None,
        event=lambda _: None,
        note=lambda _: None,
        failures=lambda _: None,
        rows=lambda *_: None,
        total=lambda _, counts: totals.append(counts),
    )
    inventory = Inventory("i.yaml", (), Cluster(share=Share()))
    session: Any = SimpleNamespace(inventory=inventory, reporter=reporter, for_each_host=lambda _: [])
    held: Any = None
    if host_asks:
        with pytest.raises(ClusterError, match="none of these hosts has"):
            share._disable(session, api, held, yes=True)
        assert fake.all(kind)
    else:
        assert share._disable(session, api, held, yes=True) == 0
        assert totals == [{"schedulers": 0, "removed": 1}]
        assert not fake.all(kind)


HOSTS = "groups: {gpu: {hosts: [{name: a, address: 10.0.0.1}]}}\n"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("{}", "image"),
        ("{image: Kube}", "image reference"),
        ("{image: a/b, name: default-scheduler}", "a name of its own"),
        ("{image: a/b, name: Ours}", "a name of its own"),
        ("gpunode", "scheduler"),
    ],
)
def test_what_is_wrong_in_the_inventory_is_named(tmp_path, text: str, words: str):
    """With its place."""
    file = tmp_path / "inventory.yaml"
    file.write_text(f"version: 1\ncluster:\n  share:\n    scheduler: {text}\n{HOSTS}")
    with pytest.raises(GpunodeError) as caught:
        load(file)
    assert words in str(caught.value)
    assert f"{file}:4" in str(caught.value)


def test_the_inventory_names_it(tmp_path):
    """`gpunode` is its name where no other is given."""
    file = tmp_path / "inventory.yaml"
    file.write_text(f"version: 1\ncluster:\n  share: {{scheduler: {{image: '{IMAGE}'}}}}\n{HOSTS}")
    assert load(file).cluster.share == Share(scheduler=SecondScheduler(IMAGE, "gpunode"))
