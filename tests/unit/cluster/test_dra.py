"""A DRA driver on the same nodes: it is named, and the plugin is not put beside it."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpunode import report
from gpunode.cli import app
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import path
from gpunode.engine import acceptance, cluster_diff, proof
from gpunode.engine.member import Member
from gpunode.engine.proof import Walk, prove
from gpunode.links import node as nodes
from gpunode.links.capacity import slices
from gpunode.links.node import labels
from gpunode.links.plugin import other_owners
from gpunode.model import Cluster, Gpu, Host, Inventory, Outcome, PluginImage, Ssh
from tests import cases, jsonlines

from .conftest import GPU_NODE, Kubelet, PluginController, add_node, pod
from .fake import FakeApi, Fault, Object

LABELLED = {other_owners.DRA_LABEL: "true"}
HOSTS = (Host("a", Ssh("a")), Host("b", Ssh("b")))
INVENTORY = Inventory("inventory.yaml", HOSTS, Cluster(plugin=PluginImage("plugin:1")))
RIGHT = Outcome("a", "right", replace(cases.facts("modern"), hostname="a"))
WORDS = "a DRA driver allocates the GPUs of this node"
DRIVERS: Object = {
    "kind": "DaemonSet",
    "metadata": {"name": "nvidia-dra-driver", "namespace": "gpu-operator"},
    "spec": {
        "template": {"spec": {"containers": [{"name": "gpus", "image": "nvidia/k8s-dra-driver-gpu:1"}]}}
    },
    "status": {"desiredNumberScheduled": 1},
}


def add_slice(fake: FakeApi, node: str, driver: str = other_owners.DRA_DRIVER, devices: int = 1) -> None:
    """What a DRA driver publishes of its devices on this node."""
    gpus = [{"name": f"gpu-{index}", "attributes": {"type": {"string": "gpu"}}} for index in range(devices)]
    spec = {"driver": driver, "nodeName": node, "pool": {"name": node}, "devices": gpus}
    fake.put({"kind": "ResourceSlice", "metadata": {"name": f"{node}-{driver}"}, "spec": spec})


def add_class(fake: FakeApi, name: str, driver: str, resource: str = "nvidia.com/gpu") -> None:
    """A DeviceClass by which pods that ask for this resource get the driver's devices."""
    cel = {"cel": {"expression": f"device.driver == '{driver}' && true"}}
    spec: Object = {"extendedResourceName": resource, "selectors": [cel]}
    fake.put({"kind": "DeviceClass", "metadata": {"name": name}, "spec": spec})


def add_cluster(fake: FakeApi) -> None:
    fake.put({"kind": "GPUCluster", "metadata": {"name": "gpu-cluster"}, "spec": {}})


@pytest.fixture
def command(fake: FakeApi, tmp_path, monkeypatch) -> Callable[..., Result]:
    """Runs gpunode with an inventory of the nodes a and b."""
    cluster = {"kubeconfig": fake.kubeconfig(tmp_path), "plugin": {"image": "plugin:1"}}
    inventory = tmp_path / "inventory.yaml"
    inventory.write_text(json.dumps({"cluster": cluster, "groups": {"all": {"hosts": ["a", "b"]}}}))
    monkeypatch.setattr(proof, "PLUGIN_SECONDS", 2.0)
    return lambda *words: CliRunner().invoke(app, [*words, str(inventory)])


def test_a_node_whose_gpus_dra_allocates_gets_no_plugin(command: Callable[..., Result], fake: FakeApi):
    """Each object that shows it is named, with both ways out; the other node gets its plugin."""
    add_node(fake, "a", 2)
    add_node(fake, "b", 1)
    add_slice(fake, "a", devices=2)
    add_class(fake, "gpu.nvidia.com", other_owners.DRA_DRIVER)
    add_cluster(fake)
    PluginController(fake)

    deployed = command("plugin", "deploy", "--yes")

    assert deployed.exit_code == 1, deployed.output
    said = " ".join(deployed.output.split())
    assert f"a: {WORDS} (ResourceSlice a-gpu.nvidia.com, GPUCluster gpu-cluster, DeviceClass" in said
    assert "DeviceClass gpu.nvidia.com for nvidia.com/gpu)" in said
    assert "`resources.gpus.enabled=false` in its chart" in said
    assert "To keep DRA, exclude the host." in said
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in fake.all("Node")}
    assert "gpunode.dev/gpu" not in labels["a"]
    assert labels["b"]["gpunode.dev/gpu"] == "true"


