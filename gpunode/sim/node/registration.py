"""The Node object of a simulated machine, as its kubelet registers and updates it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from gpunode.sim.apiserver.store import Object, now
from gpunode.sim.host.answers import CONTAINERD, DOCKER
from gpunode.sim.host.machine import Machine, Now

ADDRESS = "127.0.0.1"
CAPACITY = {"cpu": "64", "memory": "528000000Ki", "ephemeral-storage": "1700000000Ki", "pods": "110"}
PRESSURES = {
    "MemoryPressure": ("KubeletHasSufficientMemory", "kubelet has sufficient memory available"),
    "DiskPressure": ("KubeletHasNoDiskPressure", "kubelet has no disk pressure"),
    "PIDPressure": ("KubeletHasSufficientPID", "kubelet has sufficient PID available"),
}


def registered(name: str, host: Now) -> Object:
    """The Node object that a kubelet creates if there is none."""
    labels = {"kubernetes.io/arch": "amd64", "kubernetes.io/os": "linux", "kubernetes.io/hostname": name}
    labels |= {f"beta.{key}": value for key, value in labels.items() if not key.endswith("hostname")}
    for word in host.arguments:
        if word.startswith("--node-labels="):
            pairs = (pair.partition("=") for pair in word.partition("=")[2].split(",") if pair)
            labels |= {key: value for key, _, value in pairs}
    meta = {"name": name, "labels": dict(sorted(labels.items()))}
    return {"kind": "Node", "apiVersion": "v1", "metadata": meta, "spec": {}, "status": {}}


def restarted(status: Object) -> Object:
    """The status that a starting kubelet finds, with its extended resources at 0 until they are counted again."""
    known = status.get("capacity", {})
    return {**status, "capacity": {name: "0" if "/" in name else count for name, count in known.items()}}


def status(
    before: Object, machine: Machine, host: Now, root: Path, devices: Mapping[str, tuple[int, int]]
) -> Object:
    """The node's status. `devices` are (all, healthy) by resource. Extended resources that clients count stay."""
    counted = {name: count for name, count in before.get("capacity", {}).items() if "/" in name}
    up = host.running(f"{machine.runtime}.service")
    version = f"docker://{DOCKER}" if machine.runtime == "docker" else f"containerd://{CONTAINERD}"
    return {
        "capacity": {**CAPACITY, **counted, **{name: str(count) for name, (count, _) in devices.items()}},
        "allocatable": {
            **CAPACITY,
            **counted,
            **{name: str(healthy) for name, (_, healthy) in devices.items()},
        },
        "conditions": _conditions(before, up=up),
        "addresses": [
            {"type": "InternalIP", "address": ADDRESS},
            {"type": "Hostname", "address": machine.name},
        ],
        "daemonEndpoints": {"kubeletEndpoint": {"Port": 10250}},
        "nodeInfo": {
            "machineID": _line(root / "etc/machine-id"),
            "systemUUID": _line(root / "sys/class/dmi/id/product_uuid"),
            "bootID": host.boot_id,
            "kernelVersion": machine.kernel,
            "osImage": _system(root),
            "containerRuntimeVersion": version,
            "kubeletVersion": f"v{machine.kubelet}",
            "kubeProxyVersion": f"v{machine.kubelet}",
            "operatingSystem": "linux",
            "architecture": "amd64",
        },
        "images": [{"names": [name], "sizeBytes": 0} for name in host.images],
    }


def _conditions(before: Object, *, up: bool) -> list[Object]:
    found = [
        {"type": kind, "status": "False", "reason": reason, "message": message}
        for kind, (reason, message) in PRESSURES.items()
    ]
    ready = (
        ("True", "KubeletReady", "kubelet is posting ready status")
        if up
        else ("False", "KubeletNotReady", "container runtime is down")
    )
    found.append(dict(zip(("type", "status", "reason", "message"), ("Ready", *ready), strict=True)))
    known = {one["type"]: one for one in before.get("conditions") or []}
    for one in found:
        old = known.get(one["type"], {})
        same = old.get("status") == one["status"]
        one["lastHeartbeatTime"] = old["lastHeartbeatTime"] if same else now()
        one["lastTransitionTime"] = old["lastTransitionTime"] if same else now()
    return found


def _system(root: Path) -> str:
    for line in (root / "etc/os-release").read_text(encoding="utf-8").splitlines():
        if line.startswith("PRETTY_NAME="):
            return line.partition("=")[2].strip('"')
    return ""


def _line(path: Path) -> str:
    return path.read_text(encoding="utf-8").strip()
