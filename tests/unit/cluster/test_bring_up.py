"""The cluster's part of `provision`, one host's trouble beside another's."""

import json
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import pytest

from gpunode import report
from gpunode.cluster.api import Api
from gpunode.engine import cluster_diff as drift
from gpunode.engine import impact, proof
from gpunode.engine import nodes as placed
from gpunode.engine.member import Member
from gpunode.errors import Problem
from gpunode.links import node as nodes
from gpunode.links import plugin
from gpunode.links.plugin.daemonset import NOT_READY as NODE_NOT_READY
from gpunode.links.plugin.daemonset import State
from gpunode.links.pod.vectoradd import NodeResult, Result
from gpunode.model import (
    Change,
    Cluster,
    ExpectedGpus,
    Facts,
    Gpu,
    Host,
    Inventory,
    MigDevice,
    Module,
    Outcome,
    Packages,
    PackageSpec,
    Plan,
    PluginConfig,
    PluginImage,
    Service,
    Ssh,
    StepPlan,
    WriteFile,
)
from tests import cases, tables

from .conftest import Kubelet, PluginController, add_node, pod
from .fake import FakeApi, Fault

HOSTS = (Host("a", Ssh("a"), labels={"pool": "ml"}), Host("b", Ssh("b")))
INVENTORY = Inventory("inventory.yaml", HOSTS, Cluster(plugin=PluginImage("plugin:1")))


def bring_up(
    api: Api, inventory: Inventory, hosts: Sequence[Host], ended: Sequence[Outcome], *, json: bool, run: bool
) -> int:
    """The exit code of its part in `provision`."""
    reporter = report.make(json=json, quiet=True)
    members = tuple(Member(host, outcome) for host, outcome in zip(hosts, ended, strict=True))
    members = proof.prove(proof.Walk(api, inventory, reporter, acts=True, run=run), members)
    proof.report_proofs(members, reporter)
    return 0 if all(member.proven for member in members if member.host_ok) else 1


def seen(hosts: Sequence[Host], facts: Mapping[str, Facts] | None = None) -> list[Member]:
    """These hosts, which are right."""
    facts = SEEN if facts is None else facts
    return [Member(host, Outcome(host.name, "right", facts.get(host.name))) for host in hosts]


MIXED = PluginConfig("version: v1\nflags: {migStrategy: mixed}\n")
MIG_INVENTORY = Inventory(
    "inventory.yaml", HOSTS[:1], Cluster(plugin=PluginImage("plugin:1"), plugin_config=MIXED)
)


NOT_READY: dict[str, Any] = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "False"}],
    "containerStatuses": [{"name": "device-plugin", "ready": False, "state": {"running": {}}}],
}


def outcomes() -> list[Outcome]:
    loaded = {"nvidia": Module("595.91.07", 0)}
    seen = replace(cases.facts("modern"), modules=loaded, gpus=())
    return [Outcome(host.name, "right", replace(seen, hostname=host.name)) for host in HOSTS]


SEEN = {outcome.host: outcome.facts for outcome in outcomes() if outcome.facts}


def test_a_label_that_somebody_else_set_leaves_the_other_hosts_theirs(api: Api, fake: FakeApi, capsys):
    """It is told in a line of its own shape with its way out, and the command fails; the plugin still comes to every other node."""
    add_node(fake, "a", labels={"pool": "theirs"})
    add_node(fake, "b")
    PluginController(fake)

    code = bring_up(api, INVENTORY, HOSTS, outcomes(), json=True, run=False)

    assert code == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    (error,) = [line for line in lines if line["type"] == "error"]
    assert (error["host"], error["error"]) == ("a", "a: another client set pool=theirs (field manager other)")
    assert error["hint"].startswith("Take it off")
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in fake.all("Node")}
    assert labels["b"]["gpunode.dev/gpu"] == "true"
    assert labels["a"]["pool"] == "theirs"


def test_hosts_that_are_no_nodes_are_named_when_there_is_no_other(
    api: Api, fake: FakeApi, capsys, monkeypatch
):
    """The reason is that they are no nodes, not that no node has the plugin's label."""
    monkeypatch.setattr(placed, "REGISTER_SECONDS", 0.0)
    add_node(fake, "other")

    assert bring_up(api, INVENTORY, HOSTS, outcomes(), json=False, run=False)
    said = capsys.readouterr().err
    assert "a: no node of the cluster has its hostname `a`" in said
    assert "b: no node of the cluster has its hostname `b`" in said


