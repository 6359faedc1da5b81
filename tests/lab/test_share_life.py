"""A cluster with the scheduler extender, day by day: evictions, lost nodes, restarts, an extender or API server that is away."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.error import HTTPError
from urllib.parse import urlencode

import pytest
import yaml

from gpunode.contract.promises import INDEX, MEMORY_ANNOTATION

from . import cluster, test_share
from .api import Lab
from .conftest import Ran
from .hosts import CONTROL_PLANE
from .pods import NAMESPACE, Pods
from .progress import wait
from .test_share import MEM, notes

pytestmark = [pytest.mark.lab, pytest.mark.matrix]

inventory, enabled = test_share.inventory, test_share.enabled  # its fixtures

UNITS = {"legacy": 16, "modern": 79}  # of each GPU
GPUS = {"legacy": 2, "modern": 4}
IDX = "ALIYUN_COM_GPU_MEM_IDX"
OWN = "/api/v1/namespaces/gpunode/pods"
EXTENDER, PLUGIN = "gpunode-share", "gpunode-device-plugin"
DEPLOYMENT = f"/apis/apps/v1/namespaces/gpunode/deployments/{EXTENDER}"
RBAC = "/apis/rbac.authorization.k8s.io/v1"
NOW = {"kind": "DeleteOptions", "apiVersion": "v1", "gracePeriodSeconds": 0}

Share = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def share(gpunode: Callable[..., Ran], inventory: Path) -> Share:
    """Rows of a `gpunode share` command: words, and the kind of rows."""

    def run(words: str, kind: str) -> list[dict[str, Any]]:
        ran = gpunode(f"share {words}", "--json", inventory=inventory)
        assert ran.code in (0, 1), ran
        return ran.of(kind)

    return run


def running(lab: Lab, name: str, node: str = "") -> list[dict[str, Any]]:
    """The pods of the extender or the plugin that nobody deletes."""
    where = {"labelSelector": f"app.kubernetes.io/name={name}"}
    pods = lab.request("GET", f"{OWN}?{urlencode(where)}")["items"]
    return [
        item
        for item in pods
        if "deletionTimestamp" not in item["metadata"] and node in ("", item["spec"].get("nodeName"))
    ]


def leaders(lab: Lab) -> list[dict[str, Any]]:
    return [view for view in running(lab, EXTENDER) if _is(view["status"], "Ready")]


def _is(status: dict[str, Any], condition: str) -> bool:
    return any((view["type"], view["status"]) == (condition, "True") for view in status.get("conditions", []))


@pytest.fixture
def leader_on(lab: Lab, enabled: None) -> Callable[[str], None]:
    """Lets the replica of this node lead."""

    def leads(node: str) -> None:
        def moved() -> bool:
            now = leaders(lab)
            if [leader["spec"]["nodeName"] for leader in now] == [node]:
                return True
            if now and len(running(lab, EXTENDER)) == 2:  # the other one is ready to take over
                lab.request("DELETE", f"{OWN}/{now[0]['metadata']['name']}")
            return False

        wait(f"a leader on {node}", moved, 240)
        wait("two replicas", lambda: len(running(lab, EXTENDER)) == 2, 60)

    return leads


def bound(made: Pods, name: str) -> str:
    return str(made.get(name)["spec"].get("nodeName", ""))


def events(lab: Lab, name: str, reason: str = "FailedScheduling") -> list[str]:
    query = urlencode({"fieldSelector": f"involvedObject.name={name},reason={reason}"})
    return [item["message"] for item in lab.request("GET", f"{NAMESPACE}/events?{query}")["items"]]


def as_noted(made: Pods, *names: str) -> None:
    """Each pod's GPU is the noted one; names of one size are interchangeable."""
    seen = made.seen(*names)
    assert sorted(view.env[IDX] for view in seen) == sorted(notes(made, name)[INDEX] for name in names)


