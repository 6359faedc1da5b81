"""Deploying the plugin, waiting for GPUs, and the reasons when they do not come."""

from collections.abc import Callable
from typing import Any

import pytest

from gpunode.cluster import pods
from gpunode.cluster.api import Api, watch
from gpunode.cluster.api.kinds import OURS
from gpunode.cluster.objects.difference import Difference
from gpunode.contract import status as document
from gpunode.contract.promises import MEMORY_ANNOTATION
from gpunode.contract.status import ANNOTATION, Pod, Reserved, Resource, Unavailable
from gpunode.errors import ClusterError, Problem
from gpunode.links import node as nodes
from gpunode.links import plugin
from gpunode.links.capacity import link as capacity
from gpunode.links.capacity import overview
from gpunode.links.capacity.link import judge_offer
from gpunode.links.node import labels
from gpunode.links.plugin import Scope, Spec
from gpunode.links.plugin.daemonset import State
from gpunode.model import PluginConfig, PluginImage, PluginPublish, Title

from .conftest import DAEMONSET, GPU_NODE, NS, PluginController, add_node, has, pod, publish, status
from .fake import FakeApi

IMAGE = PluginImage("gpunode/device-plugin:0.1.0", image_id="sha256:1")
REBUILT = PluginImage("gpunode/device-plugin:0.1.0", image_id="sha256:2")
PULL = 'Failed to pull image "gpunode/device-plugin:0.1.0": no such host'
NOT_PULLED: dict[str, Any] = {
    "phase": "Pending",
    "containerStatuses": [
        {"name": "device-plugin", "state": {"waiting": {"reason": "ImagePullBackOff", "message": "Back-off"}}}
    ],
}
NOT_READY: dict[str, Any] = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "False"}],
    "containerStatuses": [{"name": "device-plugin", "ready": False, "state": {"running": {}}}],
}
UP: dict[str, Any] = {
    "phase": "Running",
    "conditions": [{"type": "Ready", "status": "True"}],
    "containerStatuses": [],
}


@pytest.fixture
def impatient(monkeypatch) -> None:
    """Reasons are looked for at once, as after a long wait."""
    monkeypatch.setattr(watch, "USUAL", 0.0)


Deploy = Callable[..., plugin.Rollout]
Wait = Callable[..., nodes.Node]
Running = Callable[..., None]


@pytest.fixture
def deploy(api: Api, told: list[str]) -> Deploy:
    """Deploys the plugin; it is waited for 10 seconds, unless `more` has it otherwise."""
    usual = {"seconds": 10, "notify": told.append}

    def deploy(
        config: PluginConfig | None = None, *, image: PluginImage = IMAGE, **more: Any
    ) -> plugin.Rollout:
        spec = Spec(NS, image, config, more.pop("publish", PluginPublish()))
        return plugin.deploy(api, spec, **{**usual, **more})

    return deploy


@pytest.fixture
def wait(api: Api, told: list[str]) -> Wait:
    """Waits until a node offers these GPUs, a minute, unless `more` has it otherwise."""
    usual = {"namespace": NS, "seconds": 60, "notify": told.append}
    return lambda node, wanted, **more: capacity.wait_allocatable(api, node, wanted, **{**usual, **more})


@pytest.fixture
def running(fake: FakeApi, deploy: Deploy) -> Running:
    """Makes the node `a`, which has so many GPUs and offers these shares, and deploys the plugin on it."""

    def running(gpus: int = 0, config: PluginConfig | None = None, **offers: Any) -> None:
        add_node(fake, "a", gpus, labels=GPU_NODE, **offers)
        PluginController(fake)
        deploy(config)

    return running


def event(fake: FakeApi, about: dict[str, Any], message: str) -> None:
    """A warning about an object."""
    fake.put(
        {
            "kind": "Event",
            "metadata": {"name": f"e{fake.version}", "namespace": NS},
            "involvedObject": {"uid": about["metadata"]["uid"]},
            "type": "Warning",
            "message": message,
            "lastTimestamp": "2026-01-01T00:00:00Z",
        }
    )


def registering(fake: FakeApi, told: list[str]) -> Callable[[str], None]:
    """Tells `told`, and has the kubelet of the node `a` count two GPUs."""

    def register(words: str) -> None:
        told.append(words)
        add_node(fake, "a", 2, labels=GPU_NODE)

    return register


def living(fake: FakeApi, node: str) -> dict[str, Any]:
    return next(item for item in fake.all("Pod") if item["spec"]["nodeName"] == node)


def test_it_is_deployed_where_it_runs_on_every_gpu_node(fake: FakeApi, deploy: Deploy):
    """Pods come up on the labelled nodes; a second deploy has nothing to do and waits for nothing."""
    add_node(fake, "a", 2, labels=GPU_NODE)
    add_node(fake, "b", 4, labels=GPU_NODE)
    add_node(fake, "cpu")
    PluginController(fake)
    rollout = deploy()
    assert rollout.good
    assert [
        (row.node.name, row.pod["status"]["phase"], row.node.allocatable) for row in rollout.states.values()
    ] == [
        ("a", "Running", 2),
        ("b", "Running", 4),
    ]
    again = deploy()
    assert again.good
    assert {difference.action for difference in again.differences} == {"same"}