@pytest.mark.parametrize(
    "signs",
    [
        lambda fake: add_slice(fake, "a", "compute-domain.nvidia.com"),
        lambda fake: add_slice(fake, "b"),
        lambda fake: add_slice(fake, "a", devices=0),
        lambda fake: fake.closed.update({path("ResourceSlice"): Fault(403, "Forbidden", "no")}),
        lambda fake: (
            add_slice(fake, "a", "tpu.example"),
            add_class(fake, "c", "tpu.example", "tpu.example/x"),
        ),
        lambda fake: add_class(fake, "gpu.nvidia.com", other_owners.DRA_DRIVER),
    ],
    ids=[
        "ComputeDomains",
        "another node",
        "no device",
        "slices nobody may list",
        "other devices",
        "a class that nothing serves",
    ],
)
@pytest.mark.parametrize("labels", [{}, LABELLED], ids=["", "its label left"])
def test_dra_that_allocates_no_gpu_of_the_node_is_no_other_owner(
    api: Api, fake: FakeApi, signs: Callable[[FakeApi], Any], labels: dict[str, str]
):
    """The two go together then. A label of the GPU Operator may be left of what is gone."""
    add_node(fake, "a", 1, labels=labels)
    signs(fake)
    (node,) = nodes.fetch(api)
    assert other_owners.dra_owners(api).reason(node) is None


@pytest.mark.parametrize(
    ("labels", "signs", "words"),
    [
        (LABELLED, add_cluster, f"(label {other_owners.DRA_LABEL}=true, GPUCluster gpu-cluster)"),
        (
            LABELLED,
            lambda fake: fake.put(DRIVERS),
            f"(label {other_owners.DRA_LABEL}=true, DaemonSet gpu-operator/nvidia-dra-driver)",
        ),
        (
            LABELLED,
            lambda fake: add_slice(fake, "a"),
            f"(ResourceSlice a-gpu.nvidia.com, label {other_owners.DRA_LABEL}=true)",
        ),
        (
            {},
            lambda fake: (add_slice(fake, "a", "gpu.example"), add_class(fake, "fast", "gpu.example")),
            "(ResourceSlice a-gpu.example, DeviceClass fast for nvidia.com/gpu)",
        ),
    ],
    ids=["a GPUCluster's label", "a driver's", "a slice's", "another driver under the same name"],
)
def test_other_signs_of_an_owner(
    api: Api, fake: FakeApi, labels: dict[str, str], signs: Callable[[FakeApi], Any], words: str
):
    """A GPUCluster labels its nodes before its driver runs; a DeviceClass names the driver that it is for."""
    add_node(fake, "a", 1, labels=labels)
    signs(fake)
    (node,) = nodes.fetch(api)
    why = other_owners.dra_owners(api).reason(node)
    assert words in why.what
    assert (f"`kubectl label node a {other_owners.DRA_LABEL}=false --overwrite`" in why.fix) == bool(labels)


@pytest.mark.parametrize("minor", [20, 31, 33])
def test_an_older_api_server_is_asked_for_what_it_has(api: Api, fake: FakeApi, minor: int):
    """Nothing before 1.31; its own version of the slices until 1.34."""
    fake.minor = minor
    add_node(fake, "a", 1)
    add_slice(fake, "a")
    (node,) = nodes.fetch(api)
    assert (other_owners.dra_owners(api).reason(node) is not None) == (minor > 30)
    assert any("resource.k8s.io" in path for _, path, _ in fake.requests) == (minor > 30)


