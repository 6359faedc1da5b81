"""What the device plugin tells the real cluster, and what it takes from there, on both real kubelets."""

import json
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from . import faults
from .api import Lab
from .conftest import Ran
from .pods import Pods
from .progress import wait

pytestmark = pytest.mark.lab

GPUS = {"legacy": 2, "modern": 4}
TWICE = {name: 2 * count for name, count in GPUS.items()}
GPU = "nvidia.com/gpu"
CONFIG = "nvidia.com/device-plugin.config"
NOTE = "gpunode.dev/device-plugin"
PLUGIN = "app.kubernetes.io/name=gpunode-device-plugin"
ACCOUNT = "system:serviceaccount:gpunode:gpunode-device-plugin"
RECOVERY = 8.0  # seconds; a minute by default
SECONDS = (
    45.0  # that an API server, a watch and a kubelet may take together on a busy machine; a second elsewhere
)
# The kubelet looks at mounted ConfigMaps when it syncs a pod: the lab's every 10 s, and half of that again by chance.
MOUNTED = 90.0
QUIET = {"plugin": {"recoverySeconds": RECOVERY}}
WHOLE = json.dumps({"version": "v1", "flags": QUIET})


def shared(replicas: int) -> str:
    """A configuration of the plugin that makes so many of each GPU."""
    resources = [{"name": GPU, "replicas": replicas}]
    return json.dumps({"version": "v1", "flags": QUIET, "sharing": {"timeSlicing": {"resources": resources}}})


@pytest.fixture(scope="module", autouse=True)
def talkative(lab: Lab, gpunode: Callable[..., Ran]) -> Iterator[None]:
    """Both hosts are GPU nodes, and their plugin says all it can say; afterwards it is as the lab's inventory has it."""
    ran = gpunode("provision", "--yes", "--json", "--no-run")
    assert ran.code == 0, ran
    inventory = yaml.safe_load(lab.inventory.read_text())
    texts = {"default": WHOLE, "shared": shared(2)}
    for name, text in texts.items():
        lab.inventory.with_name(f"publish-{name}.yaml").write_text(text)
    inventory["cluster"]["plugin"] |= {
        "configs": {name: f"publish-{name}.yaml" for name in texts},
        "annotation": True,
        "metrics": True,
    }
    file = lab.inventory.with_name("publish.yaml")
    file.write_text(yaml.safe_dump(inventory))
    ran = gpunode("plugin deploy", "--yes", "--json", inventory=file)
    assert ran.code == 0, ran
    for name, gpus in GPUS.items():
        wait("the plugin's status", lambda: units(lab, name) == {GPU: gpus}, 60)  # noqa: B023
    yield
    ran = gpunode("plugin deploy", "--yes", "--json")
    assert ran.code == 0, ran


@pytest.fixture(autouse=True)
def whole(lab: Lab) -> Iterator[None]:
    """No node has a label of its own, and all GPUs are there and well, before and after."""

    def all_well() -> bool:
        return everywhere(lab) == GPUS and all(lost(lab, name) == [] for name in GPUS)

    wait("all GPUs of both nodes", all_well, 120)
    yield
    for name, count in GPUS.items():
        label(lab, name, None)
        for gpu in range(count):
            lab.node(name).gpus.bring_back(gpu)
    wait("all GPUs of both nodes", all_well, 120)


def node(lab: Lab, name: str) -> dict[str, Any]:
    return dict(lab.request("GET", f"/api/v1/nodes/{name}"))


def everywhere(lab: Lab) -> dict[str, int]:
    """How many nvidia.com/gpu each node has to give."""
    return {name: int(node(lab, name)["status"]["allocatable"].get(GPU, 0)) for name in GPUS}


def label(lab: Lab, name: str, value: str | None) -> None:
    """The node's label that names its configuration."""
    lab.request("PATCH", f"/api/v1/nodes/{name}", {"metadata": {"labels": {CONFIG: value}}})