def test_a_plan_says_what_is_to_be_done_and_how_much_of_it_in_the_cluster(api: Api, fake: FakeApi, capsys):
    """Nothing was created yet; and hosts that are right are not all that there is to tell."""
    add_node(fake, "a")
    human = report.make(json=False, quiet=True)

    planned = drift.plan(api, INVENTORY, seen(HOSTS[:1]), human)
    human.summary([Outcome("a", "right")], cluster=planned.objects)

    said = capsys.readouterr()
    heads = [
        line.removeprefix("   objects").removeprefix("   nodes")
        for line in said.out.splitlines()
        if line.startswith("   ")
    ]
    changes = [line.split()[:2] for line in heads if line.lstrip().startswith(("+ ", "~ "))]
    assert changes == [["+", "create"]] * (planned.objects - 1) + [["~", "label"]]
    assert f"1 up to date; {planned.objects} changes to make in the cluster; plan --diff" in said.err


def test_a_plan_names_a_label_that_somebody_else_set_and_goes_on(api: Api, fake: FakeApi, capsys):
    """What the other nodes get is shown all the same."""
    add_node(fake, "a", labels={"pool": "theirs"})
    add_node(fake, "b")

    planned = drift.plan(api, INVENTORY, seen(HOSTS), report.make(json=False, quiet=True))

    said = capsys.readouterr()
    assert [conflict.host.name for conflict in planned.conflicts] == ["a"]
    assert "a: another client set pool=theirs" in said.err
    assert "~ label Node b\n                 +gpunode.dev/gpu=true\n" in said.out


Noted = Callable[..., str]


@pytest.fixture
def noted(api: Api, fake: FakeApi, capsys) -> Noted:
    """What a plan tells of the inventory's first host, which is a node, as JSON lines."""

    def plan(inventory: Inventory = INVENTORY, **labels: str) -> str:
        if not fake.all("Node"):
            add_node(fake, "a", labels=labels)
        drift.plan(api, inventory, seen(inventory.hosts[:1]), report.make(json=True, quiet=True))
        return capsys.readouterr().out

    return plan


def with_strategy(strategy: str, **host: Any) -> Inventory:
    """How the plugin tells runtimes of devices, and the host's own wishes."""
    text = f"version: v1\nflags: {{plugin: {{deviceListStrategy: [{strategy}]}}}}\n"
    config = PluginConfig(text, cdi_directory="/var/run/cdi")
    return Inventory(
        "i", (replace(HOSTS[0], **host),), Cluster(plugin=PluginImage("plugin:1"), plugin_config=config)
    )


@tables.rows("cdi-devices")
def test_a_plan_warns_of_nodes_that_pass_over_cdi_devices(
    fake: FakeApi,
    noted: Noted,
    strategy: str,
    kubelet: str,
    runtime: str,
    gates: dict[str, bool],
    warned: str,
):
    """They say nothing, and containers start without their GPUs. The host is named, and what to do."""
    add_node(fake, "a")
    info = {"kubeletVersion": kubelet, "containerRuntimeVersion": runtime}
    fake.update("Node", "a", status={"nodeInfo": info})
    said = noted(with_strategy(strategy, feature_gates=gates)).splitlines()
    notes = [text for text in said if f"a ({kubelet}): containers would get no GPU" in text]
    assert len(notes) == bool(warned)
    assert all(warned in note and "Add `envvar`, or give" in note for note in notes)


@pytest.mark.parametrize(
    ("strategy", "isolation", "warned"),
    [
        ("envvar", True, True),
        ("volume-mounts", True, False),
        ("envvar,cdi-cri", True, False),
        ("envvar", False, False),
    ],
)
def test_a_plan_warns_of_hosts_with_isolation_whose_plugin_sets_a_variable_alone(
    noted: Noted, strategy: str, isolation: bool, warned: bool
):
    """NVIDIA's runtime does not heed it there."""
    words = "a: containers would get no GPU. These hosts have `isolation: true`"
    assert (words in noted(with_strategy(strategy, isolation=isolation))) == warned


@pytest.mark.parametrize(
    ("files", "label", "warned"),
    [
        (("config0", "config1"), "", True),
        (("config0", "config1"), "config1", False),
        (("config0", "default"), "", False),
        (("config0",), "", False),
        ((), "", False),
    ],
)
def test_a_plan_names_hosts_that_none_of_several_configurations_is_for(
    noted: Noted, files: tuple[str, ...], label: str, warned: bool
):
    """The plugin runs there with its defaults, which looks right and is seldom meant."""
    config = PluginConfig(files=dict.fromkeys(files, "version: v1"))
    inventory = Inventory("i", HOSTS[:1], Cluster(plugin=PluginImage("plugin:1"), plugin_config=config))
    said = noted(inventory, **({"nvidia.com/device-plugin.config": label} if label else {}))
    assert ("a: no file of `cluster.plugin.configs` applies" in said) == warned