def test_who_may_not_list_resource_slices_is_told_so_and_gets_the_plan(
    api: Api, fake: FakeApi, capsys, monkeypatch
):
    """The right is one that nothing else takes, so it stops nothing."""
    monkeypatch.setattr(proof, "PLUGIN_SECONDS", 2.0)
    add_node(fake, "a")
    PluginController(fake)
    refusal = Fault(403, "Forbidden", 'User "u" cannot list resource "resourceslices"')
    fake.closed[path("ResourceSlice")] = refusal
    members = [Member(HOSTS[0], RIGHT)]

    shown = cluster_diff.plan(api, INVENTORY, members, report.make(json=True, quiet=True))

    said = capsys.readouterr().out
    assert "Whether a DRA driver allocates the GPUs of these nodes is not known" in said
    assert "cannot list resource" in said
    assert not shown.conflicts
    prove(Walk(api, INVENTORY, report.make(json=True, quiet=True), acts=True, run=False), tuple(members))
    assert "cannot list resource" not in capsys.readouterr().out, "the plan has it, once a run"

    add_class(
        fake, "gpu.nvidia.com", other_owners.DRA_DRIVER
    )  # a sign of a driver: in doubt no GPU is offered twice
    (node,) = nodes.fetch(api)
    why = other_owners.dra_owners(api).reason(node)
    assert "may allocate the GPUs of this node (DeviceClass gpu.nvidia.com" in why.what
    assert "list resourceslices" in why.fix


def test_a_plan_counts_a_node_with_another_owner_as_a_conflict(api: Api, fake: FakeApi, capsys):
    """So `plan` does not end as if all could be done."""
    add_node(fake, "a")
    add_slice(fake, "a")
    members = [Member(HOSTS[0], RIGHT)]

    shown = cluster_diff.plan(api, INVENTORY, members, report.make(json=False, quiet=True))

    assert [conflict.host.name for conflict in shown.conflicts] == ["a"]
    assert WORDS in capsys.readouterr().err


def test_provision_leaves_the_labels_of_such_a_node_alone(api: Api, fake: FakeApi, capsys):
    """The host itself may be right; its GPUs are not offered by it."""
    add_node(fake, "a")
    add_slice(fake, "a")
    PluginController(fake)
    members = (Member(HOSTS[0], RIGHT),)

    (each,) = prove(Walk(api, INVENTORY, report.make(json=False, quiet=True), acts=True, run=False), members)

    assert not each.proven
    assert each.problem.code == other_owners.OTHER_OWNER
    assert "gpunode.dev/gpu" not in fake.all("Node")[0]["metadata"]["labels"]
    assert not fake.all("Pod")


def test_a_driver_that_came_later_shows_in_every_status(command: Callable[..., Result], fake: FakeApi):
    """The plugin runs there already, so taking it off is one of the two ways."""
    for name in ("a", "b"):
        add_node(fake, name, 1, labels=GPU_NODE)
    PluginController(fake)
    assert command("plugin", "deploy", "--yes").exit_code == 0
    assert command("plugin", "status").exit_code == 0
    add_slice(fake, "a")

    for words in (("plugin", "status"), ("status",)):
        done = command(*words)
        said = " ".join(done.output.split())
        assert done.exit_code == 1
        assert WORDS in said
        assert "take gpunode's plugin off it: `kubectl label node a gpunode.dev/gpu-`" in said


def test_verify_breaks_at_the_plugin(api: Api, fake: FakeApi, tmp_path):
    """Whether the plugin runs there or not: its absence is no fault to be fixed by `provision`."""
    add_node(fake, "a", 1)
    add_slice(fake, "a")
    members = [Member(HOSTS[0], RIGHT)]
    inventory = Inventory(
        "i", HOSTS, Cluster(kubeconfig=fake.kubeconfig(tmp_path), plugin=PluginImage("plugin:1"))
    )
    walk = Walk(api, inventory, report.make(json=True, quiet=True), acts=False, run=False)
    (judged,) = prove(walk, tuple(members))
    (link,) = [verdict for verdict in judged.verdicts if verdict.layer == "plugin"]
    assert link.status == "broken"
    assert WORDS in link.cause
    assert "exclude the host" in link.fix


UUIDS = ("GPU-a", "GPU-b")
BY_DRA = replace(HOSTS[0], allocation="dra")
FACTS = replace(
    cases.facts("modern"),
    hostname="a",
    gpus=tuple(Gpu(n, uuid, "H100", f"0000:0{n}:00.0", 1) for n, uuid in enumerate(UUIDS)),
)


def publish(fake: FakeApi, *uuids: str) -> None:
    devices = [
        {"name": f"gpu-{n}", "attributes": {"type": {"string": "gpu"}, "uuid": {"string": uuid}}}
        for n, uuid in enumerate(uuids)
    ]
    spec = {"driver": other_owners.DRA_DRIVER, "nodeName": "a", "pool": {"name": "a"}, "devices": devices}
    fake.put({"kind": "ResourceSlice", "metadata": {"name": "a-gpus"}, "spec": spec})


