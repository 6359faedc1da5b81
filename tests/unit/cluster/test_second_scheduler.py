"""The scheduler beside the cluster's own: what it is told, which versions fit, and who may ask the extender beside it."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from gpunode.cluster.api import Api
from gpunode.commands import second_scheduler as beside
from gpunode.commands import share_enable as share
from gpunode.errors import ClusterError, GpunodeError
from gpunode.inventory import load
from gpunode.links.scheduler import deployment
from gpunode.links.scheduler.plan import VOLUME
from gpunode.model import Cluster, Inventory, PluginImage, SecondScheduler, Share

from .fake import FakeApi, Fault

IMAGE = "registry.example.org/kube-scheduler:v1.36.3"
SPEC = deployment.Spec("ns", PluginImage("any"), Share(), {})
API: Any = SimpleNamespace(get=lambda *_: {"spec": {"clusterIP": "10.96.0.7"}})


def manifests(desired: SecondScheduler, version: int = 36, spec: deployment.Spec = SPEC) -> dict[str, Any]:
    """Its objects by kind."""
    made = deployment.second_scheduler(API, spec, desired, version, seconds=1).manifests
    return {one["kind"]: one for one in made}


@pytest.mark.parametrize(
    ("version", "form", "more"),
    [
        (19, "v1beta1", {"healthzBindAddress": "127.0.0.1:10251", "metricsBindAddress": "127.0.0.1:10251"}),
        (22, "v1beta2", {"healthzBindAddress": "127.0.0.1:10251", "metricsBindAddress": "127.0.0.1:10251"}),
        (24, "v1beta3", {}),
        (36, "v1", {}),
    ],
)
def test_it_has_a_name_and_a_lease_of_its_own(version: int, form: str, more: dict[str, str]) -> None:
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


def test_its_pods_are_new_ones_with_other_settings_or_certificates() -> None:
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
    mounted = {one["mountPath"] for one in container["volumeMounts"]}
    assert mounted == {"/etc/kube-scheduler", deployment.FOLDER}
    assert container["image"] == IMAGE


def test_it_may_what_the_clusters_own_may_and_its_lease() -> None:
    """By the API server's own roles, which name the Lease of the cluster's scheduler alone."""
    made = deployment.second_objects("ns")
    roles = {one["roleRef"]["name"] for one in made if one["kind"] == "ClusterRoleBinding"}
    assert roles == {"system:kube-scheduler", "system:volume-scheduler"}
    subjects = [subject for one in made for subject in one.get("subjects", [])]
    assert {(one["name"], one["namespace"]) for one in subjects} == {(deployment.SECOND, "ns")}
    (role,) = [one for one in made if one["kind"] == "Role"]
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
def test_only_a_version_that_works_with_the_server_is_taken(
    image: str, server: int, version: int | None
) -> None:
    """Not newer than it, and at most one older; a tag without one counts as the server's."""
    if version is not None:
        assert deployment.minor(SecondScheduler(image), server) == version
        return
    with pytest.raises(ClusterError) as caught:
        deployment.minor(SecondScheduler(image), server)
    assert image in caught.value.message
    assert f"1.{server}" in caught.value.hint


@pytest.mark.parametrize("volumes", [None, [{"name": "usr"}], [{"name": f"{VOLUME}0a1b"}]])
def test_schedulers_on_hosts_that_ask_too_are_named(volumes: list[dict[str, str]] | None) -> None:
    """`share disable` would take the extender from under them."""
    pod = {"spec": {"nodeName": "cp-1"} | ({"volumes": volumes} if volumes else {})}
    api: Any = SimpleNamespace(find=lambda *_, **__: ([pod], ""))
    if volumes and volumes[0]["name"].startswith(VOLUME):
        with pytest.raises(ClusterError, match="cp-1 ask the extender, too"):
            beside.alone(api)
    else:
        beside.alone(api)


@pytest.mark.parametrize("wish", [None, SecondScheduler(IMAGE)])
def test_one_that_is_not_wished_for_any_more_is_removed(wish: SecondScheduler | None) -> None:
    """Shown in the extender's plan; `share disable` removes it in any case."""
    spec = deployment.Spec("ns", PluginImage("any"), Share(scheduler=wish), {})
    kinds = {one["kind"] for one in deployment.extender(spec, seconds=1).surplus}
    assert ("Deployment" in kinds) == (wish is None)
    names = {one["metadata"]["name"] for one in deployment.everything("ns")}
    assert {deployment.NAME, deployment.SECOND} <= names