@pytest.mark.parametrize(
    ("there", "runs", "archive", "loaded", "named"),
    [
        (["plugin:0"], "plugin:0", "plugin.tar", False, "a, b"),
        (["plugin:0"], "plugin:0", "plugin.tar", True, "b"),  # `provision` of a alone
        (["plugin:0"], "", "plugin.tar", False, "a, b"),
        (["plugin:0"], "plugin:1", "plugin.tar", False, ""),  # loaded just now
        (["plugin:0"], "plugin:0", None, False, ""),  # pulled
        (["plugin:0", "docker.io/library/plugin:1"], "plugin:0", "plugin.tar", False, ""),
        ([f"other:{n}" for n in range(50)], "plugin:0", "plugin.tar", False, ""),  # not all are told
        ([], "plugin:0", "plugin.tar", False, ""),
    ],
)
def test_nodes_without_the_image_are_named_before_their_plugin_ends(
    api: Api,
    fake: FakeApi,
    capsys,
    there: list[str],
    runs: str,
    archive: str | None,
    loaded: bool,
    named: str,
):
    """The DaemonSet is one for all nodes, whichever hosts the command is for."""
    for name in ("a", "b"):
        add_node(fake, name, labels={"gpunode.dev/gpu": "true"})
        images = [{"names": [text], "sizeBytes": 1} for text in there]
        fake.update("Node", name, status={"images": images})
    if runs:
        label = {"app.kubernetes.io/name": "gpunode-device-plugin"}
        fake.put(
            daemonset("gpunode-device-plugin", runs, **label)
            | {"metadata": {"name": "p", "namespace": "gpunode", "labels": label}}
        )
    inventory = replace(INVENTORY, cluster=Cluster(plugin=PluginImage("plugin:1", archive)))
    members = [Member(HOSTS[0], node=node) for node in nodes.fetch(api) if node.name == "a"]

    drift.show(api, inventory, members, report.make(json=True, quiet=True), loaded=loaded)

    words = r'"([^"]*): the kubelet reports no image plugin:1\.'
    assert re.findall(words, capsys.readouterr().out) == ([named] if named else [])


def daemonset(
    name: str, image: str, path: str = "/var/lib/kubelet/device-plugins", nodes: int = 2, **labels: str
) -> dict[str, Any]:
    pod = {
        "containers": [{"name": "it", "image": image}],
        "volumes": [{"name": "v", "hostPath": {"path": path}}],
    }
    return {
        "kind": "DaemonSet",
        "metadata": {"name": name, "namespace": "kube-system", "labels": labels},
        "spec": {"template": {"spec": pod}},
        "status": {"desiredNumberScheduled": nodes},
    }


@pytest.mark.parametrize(
    ("other", "named"),
    [
        (daemonset("nvidia-device-plugin-daemonset", "mirror/k8s-device-plugin:v0.19.1"), True),
        (
            daemonset("nvdp", "nvcr.io/nvidia/k8s-device-plugin:v0.19.1", "/var/lib/kubelet/device-plugins/"),
            True,
        ),
        (daemonset("nvdp", "nvcr.io/nvidia/k8s-device-plugin:v0.19.1", nodes=0), False),
        (daemonset("nvdp-gpu-feature-discovery", "nvcr.io/nvidia/k8s-device-plugin:v0.19.1", "/sys"), False),
        (daemonset("amdgpu-device-plugin", "rocm/k8s-device-plugin"), False),
        (daemonset("gpushare-device-plugin-ds", "registry.example/acs/k8s-gpushare-plugin:v2"), True),
        (daemonset("hami-device-plugin", "projecthami/hami:v2.10.0"), True),
        (daemonset("nvidia", "plugin:1", **{"app.kubernetes.io/managed-by": "gpunode"}), False),
    ],
)
def test_a_plan_names_other_device_plugins_for_the_same_gpus(
    fake: FakeApi, noted: Noted, other: dict[str, Any], named: bool
):
    """Both on a node is what nobody wants, and no error by itself: which one the kubelet heeds is a matter of chance."""
    fake.put(other)
    said = f"DaemonSet kube-system/{other['metadata']['name']}, on 2 nodes, offers NVIDIA GPUs too."
    assert (said in noted()) == named


@tables.rows("other-plugins")
def test_a_plan_says_whose_another_plugin_is_and_how_it_leaves(
    fake: FakeApi, noted: Noted, other: dict[str, Any], namespace: str, words: str
):
    """Before anything is changed: each product has its own way off a node."""
    fake.put(other | {"metadata": other["metadata"] | {"namespace": namespace}})
    assert words in noted()


@pytest.mark.parametrize(
    ("namespace", "value", "named"),
    [
        ("gpu-operator", "true", True),
        ("gpu-operator", "paused-for-mig-change", False),
        ("kube-system", "true", False),  # left over from an operator that is gone
    ],
)
def test_a_plan_names_nodes_in_the_hands_of_the_gpu_operator(
    fake: FakeApi, noted: Noted, namespace: str, value: str, named: bool
):
    other = daemonset("nvidia-device-plugin-daemonset", "nvcr.io/nvidia/k8s-device-plugin:v0.20.0")
    fake.put(other | {"metadata": other["metadata"] | {"namespace": namespace}})
    label = "nvidia.com/gpu.deploy.device-plugin"
    words = f"a: managed by the GPU Operator (label {label}=true). Hand over one node at a time:"
    assert (words in noted(**{label: value})) == named