def plugins(lab: Lab) -> dict[str, dict[str, Any]]:
    """The plugin's pod on each node, without one that ends."""
    query = urlencode({"labelSelector": PLUGIN})
    pods = lab.request("GET", f"/api/v1/pods?{query}")["items"]
    here = [pod for pod in pods if "nodeName" in pod["spec"] and "deletionTimestamp" not in pod["metadata"]]
    return {pod["spec"]["nodeName"]: pod for pod in here}


def lives(lab: Lab) -> dict[str, tuple[str, int]]:
    """Which pod runs on each node, and how often it was started again."""
    return {
        name: (pod["metadata"]["uid"], pod["status"]["containerStatuses"][0]["restartCount"])
        for name, pod in plugins(lab).items()
    }


def events(lab: Lab, name: str, reason: str) -> list[dict[str, Any]]:
    """What the plugin said about the node, asked for as `kubectl describe node` does."""
    selector = (
        f"involvedObject.kind=Node,involvedObject.name={name},involvedObject.uid={name},reason={reason}"
    )
    answer = lab.request("GET", f"/api/v1/namespaces/default/events?{urlencode({'fieldSelector': selector})}")
    return [item for item in answer["items"] if item["source"]["component"] == "gpunode-device-plugin"]


def note(lab: Lab, name: str) -> dict[str, Any]:
    """The annotation; {} where there is none."""
    return dict(json.loads(node(lab, name)["metadata"].get("annotations", {}).get(NOTE, "{}")))


def units(lab: Lab, name: str) -> dict[str, int]:
    """Units of each resource, as the annotation has them."""
    return {resource: entry["units"] for resource, entry in note(lab, name).get("resources", {}).items()}


def lost(lab: Lab, name: str) -> list[str] | None:
    """Codes of the devices that the annotation calls lost; None without one."""
    gpus = note(lab, name).get("lost")
    return None if gpus is None else [entry["code"] for entry in gpus]


def sharing(lab: Lab, name: str) -> str:
    """The way of sharing that is in force, as the annotation says."""
    return str(note(lab, name).get("configuration", {}).get("sharing"))


def count(lab: Lab, name: str, reason: str, words: str) -> int:
    """How often the plugin has said something with these words."""
    return sum(event["count"] for event in events(lab, name, reason) if words in event["message"])


def test_an_unhealthy_gpu_is_reported_where_people_look(lab: Lab, gpunode: Callable[..., Ran]):
    """Events about the node: which GPU, what happened, what to do, and that it is well again. The annotation says the
    same, and `gpunode verify` gives it as the cause."""
    before = {name: count(lab, name, "GPUUnhealthy", "Xid 95") for name in GPUS}
    well = {name: count(lab, name, "GPUHealthy", "Xid 95") for name in GPUS}
    with faults.xids(lab.node("legacy"), 0, 95), faults.xids(lab.node("modern"), 0, 95):
        for name, gpus in GPUS.items():
            wait("the event", lambda: count(lab, name, "GPUUnhealthy", "Xid 95") > before[name], SECONDS)  # noqa: B023
            reported = [event for event in events(lab, name, "GPUUnhealthy") if "Xid 95" in event["message"]]
            said = max(
                reported, key=lambda row: row["lastTimestamp"]
            )  # those of a test before live for an hour
            assert said["type"] == "Warning"
            assert "GPU 0 (" in said["message"]
            assert "is Unhealthy: Xid 95: uncontained memory error; reset the GPU" in said["message"]
            wait("the annotation", lambda: lost(lab, name) == ["xid-95"], SECONDS)  # noqa: B023
            assert units(lab, name) == {GPU: gpus}
        wait(
            "the kubelets to hear of it", lambda: all(everywhere(lab)[name] < GPUS[name] for name in GPUS), 60
        )
        ran = gpunode("verify", "--json", "--no-run", inventory=lab.inventory.with_name("publish.yaml"))
        assert ran.code == 1, ran
        for name in GPUS:
            broken = next((entry for entry in ran.of("link", name) if entry["status"] == "broken"), None)
            assert broken is not None, ran
            assert broken["layer"] == "capacity"
            assert "Xid 95: uncontained memory error; reset the GPU" in broken["cause"]
    for name in GPUS:
        wait("the end of it", lambda: count(lab, name, "GPUHealthy", "Xid 95") > well[name], RECOVERY + 60)  # noqa: B023
        wait("the annotation", lambda: lost(lab, name) == [], SECONDS)  # noqa: B023