def test_pods_that_began_with_another_driver_are_replaced(fake: FakeApi, told: list[str], deploy: Deploy):
    """A container keeps the libraries that it was started with; only the nodes named are touched."""
    for name in ("a", "b"):
        add_node(fake, name, 2, labels=GPU_NODE)
    controller = PluginController(fake)
    deploy()
    daemonset = next(item for item in fake.all("DaemonSet") if item["metadata"]["name"] == DAEMONSET)
    before = {node: living(fake, node)["metadata"]["uid"] for node in ("a", "b")}

    def replace(words: str) -> None:
        told.append(words)
        if not any(item["spec"]["nodeName"] == "a" for item in fake.all("Pod")):
            controller.start(daemonset, "a", "new")

    assert deploy(notify=replace, scope=Scope(renew={before["a"]})).good
    after = {node: living(fake, node)["metadata"]["uid"] for node in ("a", "b")}
    assert after["a"] != before["a"]
    assert after["b"] == before["b"]


@pytest.mark.usefixtures("impatient")
def test_one_node_that_cannot_pull_is_a_row_not_an_exception(fake: FakeApi, told: list[str], deploy: Deploy):
    """The other node is right, and the bad one has the registry's words."""
    add_node(fake, "a", 2, labels=GPU_NODE)
    add_node(fake, "b", 2, labels=GPU_NODE)
    PluginController(fake, {"b": NOT_PULLED})
    fake.react("Pod", lambda item: event(fake, item, PULL) if item["spec"]["nodeName"] == "b" else None)
    rollout = deploy(seconds=1)
    assert [(row.node.name, why_of(row)) for row in rollout.states.values()] == [
        ("a", ""),
        ("b", f"ImagePullBackOff: {PULL}"),
    ]
    assert f"waiting for the plugin on 1 of 2 Ready nodes; b: ImagePullBackOff: {PULL}" in told


@pytest.mark.usefixtures("impatient")
def test_images_that_cannot_be_pulled_are_not_waited_for_to_the_end(
    fake: FakeApi, monkeypatch, deploy: Deploy
):
    """Once every node that is waited for has failed to pull for a while; `seconds` is never reached."""
    monkeypatch.setattr(pods, "PULL", 0.0)
    for name in ("a", "b"):
        add_node(fake, name, 2, labels=GPU_NODE)
    PluginController(fake, {"b": NOT_PULLED})
    rollout = deploy(seconds=10_000)
    assert [(row.node.name, bool(row.reason)) for row in rollout.states.values()] == [
        ("a", False),
        ("b", True),
    ]


def test_removing_takes_only_labels_that_gpunode_set_for_the_plugin(api: Api, fake: FakeApi, told: list[str]):
    """Those of the inventory stay, and so do others' labels of the same name."""
    add_node(fake, "a", 2)
    add_node(fake, "b", 2, labels=GPU_NODE)
    labels.write(api, nodes.fetch(api)[0], {**GPU_NODE, "pool": "ml"})
    fields = {"f:metadata": {"f:labels": {"f:gpunode.dev/gpu": {}, "f:pool": {}}}}
    own = {"manager": labels.PROVISION, "operation": "Apply", "fieldsV1": fields}
    fake.update("Node", "a", metadata={"managedFields": [own]})
    title = "Node a label gpunode.dev/gpu"
    assert plugin.find_removable(api, NS, notify=told.append) == (title,)
    assert plugin.remove(api, NS, seconds=60, notify=told.append) == (title,)
    ours, others = nodes.fetch(api)
    assert "gpunode.dev/gpu" not in ours.labels
    assert ours.labels["pool"] == "ml"
    assert others.labels["gpunode.dev/gpu"] == "true"


def test_a_plugin_that_runs_and_is_not_ready_says_why(fake: FakeApi, deploy: Deploy):
    """From "it runs" nobody knows what to do; its own last words say what it waits for."""
    add_node(fake, "a", 2, labels=GPU_NODE)
    PluginController(fake, {"a": NOT_READY})
    publish(fake, "a", status(not_ready=document.Reason("driver-not-loaded", "NVML: Driver Not Loaded")))
    rollout = deploy(seconds=1)
    assert [(row.reason.code, why_of(row)) for row in rollout.states.values()] == [
        ("driver-not-loaded", "the plugin is not ready: NVML: Driver Not Loaded")
    ]


DEAD = "the node is not Ready: Kubelet stopped posting node status."


@pytest.mark.parametrize(
    ("ready", "state", "scope", "why"),
    [
        (True, NOT_READY, Scope(hopeless=["b"]), {"a": "", "b": "it is not ready yet"}),  # never will be
        (False, {"phase": "Pending"}, Scope(), {"a": "", "b": DEAD}),
        (True, NOT_PULLED, Scope(only=["a"]), {"a": ""}),  # --limit
    ],
    ids=["hopeless", "dead", "not asked for"],
)
def test_such_a_node_is_not_waited_for(
    fake: FakeApi, deploy: Deploy, ready: bool, state: dict[str, Any], scope: Scope, why: object
):
    add_node(fake, "a", 2, labels=GPU_NODE)
    add_node(fake, "b", 2, labels=GPU_NODE, ready=ready)
    PluginController(fake, {"b": state})
    rollout = deploy(seconds=60, scope=scope)
    assert {row.node.name: why_of(row) for row in rollout.states.values()} == why