@pytest.mark.parametrize(("container", "named"), [("gpus", True), ("compute-domains", False)])
def test_a_plan_names_a_dra_driver_for_gpus(fake: FakeApi, noted: Noted, container: str, named: bool):
    """It mounts none of the folders of device plugins. One for ComputeDomains alone allocates no GPU."""
    name = "nvidia-dra-driver-gpu-kubelet-plugin"
    other = daemonset(name, "nvcr.io/nvidia/k8s-dra-driver-gpu:v26", "/var/lib/kubelet/plugins")
    other["spec"]["template"]["spec"]["containers"][0]["name"] = container
    fake.put(other)
    words = f"DaemonSet kube-system/{name}, on 2 nodes, is a DRA driver for NVIDIA GPUs."
    assert (words in noted()) == named


def test_a_plan_names_labels_of_the_gpu_operator_that_a_failed_mig_change_left(noted: Noted):
    """The operator keeps such a value, so its operands never come back by themselves."""
    label = "nvidia.com/gpu.deploy.dcgm-exporter"
    said = noted(**{label: "paused-for-mig-change", "nvidia.com/gpu.deploy.driver": "true"})
    assert f"a: the GPU Operator's label {label}=paused-for-mig-change" in said
    assert f"`kubectl label node a {label}-` removes it." in said
    assert "gpu.deploy.driver" not in said


@pytest.mark.parametrize(
    ("change", "outdated"),
    [
        (Service("containerd.service", "why", restart=True), True),
        (Service("k3s-agent.service", "why", restart=True), True),
        (Service("kubelet.service", "why", restart=True), False),
        (Service("kubelet.service", "why", restart=True, loses=True), True),  # by the reload before it
        (WriteFile("/etc/nvidia-container-runtime/config.toml", "", "why"), True),
        (WriteFile("/etc/modules-load.d/gpunode.conf", "", "why"), False),
        (Packages("why", install=(PackageSpec("nvidia-open"),)), True),
        (Packages("why", remove=("nvidia-container-toolkit",)), True),
        (Packages("why", install=(PackageSpec("linux-headers-6.1.0-41-amd64"),)), False),  # the next boot's
        (Packages("why", hold=("nvidia-open",)), False),
        (Packages("why", refresh=True), False),
    ],
)
def test_a_pod_of_the_plugin_is_outdated_by_another_driver_runtime_or_toolkit(change: Change, outdated: bool):
    """containerd keeps containers over its restart, with the runtime that they were started with. It is renewed then,
    test_plugin.py."""
    facts = replace(cases.facts("modern"), kernels={"6.1.0-41-amd64": False})
    assert impact.outdates_pods([change], facts) == outdated


def test_a_plan_names_the_plugins_pods_that_the_run_replaces(api: Api, fake: FakeApi, capsys):
    """Those of hosts whose driver or runtime changes, in the text, in JSON, and in the number that the question rests on."""
    for name in "abc":
        add_node(fake, name, labels={"gpunode.dev/gpu": "true"})
    PluginController(fake)
    spec = plugin.Spec("gpunode", PluginImage("plugin:1"))
    plugin.deploy(api, spec, seconds=10, notify=lambda _: None)
    hosts = [Host(name, Ssh(name)) for name in "abc"]
    restarts = StepPlan("containerd", (Service("containerd.service", "why", restart=True),))
    facts = {name: replace(SEEN["a"], hostname=name) for name in "abc"}
    lines = [
        Member(host, Outcome(host.name, "planned", facts[host.name], plan=Plan(host.name, (restarts,))))
        for host in hosts[:2]
    ]
    lines += seen(hosts[2:], facts)

    for json_lines in (False, True):
        human = report.make(json=json_lines, quiet=True)
        planned = drift.plan(api, INVENTORY, lines, human, order=[hosts[:1], hosts[2:]])
        assert (planned.objects, planned.replaced) == (
            1,
            1,
        )  # no batch has b: it is refused, as a host of the control plane may be

    text, *rest = capsys.readouterr().out.splitlines()
    assert text == " cluster  test"
    assert rest[:2] == [
        "   pods        ~ replace gpunode/gpunode-device-plugin-a on a",
        "                 Only a new pod of the plugin uses the new driver and runtime",
    ]
    assert [json.loads(line) for line in rest[2:] if '"cluster"' in line] == [
        {
            "type": "cluster",
            "change": "replace",
            "object": "Pod gpunode/gpunode-device-plugin-a",
            "diff": [],
            "node": "a",
        }
    ]


