"""`gpunode run notebook`: created, waited for, told how to reach, removed; and kubectl's plugins, which are the same program."""

import json
import os
import subprocess
import sysconfig
from collections.abc import Callable
from importlib.metadata import entry_points
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpunode.cli import app
from gpunode.cluster import pods
from gpunode.cluster.api import Api
from gpunode.cluster.objects import dependents
from gpunode.errors import ClusterError
from gpunode.links.pod import notebook, run_pod

from .conftest import GPU_NODE, NS, add_node, has
from .fake import FakeApi, Object

Command = Callable[..., Result]
FULL = "0/1 nodes are available: 1 Insufficient nvidia.com/gpu."
RUNS = {"phase": "Running", "conditions": [{"type": "Ready", "status": "True"}], "containerStatuses": []}
WAITS = {"conditions": [{"type": "PodScheduled", "status": "False", "message": FULL}]}


def crashing(reason: str, message: str = "") -> Object:
    state = {"waiting": {"reason": reason, "message": message}}
    return {"phase": "Pending", "containerStatuses": [{"name": "jupyter", "state": state}]}


@pytest.fixture(autouse=True)
def impatient(monkeypatch) -> None:
    monkeypatch.setattr(run_pod, "PENDING", 0.0)
    monkeypatch.setattr(pods, "PULL", 0.0)


@pytest.fixture
def command(fake: FakeApi, tmp_path, monkeypatch) -> Command:
    """`gpunode run notebook --json` with a kubeconfig alone, in a cluster with one GPU node."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.delenv("GPUNODE_INVENTORY", raising=False)
    add_node(fake, "gpu-1", 1, labels=GPU_NODE)
    kubeconfig = fake.kubeconfig(tmp_path)

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, ["run", "notebook", "--json", "--kubeconfig", kubeconfig, *words])

    return run


def controller(fake: FakeApi, status: Object, node: str = "gpu-1") -> None:
    """Makes the Deployment's pod, which comes to this status."""

    def make(deployment: Object) -> None:
        meta, template = deployment["metadata"], deployment["spec"]["template"]
        owner = [{"name": meta["name"], "uid": meta["uid"]}]
        made = {"name": f"{meta['name']}-abc", "namespace": meta["namespace"], "ownerReferences": owner}
        spec = {**template["spec"], **({"nodeName": node} if node else {})}
        fake.put(
            {"kind": "Pod", "metadata": {**template["metadata"], **made}, "spec": spec, "status": status}
        )

    fake.react("Deployment", make)


def lines(done: Result, kind: str) -> list[dict[str, Any]]:
    every = [json.loads(line) for line in done.stdout.splitlines()]
    return [line for line in every if line["type"] == kind]


def there(fake: FakeApi) -> bool:
    return has(fake, "Deployment", notebook.NAME, NS) or has(fake, "Service", notebook.NAME, NS)


def test_it_runs_and_its_user_learns_how_to_reach_it(command: Command, fake: FakeApi, tmp_path):
    """On a GPU node, with one GPU; the commands name this cluster. The hosts of an inventory that lies there are not asked."""
    (tmp_path / "inventory.yaml").write_text("groups: {a: {hosts: [gpu-9]}}\n")
    controller(fake, RUNS)
    done = command()
    assert done.exit_code == 0, done.output
    assert lines(done, "notebook") == [{"type": "notebook", "node": "gpu-1", "namespace": NS, "name": notebook.NAME, "port": None}]  # fmt: skip
    notes = " ".join(line["message"] for line in lines(done, "note"))
    where = f"--kubeconfig {tmp_path / 'kubeconfig'} --context test --namespace {NS}"
    assert f"`kubectl {where} port-forward service/{notebook.NAME} 8888`" in notes
    assert f"`kubectl {where} logs deployment/{notebook.NAME}`" in notes
    assert f"`gpunode run notebook --remove {where}`" in notes
    (deployment,) = fake.all("Deployment")
    spec = deployment["spec"]["template"]["spec"]
    assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu": 1}
    affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    assert affinity["nodeSelectorTerms"][0]["matchExpressions"][0]["values"] == ["gpu-1"]


def test_a_second_run_finds_the_first_ones_and_leaves_it_as_it_is(command: Command, fake: FakeApi):
    """It holds its user's work: another image does not replace it."""
    controller(fake, RUNS)
    assert command().exit_code == 0
    before = fake.all("Deployment")
    done = command("--image", "mine:2")
    assert done.exit_code == 0, done.output
    assert fake.all("Deployment") == before
    assert "It existed before and is unchanged." in [line["message"] for line in lines(done, "note")]


def test_the_port_of_every_node_is_reported(command: Command, fake: FakeApi):
    """The API server chooses it."""
    controller(fake, RUNS)

    def choose(service: Object) -> None:
        assert service["spec"]["type"] == "NodePort"
        ports = [{**service["spec"]["ports"][0], "nodePort": 30093}]
        fake.update("Service", notebook.NAME, NS, spec={"ports": ports})

    fake.react("Service", choose)
    done = command("--node-port")
    assert [line["port"] for line in lines(done, "notebook")] == [30093]
    assert any("port 30093 for it, too, over plain HTTP" in line["message"] for line in lines(done, "note"))


def test_its_container_has_no_more_rights_than_jupyter_needs(command: Command, fake: FakeApi):
    """Its user is root: without capabilities, with the runtime's seccomp profile, without a token."""
    controller(fake, RUNS)
    command()
    (deployment,) = fake.all("Deployment")
    pod = deployment["spec"]["template"]["spec"]
    assert pod["automountServiceAccountToken"] is False
    assert pod["containers"][0]["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "capabilities": {"drop": ["ALL"]},
        "seccompProfile": {"type": "RuntimeDefault"},
    }


