"""What older ways to GPUs leave on a host and in its cluster: nvidia-docker 1, gpushare's plugin. The programs are stand-ins."""

import base64
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from .api import Lab, Node
from .conftest import Ran
from .packages import deb
from .progress import wait
from .test_end_states import proven, shell

pytestmark = [pytest.mark.lab, pytest.mark.matrix]
GPUS = 2
DAEMONSETS = "/apis/apps/v1/namespaces/kube-system/daemonsets"
GPUSHARE = "gpushare-device-plugin-ds"
THEIRS = "DaemonSet kube-system/gpushare-device-plugin-ds"
VOLUME = "nvidia_driver_384.81"
# docker's volume plugin API (docs.docker.com, plugins_volume), as far as one read-only volume needs it.
PLUGIN = """#!/usr/bin/python3
import http.server, json, os, socketserver
SOCKET = "/run/docker/plugins/nvidia-docker.sock"
PLACE = "/var/lib/nvidia-docker/volumes"
class Handler(http.server.BaseHTTPRequestHandler):
    def do_POST(self):
        text = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        name = json.loads(text or b"{}").get("Name", "")
        volume = {"Name": name, "Mountpoint": PLACE}
        answer = {
            "/Plugin.Activate": {"Implements": ["VolumeDriver"]},
            "/VolumeDriver.Get": {"Volume": volume},
            "/VolumeDriver.List": {"Volumes": [volume]},
            "/VolumeDriver.Capabilities": {"Capabilities": {"Scope": "local"}},
        }.get(self.path, {"Mountpoint": PLACE})
        body = json.dumps({**answer, "Err": ""}).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)
    def address_string(self):
        return "docker"
os.makedirs(os.path.dirname(SOCKET), exist_ok=True)
os.makedirs(PLACE, exist_ok=True)
if os.path.exists(SOCKET):
    os.unlink(SOCKET)
socketserver.ThreadingUnixStreamServer(SOCKET, Handler).serve_forever()
"""
UNIT = """[Unit]
Description=NVIDIA Docker plugin
[Service]
ExecStart=/usr/bin/nvidia-docker-plugin
[Install]
WantedBy=multi-user.target
"""


@pytest.fixture
def node(lab: Lab) -> Iterator[Node]:
    """The host with docker, bare; bare again in the end."""
    node = lab.node("legacy")
    node.reset()
    yield node
    node.reset()


@pytest.fixture
def run(node: Node, gpunode: Callable[..., Ran]) -> Callable[..., Ran]:
    """gpunode on that host alone."""

    def ran(command: str, *options: str) -> Ran:
        return gpunode(command, "--json", "--limit", node.name, *options, timeout=800)

    return ran


def nvidia_docker_1(node: Node) -> None:
    """Its package, whose plugin runs and whose volume a container has."""
    package = deb.Package(
        "nvidia-docker",
        "1.0.1-1",
        "NVIDIA Docker container tools",
        files={
            "/usr/bin/nvidia-docker": '#!/bin/sh\nexec docker "$@"\n',
            "/usr/bin/nvidia-docker-plugin": PLUGIN,
            "/lib/systemd/system/nvidia-docker.service": UNIT,
        },
        scripts={"prerm": "#!/bin/sh\nsystemctl disable --now nvidia-docker || :\n"},
    )
    with tempfile.TemporaryDirectory() as folder:
        made = package.build(Path(folder))
        node.exec(
            ["sh", "-c", "base64 -d >/root/nvidia-docker.deb"],
            input=base64.encodebytes(made.read_bytes()).decode(),
        )
    shell(node, "dpkg -i /root/nvidia-docker.deb && systemctl daemon-reload")
    shell(node, "systemctl enable --now nvidia-docker && systemctl is-active nvidia-docker")
    node.wait_until("the plugin's socket", ["test", "-S", "/run/docker/plugins/nvidia-docker.sock"])
    volume = f"--volume-driver=nvidia-docker -v {VOLUME}:/usr/local/nvidia:ro"
    shell(node, f"docker create --name trainer {volume} $(docker images -q | head -1) sleep 1")


def test_nvidia_docker_1_goes_when_no_container_needs_it(node: Node, run: Callable[..., Ran]):
    """A container that has its volume would not start again: it is named, and nothing is changed until it is removed."""
    nvidia_docker_1(node)
    before = node.read("/etc/docker/daemon.json")

    refused = run("provision", "--yes")
    assert refused.code == 4, refused
    assert "containers still use its volumes: trainer" in str(refused.of("outcome")[-1]["error"])
    assert node.read("/etc/docker/daemon.json") == before
    assert node.exec(["systemctl", "is-active", "nvidia-docker"]).stdout.strip() == "active"

    shell(node, "docker rm -f trainer && docker volume rm -f " + VOLUME)
    proven(run("provision", "--yes"), GPUS)
    status = node.exec(["dpkg-query", "-W", "-f", "${db:Status-Status}", "nvidia-docker"], check=False).stdout
    assert status != "installed"
    assert node.exec(["test", "-e", "/usr/bin/nvidia-docker-plugin"], check=False).returncode
    assert run("plan", "--exit-code").code == 0


def gpushare(lab: Lab, node: Node) -> None:
    """The DaemonSet of its manifest (device-plugin-ds.yaml) and the label that brings it; the program only sleeps."""
    labels = {"component": "gpushare-device-plugin", "app": "gpushare", "name": GPUSHARE}
    container = {"name": "gpushare", "image": lab.table["images"]["base"], "command": ["sleep", "infinity"]}
    pod = {
        "hostNetwork": True,
        "nodeSelector": {"gpushare": "true"},
        "volumes": [{"name": "device-plugin", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}],
        "containers": [container | {"imagePullPolicy": "Never"}],
        "terminationGracePeriodSeconds": 0,
    }
    spec: dict[str, Any] = {
        "selector": {"matchLabels": labels},
        "template": {"metadata": {"labels": labels}, "spec": pod},
    }
    lab.request("POST", DAEMONSETS, {"metadata": {"name": GPUSHARE}, "spec": spec})


def label(lab: Lab, node: Node, value: str | None) -> None:
    """`kubectl label node NODE gpushare=true`, or gpushare-."""
    lab.request("PATCH", f"/api/v1/nodes/{node.name}", {"metadata": {"labels": {"gpushare": value}}})


def scheduled(lab: Lab) -> int:
    return int(lab.request("GET", f"{DAEMONSETS}/{GPUSHARE}")["status"].get("desiredNumberScheduled", 0))


def test_gpushares_plugin_is_named_until_it_leaves_the_node(lab: Lab, node: Node, run: Callable[..., Ran]):
    """Every run says that it offers the GPUs too, and how it goes; without its label the node has one plugin."""
    proven(run("provision", "--yes"), GPUS)
    gpushare(lab, node)
    try:
        label(lab, node, "true")
        wait("gpushare's pod", lambda: scheduled(lab) == 1, 60)
        assert THEIRS in run("plan").stdout
        label(lab, node, None)
        wait("the end of gpushare's pod", lambda: scheduled(lab) == 0, 60)
        assert THEIRS not in run("plan").stdout
        assert run("verify").code == 0
    finally:
        label(lab, node, None)
        lab.request("DELETE", f"{DAEMONSETS}/{GPUSHARE}")