def test_who_may_not_list_daemonsets_gets_his_plan(fake: FakeApi, noted: Noted):
    """It takes no right that gpunode does not need otherwise."""
    fake.fail("GET", "/apis/apps/v1/daemonsets", Fault(403, "Forbidden", "no"))
    assert "Node a" in noted()


def with_gpus(*uuids: str, memory_mib: int = 0) -> list[Outcome]:
    """Both hosts, each with these GPUs as `a-0` and `b-0`."""

    def seen(host: str) -> Facts:
        gpus = tuple(Gpu(n, f"{host}-{uuid}", "P100", "", memory_mib) for n, uuid in enumerate(uuids))
        return replace(cases.facts("modern"), hostname=host, gpus=gpus)

    return [Outcome(host.name, "right", seen(host.name)) for host in HOSTS]


def with_last_gpu(*whole: str, **last: Any) -> Outcome:
    """The first host, with these GPUs and another one, of which this is known."""
    (first, _) = with_gpus(*whole, str(len(whole)))
    assert first.facts
    *others, gpu = first.facts.gpus
    return replace(first, facts=replace(first.facts, gpus=(*others, replace(gpu, **last))))


@pytest.mark.parametrize("lacks", [{"smi_error": "GPU is lost"}, {"modules": {}, "smi_error": None}])
def test_a_host_whose_driver_does_not_answer_is_not_waited_for(
    api: Api, fake: FakeApi, capsys, lacks: dict[str, Any]
):
    """Its plugin is never ready; the command ends at once all the same, with the broken link, whose words the plan had, and its fix."""
    add_node(fake, "a", 2)
    add_node(fake, "b", 2)
    PluginController(fake, {"b": NOT_READY})
    Kubelet(fake, {"a": ["a-0", "a-1"]})
    first, second = with_gpus("0", "1")
    assert second.facts
    second = replace(second, facts=replace(second.facts, gpus=(), **lacks))

    code = bring_up(api, INVENTORY, HOSTS, [first, second], json=False, run=True)

    assert code == 1
    said = capsys.readouterr().err
    assert "b: gpunode-device-plugin-b is not ready" in said
    assert "\n   module is broken\n   `driver: none` leaves the driver to you" in said
    assert "GPU is lost" not in said


def test_every_host_is_said_to_be_verified_or_not_with_what_shows_it(api: Api, fake: FakeApi, capsys):
    """One GPU of the second host adds wrongly; as JSON, a line a host that a program can read."""
    add_node(fake, "a", 2)
    add_node(fake, "b", 2)
    PluginController(fake)
    kubelet = Kubelet(fake, {"a": ["a-0", "a-1"], "b": ["b-0", "b-1"]})
    kubelet.broken.add("b-1")

    code = bring_up(api, INVENTORY, HOSTS, with_gpus("0", "1"), json=True, run=True)

    assert code == 1
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if line["type"] == "verified"] == [
        {
            "type": "verified",
            "host": "a",
            "node": "a",
            "result": "verified",
            "proof": "2 GPUs, vectoradd passed on each",
            "layer": "",
            "code": "",
        },
        {
            "type": "verified",
            "host": "b",
            "node": "b",
            "result": "not verified",
            "proof": lines[-1]["proof"],
            "layer": "pod",
            "code": "",
        },
    ]
    assert lines[-1]["proof"].startswith("vectoradd failed in 1 of 2 pods: ")
    assert lines[-1]["proof"].endswith(" on b-1: element 7 is 0.0, should be 3.5")


def test_one_small_pod_is_not_said_to_have_been_on_every_gpu(api: Api, fake: FakeApi, capsys):
    """Of memory of which somebody has some, one unit is asked for; which GPU it was of is said."""
    named = "example.com/mem"
    config = PluginConfig(f"version: v1\nsharing: {{memory: {{name: {named}}}}}\n")
    inventory = Inventory(
        "inventory.yaml", HOSTS[:1], Cluster(plugin=PluginImage("plugin:1"), plugin_config=config)
    )
    add_node(fake, "a")
    fake.update("Node", "a", status={"allocatable": {named: "32"}, "capacity": {named: "32"}})
    fake.put(pod("holder", node="a", namespace="default", asks={named: 3}))
    PluginController(fake)
    Kubelet(fake, {"a": ["a-1"]})
    (first, _) = with_gpus("0", "1", memory_mib=16 * 1024)

    code = bring_up(api, inventory, HOSTS[:1], [first], json=True, run=True)

    said = capsys.readouterr().out
    assert code == 0, said
    assert f"1 of 2 GPUs passed in a share; in use by default/holder (3 {named})" in said


