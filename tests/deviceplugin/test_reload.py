"""Configurations of one node among several: which file counts, and that the node's label decides while it runs."""

import base64
import contextlib
import json
import logging
import queue
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from urllib.parse import urlsplit

import pytest

from gpunode.contract.config import LABEL, BadConfig
from gpunode.deviceplugin import reload
from gpunode.deviceplugin.cluster import apiserver, incluster
from gpunode.deviceplugin.cluster.apiserver import ApiError, NodeLabel
from gpunode.deviceplugin.reload import ConfigSource, choose_file
from gpunode.sim.cluster import Cluster
from tests import tables

from ..sim.clusters import Client
from .apiserver import FakeApiServer
from .test_process import process

DOWN = ApiError(0, "the API server at 10.96.0.1:443 cannot be reached: timed out")
SHARED = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 2}]}}\n"


def folder(path: Path, **files: str) -> Path:
    """As the kubelet mounts a ConfigMap: links into a folder that a link names, replaced as one."""
    path.mkdir(exist_ok=True)
    data = path / f"..{len(list(path.iterdir()))}"
    data.mkdir()
    for name, text in files.items():
        (data / name).write_text(text)
    new = path / "..data_tmp"
    new.symlink_to(data.name)
    new.rename(path / "..data")
    for name in files:
        with contextlib.suppress(FileExistsError):
            (path / name).symlink_to(f"..data/{name}")
    return path


@tables.rows("chosen-files")
def test_the_file_is_chosen_as_nvidias_config_manager_chooses(tmp_path, files, label, default, name):
    """By the label, else by name, else the only one, else none at all."""
    there = folder(tmp_path / "config", **dict.fromkeys(files.split(), ""))
    assert choose_file(there, label, LABEL, default) == (str(there / name) if name else "")


@pytest.mark.parametrize(
    ("label", "default", "message"),
    [
        ("c", "", f"the node's label {LABEL} names c, which is not there; there are a, b"),
        ("", "c", "--default-config names c, which is not there"),
    ],
)
def test_a_name_that_is_not_there_is_reported_with_those_that_are(tmp_path, label, default, message):
    """Not silently another one."""
    with pytest.raises(BadConfig) as caught:
        choose_file(folder(tmp_path / "config", a="", b=""), label, LABEL, default)
    assert message in str(caught.value)


async def test_a_file_that_did_not_change_is_not_read_again(tmp_path, caplog):
    file = tmp_path / "config"
    file.write_text(SHARED)
    source = ConfigSource([f"--config-file={file}"], {}, program="")
    with caplog.at_level(logging.INFO), source.watch(lambda: None):
        assert "the configuration is" not in caplog.text


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (["--config-dir=/etc/x"], "--config-dir needs --node-name"),
        (["--config-dir=/etc/x", "--config-file=/etc/y"], "only one of them"),
    ],
)
def test_what_does_not_go_together_is_reported(flags, message):
    """Before anything is asked."""
    with pytest.raises(BadConfig, match=message):
        ConfigSource(flags, {})


@pytest.fixture
def api(monkeypatch) -> FakeApiServer:
    monkeypatch.setattr(apiserver, "FIRST", 0.01)
    monkeypatch.setattr(apiserver, "LONGEST", 0.05)
    return FakeApiServer()


def test_the_label_is_followed_over_a_lost_api_server(api, caplog):
    """Meanwhile the last value stays; one line in the log; then what it has become."""
    api.label("gpu-01", config="a")
    label, seen = NodeLabel(api, "gpu-01"), queue.Queue[str]()
    label.listen(lambda: seen.put(label.value))
    with caplog.at_level(logging.INFO, logger="gpunode.deviceplugin.cluster.apiserver"):
        label.start()
        assert seen.get(timeout=60) == "a"
        api.fail(DOWN)
        api.wait(lambda: api.watches > 5)
        assert label.value == "a"
        api.label("gpu-01", config="b")
        api.fail(None)
        assert seen.get(timeout=60) == "b"
    lines = [record.getMessage() for record in caplog.records]
    assert [line for line in lines if "is not known" in line] == [
        f"the node's label {LABEL} is not known: {DOWN}; trying again, at last every 0 s"
    ]
    api.label("gpu-01", other="x")
    assert seen.get(timeout=60) == ""
    api.label("gpu-01", config="c")
    assert seen.get(timeout=60) == "c"
    api.remove("gpu-01")
    assert seen.get(timeout=60) == ""


def test_a_start_waits_for_the_label_only_where_it_can_come(api):
    """Who may not watch nodes is told so at once; an API server that is away is waited for."""
    api.fail(ApiError(403, "nodes is forbidden"))
    forbidden = NodeLabel(api, "gpu-01")
    forbidden.start()
    assert forbidden.wait(60)
    api.fail(DOWN)
    away = NodeLabel(api, "gpu-01")
    away.start()
    assert not away.wait(0.1)
    api.label("gpu-01", config="a")
    api.fail(None)
    assert away.wait(60)
    assert away.value == "a"


async def test_a_start_that_waits_for_the_label_ends_when_told_to(kubelet, sockets, tmp_path):
    """The first process of a container has to say so itself."""
    there = folder(tmp_path / "config", default="version: v1\n")
    account = tmp_path / "account"
    account.mkdir()

    environment = {"NODE_NAME": "gpu-01", "SERVICE_ACCOUNT_DIRECTORY": str(account)}
    async with process(sockets, f"--config-dir={there}", environment=environment) as child:
        assert child.stderr
        assert b"is not known: " in await child.stderr.readline()
        child.send_signal(signal.SIGTERM)
        assert await child.wait() == 0