def test_an_api_server_that_is_away_hears_of_it_later(lab: Lab):
    """The plugin goes on meanwhile: what happened is in its log at once, and in an event when that can be written."""
    before, began = count(lab, "modern", "GPUUnhealthy", "Xid 62"), lives(lab)
    modern = lab.node("modern")
    with ExitStack() as reported:
        with faults.apiserver_down(lab):  # first: else the event may still be written
            reported.enter_context(faults.xids(modern, 1, 62))
            logs = ["sh", "-c", "cat /var/log/pods/gpunode_gpunode-device-plugin*/device-plugin/*.log"]
            for words in ("Xid 62", "events cannot be written"):
                wait("the plugin's log", lambda words=words: words in modern.exec(logs).stdout, 60)
        wait("the event", lambda: count(lab, "modern", "GPUUnhealthy", "Xid 62") > before, 90)
        wait("the nodes", lambda: all(lab.node(name).is_ready() for name in GPUS), 90)
        wait("the kubelet to have told it", lambda: everywhere(lab)["modern"] == GPUS["modern"] - 1, 60)
    assert lives(lab) == began


def test_another_label_is_another_configuration_of_the_same_pod(lab: Lab):
    """Time-slicing is on within seconds and off again; no pod and no container is started anew."""
    before = lives(lab)
    for name in GPUS:
        label(lab, name, "shared")
    for name in GPUS:
        wait("the plugin to share", lambda: sharing(lab, name) == "time-slicing", SECONDS)  # noqa: B023
    wait(
        "the kubelets to tell of it", lambda: everywhere(lab) == TWICE, 30
    )  # every 10 s, as they do by default
    for name in GPUS:
        label(lab, name, None)
    for name in GPUS:
        wait("the plugin not to share", lambda: sharing(lab, name) == "none", SECONDS)  # noqa: B023
    wait("the kubelets to tell of it", lambda: everywhere(lab) == GPUS, 60)
    assert lives(lab) == before


def test_a_label_that_names_nothing_changes_nothing(lab: Lab):
    """It is said, with the names that there are; what was in force stays."""
    before = lives(lab)
    label(lab, "modern", "shared")
    wait("the shares", lambda: everywhere(lab)["modern"] == TWICE["modern"], 60)
    label(lab, "modern", "nonsense")
    words = "names nonsense, which is not there; there are default, shared"
    wait("the event", lambda: count(lab, "modern", "ConfigRefused", words) > 0, SECONDS)
    assert everywhere(lab)["modern"] == TWICE["modern"]
    assert lives(lab) == before


def test_a_changed_configmap_is_taken_up_by_the_same_pod(lab: Lab):
    """As soon as the kubelet has put it into the pod."""
    before = lives(lab)
    place = "/api/v1/namespaces/gpunode/configmaps/gpunode-device-plugin"
    lab.request("PATCH", place, {"data": {"default": shared(3)}})
    try:
        thrice = {name: 3 * count for name, count in GPUS.items()}
        wait("three of each", lambda: everywhere(lab) == thrice, MOUNTED)
    finally:
        lab.request("PATCH", place, {"data": {"default": WHOLE}})
        wait("whole GPUs", lambda: everywhere(lab) == GPUS, MOUNTED)
    assert lives(lab) == before


