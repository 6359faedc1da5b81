"""From the device plugin to a DRA driver and back, on a real kubelet and scheduler. The driver is the tests' own: NVIDIA's was not run."""

import base64
import contextlib
import json
import re
import urllib.error
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.engine import acceptance

from .api import Lab, Node
from .conftest import Ran
from .pods import Pods
from .progress import wait

pytestmark = pytest.mark.lab

NODE = "modern"
CLASS = "gpu.nvidia.com"
API = "/apis/resource.k8s.io/v1"
FOLDER = "/run/lab-dra"
UNIT = "lab-dra"


@pytest.fixture(scope="module", autouse=True)
def provisioned(gpunode: Callable[..., Ran]) -> Iterator[None]:
    """A GPU node with the device plugin, before and after."""
    ran = gpunode("provision", "--yes", "--json", "--no-run")
    assert ran.code == 0, ran
    yield
    ran = gpunode("provision", "--yes", "--json", "--no-run")
    assert ran.code == 0, ran


@pytest.fixture
def by_dra(inventory: Callable[..., Path]) -> Path:
    """The lab's inventory, in which a DRA driver serves the node."""

    def change(text: str) -> str:
        document = yaml.safe_load(text)
        for group in document["groups"].values():
            for host in group["hosts"]:
                if host["name"] == NODE:
                    host["allocation"] = "dra"
        return yaml.safe_dump(document)

    return inventory(change)


def publish(lab: Lab, uuids: list[str]) -> dict[str, str]:
    """The driver's objects; UUID of each device."""
    expression = f"device.driver == '{CLASS}' && device.attributes['{CLASS}'].type == 'gpu'"
    kind = {"apiVersion": "resource.k8s.io/v1", "metadata": {"name": CLASS}}
    lab.request(
        "POST",
        f"{API}/deviceclasses",
        {**kind, "kind": "DeviceClass", "spec": {"selectors": [{"cel": {"expression": expression}}]}},
    )
    devices = {f"gpu-{number}": uuid for number, uuid in enumerate(uuids)}
    spec = {
        "driver": CLASS,
        "nodeName": NODE,
        "pool": {"name": NODE, "generation": 1, "resourceSliceCount": 1},
        "devices": [
            {"name": name, "attributes": {"type": {"string": "gpu"}, "uuid": {"string": uuid}}}
            for name, uuid in devices.items()
        ],
    }
    lab.request(
        "POST",
        f"{API}/resourceslices",
        {**kind, "kind": "ResourceSlice", "metadata": {"name": f"{NODE}-gpus"}, "spec": spec},
    )
    return devices


def start_driver(lab: Lab, node: Node, devices: dict[str, str]) -> None:
    access = yaml.safe_load(lab.kubeconfig.read_text())
    (cluster,), (user,) = access["clusters"], access["users"]
    data = {
        "ca": cluster["cluster"]["certificate-authority-data"],
        "cert": user["user"]["client-certificate-data"],
        "key": user["user"]["client-key-data"],
    }
    node.exec(["mkdir", "-p", FOLDER])
    for name, text in data.items():
        node.write(f"{FOLDER}/{name}", base64.b64decode(text).decode())
    settings = {name: f"{FOLDER}/{name}" for name in data}
    settings |= {"server": cluster["cluster"]["server"], "devices": devices}
    node.write(f"{FOLDER}/settings.json", json.dumps(settings))
    node.write(f"{FOLDER}/driver.py", Path(__file__).with_name("dra_driver.py").read_text())
    program = base64.b64encode(acceptance._bundle()).decode()
    node.exec(["sh", "-c", f"base64 -d > {FOLDER}/gpunode.zip"], input=program)
    environment = f"--setenv=PYTHONPATH={FOLDER}/gpunode.zip"
    node.exec(
        [
            "systemd-run",
            f"--unit={UNIT}",
            environment,
            "python3",
            f"{FOLDER}/driver.py",
            f"{FOLDER}/settings.json",
        ]
    )
    wait(
        "the kubelet to register the driver",
        lambda: "registered" in node.exec(["journalctl", "-u", UNIT]).stdout,
        60,
    )