def test_an_evicted_pods_memory_is_promised_again_when_it_has_ended(lab: Lab, enabled: None, made: Pods):
    """Not while its container still uses the GPU."""
    full = [made.make(f"full-{n}", "legacy", 12, MEM, terminationGracePeriodSeconds=8) for n in range(2)]
    seen = made.seen(*full)
    large = made.make("large", "legacy", 6, MEM)
    assert "no single GPU has 6 units of memory free" in made.unschedulable(large)
    meta = {"name": full[0], "namespace": "default"}
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": meta}
    lab.request("POST", f"{NAMESPACE}/pods/{full[0]}/eviction", eviction)

    waited: list[bool] = []

    def there() -> bool:
        try:
            return bool(made.get(full[0])["status"]["phase"] == "Running")
        except HTTPError:
            return False

    def taken() -> bool:
        if bound(made, large):
            return True
        waited.append(there())
        return False

    wait("the waiting pod to be bound", taken, 60)
    assert waited[0]
    assert not there()
    (view,) = made.seen(large)
    assert view.env[IDX] == seen[0].env[IDX] == notes(made, large)[INDEX]


@pytest.mark.parametrize("node", ["legacy", "modern"])
def test_a_lost_node_keeps_its_books_until_its_pods_are_deleted(
    lab: Lab, made: Pods, leader_on: Callable[[str], None], share: Share, node: str
):
    """With the leader on it, and with containers that go on there: the other replica leads, and pods are placed elsewhere. When the
    node is back, a pod of the same name gets a GPU that it is noted on."""
    leader_on(node)
    other = "modern" if node == "legacy" else "legacy"
    size = UNITS[node] - 2
    kept, lost = made.make("kept", node, 9, MEM), made.make("web-0", node, size, MEM)
    as_noted(made, kept)
    as_noted(made, lost)
    before = made.get(kept)["status"]["containerStatuses"][0]["containerID"]
    host = lab.node(node)
    host.exec(["systemctl", "stop", "kubelet"])
    try:
        wait(
            f"{node} to be NotReady",
            lambda: not _is(lab.request("GET", f"/api/v1/nodes/{node}")["status"], "Ready"),
            120,
        )
        wait("a leader elsewhere", lambda: [pod["spec"]["nodeName"] for pod in leaders(lab)] == [other], 120)
        as_noted(made, made.make("elsewhere", other, 4, MEM))

        def promised() -> int:
            rows = share("inspect", "share")
            return sum(row["promised"] for row in rows if (row["node"], row["resource"]) == (node, MEM))

        assert promised() == 9 + size
        lab.request("DELETE", f"{NAMESPACE}/pods/{lost}", NOW)
        wait("its memory to be free", lambda: promised() == 9, 120)
        made.make("web-0", node, size, MEM, tolerations=[])
        assert "untolerated taint" in made.unschedulable("web-0")
    finally:
        host.exec(["systemctl", "start", "kubelet"])
    host.wait_ready()
    wait("web-0 to be bound", lambda: bound(made, "web-0") == node, 120)
    made.seen("web-0")
    # A kubelet that has just started may count the GPU of the pod that it has not forgotten yet: then it is another one, and
    # the note follows.
    wait("the books to be right", lambda: share("fsck", "fsck") == [], 60)
    as_noted(made, "web-0")
    assert made.get(kept)["status"]["containerStatuses"][0]["containerID"] == before
    assert share("fsck", "fsck") == []


