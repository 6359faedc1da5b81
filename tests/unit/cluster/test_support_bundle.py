"""`gpunode support-bundle`: what is in it, and that no planted secret is."""

import json
import stat
import tarfile
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest
from typer.testing import CliRunner, Result

from gpunode.cli import app
from gpunode.engine import converge
from gpunode.engine.record import Record, RunOptions
from gpunode.errors import UsageError
from gpunode.model import File, Kubelet, Outcome
from gpunode.wording import ISSUES
from tests import cases

from .conftest import DAEMONSET, GPU_NODE, NS, add_node, pod, publish, status
from .fake import FakeApi

SECRET = "hunter2hunter2"
TOKEN = "ghp_16C7e42F292c6912E7710c838347Ae178B4a"
Bundle = Callable[..., Result]


@pytest.fixture
def bundle(fake: FakeApi, tmp_path, monkeypatch) -> Bundle:
    """Runs the command for gpu-1, on which, in its cluster and in its records secrets are planted."""
    monkeypatch.setenv("XDG_STATE_HOME", str(tmp_path / "state"))
    inventory = tmp_path / "inventory.yaml"
    config = {"cluster": {"kubeconfig": fake.kubeconfig(tmp_path), "plugin": {"image": "plugin:1"}}}
    groups = {"all": {"hosts": ["gpu-1"]}}
    inventory.write_text(f"# password: {SECRET}\n{json.dumps({**config, 'groups': groups})}\n")
    record = Record.begin(inventory, ["gpu-1"], RunOptions())
    record.host("gpu-1", "failed", f"curl https://me:{SECRET}@mirror.example/x ended with 22")
    toml = f'[plugins."io.containerd.grpc.v1.cri".registry.configs.r.auth]\n  password = "{SECRET}"\n'
    seen = replace(
        cases.facts("modern"),
        hostname="gpu-1",
        files={"/etc/containerd/config.toml": File("/etc/containerd/config.toml", True, content=toml)},
        kubelet=Kubelet("1.31.4", ("kubelet", f"--token={SECRET}"), f"Environment=API_TOKEN={SECRET}\n"),
    )
    monkeypatch.setattr(converge, "probe_and_plan", lambda *_: Outcome("gpu-1", "right", seen))
    add_node(fake, "gpu-1", 1, labels=GPU_NODE)
    fake.update("Node", "gpu-1", metadata={"annotations": {"ci": f"Authorization: Bearer {TOKEN}"}})
    name = f"{DAEMONSET}-gpu-1"
    fake.put(pod(name, node="gpu-1", labels={"app.kubernetes.io/name": DAEMONSET}))
    publish(fake, "gpu-1", status())
    fake.logs[name, "device-plugin"] += f"WARNING proxy http://me:{SECRET}@proxy:3128 refused\n"
    event = {"kind": "Event", "metadata": {"name": "e", "namespace": NS}, "message": f"token={TOKEN}"}
    fake.put({**event, "involvedObject": {"kind": "Pod", "name": name}, "reason": "Failed"})

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, ["support-bundle", str(inventory), *words], catch_exceptions=True)

    return run


def contents(path: Path) -> dict[str, str]:
    """The files by their path below the one folder."""
    with tarfile.open(path) as archive:
        files = [(member.name, archive.extractfile(member)) for member in archive.getmembers()]
        return {name.partition("/")[2]: file.read().decode() for name, file in files if file}


