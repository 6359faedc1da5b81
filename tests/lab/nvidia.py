"""NVIDIA's own device plugin on a node of the lab, from the manifest that NVIDIA documents."""

import subprocess
import tempfile
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import yaml

from . import builds
from .api import Lab
from .docker import DOCKER, docker
from .progress import wait

NAMESPACE = "kube-system"
PODS = f"/api/v1/namespaces/{NAMESPACE}/pods"
DAEMONSETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
CONFIG_MAPS = f"/api/v1/namespaces/{NAMESPACE}/configmaps"
CONFIG = "nvidia-plugin-config"  # the ConfigMap, whose only key is `config.yaml`
# of its Dockerfile, deployments/container/Dockerfile
_IMAGE = (
    "ENV NVIDIA_DISABLE_REQUIRE=true NVIDIA_VISIBLE_DEVICES=all NVIDIA_DRIVER_CAPABILITIES=compute,utility",
    'ENTRYPOINT ["nvidia-device-plugin"]',
)


def manifest(node: str) -> dict[str, Any]:
    """Its static DaemonSet, for one node, by the nvidia runtime, and with a configuration file."""
    file = builds.source(builds.NVIDIA_PLUGIN) / "deployments/static/nvidia-device-plugin.yml"
    made: dict[str, Any] = yaml.safe_load(file.read_text())
    pod = made["spec"]["template"]["spec"]
    pod |= {"runtimeClassName": "nvidia", "nodeSelector": {"kubernetes.io/hostname": node}}
    pod["volumes"].append({"name": "config", "configMap": {"name": CONFIG}})
    (container,) = pod["containers"]
    container["volumeMounts"].append({"name": "config", "mountPath": "/config"})
    container["env"].append({"name": "CONFIG_FILE", "value": "/config/config.yaml"})
    return made


def load_image(lab: Lab, node: str) -> None:
    """Put its image onto the node, under the name that the manifest has."""
    program = builds.go(builds.NVIDIA_PLUGIN) / "nvidia-device-plugin"
    (container,) = manifest(node)["spec"]["template"]["spec"]["containers"]
    made = docker(lab.slot, "create", lab.table["images"]["base"])
    try:
        docker(lab.slot, "cp", program, f"{made}:/usr/bin/")
        docker(lab.slot, "commit", *(f"--change={each}" for each in _IMAGE), made, container["image"])
    finally:
        docker(lab.slot, "rm", made)
    with tempfile.NamedTemporaryFile() as archive:
        docker(lab.slot, "save", "-o", archive.name, container["image"])
        into = [
            DOCKER,
            "-H",
            lab.slot.docker_host,
            "exec",
            "-i",
            node,
            "ctr",
            "-n",
            "k8s.io",
            "images",
            "import",
            "-",
        ]
        with Path(archive.name).open("rb") as image:
            subprocess.run(into, stdin=image, check=True, capture_output=True)


def deploy(lab: Lab, node: str, config: str) -> None:
    """As `kubectl apply -f` would, of ConfigMap and DaemonSet; returns when its pod runs."""
    data = {"metadata": {"name": CONFIG}, "data": {"config.yaml": config}}
    lab.request("POST", CONFIG_MAPS, data)
    lab.request("POST", DAEMONSETS, manifest(node))
    wait("NVIDIA's plugin to run", lambda: "Registered device plugin" in log(lab), 60)


def remove(lab: Lab) -> None:
    """As `kubectl delete` would, of both; returns when its pod is gone."""
    for kind in (DAEMONSETS, CONFIG_MAPS):
        for item in lab.request("GET", kind)["items"]:
            if item["metadata"]["name"] in (CONFIG, "nvidia-device-plugin-daemonset"):
                lab.request("DELETE", f"{kind}/{item['metadata']['name']}")
    wait("NVIDIA's plugin to be gone", lambda: not pods(lab), 60)


def pods(lab: Lab) -> list[dict[str, Any]]:
    query = urlencode({"labelSelector": "name=nvidia-device-plugin-ds"})
    return list(lab.request("GET", f"{PODS}?{query}")["items"])


def log(lab: Lab) -> str:
    """What its pod has said; "" while there is none that runs."""
    running = [
        pod["metadata"]["name"]
        for pod in pods(lab)
        if pod["status"]["phase"] == "Running" and "deletionTimestamp" not in pod["metadata"]
    ]
    return str(lab.request("GET", f"{PODS}/{running[0]}/log")) if running else ""