@pytest.mark.parametrize("node", ["legacy", "modern"])
def test_promises_are_kept_over_restarts_of_kubelet_and_plugin(
    lab: Lab, enabled: None, made: Pods, share: Share, node: str
):
    """Pods go on; what comes next is put beside them, where it was promised."""
    size = UNITS[node] // 2
    first = [made.make(f"first-{n}", node, size, MEM) for n in range(GPUS[node])]
    as_noted(made, *first)
    before = [made.get(name)["status"]["containerStatuses"][0]["containerID"] for name in first]

    host = lab.node(node)
    host.exec(["systemctl", "restart", "kubelet"])
    (plugin,) = (item["metadata"]["name"] for item in running(lab, PLUGIN, node))
    lab.request("DELETE", f"{OWN}/{plugin}")

    def back() -> bool:
        now = running(lab, PLUGIN, node)
        return bool(now) and now[0]["metadata"]["name"] != plugin and _is(now[0]["status"], "Ready")

    wait("another plugin", back, 120)
    host.wait_ready()
    wait("its units", lambda: lab.units(node, MEM) == GPUS[node] * UNITS[node], 60)
    later = [made.make(f"later-{n}", node, size, MEM) for n in range(GPUS[node])]
    as_noted(made, *later)
    assert [made.get(name)["status"]["containerStatuses"][0]["containerID"] for name in first] == before
    assert share("fsck", "fsck") == []
    rows = [row for row in share("inspect", "share") if (row["node"], row["resource"]) == (node, MEM)]
    assert [(row["promised"], row["used"]) for row in rows] == [(2 * size, 2 * size)] * GPUS[node]


def test_pods_wait_while_no_extender_runs_and_say_why(lab: Lab, enabled: None, made: Pods):
    """Others do not."""
    lab.request("PATCH", DEPLOYMENT, {"spec": {"replicas": 0}})
    try:
        wait("no extender", lambda: running(lab, EXTENDER) == [], 60)
        waits = made.make("waits", "modern", 4, MEM)
        # The last one to leave may still have answered that it does not lead.
        wait("its event", lambda: any("connect" in event for event in events(lab, waits)), 120)
        box = {"name": "c", "image": lab.table["images"]["busybox"], "imagePullPolicy": "Never"}
        spec = {"containers": [box | {"command": ["sleep", "600"]}], "terminationGracePeriodSeconds": 0}
        spec["nodeSelector"] = {"kubernetes.io/hostname": "modern"}
        plain = made.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "plain"}, "spec": spec})
        wait("a pod without GPUs to be bound", lambda: bound(made, plain) == "modern", 60)
        assert not bound(made, waits)
    finally:
        lab.request("PATCH", DEPLOYMENT, {"spec": {"replicas": 2}})
    wait("the waiting pod to be bound", lambda: bound(made, waits) == "modern", 180)
    as_noted(made, waits)


def test_an_api_server_that_hangs_leads_to_no_double_promise(
    lab: Lab, enabled: None, made: Pods, share: Share
):
    """With pods under way, for so long that the leader gives up its lead."""
    wait("a leader", lambda: len(leaders(lab)) == 1, 90)
    (leader,) = leaders(lab)
    meta, host = leader["metadata"], lab.node(leader["spec"]["nodeName"])
    logs = f"cat /var/log/pods/gpunode_{meta['name']}_*/share/*.log"
    names = [made.make(f"many-{n}", "modern", 30 + n % 2, MEM) for n in range(8)]
    control = lab.node(CONTROL_PLANE.name)
    control.exec(["pkill", "-STOP", "-x", "kube-apiserver"])
    try:
        host.wait_until("the leader to give up", ["sh", "-c", f"{logs} | grep 'not leading any more'"], 60)
    finally:
        control.exec(["pkill", "-CONT", "-x", "kube-apiserver"])
    cluster.wait_ready(lab.slot)
    seen = made.seen(*names)
    got = sorted((30 + n % 2, view.env[IDX]) for n, view in enumerate(seen))
    assert got == sorted((30 + n % 2, notes(made, name)[INDEX]) for n, name in enumerate(names))
    assert share("fsck", "fsck") == []