def claim(fake: FakeApi, device: str, **more: Any) -> None:
    """A pod's claim that has this device."""
    result = {"driver": other_owners.DRA_DRIVER, "pool": "a", "device": device, **more}
    status = {"allocation": {"devices": {"results": [result]}}, "reservedFor": [{"name": "train"}]}
    fake.put({"kind": "ResourceClaim", "metadata": {"name": device, "namespace": "ml"}, "status": status})


def walk_links(api: Api, fake: FakeApi, tmp_path, *, acts: bool = False) -> Member:
    cluster = Cluster(kubeconfig=fake.kubeconfig(tmp_path), plugin=PluginImage("plugin:1"))
    walk = Walk(
        api, Inventory("i", (BY_DRA,), cluster), report.make(json=True, quiet=True), acts=acts, run=True
    )
    (judged,) = prove(walk, (Member(BY_DRA, replace(RIGHT, facts=FACTS)),))
    return judged


@pytest.mark.parametrize(
    ("uuids", "labels", "layer", "code"),
    [
        (UUIDS, {}, "", ""),
        (UUIDS[:1], {}, "capacity", "not-published"),
        ((), {}, "plugin", "no-dra-driver"),
        (UUIDS, GPU_NODE, "plugin", "two-owners"),
    ],
    ids=["all", "one is missing", "no driver", "the plugin, too"],
)
def test_a_node_that_is_to_be_served_by_dra_is_judged_by_its_slices(
    api: Api, fake: FakeApi, tmp_path, uuids: tuple[str, ...], labels: dict[str, str], layer: str, code: str
):
    add_node(fake, "a", labels=labels)
    publish(fake, *uuids)
    Kubelet(fake, {"a": list(UUIDS)})

    judged = walk_links(api, fake, tmp_path)

    problem = judged.problem
    assert ((problem.layer, problem.code) if problem else ("", "")) == (layer, code)
    if not layer:
        assert [verdict.layer for verdict in judged.verdicts] == ["node", "plugin", "capacity", "pod"]
        assert judged.verdicts[-1].text == "vectoradd passed on GPU-a, GPU-b"


@pytest.mark.parametrize(("taken", "pods"), [([], 2), (["gpu-0"], 1), (["gpu-0", "gpu-1"], 0)])
def test_pods_claim_the_devices_that_no_claim_has(
    api: Api, fake: FakeApi, tmp_path, taken: list[str], pods: int
):
    """By a template of the run, which goes with its pods. Those in use are named."""
    add_node(fake, "a")
    publish(fake, *UUIDS)
    for device in taken:
        claim(fake, device)
    kubelet = Kubelet(fake, {"a": list(UUIDS[len(taken) :])})
    templates: list[Object] = []
    fake.react("ResourceClaimTemplate", templates.append)

    judged = walk_links(api, fake, tmp_path)

    assert kubelet.asked == [{"claims": 1}] * pods
    assert {
        template["spec"]["spec"]["devices"]["requests"][0]["exactly"]["deviceClassName"]
        for template in templates
    } == {"gpu.nvidia.com"}
    assert not fake.all("ResourceClaimTemplate")
    assert not fake.all("Pod")
    assert ("in use by ml/train (gpu-0)" in judged.verdicts[-1].text) == bool(taken)
    assert judged.verdicts[-1].status == ("ok" if pods else "unknown")


@pytest.mark.parametrize("held", [False, True])
def test_the_plugin_leaves_a_node_for_dra_once_no_pod_has_its_gpus(
    api: Api, fake: FakeApi, tmp_path, held: bool
):
    """Else the driver would give these GPUs to others, too."""
    add_node(fake, "a", 2)
    (node,) = nodes.fetch(api)
    labels.write(api, node, GPU_NODE)
    if held:
        fake.put(pod("train", node="a", gpus=1))
    publish(fake, *UUIDS)
    Kubelet(fake, {"a": list(UUIDS)})

    judged = walk_links(api, fake, tmp_path, acts=True)

    assert ("gpunode.dev/gpu" in fake.all("Node")[0]["metadata"]["labels"]) == held
    assert judged.proven != held
    assert (judged.problem.code if judged.problem else "") == ("held" if held else "")