def test_how_many_gpus_were_tested_and_who_has_the_others_is_reported(api: Api, fake: FakeApi, capsys):
    """The host is verified by those that are free, which is less than all."""
    add_node(fake, "a", 2)
    fake.put(pod("holder", node="a", namespace="default", gpus=1))
    PluginController(fake)
    Kubelet(fake, {"a": ["a-1"]})

    code = bring_up(api, INVENTORY, HOSTS[:1], with_gpus("0", "1")[:1], json=True, run=True)

    said = capsys.readouterr().out
    assert code == 0, said
    users = "in use by default/holder (1 nvidia.com/gpu)"
    assert f"1 of 2 GPUs passed; {users}" in said


def test_a_gpu_with_several_shares_is_one_line(capsys):
    """With the number of pods that were on it; one that failed there has its own line."""
    ran = [
        Result("a", "pod-0", "GPU-0", "H100", True, 1.0, "", ()),
        Result("a", "pod-1", "GPU-0", "H100", True, 2.0, "", ()),
        Result("a", "pod-2", "GPU-1", "H100", True, 1.0, "", ()),
        Result("a", "pod-3", "GPU-1", "H100", False, 1.0, "wrong", ()),
    ]
    proof.show_results([NodeResult("a", tuple(ran))], report.make(json=True, quiet=True))
    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    assert [(line["uuid"], line["result"], line["pods"], line["seconds"]) for line in lines] == [
        ("GPU-0", "passed", 2, 2.0),
        ("GPU-1", "passed", 1, 1.0),
        ("GPU-1", "failed", 1, 1.0),
    ]


CUT = tuple(MigDevice(number, f"MIG-{number}", "3g.40gb") for number in range(2))


@pytest.mark.parametrize(
    ("parts", "offered", "proof"),
    [
        (CUT, 2, "1 GPU and 2 MIG devices, vectoradd passed on each"),
        (None, 1, "vectoradd passed on a-0, MIG-0"),  # not known is not none
    ],
)
def test_a_host_is_verified_by_a_pod_on_each_mig_device_that_its_node_offers(
    api: Api, fake: FakeApi, capsys, parts: tuple[MigDevice, ...] | None, offered: int, proof: str
):
    """Its second GPU is not missing: it is offered in parts."""
    add_node(fake, "a", 1)
    offers = {"nvidia.com/gpu": "1", "nvidia.com/mig-3g.40gb": str(offered)}
    fake.update("Node", "a", status={"allocatable": offers, "capacity": offers})
    PluginController(fake)
    Kubelet(fake, {"a": ["a-0", *(f"MIG-{number}" for number in range(offered))]})
    first = with_last_gpu("0", mig=parts, mig_on=True, mig_pending=True)

    code = bring_up(api, MIG_INVENTORY, HOSTS[:1], [first], json=True, run=True)

    said = capsys.readouterr().out
    assert code == 0, said
    assert proof in said


@pytest.mark.parametrize(("whole", "tried"), [(1, True), (0, False)])
def test_a_host_is_not_verified_whose_mig_gpu_has_no_mig_device(
    api: Api, fake: FakeApi, capsys, whole: int, tried: bool
):
    """The others are tried; where there is no other, nothing is waited for."""
    add_node(fake, "a", whole)
    PluginController(fake)
    Kubelet(fake, {"a": ["a-0"]})
    first = with_last_gpu(*["0"] * whole, index=1, mig_on=True, mig_pending=True)

    code = bring_up(api, MIG_INVENTORY, HOSTS[:1], [first], json=False, run=True)

    assert code == 1
    said = capsys.readouterr()
    assert "a: " in said.err
    assert "GPU 1: MIG is on, but no MIG device was made" in said.err
    assert "nvidia-smi mig -i 1 -cgi PROFILE -C" in said.err
    assert "not verified" in said.out
    assert ("a-0" in said.out) == tried


def test_a_plan_says_what_comes_to_hosts_that_are_no_nodes_yet(api: Api, fake: FakeApi, capsys):
    """Else a plan before the host has joined looks as if gpunode did nothing for it in the cluster."""
    add_node(fake, "a")

    drift.plan(api, INVENTORY, seen(HOSTS), report.make(json=False, quiet=True))

    assert "b: not in the cluster yet. Labels and the device plugin follow" in capsys.readouterr().err


