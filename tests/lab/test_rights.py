"""The ClusterRole of docs/rights.md on the real API server: enough for all commands, and each missing right is named beforehand."""

import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest
import yaml

from .api import Lab
from .conftest import GPUNODE, Ran
from .pods import NAMESPACE, pods
from .progress import wait

pytestmark = pytest.mark.lab

RBAC = "/apis/rbac.authorization.k8s.io/v1"
BUDGETS = "/apis/policy/v1/namespaces/default/poddisruptionbudgets"
CHECKOUT = Path(__file__).parents[2]
ROLE = yaml.safe_load((CHECKOUT / "docs/rights.md").read_text().split("```yaml\n")[1].split("```")[0])
NAME = ROLE["metadata"]["name"]
DAEMON = "/etc/docker/daemon.json"


@pytest.fixture(scope="module")
def operator(lab: Lab) -> Iterator[Path]:
    """An inventory whose user is a service account with the document's role and nothing else."""
    account = f"{NAMESPACE}/serviceaccounts"
    lab.request("POST", account, {"metadata": {"name": NAME}})
    lab.request("POST", f"{RBAC}/clusterroles", ROLE)
    subject = {"kind": "ServiceAccount", "namespace": "default", "name": NAME}
    ref = {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": NAME}
    binding = {"metadata": {"name": NAME}, "roleRef": ref, "subjects": [subject]}
    lab.request("POST", f"{RBAC}/clusterrolebindings", binding)
    request = {"apiVersion": "authentication.k8s.io/v1", "kind": "TokenRequest", "spec": {}}
    token = lab.request("POST", f"{account}/{NAME}/token", request)["status"]["token"]
    config = yaml.safe_load(lab.kubeconfig.read_text())
    config["users"][0]["user"] = {"token": token}
    kubeconfig, path = (lab.inventory.with_name(f"operator.{name}") for name in ("kubeconfig", "yaml"))
    kubeconfig.write_text(yaml.safe_dump(config))
    wish = yaml.safe_load(lab.inventory.read_text())
    wish["cluster"]["kubeconfig"] = kubeconfig.name
    wish["groups"]["p100"]["work"] = "drain"
    path.write_text(yaml.safe_dump(wish))
    yield path
    lab.request("DELETE", f"{RBAC}/clusterrolebindings/{NAME}")
    lab.request("DELETE", f"{RBAC}/clusterroles/{NAME}")
    lab.request("DELETE", f"{account}/{NAME}")
    for file in (kubeconfig, path):
        file.unlink()


@pytest.fixture
def drifted(lab: Lab) -> Iterator[None]:
    """daemon.json has other settings than gpunode's: to correct that restarts docker."""
    node = lab.node("legacy")
    before = node.read(DAEMON)
    node.write(DAEMON, "{}\n")
    yield
    if node.read(DAEMON) == "{}\n":
        node.write(DAEMON, before)


@contextmanager
def without(lab: Lab, *taken: tuple[str, str]) -> Iterator[None]:
    """The role has all but these rights, as (verb, resource)."""
    rules = [
        {**rule, "resources": [resource], "verbs": [verb]}
        for rule in ROLE["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if (verb, resource) not in taken
    ]
    where = f"{RBAC}/clusterroles/{NAME}"
    lab.request("PATCH", where, {"rules": rules})
    try:
        yield
    finally:
        lab.request("PATCH", where, {"rules": ROLE["rules"]})


@pytest.fixture
def web(lab: Lab) -> Iterator[str]:
    """A pod on legacy under a budget that allows no eviction; its name, and the budget's."""
    box = {"name": "c", "image": lab.table["images"]["busybox"], "imagePullPolicy": "Never"}
    spec: dict[str, Any] = {
        "nodeName": "legacy",
        "restartPolicy": "Never",
        "terminationGracePeriodSeconds": 0,
        "containers": [box | {"command": ["sleep", "600"]}],
    }
    with pods(lab) as made:
        meta = {"name": "web", "labels": {"app": "web"}}
        name = made.create({"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec})
        wait(f"{name} to run", lambda: made.get(name)["status"].get("phase") == "Running", 60)
        budget = {"minAvailable": 1, "selector": {"matchLabels": {"app": "web"}}}
        lab.request("POST", BUDGETS, {"metadata": {"name": name}, "spec": budget})
        try:
            yield name
        finally:
            lab.request("DELETE", f"{BUDGETS}/{name}")


def test_the_documents_role_is_enough_for_every_command(
    lab: Lab, operator: Path, gpunode: Callable[..., Ran]
):
    """From hosts as they are to proven nodes, and the plugin away and back; namespace and RuntimeClass stay, with the reason."""
    for command in (
        "provision --yes",
        "plugin remove --yes",
        "plan --no-diff",
        "plugin deploy --yes",
        "label --accelerator",
        "label --accelerator --remove",
        "verify --no-run",
    ):
        ran = gpunode(command, "--json", inventory=operator, timeout=800)
        assert ran.code == 0, (command, ran)
        if command.startswith("plugin remove"):
            told = " ".join(line["message"] for line in ran.of("stage"))
            assert "RuntimeClass nvidia stays: its dependents are unknown" in told
            assert "Namespace gpunode stays: its dependents are unknown" in told


def test_a_drain_waits_for_the_budget_of_the_real_api(
    lab: Lab, operator: Path, drifted: None, web: str, gpunode: Callable[..., Ran]
):
    """One that never allows: the host is skipped with pod and budget. One that allows in the end: the pod is evicted."""
    words = ["provision", "--yes", "--json", "--no-run", "--limit", "legacy"]
    short = operator.with_name("short.yaml")
    short.write_text(operator.read_text().replace("work: drain", "work: drain\n    work_timeout: 2s"))
    try:
        never = gpunode(" ".join(words), inventory=short)
    finally:
        short.unlink()
    assert never.code == 1, never
    why = f"default/{web} (The disruption budget {web} needs 1 healthy pods and has 1 currently)"
    assert why in never.of("verified")[0]["proof"], never
    assert not lab.request("GET", "/api/v1/nodes/legacy")["spec"].get("unschedulable")
    assert lab.request("GET", f"{NAMESPACE}/pods/{web}")["status"]["phase"] == "Running"

    with subprocess.Popen([GPUNODE, *words, operator], stdout=subprocess.PIPE, text=True) as run:
        assert run.stdout is not None
        seen = [next(line for line in run.stdout if f"default/{web} may not be evicted" in line)]
        lab.request("PATCH", f"{BUDGETS}/{web}", {"spec": {"minAvailable": 0}})
        seen += run.stdout
    assert run.returncode == 0, "".join(seen)
    assert web not in [item["metadata"]["name"] for item in lab.request("GET", f"{NAMESPACE}/pods")["items"]]
    assert not lab.request("GET", "/api/v1/nodes/legacy")["spec"].get("unschedulable")


def test_a_missing_right_is_named_before_anything_is_changed(
    lab: Lab, operator: Path, drifted: None, gpunode: Callable[..., Ran]
):
    node = lab.node("legacy")
    before = node.exec(["ls", "/var/lib/gpunode/runs"]).stdout
    with without(lab, ("create", "pods/eviction")):
        ran = gpunode("provision --yes --limit legacy", inventory=operator)
    assert ran.code == 4, ran
    assert (
        "the Kubernetes API does not let this user create pods/eviction: nothing was changed" in ran.stderr
    ), ran
    assert node.exec(["ls", "/var/lib/gpunode/runs"]).stdout == before
    assert len(lab.request("GET", "/apis/apps/v1/namespaces/gpunode/daemonsets")["items"]) == 2