@pytest.fixture
def driver(lab: Lab) -> Iterator[Callable[[list[str]], None]]:
    """Brings the driver to the node, for GPUs of these UUIDs; takes it away in the end."""
    node = lab.node(NODE)

    def bring(uuids: list[str]) -> None:
        start_driver(lab, node, publish(lab, uuids))

    yield bring
    node.exec(["systemctl", "stop", UNIT], check=False)
    node.exec(["sh", "-c", f"rm -rf {FOLDER} /var/lib/kubelet/plugins_registry/{CLASS}-reg.sock"])
    for path in (f"deviceclasses/{CLASS}", f"resourceslices/{NODE}-gpus"):
        with contextlib.suppress(
            urllib.error.HTTPError
        ):  # the kubelet deletes slices of a driver that is gone
            lab.request("DELETE", f"{API}/{path}")


def claim_pod(lab: Lab, made: Pods) -> str:
    """A pod that claims one GPU, and goes on holding it."""
    requests = [{"name": "gpu", "exactly": {"deviceClassName": CLASS}}]
    claim = {"metadata": {"name": "train"}, "spec": {"devices": {"requests": requests}}}
    lab.request(
        "POST",
        f"{API}/namespaces/default/resourceclaims",
        {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", **claim},
    )
    container = {
        "name": "c",
        "image": made.image,
        "command": ["sleep", "3600"],
        "resources": {"claims": [{"name": "gpu"}]},
    }
    spec: dict[str, Any] = {
        "nodeSelector": {"kubernetes.io/hostname": NODE},
        "terminationGracePeriodSeconds": 0,
        "resourceClaims": [{"name": "gpu", "resourceClaimName": "train"}],
        "containers": [container],
    }
    made.create({"apiVersion": "v1", "kind": "Pod", "metadata": {"name": "train"}, "spec": spec})
    wait("the pod with a claim to run", lambda: made.get("train")["status"]["phase"] == "Running", 60)
    return "train"


def test_a_node_goes_from_the_plugin_to_dra_and_back(
    lab: Lab, gpunode: Callable[..., Ran], made: Pods, by_dra: Path, driver: Callable[[list[str]], None]
):
    """Pods with GPUs of the one keep the other away; with the driver, vectoradd runs in pods with claims."""
    listed = lab.node(NODE).exec(["nvidia-smi", "-L"]).stdout
    uuids = re.findall(r"GPU-[0-9a-f-]+", listed)
    only = ("--yes", "--json", "--limit", NODE)

    made.seen(made.make("holds", NODE))
    held = gpunode("provision", *only, inventory=by_dra)
    assert held.code == 1, held
    assert "default/holds" in held.stdout
    assert lab.request("GET", f"/api/v1/nodes/{NODE}")["metadata"]["labels"]["gpunode.dev/gpu"] == "true"
    made.delete("holds")

    bare = gpunode("provision", *only, inventory=by_dra)
    assert bare.code == 1, bare
    assert "no-dra-driver" in bare.stdout, bare
    assert "gpunode.dev/gpu" not in lab.request("GET", f"/api/v1/nodes/{NODE}")["metadata"]["labels"]

    driver(uuids)
    proven = gpunode("provision", *only, inventory=by_dra)
    assert proven.code == 0, proven
    assert proven.of("verified")[0]["proof"].endswith("vectoradd passed on each"), proven
    assert not lab.request("GET", f"{API}/resourceclaimtemplates")["items"]

    claim_pod(lab, made)
    partly = gpunode("verify", "--json", "--limit", NODE, inventory=by_dra)
    (pod,) = [link for link in partly.of("link") if link["layer"] == "pod"]
    assert "in use by default/train" in pod["text"], partly
    made.delete("train")
    lab.request("DELETE", f"{API}/namespaces/default/resourceclaims/train")