def test_a_quota_of_a_namespace_counts_before_the_extender_is_asked(lab: Lab, enabled: None, made: Pods):
    """Beyond it no pod is made; what is within it is placed."""
    quotas = f"{NAMESPACE}/resourcequotas"
    hard = {f"requests.{MEM}": "8"}
    lab.request("POST", quotas, {"metadata": {"name": "gpu"}, "spec": {"hard": hard}})
    try:
        wait("the quota", lambda: "hard" in lab.request("GET", f"{quotas}/gpu").get("status", {}), 60)
        as_noted(made, *(made.make(f"within-{n}", "legacy", 4, MEM) for n in range(2)))
        with pytest.raises(HTTPError) as refused:
            made.make("beyond", "legacy", 1, MEM)
        assert "exceeded quota: gpu" in json.loads(refused.value.read())["message"]
    finally:
        lab.request("DELETE", f"{quotas}/gpu")
    as_noted(made, made.make("freed", "legacy", 1, MEM))


@pytest.fixture
def disabled(
    lab: Lab, enabled: None, gpunode: Callable[..., Ran], inventory: Path
) -> Iterator[Callable[[], None]]:
    """Takes the extender away; in the end it is back."""

    def disable() -> None:
        ran = gpunode("share disable", "--yes", "--json", inventory=inventory)
        assert ran.code == 0, ran

    yield disable
    ran = gpunode("share enable", "--yes", "--json", inventory=inventory)
    assert ran.code == 0, ran


def test_disabling_and_enabling_touches_no_running_pod(
    lab: Lab,
    made: Pods,
    disabled: Callable[[], None],
    gpunode: Callable[..., Ran],
    inventory: Path,
    share: Share,
):
    """Without the extender the plugin chooses; with it again, those pods count, and are noted."""
    first = made.make("first", "legacy", 9, MEM)
    as_noted(made, first)
    disabled()
    meanwhile = made.make("meanwhile", "legacy", 5, MEM)
    (chosen,) = made.seen(meanwhile)
    assert INDEX not in made.get(meanwhile)["metadata"].get("annotations", {})
    ran = gpunode("share enable", "--yes", "--json", inventory=inventory)
    assert ran.code == 0, ran
    assert made.get(first)["status"]["phase"] == "Running"
    wait("the books to be right", lambda: share("fsck", "fsck") == [], 60)
    assert notes(made, meanwhile)[INDEX] == chosen.env[IDX]
    assert share("fsck", "fsck") == []
    as_noted(made, made.make("last", "legacy", 16, MEM))  # the other GPU, whole


CHANGES = {
    "unit": ("sharing: {memory: {unit: MiB, chunk: 256}}", MEM, 64),
    "resource": ("sharing: {memory: {name: example.com/gpu-memory}}", "example.com/gpu-memory", 16),
}