def test_no_labelled_node_is_an_error_with_the_way_out(fake: FakeApi, deploy: Deploy):
    """A DaemonSet without nodes would be ready with nothing; that is not what was asked for."""
    add_node(fake, "a", 2)
    with pytest.raises(ClusterError) as caught:
        deploy(seconds=60)
    assert "carries the label gpunode.dev/gpu=true" in caught.value.message
    assert "gpunode provision" in caught.value.hint


def test_what_admission_said_is_the_reason_for_missing_pods(fake: FakeApi, deploy: Deploy):
    """The DaemonSet controller leaves it as an event; repeated ones come with a prefix nobody needs."""
    add_node(fake, "a", 2, labels=GPU_NODE)
    words = 'Error creating: pods "x" is forbidden: violates PodSecurity "restricted:latest"'
    fake.react("DaemonSet", lambda item: event(fake, item, f"(combined from similar events): {words}"))
    rollout = deploy(seconds=1)
    assert [why_of(row) for row in rollout.states.values()] == [words]
    (row,) = rollout.states.values()
    assert row.reason.code == "pod-security"
    assert "pod-security.kubernetes.io/enforce=privileged" in row.reason.fix


@pytest.mark.usefixtures("impatient")
def test_a_pod_of_the_old_template_does_not_count(api: Api, fake: FakeApi, told: list[str], deploy: Deploy):
    """After a new image the wait goes on until the controller has replaced the pod."""
    add_node(fake, "a", 2, labels=GPU_NODE)
    controller = PluginController(fake)
    deploy()

    def replace(words: str) -> None:
        told.append(words)
        daemonset = next(item for item in fake.all("DaemonSet") if item["metadata"]["name"] == DAEMONSET)
        fake.drop(f"/api/v1/namespaces/{NS}/pods/{DAEMONSET}-a")
        controller.start(daemonset, "a", "new")

    rollout = deploy(image=REBUILT, seconds=60, notify=replace)
    assert [(row.name, why_of(row)) for row in rollout.states.values()] == [("new", "")]
    assert told == [
        "waiting for the plugin on 1 of 1 Ready nodes; a: its pod waits for its replacement: a new version rolls out to a tenth of the nodes at a time"
    ]


@pytest.mark.parametrize("reason", ["ImagePullBackOff", "ErrImageNeverPull"])
def test_a_pod_without_its_image_from_before_is_replaced_at_once(fake: FakeApi, deploy: Deploy, reason: str):
    """The image may have been brought meanwhile; nobody waits five minutes for the kubelet to try again."""
    add_node(fake, "a", 2, labels=GPU_NODE)
    state = {"name": "device-plugin", "state": {"waiting": {"reason": reason, "message": "…"}}}
    controller = PluginController(fake, {"a": {"phase": "Pending", "containerStatuses": [state]}})
    deploy(seconds=0)
    controller.states.clear()
    deploy(seconds=0)
    assert not has(fake, "Pod", f"{DAEMONSET}-a", NS)


def test_status_shows_each_node_with_its_last_line(api: Api, fake: FakeApi, deploy: Deploy):
    """Node, pod, restarts, GPUs, the last line of the log; a labelled node without a pod is a row too."""
    add_node(fake, "a", 2, labels=GPU_NODE)
    add_node(fake, "cpu")
    PluginController(
        fake, {"a": {**UP, "containerStatuses": [{"name": "device-plugin", "restartCount": 3, "state": {}}]}}
    )
    deploy()
    add_node(fake, "late", labels=GPU_NODE)
    fake.logs[f"{DAEMONSET}-a", "device-plugin"] = "starting\nregistered nvidia.com/gpu\n"
    first, second = overview.status(api, NS)
    assert (first.node, first.restarts, first.capacity, first.reason) == ("a", 3, 2, None)
    assert first.resource == "nvidia.com/gpu"
    assert first.last_line == "registered nvidia.com/gpu"
    assert (second.node, second.pod) == ("late", "")
    assert second.reason
    assert second.reason.what == "DaemonSet gpunode-device-plugin has no pod there yet"


def test_status_calls_a_node_without_all_its_gpus_in_trouble(api: Api, fake: FakeApi, deploy: Deploy):
    """A plugin pod that runs is not enough."""
    for name, gpus in (("none", 0), ("some", 4), ("all", 4)):
        add_node(fake, name, gpus, labels=GPU_NODE)
    PluginController(fake)
    deploy()
    fake.update("Node", "some", status={"allocatable": {"nvidia.com/gpu": "3"}})
    rows = {row.node: row for row in overview.status(api, NS)}
    assert "the kubelet does not count its GPUs yet" in rows["none"].wrong
    assert rows["some"].wrong == "1 of 4 nvidia.com/gpu are unhealthy"
    assert rows["all"].wrong == ""
    assert {row.reason for row in rows.values()} == {None}, "the plugin itself runs"