@pytest.fixture
def cluster(tmp_path) -> Iterator[Cluster]:
    """A simulated cluster that knows the node gpu-01."""
    (tmp_path / "cluster").mkdir()
    made = Cluster(tmp_path / "cluster", [])
    yield made
    made.close()


async def test_the_nodes_label_chooses_while_the_plugin_runs(kubelet, sockets, tmp_path, cluster):
    """Another label and another ConfigMap are taken up at once; a label that names nothing disturbs nothing."""
    config = json.loads(cluster.kubeconfig.read_text())
    url = urlsplit(config["clusters"][0]["cluster"]["server"])
    account = tmp_path / "account"
    account.mkdir()
    trust = base64.b64decode(config["clusters"][0]["cluster"]["certificate-authority-data"])
    (account / "ca.crt").write_bytes(trust)
    (account / "token").write_text(config["users"][0]["user"]["token"])
    environment = {
        "KUBERNETES_SERVICE_HOST": str(url.hostname),
        "KUBERNETES_SERVICE_PORT": str(url.port),
        "SERVICE_ACCOUNT_DIRECTORY": str(account),
        "NODE_NAME": "gpu-01",
        "NODE_EVENTS": "true",
    }
    client = Client(cluster.kubeconfig)
    made = {"kind": "Node", "apiVersion": "v1", "metadata": {"name": "gpu-01"}}
    assert client.ask("POST", "/api/v1/nodes", made)[0] == 201
    there = folder(tmp_path / "config", default="version: v1\n", shared=SHARED)

    def label(value: str | None) -> None:
        patch = {"metadata": {"labels": {LABEL: value}}}
        code, _ = client.ask("PATCH", "/api/v1/nodes/gpu-01", patch, "application/merge-patch+json")
        assert code == 200

    async with process(sockets, f"--config-dir={there}", environment=environment) as child:
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"})
        label("shared")
        await kubelet.until(lambda: len(kubelet.devices()) == 2)
        label("nothing")
        assert child.stderr
        while b"names nothing, which is not there; there are default, shared" not in (
            line := await child.stderr.readline()
        ):
            assert line
        folder(there, default="version: v1\n", shared=SHARED.replace("2", "3"))
        label("shared")
        await kubelet.until(lambda: len(kubelet.devices()) == 3)
        folder(there, default="version: v1\n", shared=SHARED.replace("2", "4"))
        await kubelet.until(lambda: len(kubelet.devices()) == 4)
        label(None)
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy"})
        assert len(kubelet.requests) == 5
    events = client.ask("GET", "/api/v1/namespaces/default/events")[1]["items"]
    (refused,) = [event for event in events if event["reason"] == "ConfigRefused"]
    assert "names nothing, which is not there" in refused["message"]
    (accepted,) = [event for event in events if event["reason"] == "ConfigTaken"]
    assert (accepted["type"], accepted["count"]) == ("Normal", 1)


def test_a_start_guesses_no_label(tmp_path, api, monkeypatch, caplog):
    """The API server is away for long: what the label would choose is waited for."""
    monkeypatch.setattr(incluster, "InCluster", lambda *_: api)
    monkeypatch.setattr(reload, "LABEL_DEADLINE", 0.01)
    there = folder(
        tmp_path / "config", default="version: v1", other="{version: v1, flags: {migStrategy: mixed}}"
    )
    api.fail(DOWN)
    made: queue.Queue[ConfigSource] = queue.Queue()
    begin = threading.Thread(
        target=lambda: made.put(ConfigSource([f"--config-dir={there}", "--node-name=gpu-01"], {})),
        daemon=True,
    )
    with caplog.at_level(logging.WARNING, logger="gpunode.deviceplugin.reload"):
        begin.start()
        api.wait(lambda: api.watches > 5)
    assert made.empty()
    assert f"nothing is offered until the label {LABEL} of node gpu-01 is known" in caplog.text
    api.label("gpu-01", config="other")
    api.fail(None)
    assert made.get(timeout=60).config.mig_strategy == "mixed"


@pytest.mark.parametrize(
    ("label", "line"),
    [
        ("a", "the configuration is read {folder}/a"),
        (
            "",
            f"the configuration is read, without a file: the node has no label {LABEL}, and no file in {{folder}} is "
            "called default ",
        ),
    ],
)
def test_the_log_says_which_file_is_in_force(tmp_path, api, monkeypatch, caplog, label, line):
    """From the start on; that none is, too, as with a file that was forgotten the node would look right."""
    monkeypatch.setattr(incluster, "InCluster", lambda *_: api)
    api.label("gpu-01", **({"config": label} if label else {"other": "x"}))
    there = folder(tmp_path / "config", a="version: v1", b="version: v1")
    with caplog.at_level(logging.INFO, logger="gpunode.deviceplugin.reload"):
        ConfigSource([f"--config-dir={there}", "--node-name=gpu-01"], {})
    assert [f"{record.getMessage()} {getattr(record, 'file', '')}" for record in caplog.records] == [
        line.format(folder=there)
    ]