def test_it_holds_what_is_asked_for_and_no_secret(bundle: Bundle, tmp_path):
    """On hosts, in the cluster, in the inventory and in records; it names each file, and only its owner reads it."""
    path = tmp_path / "help.tar.gz"
    ran = bundle("--output", str(path), "--json")
    assert ran.exit_code == 0, ran.output
    files = contents(path)
    record = next(name for name in files if name.startswith("runs/"))
    assert set(files) == {
        "README.txt", "versions.json", "verify.jsonl", "plan.jsonl", "probe.jsonl", "hosts/gpu-1.json", "inventory.yaml",
        "cluster/nodes/gpu-1.json", "cluster/plugin-pods.json", f"cluster/logs/{DAEMONSET}-gpu-1.log",
        "cluster/events.json", record,
    }  # fmt: skip
    whole = "\n".join(files.values())
    assert SECRET not in whole
    assert TOKEN not in whole
    planted = (
        "hosts/gpu-1.json", "inventory.yaml", "cluster/nodes/gpu-1.json", f"cluster/logs/{DAEMONSET}-gpu-1.log",
        "cluster/events.json", record,
    )  # fmt: skip
    assert [name for name in planted if " characters>" not in files[name]] == []
    for name, text in files.items():
        if name.endswith(".json"):
            json.loads(text)
        elif name.endswith(".jsonl"):
            assert [json.loads(line) for line in text.splitlines()]
    assert all(name in files["README.txt"] for name in files if name != "README.txt")
    listed = [json.loads(line) for line in ran.stdout.splitlines()]
    assert {line["file"] for line in listed if line["type"] == "content"} == set(files) - {"README.txt"}
    assert listed[-1]["bundle"] == str(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o600


def test_verify_and_plan_in_it_are_those_of_their_commands(bundle: Bundle, tmp_path):
    bundle("--output", str(tmp_path / "a.tar.gz"))
    files = contents(tmp_path / "a.tar.gz")
    layers = [json.loads(line).get("layer") for line in files["verify.jsonl"].splitlines()]
    assert {"PCI", "runtime", "kubelet"} <= set(layers)
    assert '"type": "plan"' in files["plan.jsonl"]


def test_what_cannot_be_collected_says_so_in_its_place(bundle: Bundle, fake: FakeApi, tmp_path):
    """A cluster that is away costs its own files alone."""
    fake.close()
    ran = bundle("--output", str(tmp_path / "a.tar.gz"))
    assert ran.exit_code == 0, ran.output
    files = contents(tmp_path / "a.tar.gz")
    assert "cluster/not-collected.txt" in files
    assert "Not collected, each with the reason: cluster/not-collected.txt." in ran.output
    assert ran.output.endswith(f"Attach it to your question: {ISSUES}\n")
    assert "hosts/gpu-1.json" in files
    assert "PCI" in files["verify.jsonl"]


def test_logs_of_hosts_that_are_left_out_are_not_in_it(bundle: Bundle, fake: FakeApi, tmp_path):
    inventory, other = tmp_path / "inventory.yaml", f"{DAEMONSET}-gpu-2"
    inventory.write_text(inventory.read_text().replace('["gpu-1"]', '["gpu-1", "gpu-2"]'))
    fake.put(pod(other, node="gpu-2", labels={"app.kubernetes.io/name": DAEMONSET}))
    fake.logs[other, "device-plugin"] = "mine\n"
    ran = bundle("--output", str(tmp_path / "a.tar.gz"), "--limit", "gpu-1")
    assert ran.exit_code == 0, ran.output
    logs = [name for name in contents(tmp_path / "a.tar.gz") if name.startswith("cluster/logs/")]
    assert logs == [f"cluster/logs/{DAEMONSET}-gpu-1.log"]


def test_a_file_that_is_there_is_kept(bundle: Bundle, tmp_path):
    path = tmp_path / "mine.tar.gz"
    path.write_text("mine")
    ran = bundle("--output", str(path))
    assert isinstance(ran.exception, UsageError)
    assert path.read_text() == "mine"


def test_a_bundle_that_is_broken_off_leaves_no_file(bundle: Bundle, tmp_path, monkeypatch):
    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(converge, "probe_and_plan", interrupt)
    bundle("--output", str(tmp_path / "a.tar.gz"))
    assert not (tmp_path / "a.tar.gz").exists()