def test_memory_under_a_name_of_its_own_is_what_the_node_offers(
    api: Api, fake: FakeApi, wait: Wait, running: Running
):
    """Waited for by that name; and its node lacks nothing once it is there."""
    named = "example.com/mem"
    config = PluginConfig(f"version: v1\nsharing: {{memory: {{name: {named}}}}}\n")
    running(0, config)
    with pytest.raises(ClusterError, match=f"a offers 0 {named} after 1 s"):
        wait("a", named, seconds=1)
    assert overview.status(api, NS, config)[0].missing
    fake.update("Node", "a", status={"allocatable": {named: "32"}, "capacity": {named: "32"}})
    assert wait("a", named).name == "a"
    assert overview.status(api, NS, config)[0].missing == ""


@pytest.mark.usefixtures("impatient")
def test_gpus_that_come_late_are_waited_for(fake: FakeApi, told: list[str], wait: Wait, running: Running):
    """The kubelet updates the node when the plugin has registered; the wait ends with that."""
    running()
    publish(fake, "a", status(problem=document.Reason("driver-not-loaded", "driver not loaded")))
    assert wait("a", 2, notify=registering(fake, told)).allocatable == 2
    reason = (
        "the plugin runs, but the kubelet does not count its GPUs yet; the plugin reports: driver not loaded"
    )
    assert f"a offers 0 of 2 GPUs; {reason}" in told


def test_a_usual_wait_is_told_without_the_plugins_log(
    fake: FakeApi, told: list[str], wait: Wait, running: Running
):
    """What it logs while all is well only worries people."""
    running()
    fake.logs[f"{DAEMONSET}-a", "device-plugin"] = "waiting for the kubelet\n"
    wait("a", 2, notify=registering(fake, told))
    assert told[-1] == "a offers 0 of 2 GPUs"


def test_any_number_of_gpus_or_shares_of_them_will_do_where_none_is_known(fake: FakeApi, wait: Wait):
    """For who did not look at the host; a plugin that makes shares offers another resource."""
    add_node(fake, "a", 3, labels=GPU_NODE)
    add_node(fake, "b", 0, labels=GPU_NODE)
    fake.update("Node", "b", status={"allocatable": {"nvidia.com/gpu.shared": "8"}})
    for name in ("a", "b"):
        wait(name, None, seconds=1)
    add_node(fake, "none", 0, labels=GPU_NODE)
    with pytest.raises(ClusterError, match="none offers 0 GPUs after 1 s: the plugin is not deployed"):
        wait("none", None, seconds=1)


def test_gpus_that_never_come_are_explained(fake: FakeApi, wait: Wait):
    """One sentence: how many of how many, after how long, and the reason nearest to the cause."""
    add_node(fake, "a", 4, labels=GPU_NODE)
    with pytest.raises(ClusterError) as caught:
        wait("a", 8, seconds=1)
    assert (
        caught.value.message
        == "a offers 4 of 8 GPUs after 1 s: the plugin is not deployed in namespace gpunode"
    )
    with pytest.raises(ClusterError, match="there is no such node"):
        wait("none", 8, seconds=1)


def why_of(state: State) -> str:
    return state.reason.what if state.reason else ""


def why(api: Api, name: str, expected: int) -> str:
    item = next(node for node in nodes.fetch(api) if node.name == name)
    return capacity.why_not(api, item, {} if expected is None else expected, NS).what


def test_each_cause_of_missing_gpus_has_its_words(api: Api, fake: FakeApi, deploy: Deploy):
    """From the node down to the single GPU, the first thing that is wrong."""
    add_node(fake, "a", 4, labels=GPU_NODE)
    add_node(fake, "dead", 4, ready=False, labels=GPU_NODE)
    add_node(fake, "plain", 4)
    PluginController(fake)
    deploy(scope=Scope(only=["a"]))
    assert why(api, "dead", 4) == "the node is not Ready: Kubelet stopped posting node status."
    add_node(fake, "away", labels={"gpunode.dev/gpu": "paused"})
    assert "a run took the plugin off away for another driver" in why(api, "away", 4)
    assert "no label gpunode.dev/gpu=true" in why(api, "plain", 4)
    assert why(api, "a", 8) == "the kubelet counts 4 GPUs, the host has 8"
    fake.update("Node", "a", status={"allocatable": {"nvidia.com/gpu": "3"}})
    assert why(api, "a", 4) == "1 of 4 nvidia.com/gpu are unhealthy"
    fake.update("Node", "a", status={"allocatable": {"nvidia.com/gpu": "0"}})
    assert why(api, "a", 4) == "the kubelet offers none of its 4 GPUs yet"
    crashed = {"exitCode": 2, "reason": "Error"}
    state = {"waiting": {"reason": "CrashLoopBackOff"}}
    status = {
        "conditions": [{"type": "Ready", "status": "False"}],
        "containerStatuses": [
            {"name": "device-plugin", "state": state, "lastState": {"terminated": crashed}}
        ],
    }
    fake.update("Pod", f"{DAEMONSET}-a", NS, status=status)
    fake.logs[f"{DAEMONSET}-a", "device-plugin"] = "bad configuration: --x\n"
    assert (
        why(api, "a", 4)
        == "device-plugin is in CrashLoopBackOff: exit code 2; its log: bad configuration: --x"
    )