@pytest.mark.parametrize("what", CHANGES)
def test_another_unit_or_resource_on_a_live_node(
    lab: Lab, made: Pods, enabled: None, gpunode: Callable[..., Ran], inventory: Path, what: str
):
    """What pods have is reserved, GPU by GPU, until they end; others are placed beside it."""
    text, resource, size = CHANGES[what]
    old = made.make("old", "legacy", 9, MEM)
    (seen,) = made.seen(old)
    wish = yaml.safe_load(inventory.read_text())
    config, changed = (inventory.with_name(f"share-{what}.{kind}") for kind in ("conf.yaml", "yaml"))
    config.write_text(f"version: v1\n{text}\n")
    wish["cluster"]["plugin"]["config"] = config.name
    wish["cluster"]["share"] = {"resource": resource}
    changed.write_text(yaml.safe_dump(wish))

    def enable(file: Path) -> None:
        ran = gpunode("share enable", "--yes", "--json", inventory=file)
        assert ran.code == 0, ran

    def reserved() -> dict[str, tuple[int, int]]:
        notes = lab.request("GET", "/api/v1/nodes/legacy")["metadata"]["annotations"]
        gpus = json.loads(notes[MEMORY_ANNOTATION])["gpus"]
        return {gpu["index"]: (gpu["units"], gpu["reserved"]) for gpu in gpus}

    try:
        enable(changed)
        other = "1" if seen.env[IDX] == "0" else "0"
        wait(
            "what the pod has to be reserved",
            lambda: reserved() == {other: (size, 0), seen.env[IDX]: (size, size * 9 // 16)},
            120,
        )
        rest = size - size * 9 // 16 - (9 if resource == MEM else 0)  # its own request counts, too
        new = [made.make("whole", "legacy", size, resource), made.make("rest", "legacy", rest, resource)]
        first, second = made.seen(*new)
        assert (first.env[IDX], second.env[IDX]) == (other, seen.env[IDX])
        assert [notes(made, name)[INDEX] for name in new] == [other, seen.env[IDX]]
        ran = gpunode("share fsck", "--json", inventory=changed)
        assert (ran.code, ran.of("fsck")) == (0, []), ran
        made.delete(old)
        wait("nothing to be reserved", lambda: {two[1] for two in reserved().values()} == {0}, 60)
    finally:
        made.delete()
        enable(inventory)
    as_noted(made, made.make("as-before", "legacy", 16, MEM))


@pytest.fixture
def operator(lab: Lab, inventory: Path) -> Iterator[Path]:
    """The inventory as of a service account that has the document's roles and nothing else."""
    parts = (Path(__file__).parents[2] / "docs/rights.md").read_text().split("```yaml\n")[1:]
    roles = [yaml.safe_load(part.split("```")[0]) for part in parts]
    subject = {"kind": "ServiceAccount", "namespace": "default", "name": "share-operator"}
    lab.request("POST", f"{NAMESPACE}/serviceaccounts", {"metadata": {"name": subject["name"]}})
    for role in roles:
        name = {"name": role["metadata"]["name"]}
        lab.request("POST", f"{RBAC}/clusterroles", role)
        ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", **name}
        binding = {"metadata": name, "roleRef": ref, "subjects": [subject]}
        lab.request("POST", f"{RBAC}/clusterrolebindings", binding)
    ask = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = lab.request("POST", f"{NAMESPACE}/serviceaccounts/{subject['name']}/token", ask)
    config, wish = yaml.safe_load(lab.kubeconfig.read_text()), yaml.safe_load(inventory.read_text())
    config["users"][0]["user"] = {"token": token["status"]["token"]}
    kubeconfig, path = (inventory.with_name(f"share-operator.{kind}") for kind in ("kubeconfig", "yaml"))
    kubeconfig.write_text(yaml.safe_dump(config))
    wish["cluster"]["kubeconfig"] = kubeconfig.name
    path.write_text(yaml.safe_dump(wish))
    yield path
    for role in roles:
        for kind in ("clusterrolebindings", "clusterroles"):
            lab.request("DELETE", f"{RBAC}/{kind}/{role['metadata']['name']}")
    lab.request("DELETE", f"{NAMESPACE}/serviceaccounts/{subject['name']}")


def test_the_documents_roles_are_enough(
    lab: Lab, enabled: None, made: Pods, operator: Path, gpunode: Callable[..., Ran], inventory: Path
):
    """For all of `share`; without one of the rights nothing is changed."""
    role = f"{RBAC}/clusterroles/gpunode-share-operator"
    before = lab.request("GET", role)["rules"]
    rules = [rule for rule in before if "secrets" not in rule["resources"]]
    lab.request("PATCH", role, {"rules": rules})
    for command in ("enable", "disable"):
        ran = gpunode(f"share {command}", "--yes", inventory=operator)
        assert ran.code == 4, ran
        assert "secrets in namespace gpunode" in ran.stderr
        assert "nothing was changed" in ran.stderr
    lab.request("PATCH", role, {"rules": before})
    past = made.make("past", "legacy", 7, MEM, nodeName="legacy")
    made.seen(past)
    for command in ("disable --yes", "enable --yes", "inspect", "fsck --repair --yes", "fsck"):
        verb, *options = command.split()
        ran = gpunode(f"share {verb}", *options, "--json", inventory=operator)
        assert ran.code == 0, (command, ran)
    assert INDEX in notes(made, past)