@pytest.mark.parametrize(
    ("status", "node", "why"),
    [
        (WAITS, "", f"{notebook.NAME}: not scheduled: {FULL}"),
        (crashing("ImagePullBackOff", "no such host"), "gpu-1", f"{notebook.NAME} on gpu-1: ImagePullBackOff: no such host"),
        (crashing("CreateContainerError", "no runtime"), "gpu-1", f"{notebook.NAME} on gpu-1: CreateContainerError: no runtime"),
        (crashing("CrashLoopBackOff"), "gpu-1", f"{notebook.NAME} on gpu-1: jupyter is in CrashLoopBackOff: exit code ?"),
    ],
    ids=["no GPU is free", "no image", "no runtime", "its program ends"],
)  # fmt: skip
def test_one_that_cannot_run_says_why_and_is_deleted(
    command: Command, fake: FakeApi, status: Object, node: str, why: str
):
    """In one sentence."""
    controller(fake, status, node)
    fix = " `gpunode status` shows which pods have the GPUs, and nodes whose plugin offers none." * (not node)
    done = command()
    assert done.exit_code == 1
    assert [(line["error"], line["hint"]) for line in lines(done, "error")] == [
        (why, f"It is deleted again.{fix}")
    ]
    assert not there(fake)


def test_one_without_a_pod_says_what_admission_says(command: Command, fake: FakeApi):
    """As of a quota: the Deployment has the reason."""
    refusal = "pods is forbidden: exceeded quota: gpus"
    state = {"conditions": [{"type": "ReplicaFailure", "status": "True", "message": refusal}]}
    fake.react("Deployment", lambda new: fake.update("Deployment", new["metadata"]["name"], NS, status=state))
    done = command()
    assert [line["error"] for line in lines(done, "error")] == [f"{notebook.NAME}: {refusal}"]
    assert not there(fake)


def test_one_that_was_there_stays_when_it_does_not_run(command: Command, fake: FakeApi):
    controller(fake, RUNS)
    assert command().exit_code == 0
    fake.update("Pod", f"{notebook.NAME}-abc", NS, status={**crashing("CrashLoopBackOff"), "conditions": []})
    done = command()
    assert [line["hint"] for line in lines(done, "error")] == ["It was there before, and stays."]
    assert there(fake)


def test_an_interrupted_start_leaves_nothing(fake: FakeApi, api: Api):
    """Ctrl-C while its image is pulled."""
    controller(fake, crashing("ContainerCreating"))

    def interrupt(_: str) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        notebook.start(api, notebook.manifests((), namespace=NS), seconds=60, notify=interrupt)
    assert not there(fake)


def test_what_others_made_is_not_touched(fake: FakeApi, api: Api, told: list[str]):
    """A Deployment of the same name."""
    fake.put({"kind": "Service", "metadata": {"name": notebook.NAME, "namespace": NS}, "spec": {}})
    with pytest.raises(ClusterError, match="is not gpunode's"):
        notebook.start(api, notebook.manifests((), namespace=NS), seconds=60, notify=told.append)
    assert not has(fake, "Deployment", notebook.NAME, NS)
    assert notebook.remove(api, NS, seconds=60, notify=told.append) == ()
    assert has(fake, "Service", notebook.NAME, NS)


def test_it_is_removed_with_its_pod(command: Command, fake: FakeApi):
    """And a second time there is nothing to remove, which is right."""
    controller(fake, RUNS)
    assert command().exit_code == 0
    done = command("--remove")
    assert done.exit_code == 0, done.output
    assert {line["object"] for line in lines(done, "object")} == {f"Deployment {NS}/{notebook.NAME}", f"Service {NS}/{notebook.NAME}"}  # fmt: skip
    assert not there(fake)
    assert fake.all("Pod") == []
    again = command("--remove")
    assert (again.exit_code, lines(again, "object")) == (0, [])


@pytest.mark.parametrize(
    ("program", "words"),
    [("kubectl-gpunode", ["plugin", "status", "--json"]), ("kubectl-inspect-gpunode", ["--json"])],
    ids=["kubectl gpunode", "kubectl inspect gpunode"],
)
def test_the_plugins_of_kubectl_start_and_ask_the_cluster(
    fake: FakeApi, tmp_path, monkeypatch, capsys, program: str, words: list[str]
):
    """As kubectl starts them: by their names, as installed, with its kubeconfig."""
    add_node(fake, "gpu-1", 1, labels=GPU_NODE)
    installed = Path(sysconfig.get_path("scripts")) / program
    environment = {**os.environ, "KUBECONFIG": fake.kubeconfig(tmp_path)}
    environment.pop("GPUNODE_INVENTORY", None)
    done = subprocess.run([installed, *words], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode in {0, 1}, done.stderr
    assert "Traceback" not in done.stderr
    assert ("GET", "/api/v1/nodes") in [(method, where) for method, where, _ in fake.requests]
    assert all(json.loads(line)["type"] for line in done.stdout.splitlines())

    monkeypatch.setattr("sys.argv", [str(installed), "--help"])
    (started,) = entry_points(group="console_scripts", name=program)
    with pytest.raises(SystemExit):
        started.load()()
    assert f"{program} [OPTIONS]" in capsys.readouterr().out


def test_the_plugins_namespace_stays_while_a_notebook_is_in_it(command: Command, fake: FakeApi, api: Api):
    """`plugin remove` does not delete what its user wrote."""
    controller(fake, RUNS)
    assert command().exit_code == 0
    assert f"Deployment/{notebook.NAME}" in dependents.in_namespace(api, NS, ())