XID = Unavailable("GPU-0", "0", "xid-79", "Xid 79")
RESERVED = Reserved(
    "nvidia.com/gpu",
    "GPU-1",
    1,
    (Pod("default/m1"),),
    "container c of pod default/m1 still uses 40 GiB of it as aliyun.com/gpu-mem, which it got before the configuration changed",
)


@pytest.mark.parametrize("annotation", [True, False])
@pytest.mark.parametrize(
    ("published", "code", "words"),
    [
        (status(), "unhealthy", " are unhealthy"),
        (
            status(lost=(XID,)),
            "xid-79",
            " are unhealthy; the plugin reports: GPU 0 (GPU-0) is Unhealthy: Xid 79",
        ),
        (status(problem=document.Reason("layout", "no")), "layout", " are unhealthy; the plugin reports: no"),
        (
            status(lost=(Unavailable("GPU-0", "0", "cordoned", "cordoned by ann since 9:00: fan"),)),
            "cordoned",
            " not allocatable; GPU 0 (GPU-0) is cordoned by ann since 9:00: fan",
        ),
        (status(lost=(XID,), reserved=(RESERVED,)), "xid-79", None),
    ],
)
def test_what_the_plugin_reports_is_the_cause(
    api: Api,
    fake: FakeApi,
    running: Running,
    annotation: bool,
    published: document.Status,
    code: str,
    words: str,
):
    """From the annotation as from the log; an annotation that no pod keeps up to date counts for nothing."""
    running(4)
    fake.update("Node", "a", status={"allocatable": {"nvidia.com/gpu": "3"}})
    publish(fake, "a", published, annotation=annotation)
    (node,) = nodes.fetch(api)
    problem = capacity.why_not(api, node, 4, NS)
    assert (problem.code, problem.holders) == (code, ())
    if words is not None:
        assert problem.what == f"1 of 4 nvidia.com/gpu{words}"
    if annotation:
        fake.update("Pod", f"{DAEMONSET}-a", NS, spec={"containers": [{"name": "c"}]})
        assert why(api, "a", 4) == "1 of 4 nvidia.com/gpu are unhealthy"  # left over


@pytest.mark.parametrize("annotation", [True, False])
def test_a_gpu_that_is_reserved_for_a_pod_is_not_called_unhealthy(
    api: Api, fake: FakeApi, running: Running, annotation: bool
):
    """Nothing is to be fixed: the pod has it by an earlier configuration."""
    running(4)
    fake.update("Node", "a", status={"allocatable": {"nvidia.com/gpu": "3"}})
    publish(fake, "a", status(reserved=(RESERVED,)), annotation=annotation)
    (node,) = nodes.fetch(api)
    cause = capacity.why_not(api, node, 4, NS)
    assert (cause.code, cause.holders) == ("reserved", ("default/m1",))
    assert cause.what.startswith("1 of 4 nvidia.com/gpu reserved: the plugin reports: container c of pod")
    fix = (
        "Nothing to fix: it is free again when default/m1 ends (`kubectl delete pod -n default m1` ends it)."
    )
    assert judge_offer(node, 4, cause).fix == fix
    assert judge_offer(node, {"nvidia.com/gpu": 4}, cause).fix == fix
    publish(fake, "a", status(reserved=(RESERVED,), lost=(XID,)), annotation=annotation)
    (node,) = nodes.fetch(api)
    worse = capacity.why_not(api, node, 4, NS)
    assert "systemctl reboot" in judge_offer(node, 4, worse).fix, "more is wrong than that"


def test_pods_that_the_kubelet_does_not_name_are_found_by_their_uid(api: Api, fake: FakeApi):
    add_node(fake, "a", 4, labels=GPU_NODE)
    (node,) = nodes.fetch(api)
    assert judge_offer(node, 5, Problem("reserved", "x", holders=("1-2-3",))).fix == (
        "Nothing to fix: it is free again when the pod with UID 1-2-3 ends (`kubectl get pods -A -o custom-columns="
        ":.metadata.uid,:.metadata.namespace,:.metadata.name | grep 1-2-3` names it)."
    )
    both = judge_offer(node, 5, Problem("reserved", "x", holders=("default/m1", "1-2-3"))).fix
    assert both.startswith(
        "Nothing to fix: it is free again when default/m1 and the pod with UID 1-2-3 end ("
    )
    assert "(`kubectl delete pod -n default m1` ends those named; `kubectl get pods" in both


@pytest.mark.usefixtures("impatient")
def test_what_is_reserved_for_a_pod_is_not_waited_for(fake: FakeApi, wait: Wait, running: Running):
    """The pod may run for days. Where more is wrong than that, the wait goes on."""
    running(4)
    fake.update("Node", "a", status={"allocatable": {"nvidia.com/gpu": "0"}})
    publish(fake, "a", status(reserved=(RESERVED,)))
    with pytest.raises(ClusterError, match=r"a offers 0 of 4 GPUs after 0 s: 4 of 4 .* reserved") as caught:
        wait("a", 4)
    assert caught.value.hint == (
        "Nothing to fix: it is free again when default/m1 ends (`kubectl delete pod -n default m1` ends it)."
    )
    publish(fake, "a", status(reserved=(RESERVED,), lost=(XID,)))
    with pytest.raises(ClusterError, match="after 1 s") as caught:
        wait("a", 4, seconds=1)
    assert "kubectl describe node a" in caught.value.hint