@pytest.mark.parametrize("acts", [False, True])
def test_dra_needs_an_api_server_that_serves_it(api: Api, fake: FakeApi, tmp_path, acts: bool):
    """The host alone is out, and keeps the plugin that it has."""
    fake.minor = 33
    add_node(fake, "a")
    (node,) = nodes.fetch(api)
    labels.write(api, node, GPU_NODE)

    judged = walk_links(api, fake, tmp_path, acts=acts)

    assert judged.problem.code == "no-dra"
    assert fake.all("Node")[0]["metadata"]["labels"]["gpunode.dev/gpu"] == "true"


def test_provision_waits_for_what_a_driver_publishes_late(api: Api, fake: FakeApi, tmp_path, monkeypatch):
    add_node(fake, "a")
    fake.put(DRIVERS)
    Kubelet(fake, {"a": list(UUIDS)})
    read = slices.read

    def read_early(api: Api) -> Any:
        before = read(api)
        publish(fake, *UUIDS)
        return before

    monkeypatch.setattr(slices, "read", read_early)
    assert walk_links(api, fake, tmp_path, acts=True).proven


def test_a_claim_that_only_watches_a_device_does_not_use_it(api: Api, fake: FakeApi):
    publish(fake, *UUIDS)
    claim(fake, "gpu-0", adminAccess=True)
    claim(fake, "gpu-1")
    assert [device.users for device in slices.read(api)["a"]] == [(), ("ml/train",)]


def test_templates_of_an_earlier_holder_are_deleted(api: Api, fake: FakeApi, tmp_path):
    add_node(fake, "a")
    publish(fake, *UUIDS)
    Kubelet(fake, {"a": list(UUIDS)})
    for name, notes in (("left", {"gpunode.dev/holder": "killed"}), ("verify", {})):
        meta = {"name": name, "namespace": "gpunode", "labels": {"app.kubernetes.io/managed-by": "gpunode"}}
        fake.put({"kind": "ResourceClaimTemplate", "metadata": {**meta, "annotations": notes}, "spec": {}})

    walk_links(api, fake, tmp_path, acts=True)

    assert [item["metadata"]["name"] for item in fake.all("ResourceClaimTemplate")] == ["verify"]


def test_status_names_the_pods_whose_claims_have_a_nodes_gpus(command: Callable[..., Result], fake: FakeApi):
    """The node has no plugin, which is no fault; who may not list claims sees the nodes that have one, as before."""
    add_node(fake, "a")
    publish(fake, *UUIDS)
    claim(fake, "gpu-0")

    done = command("status", "--json")

    gpus = [line for line in jsonlines.parse(done.output) if line["type"] == "gpu"]
    assert [(gpu["node"], gpu["gpu"], gpu["uuid"], gpu["pods"]) for gpu in gpus] == [
        ("a", "gpu-0", "GPU-a", ["ml/train"]),
        ("a", "gpu-1", "GPU-b", []),
    ]
    total = jsonlines.parse(done.output)[-1]
    assert (done.exit_code, total["used"], total["free"], total["unknown"]) == (0, 1, 1, 0)
    fake.closed[path("ResourceClaim")] = Fault(403, "Forbidden", "no")
    assert "No node offers GPUs yet" in command("status").output


@pytest.mark.parametrize(("taken", "verdict", "pods"), [(UUIDS, "skipped", 0), (UUIDS[:1], "failed", 1)])
def test_accept_measures_by_claims_the_devices_that_no_claim_has(
    api: Api, fake: FakeApi, tmp_path, monkeypatch, taken: tuple[str, ...], verdict: str, pods: int
):
    """Of a pod that measures nothing, as these do, the host is not accepted."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path))
    add_node(fake, "a")
    publish(fake, *UUIDS)
    for number in range(len(taken)):
        claim(fake, f"gpu-{number}")
    kubelet = Kubelet(fake, {"a": list(UUIDS[len(taken) :])})
    cluster = Cluster(kubeconfig=fake.kubeconfig(tmp_path), plugin=PluginImage("plugin:1"))
    member = Member(BY_DRA, replace(RIGHT, facts=FACTS), nodes.fetch(api)[0])
    reporter = report.make(json=True, quiet=True)

    ended = acceptance.accept(api, Inventory("i", (BY_DRA,), cluster), [member], "quick", reporter, print)

    assert (ended["a"].verdict, kubelet.asked) == (verdict, [{"claims": 1}] * pods)
    assert ended["a"].users == tuple(f"ml/train (gpu-{number})" for number in range(len(taken)))
