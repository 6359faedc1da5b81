"""Jobs on simulated hosts, and changes that would end them."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from gpunode.agent.record import RECORDS
from gpunode.sim.process import Demo

from .clusters import Client

JOBS = "/api/v1/namespaces/default/pods"


def client(demo: Demo) -> Client:
    return Client(demo.folder / "kubeconfig")


def job(
    api: Client,
    name: str,
    node: str,
    seconds: int = 0,
    *,
    command: Sequence[str] = (),
    namespace: str = "default",
    image: str = "gpunode-deviceplugin:demo",
    privileged: bool = False,
    gpus: int = 1,
    **meta: Any,
) -> None:
    """A job's pod with a GPU or more, which ends by itself. A container that is killed would be started again."""
    container = {"name": "c", "image": image, "command": command or ["sleep", str(seconds)]}
    container |= {"resources": {"limits": {"nvidia.com/gpu": str(gpus)}}}
    container |= {"securityContext": {"privileged": True}} if privileged else {}
    spec = {"nodeName": node, "restartPolicy": "OnFailure", "containers": [container]}
    pods = f"/api/v1/namespaces/{namespace}/pods"
    code, answer = api.ask("POST", pods, {"kind": "Pod", "metadata": {"name": name, **meta}, "spec": spec})
    assert code == 201, answer


def cordoned(api: Client) -> list[str]:
    items = api.ask("GET", "/api/v1/nodes")[1]["items"]
    return [item["metadata"]["name"] for item in items if item["spec"].get("unschedulable")]


def change(demo: Demo, host: str) -> None:
    """Something that gpunode corrects with a restart of docker."""
    (demo.states[host].root / "etc/docker/daemon.json").write_text('{"log-driver": "journald"}\n')


def describe(demo: Demo, *, kubeconfig: Path | None = None, **defaults: Any) -> None:
    """Write defaults, or another kubeconfig, into the demo's inventory."""
    inventory = yaml.safe_load(demo.inventory.read_text())
    inventory["defaults"] |= defaults
    inventory["cluster"] |= {"kubeconfig": str(kubeconfig)} if kubeconfig else {}
    demo.inventory.write_text(yaml.safe_dump(inventory))


def applies(demo: Demo, host: str) -> set[str]:
    """The applies that the host has a record of."""
    folder = demo.states[host].root / RECORDS.lstrip("/")
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


def ended(api: Client, name: str) -> tuple[str, int]:
    """The phase of a job's pod, and how often its container was started again."""
    pod: dict[str, Any] = api.ask("GET", f"{JOBS}/{name}")[1]
    return pod["status"]["phase"], pod["status"]["containerStatuses"][0]["restartCount"]