def test_a_plugin_that_cannot_register_is_not_ready_and_says_why(lab: Lab, gpunode: Callable[..., Ran]):
    """The kubelet asks it: the DaemonSet counts it as ready only once the kubelet has its devices."""
    modern, folder = lab.node("modern"), "/var/lib/kubelet/device-plugins"
    before = plugins(lab)["modern"]["metadata"]["name"]
    modern.exec(["chmod", "0555", folder])
    try:
        lab.request("DELETE", f"/api/v1/namespaces/gpunode/pods/{before}")
        wait("the next pod", lambda: "modern" in plugins(lab), 60)
        wait("its words", lambda: "may not use" in gpunode("plugin status", "--json").stdout, 120)
        assert not ready(lab)
        assert gpunode("plugin status", "--json").code == 1
    finally:
        modern.exec(["chmod", "0755", folder])
    wait("it to be ready", lambda: ready(lab), 60)


def ready(lab: Lab) -> bool:
    """Whether the plugin's pod on modern is."""
    conditions = {entry["type"]: entry["status"] for entry in plugins(lab)["modern"]["status"]["conditions"]}
    return conditions.get("Ready") == "True"


def test_metrics_say_which_pod_has_which_gpu(lab: Lab, made: Pods):
    """From the kubelet's own list, with the GPU that the container sees; not any more when the pod is gone."""
    names = {name: made.make(f"metrics-{name}", name) for name in GPUS}
    for name, seen in zip(GPUS, made.seen(*names.values()), strict=True):
        (uuid,) = seen.uuids
        labels = f'namespace="default",pod="metrics-{name}",container="look",resource="{GPU}",gpu="{uuid}"'
        line = f"gpunode_device_plugin_pod_devices{{{labels}}} 1\n"
        wait("the metric", lambda: line in metrics(lab, name), SECONDS)  # noqa: B023
        figure = f'Hostname="{name}",container="look",namespace="default",pod="metrics-{name}"}}'
        lines = [row for row in metrics(lab, name).splitlines() if row.startswith("DCGM_FI_DEV_GPU_UTIL{")]
        assert [row for row in lines if figure in row and f'UUID="{uuid}"' in row], lines
    made.delete(*names.values())
    for name in GPUS:
        wait("its end", lambda: "pod_devices{" not in metrics(lab, name), SECONDS)  # noqa: B023
        assert "gpunode_device_plugin_pod_resources_up{} 1\n" in metrics(lab, name)


def metrics(lab: Lab, name: str) -> str:
    """The page that Prometheus would get, fetched on the plugin's own node."""
    address = plugins(lab)[name]["status"]["podIP"]
    fetch = f"import urllib.request as u; print(u.urlopen('http://{address}:9400/metrics').read().decode(), end='')"
    return lab.node(name).exec(["python3", "-c", fetch]).stdout


def test_it_has_the_rights_that_it_needs_and_no_others(lab: Lab):
    """Asked from the API server itself."""

    def may(verb: str, resource: str, namespace: str = "") -> bool:
        attributes = {"verb": verb, "resource": resource, "namespace": namespace}
        review = {
            "apiVersion": "authorization.k8s.io/v1",
            "kind": "SubjectAccessReview",
            "spec": {"user": ACCOUNT, "resourceAttributes": attributes},
        }
        path = "/apis/authorization.k8s.io/v1/subjectaccessreviews"
        return bool(lab.request("POST", path, review)["status"]["allowed"])

    assert may("create", "events", "default")
    assert may("patch", "events", "default")
    assert may("patch", "nodes")
    assert may("watch", "nodes")
    for verb, resource, namespace in (
        ("list", "events", "default"),
        ("create", "events", "gpunode"),
        ("get", "nodes", ""),
        ("list", "nodes", ""),
        ("delete", "nodes", ""),
        ("get", "secrets", "gpunode"),
        ("list", "pods", ""),
    ):
        assert not may(verb, resource, namespace), (verb, resource)