def test_a_gpu_that_the_kubelet_has_never_heard_of_is_the_cause(api: Api, fake: FakeApi, running: Running):
    """And wrong in the plugin's status, which nothing else shows."""
    running(3)
    uncut = Unavailable("GPU-1", "1", "mig-uncut", "MIG is on", listed=False)
    publish(fake, "a", status(lost=(uncut,), resources={"nvidia.com/gpu": Resource(3, True)}))
    words = "GPU 1 (GPU-1) is not offered: MIG is on"
    assert why(api, "a", 4) == f"the kubelet counts 3 GPUs, the host has 4; the plugin reports: {words}"
    assert overview.status(api, NS)[0].wrong == words


def test_removing_takes_all_of_it_and_leaves_labels_of_others(
    api: Api, fake: FakeApi, told: list[str], running: Running
):
    """Objects, pods, leftovers of vectoradd; the node keeps what people rely on."""
    running(2)
    left = {"app.kubernetes.io/managed-by": "gpunode", "app.kubernetes.io/name": "gpunode-vectoradd"}
    fake.put(pod("left", labels=left))
    announced = plugin.find_removable(api, NS, notify=told.append)
    removed = plugin.remove(api, NS, seconds=60, notify=told.append)
    assert announced == removed
    assert removed[0] == "Pod gpunode/left"
    assert removed[-1] == "Namespace gpunode"
    assert [item["kind"] for item in fake.objects.values()] == ["Node"]
    assert nodes.fetch(api)[0].labels["gpunode.dev/gpu"] == "true"


def test_what_a_configuration_brought_goes_with_it(api: Api, fake: FakeApi, deploy: Deploy):
    """MPS control daemons and the configuration itself: the plan says so, deploying does it, once."""
    add_node(fake, "a", 2, labels=GPU_NODE)
    PluginController(fake)
    config = PluginConfig("version: v1", mps_root="/run/nvidia/mps")

    def deployed(config: PluginConfig | None) -> dict[str, str]:
        rollout = deploy(config, seconds=0.5)
        return {change.what: change.action for change in rollout.differences if change.action != "same"}

    assert deployed(config)[f"DaemonSet {NS}/gpunode-mps"] == "created"
    gone = {
        f"DaemonSet {NS}/gpunode-mps": "removed",
        f"DaemonSet {NS}/gpunode-mps-class": "removed",
        f"ConfigMap {NS}/{DAEMONSET}": "removed",
    }
    planned = {change.what: change.action for change in plugin.plan(api, Spec(NS, IMAGE))}
    assert gone.items() <= planned.items()
    assert has(fake, "DaemonSet", "gpunode-mps", NS)
    assert gone.items() <= deployed(None).items()
    assert not has(fake, "DaemonSet", "gpunode-mps", NS)
    assert deployed(None) == {}


def test_pods_of_mps_control_daemons_are_no_leftovers_and_are_renewed_with_the_driver(
    api: Api, fake: FakeApi, told: list[str]
):
    """They go with their DaemonSet, not before it; and hold the driver's libraries as the plugin's pods do."""
    labels = {OURS: "gpunode", "app.kubernetes.io/name": "gpunode-mps"}
    fake.put(pod("gpunode-mps-a", node="a", labels=labels, **UP))
    assert plugin.find_removable(api, NS, notify=told.append) == ()
    assert [item["metadata"]["name"] for item in plugin.pods_on(api, NS, {"a"})] == ["gpunode-mps-a"]
    assert plugin.pods_on(api, NS, {"b"}) == []


def test_shares_are_waited_for_by_resource(fake: FakeApi, wait: Wait, running: Running, impatient: None):
    """A whole GPU is not enough where the other is to be shared; what is missing is said, with the plugin's words."""
    running(1, gpu_shared=0)
    publish(fake, "a", status(lost=(Unavailable("GPU-0", "0", "mps-absent", "no MPS"),)))
    wanted = {"nvidia.com/gpu": 1, "nvidia.com/gpu.shared": 4}
    with pytest.raises(ClusterError) as caught:
        wait("a", wanted, seconds=1)
    assert "a offers 1 of 1 nvidia.com/gpu, 0 of 4 nvidia.com/gpu.shared after 1 s" in caught.value.message
    assert "no MPS" in caught.value.message
    units = {"nvidia.com/gpu": "1", "nvidia.com/gpu.shared": "4"}
    fake.update("Node", "a", status={"capacity": units, "allocatable": units})
    assert wait("a", wanted).name == "a"


def annotated(fake: FakeApi, key: str) -> set[str]:
    """The nodes that have this annotation of the plugin's."""
    annotations = {
        node["metadata"]["name"]: node["metadata"].get("annotations", {}) for node in fake.all("Node")
    }
    return {name for name, notes in annotations.items() if key in notes}