@pytest.mark.parametrize(("strict", "starts"), [(True, "This run"), (False, "`gpunode provision`")])
def test_a_plan_says_so_where_it_starts_the_kubelet_that_makes_a_host_a_node(
    api: Api, fake: FakeApi, capsys, strict: bool, starts: str
):
    """As with a feature gate that its version does not know: it has joined, and is no node under another name."""
    add_node(fake, "a")
    facts = cases.facts("modern", {})
    assert facts.kubelet
    stopped = replace(facts, kubelet=replace(facts.kubelet, arguments=()))
    change = StepPlan("kubelet", (Service("kubelet.service", "it is not running", restart=True),))
    member = Member(HOSTS[1], Outcome("b", "planned", stopped, plan=Plan("b", (change,))))

    reporter = report.make(json=False, quiet=True)
    drift.plan(api, INVENTORY, [*seen(HOSTS[:1]), member], reporter, strict=strict)

    said = capsys.readouterr().err
    assert f"b: not in the cluster yet, as the kubelet is down. {starts} starts it, " in said
    assert "`node:`" not in said


def test_a_host_that_was_refused_is_among_those_that_are_not_verified(api: Api, fake: FakeApi, capsys):
    """The last table holds every host; the exit code is of those that were brought up."""
    add_node(fake, "a", 2)
    PluginController(fake)
    Kubelet(fake, {"a": ["a-0", "a-1"]})
    first, _ = with_gpus("0", "1")
    refused = Outcome(
        "b", "refused", problem=Problem("", "no NVIDIA GPU on the PCI bus", fix="Check that it is seated.")
    )

    code = bring_up(api, INVENTORY, HOSTS, [first, refused], json=True, run=True)

    lines = [json.loads(line) for line in capsys.readouterr().out.splitlines()]
    rows = [(line["host"], line["result"], line["proof"]) for line in lines if line["type"] == "verified"]
    assert code == 0
    assert rows == [
        ("a", "verified", "2 GPUs, vectoradd passed on each"),
        ("b", "not verified", "refused: no NVIDIA GPU on the PCI bus"),
    ]


ITS_OWN = {"machineID": "0a", "systemUUID": "0A-0A", "bootID": "before"}


def claiming(name: str, **facts: str) -> list[Outcome]:
    """`a` as it is, and `b`, which says that its hostname is this."""
    first, second = outcomes()
    return [
        replace(first, facts=replace(SEEN["a"], machine_id="0a", product_uuid="0a-0a")),
        replace(second, facts=replace(SEEN["b"], hostname=name, **facts)),
    ]


def test_a_host_that_claims_anothers_hostname_gets_nothing_of_its_node(
    api: Api, fake: FakeApi, capsys, monkeypatch
):
    """It is refused by name and not waited for; the node's own host has its labels, and no others."""
    monkeypatch.setattr(placed, "REGISTER_SECONDS", 3600.0)
    add_node(fake, "a")
    fake.update("Node", "a", status={"nodeInfo": ITS_OWN})
    PluginController(fake)
    told = claiming("a", machine_id="0b", product_uuid="0b-0b")
    hosts = (HOSTS[0], replace(HOSTS[1], labels={"pool": "stolen"}))
    why = "b: it claims node a, which is another machine: its machine-id and its system UUID are not this host's"

    facts = {outcome.host: outcome.facts for outcome in told if outcome.facts}
    planned = drift.plan(api, INVENTORY, seen(hosts, facts), report.make(json=False, quiet=True))
    said = capsys.readouterr()
    assert why in said.err
    assert "stolen" not in said.out
    assert [conflict.host.name for conflict in planned.conflicts] == ["b"]

    assert bring_up(api, INVENTORY, hosts, told, json=False, run=False) == 1
    assert why in capsys.readouterr().err
    assert fake.all("Node")[0]["metadata"]["labels"]["pool"] == "ml"


def test_two_hosts_that_are_one_node_are_both_refused(api: Api, fake: FakeApi, capsys, monkeypatch):
    """Neither is known to be wrong; each is named with the other."""
    monkeypatch.setattr(placed, "REGISTER_SECONDS", 3600.0)
    add_node(fake, "a")
    PluginController(fake)

    code = bring_up(api, INVENTORY, HOSTS, claiming("a"), json=False, run=False)

    assert code == 1
    said = capsys.readouterr().err
    for host in "ab":
        assert f"{host}: a and b of the inventory are one node, a" in said
    assert "pool" not in fake.all("Node")[0]["metadata"]["labels"]


@pytest.mark.parametrize(
    ("image", "warned"),
    [
        (PluginImage("reg.example:5000/plugin"), True),
        (PluginImage("plugin:latest"), True),
        (PluginImage("reg.example:5000/plugin:1"), False),
        (PluginImage(f"plugin:latest@sha256:{'0' * 64}"), False),
        (PluginImage(f"reg.example/plugin@sha256:{'0' * 64}"), False),
        (PluginImage("plugin:latest", "plugin.tar"), False),
    ],
)
def test_an_image_that_is_another_tomorrow_is_reported(
    api: Api, fake: FakeApi, capsys, image: PluginImage, warned: bool
):
    """With the way out; what was loaded is the archive's on every node."""
    inventory = replace(INVENTORY, cluster=Cluster(plugin=image))
    drift.show(api, inventory, (), report.make(json=True, quiet=True))
    said = capsys.readouterr().out
    assert (f"The tag of {image.reference} can move" in said) == warned