@pytest.mark.parametrize("there", [True, False], ids=["namespace", "no namespace"])
def test_who_may_not_bind_its_roles_is_reported_before_anything_is_changed(
    api: Api, fake: FakeApi, monkeypatch: pytest.MonkeyPatch, there: bool
) -> None:
    """Nothing but dry runs reaches the API server, and nobody is asked."""
    roles = "clusterrolebindings/gpunode-share-scheduler"
    why = f'{roles} is forbidden: user "u" (groups=[]) is attempting to grant RBAC permissions not currently held:'
    for name in ("kube-system", *(["gpunode"] if there else [])):
        fake.put({"kind": "Namespace", "metadata": {"name": name, "labels": {}}})
    fake.fail("PATCH", roles, Fault(403, "Forbidden", f"{why}\n{{Resources:[bindings]}}"))

    def asked(*_: Any, **__: Any) -> None:
        raise AssertionError("asked before")

    monkeypatch.setattr(share, "accepted", asked)
    cluster = Cluster(plugin=PluginImage("plugin:1"), share=Share(scheduler=SecondScheduler(IMAGE)))
    listener = SimpleNamespace(cluster=lambda *_: None, event=None)
    session: Any = SimpleNamespace(inventory=Inventory("i.yaml", (), cluster), listener=listener)
    held: Any = None
    with pytest.raises(ClusterError, match="rights that the user does not have"):
        share._enable(session, api, held, yes=True)
    writes = [one for one in fake.requests if one[0] != "GET" and "selfsubjectaccessreviews" not in one[1]]
    assert writes
    assert all(query.get("dryRun") == "All" for _, _, query in writes)


@pytest.mark.parametrize("host_asks", [False, True])
@pytest.mark.parametrize("kind", ["Deployment", "ServiceAccount"])
def test_one_that_the_inventory_does_not_name_is_removed_without_a_host_of_the_control_plane(
    api: Api, fake: FakeApi, monkeypatch: pytest.MonkeyPatch, kind: str, host_asks: bool
) -> None:
    """Also what an interrupted removal left. Where schedulers on hosts ask, too, these are visited first."""
    monkeypatch.setattr(share, "accepted", lambda *_, **__: None)
    (left,) = [one for one in deployment.second_objects("gpunode") if one["kind"] == kind]
    fake.put(left)
    if host_asks:
        asking = {"nodeName": "cp-1", "volumes": [{"name": f"{VOLUME}0a1b"}], "containers": []}
        meta = {"name": "s", "namespace": "kube-system", "labels": {"component": "kube-scheduler"}}
        fake.put({"kind": "Pod", "metadata": meta, "spec": asking})
    totals: list[dict[str, int]] = []
    listener = SimpleNamespace(
        plans=None,
        event=lambda _: None,
        note=lambda _: None,
        failures=lambda _: None,
        rows=lambda *_: None,
        total=lambda _, counts: totals.append(counts),
    )
    inventory = Inventory("i.yaml", (), Cluster(share=Share()))
    session: Any = SimpleNamespace(inventory=inventory, listener=listener, for_each_host=lambda _: [])
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
def test_what_is_wrong_in_the_inventory_is_named(tmp_path: Path, text: str, words: str) -> None:
    """With its place."""
    file = tmp_path / "inventory.yaml"
    file.write_text(f"version: 1\ncluster:\n  share:\n    scheduler: {text}\n{HOSTS}")
    with pytest.raises(GpunodeError) as caught:
        load(file)
    assert words in str(caught.value)
    assert f"{file}:4" in str(caught.value)


def test_the_inventory_names_it(tmp_path: Path) -> None:
    """`gpunode` is its name where no other is given."""
    file = tmp_path / "inventory.yaml"
    file.write_text(f"version: 1\ncluster:\n  share: {{scheduler: {{image: '{IMAGE}'}}}}\n{HOSTS}")
    assert load(file).cluster.share == Share(scheduler=SecondScheduler(IMAGE, "gpunode"))