@pytest.mark.parametrize(
    ("key", "keeps"),
    [(ANNOTATION, PluginPublish(annotation=True)), (MEMORY_ANNOTATION, PluginPublish(promises=True))],
)
def test_what_a_killed_plugin_left_on_its_node_is_taken_away(
    api: Api, fake: FakeApi, deploy: Deploy, key: str, keeps: PluginPublish
):
    """Without `annotation` the plugin may not patch nodes: nobody else can. Shown in the plan; another's note stays."""
    add_node(fake, "a", 2, labels=GPU_NODE)
    add_node(fake, "by-hand", 2)
    PluginController(fake)
    for name in ("a", "by-hand"):
        fake.update("Node", name, metadata={"annotations": {key: "{}", "other": "stays"}})
    what = Difference(Title("Node", "a", part=f"annotation {key}"), "removed", ("-{}",))
    assert what in plugin.plan(api, Spec(NS, IMAGE))
    assert what not in plugin.plan(api, Spec(NS, IMAGE, publish=keeps))
    assert what not in deploy(publish=keeps, seconds=0.5).differences
    assert annotated(fake, key) == {"a", "by-hand"}
    assert what in deploy(seconds=0.5).differences
    assert annotated(fake, key) == {"by-hand"}
    assert fake.objects["/api/v1/nodes/a"]["metadata"]["annotations"] == {"other": "stays"}


@pytest.mark.parametrize(
    ("kubelet", "root"), [("v1.35.3+k0s.0", "/var/lib/k0s/kubelet"), ("v1.36.1", "/var/lib/kubelet")]
)
def test_the_kubelets_of_k0s_say_elsewhere_what_pods_have(
    api: Api, fake: FakeApi, deploy: Deploy, kubelet: str, root: str
):
    """By their versions, where all are such; as the plan shows."""
    for name, version in (("a", "v1.36.1+k0s"), ("b", kubelet)):
        add_node(fake, name, 1, labels=GPU_NODE)
        fake.update("Node", name, status={"nodeInfo": {"kubeletVersion": version}})
    PluginController(fake)
    for changes in (plugin.plan(api, Spec(NS, IMAGE)), deploy().differences):
        shown = [line.strip("+ ") for each in changes for line in each.lines]
        assert shown.count(f"path: {root}/pod-resources") == 2
        assert shown.count("path: /var/lib/kubelet/device-plugins") == 2


def test_removing_the_plugin_takes_what_it_said_with_it(api: Api, fake: FakeApi, told: list[str]):
    """Announced before; the label that brings the plugin back stays."""
    add_node(fake, "a", 2, labels=GPU_NODE)
    keys = (ANNOTATION, MEMORY_ANNOTATION)
    fake.update("Node", "a", metadata={"annotations": dict.fromkeys(keys, "{}")})
    titles = tuple(f"Node a annotation {key}" for key in keys)
    assert plugin.find_removable(api, NS, notify=told.append) == titles
    assert plugin.remove(api, NS, seconds=60, notify=told.append) == titles
    assert fake.objects["/api/v1/nodes/a"]["metadata"]["annotations"] == {}


def test_status_says_which_shares_are_out_and_that_their_daemons_do_not_run(
    api: Api, fake: FakeApi, running: Running
):
    """The whole GPUs of the node are all there; the reason is in another pod than the plugin's."""
    running(1, gpu_shared=4)
    shares = "{renameByDefault: true, resources: [{name: gpu, replicas: 4, devices: [1]}]}"
    config = PluginConfig(f"version: v1\nsharing: {{mps: {shares}}}\n")
    fake.update("Node", "a", status={"allocatable": {"nvidia.com/gpu.shared": "0"}})
    labels = {"app.kubernetes.io/name": "gpunode-mps"}
    event(fake, fake.put(pod("gpunode-mps-a", node="a", labels=labels, **NOT_PULLED)), PULL)
    (row,) = overview.status(api, NS, config)
    assert row.missing.startswith(
        "4 of nvidia.com/gpu.shared not offered: gpunode-mps-a, the pod of the MPS control"
    )
    assert PULL in row.missing


MIXED = PluginConfig("version: v1\nflags: {migStrategy: mixed}\n")
GPUS, SMALL, LARGE = "nvidia.com/gpu", "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"


def offering(*resources: str, **fields: Any) -> document.Status:
    return status(resources={name: Resource(2, True) for name in resources}, **fields)


@pytest.mark.parametrize(
    ("left", "published", "old"),
    [
        (LARGE, offering(SMALL), True),  # the GPU is cut in another way
        (GPUS, offering(SMALL), True),  # strategy single before
        (LARGE, offering(SMALL, LARGE), False),
        (GPUS, offering(SMALL, GPUS), False),
        (LARGE, None, False),  # not known
    ],
)
@pytest.mark.parametrize("annotation", [True, False])
def test_what_the_running_plugin_does_not_offer_is_forgotten_and_no_trouble(
    api: Api,
    fake: FakeApi,
    running: Running,
    left: str,
    published: document.Status | None,
    old: bool,
    annotation: bool,
):
    """After another MIG strategy or layout. What it offers, and the kubelet does not allocate, is missing."""
    running(0, MIXED)
    counts = {SMALL: "2", left: "2"}
    fake.update("Node", "a", status={"capacity": counts, "allocatable": {SMALL: "2", left: "0"}})
    if published:
        publish(fake, "a", published, annotation=annotation)
    (row,) = overview.status(api, NS, MIXED)
    if old:
        forgets = "the kubelet forgets it within 5 minutes"
        assert (row.wrong, row.note) == ("", f"{left} (2) is of the earlier configuration; {forgets}")
    else:
        assert row.wrong.startswith(f"2 of {left} not offered: ")
        assert row.note == ""