@pytest.mark.parametrize("lasts", [False, True])
def test_a_node_that_is_not_ready_for_a_moment_is_waited_for_once(
    api: Api, fake: FakeApi, monkeypatch, lasts: bool
):
    """Its kubelet has just started, while the API server had it as Ready from before."""
    add_node(fake, "a")
    (there,) = nodes.fetch(api)
    waited: list[str] = []
    answers = [replace(there, ready=False), replace(there, ready=not lasts)]

    def deployed(*_: object, **__: object) -> plugin.Rollout:
        node = answers.pop(0)
        late = None if node.ready else Problem(NODE_NOT_READY, "the node is not Ready: its status is unknown")
        return plugin.Rollout((), {"a": State(node, None, late)})

    monkeypatch.setattr(plugin, "deploy", deployed)
    members = placed.locate(api, seen(HOSTS[:1]), seconds=0, notify=lambda _: None)
    locate = placed.locate

    def wait(_api: Api, late: Sequence[Member], **_: object) -> Sequence[Member]:
        waited.extend(member.host.name for member in late)
        return late if len(waited) > 1 else locate(api, late, seconds=0, notify=lambda _: None)

    monkeypatch.setattr(placed, "locate", wait)
    walk = proof.Walk(api, INVENTORY, report.make(json=True, quiet=True), acts=True, run=False)
    (after,) = proof.prove(walk, tuple(members))

    assert (waited, answers) == (["a", "a"], [])
    assert (after.verdicts[0].status == "broken") == lasts


def test_the_proof_of_a_host_does_not_repeat_its_name():
    """Its row names it already; another host's name stays."""
    (member, *_) = seen(HOSTS)
    name = member.host.name
    out = member.exclude(Problem("stopped", f"skipped: 1 host failed (other: {name}: why)", subject=name))
    assert str(out.reason) == f"{name}: skipped: 1 host failed (other: {name}: why)"
    assert proof.describe_proof(out) == (
        "not verified",
        f"skipped: 1 host failed (other: {name}: why)",
    )


@pytest.mark.parametrize(
    ("gpus", "cordoned", "broken", "expected", "link"),
    [
        (2, False, "", None, None),
        (1, False, "", None, "capacity"),
        (2, False, "", 64, "capacity"),
        (2, True, "", None, "node"),
        (2, False, "a-1", None, "pod"),
    ],
)
def test_what_provision_proves_is_what_verify_says(
    api: Api,
    fake: FakeApi,
    monkeypatch,
    gpus: int,
    cordoned: bool,
    broken: str,
    expected: int | None,
    link: str | None,
):
    """The same judges, link by link; what provision says of the host is the problem of the first that does not hold."""
    monkeypatch.setattr(proof, "PLUGIN_SECONDS", 1.0)
    add_node(fake, "a", gpus)
    if cordoned:
        fake.update("Node", "a", spec={"unschedulable": True})
    PluginController(fake)
    kubelet = Kubelet(fake, {"a": ["a-0", "a-1"] * 2})  # for both
    kubelet.broken |= {broken}
    host = replace(HOSTS[0], gpus=ExpectedGpus(expected) if expected else None)
    members = (Member(host, with_gpus("0", "1")[0]),)
    quiet = report.make(json=True, quiet=True)

    (provisioned,) = proof.prove(proof.Walk(api, INVENTORY, quiet, acts=True, run=True), members)
    (verified,) = proof.prove(proof.Walk(api, INVENTORY, quiet, acts=False, run=True), members)

    told = [
        [(text.layer, text.status, re.sub(r"vectoradd-\S+", "POD", text.text + text.cause)) for text in them]
        for them in (provisioned.verdicts, verified.verdicts)
    ]
    assert told[0] == told[1]
    assert (provisioned.problem.layer if provisioned.problem else None) == link
    assert provisioned.proven == verified.proven == (link is None)


@pytest.mark.parametrize(("run", "proven"), [(False, True), (True, False)])
def test_a_node_that_somebody_cordoned_is_in_the_way_of_pods_alone(
    api: Api, fake: FakeApi, run: bool, proven: bool
):
    """It is provisioned all the same; no pod is waited for that nothing can schedule."""
    add_node(fake, "a", 2)
    fake.update("Node", "a", spec={"unschedulable": True})
    PluginController(fake)
    members = (Member(HOSTS[0], with_gpus("0", "1")[0]),)
    walk = proof.Walk(api, INVENTORY, report.make(json=True, quiet=True), acts=True, run=run)

    (after,) = proof.prove(walk, members)

    assert after.proven == proven
    assert fake.all("Node")[0]["metadata"]["labels"]["gpunode.dev/gpu"] == "true"