def test_status_counts_what_is_offered_now(api: Api, fake: FakeApi, running: Running):
    """Not what was before: of shares under another name, and of GPUs that were shared by memory and are all held back."""
    running(2, shared=(2, 32), gpu_shared=20)
    none = {"nvidia.com/gpu": "0", "aliyun.com/gpu-count": "0", "aliyun.com/gpu-mem": "0"}
    fake.update("Node", "a", status={"allocatable": none})
    renamed = PluginConfig(
        "version: v1\nsharing: {timeSlicing: {renameByDefault: true, resources: [{name: nvidia.com/gpu, replicas: 10}]}}\n"
    )
    (row,) = overview.status(api, NS, renamed)
    assert (row.resource, row.capacity, row.allocatable) == ("nvidia.com/gpu.shared", 20, 20)
    fake.update("Node", "a", status={"allocatable": {"nvidia.com/gpu.shared": "0"}})
    publish(fake, "a", offering(GPUS, reserved=(RESERVED,)))
    (row,) = overview.status(api, NS)
    assert (row.resource, row.capacity, row.allocatable) == (GPUS, 2, 0)
    assert row.wrong.startswith("2 of 2 nvidia.com/gpu reserved: ")
    assert why(api, "a", 2) == row.wrong


def test_gpus_that_an_earlier_configuration_shared_are_not_waited_for(
    fake: FakeApi, wait: Wait, running: Running
):
    """The kubelet may count them still, beside those that the plugin offers whole."""
    running(4, shared=(4, 316))
    publish(fake, "a", offering(GPUS))
    node = wait("a", 4)
    assert (node.allocatable, node.counted) == (4, (GPUS,))


def test_what_an_earlier_configuration_offered_is_no_trouble(api: Api, fake: FakeApi, running: Running):
    """The kubelet counts it for 5 minutes more. What the configuration still makes is missed, though."""
    memory = PluginConfig("version: v1\nsharing: {memory: {}}\n")
    running(16, memory, shared=(4, 316))
    left = {"nvidia.com/gpu": "0", "aliyun.com/gpu-count": "4", "aliyun.com/gpu-mem": "316"}
    fake.update("Node", "a", status={"allocatable": left})
    (row,) = overview.status(api, NS, memory)
    assert row.wrong == ""
    note = "nvidia.com/gpu (16) is of the earlier configuration; the kubelet forgets it within 5 minutes"
    assert row.note == note
    assert (row.resource, row.capacity) == ("aliyun.com/gpu-count", 4)
    some = PluginConfig("version: v1\nsharing: {memory: {devices: [0]}}\n")
    (row,) = overview.status(api, NS, some)
    assert row.wrong.startswith("16 of nvidia.com/gpu not offered: ")
    fake.update("Node", "a", status={"allocatable": {**left, "aliyun.com/gpu-mem": "237"}})
    publish(fake, "a", offering("aliyun.com/gpu-count", "aliyun.com/gpu-mem", reserved=(RESERVED,)))
    (row,) = overview.status(api, NS, memory)
    assert row.wrong.startswith("79 of aliyun.com/gpu-mem not offered: ")
    (node,) = nodes.fetch(api)
    link = judge_offer(node, 4, capacity.why_not(api, node, 4, NS))
    assert link.text == "4 of 4 GPUs allocatable, all shared by memory: 237 of 316 aliyun.com/gpu-mem"
    assert link.status == "broken"
    assert link.fix.startswith("Nothing to fix: it is free again when default/m1 ends")


def test_a_configuration_that_the_plugin_goes_on_without_is_wrong(api: Api, fake: FakeApi, deploy: Deploy):
    """Until it can be used, or the plugin was started anew: nothing else shows it before the node's last GPU is gone."""
    for name in ("a", "b"):
        add_node(fake, name, 4, labels=GPU_NODE)
    PluginController(fake)
    deploy()
    refused = document.Reason("config-refused", "config.yaml:1:25: x")
    publish(fake, "a", status().with_refusal(refused))
    words = "its configuration is unchanged: config.yaml:1:25: x"
    assert [row.wrong for row in overview.status(api, NS)] == [words, ""]
    publish(fake, "a", status())
    assert [row.wrong for row in overview.status(api, NS)] == ["", ""]


def test_a_label_that_names_no_configuration_is_wrong(api: Api, fake: FakeApi, deploy: Deploy):
    """The plugin goes on with the one of before, so that nothing else shows it."""
    config = PluginConfig(files={"default": "version: v1\n", "shared": "version: v1\n"})
    add_node(fake, "a", 16, labels={**GPU_NODE, "nvidia.com/device-plugin.config": "nosuch"})
    PluginController(fake)
    deploy(config)
    (row,) = overview.status(api, NS, config)
    assert row.wrong == "label nvidia.com/device-plugin.config names `nosuch`; there are default, shared"
    fake.update("Node", "a", metadata={"labels": {"nvidia.com/device-plugin.config": "shared"}})
    assert overview.status(api, NS, config)[0].wrong == ""
