"""The GPU Operator's part of a node, without its images: labels, DaemonSets that sleep, and what its driver container and its toolkit
leave on the host. Source: NVIDIA/gpu-operator v26.7.0 (controllers/state_manager.go, assets/state-driver), docs/switching.md."""

from typing import Any
from urllib.error import HTTPError

from .api import Lab, Node
from .progress import wait

NAMESPACE = "gpu-operator"
DAEMONSETS = f"/apis/apps/v1/namespaces/{NAMESPACE}/daemonsets"
DEPLOY = "nvidia.com/gpu.deploy."
# Operand → its DaemonSet, and the folder of the host that it mounts.
OPERANDS = {
    "driver": ("nvidia-driver-daemonset", "/run/nvidia"),
    "container-toolkit": ("nvidia-container-toolkit-daemonset", "/usr/local/nvidia"),
    "device-plugin": ("nvidia-device-plugin-daemonset", "/var/lib/kubelet/device-plugins"),
}
READY = "/run/nvidia/validations/.driver-ctr-ready"
TOOLKIT = "/usr/local/nvidia/toolkit"
CONFIG, DROP_IN = "/etc/containerd/config.toml", "/etc/containerd/conf.d/99-nvidia.toml"
IMPORTS = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
# As nvidia-ctk writes it: all of the section, since it takes the place of the main file's.
RUNTIMES = f"""version = 3

[plugins]

  [plugins."io.containerd.cri.v1.runtime"]
    restrict_oom_score_adj = true

    [plugins."io.containerd.cri.v1.runtime".cni]
      bin_dirs = ["/opt/cni/bin"]
      conf_dir = "/etc/cni/net.d"

    [plugins."io.containerd.cri.v1.runtime".containerd]
      default_runtime_name = "nvidia"

      [plugins."io.containerd.cri.v1.runtime".containerd.runtimes]

        [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia]
          runtime_type = "io.containerd.runc.v2"

          [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.nvidia.options]
            BinaryName = "{TOOLKIT}/nvidia-container-runtime"
            SystemdCgroup = false

        [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc]
          runtime_type = "io.containerd.runc.v2"

          [plugins."io.containerd.cri.v1.runtime".containerd.runtimes.runc.options]
            SystemdCgroup = false
"""
# The module is in the container's file system alone. Loading it takes no more of a file than what modinfo prints of it.
LOAD = """
folder=/lib/modules/$(uname -r)/updates
mkdir -p $folder
for name in nvidia nvidia-uvm; do
    printf '\\0version=%s\\0license=Dual MIT/GPL\\0vermagic=%s SMP \\0' "$1" "$(uname -r)" > $folder/$name.ko
done
modprobe nvidia && modprobe nvidia_uvm
rm -r $folder
"""


def deploy(lab: Lab) -> None:
    """Its namespace and DaemonSets, as its chart and its controller make them."""
    lab.request("POST", "/api/v1/namespaces", {"metadata": {"name": NAMESPACE}})
    for operand, (name, path) in OPERANDS.items():
        container = {
            "name": name,
            "image": lab.table["images"]["busybox"],
            "imagePullPolicy": "Never",
            "command": ["sleep", "infinity"],
        }
        pod = {
            "nodeSelector": {DEPLOY + operand: "true"},
            "tolerations": [{"operator": "Exists"}],
            "terminationGracePeriodSeconds": 0,
            "volumes": [{"name": "host", "hostPath": {"path": path, "type": "DirectoryOrCreate"}}],
            "containers": [container | {"volumeMounts": [{"name": "host", "mountPath": "/host"}]}],
        }
        spec: dict[str, Any] = {
            "selector": {"matchLabels": {"app": name}},
            "template": {"metadata": {"labels": {"app": name}}, "spec": pod},
        }
        lab.request("POST", DAEMONSETS, {"metadata": {"name": name}, "spec": spec})


def remove(lab: Lab, node: Node) -> None:
    """As its chart's removal, with its labels."""
    try:
        lab.request("DELETE", f"/api/v1/namespaces/{NAMESPACE}")
    except HTTPError as error:
        if error.code != 404:
            raise
        return
    labels = lab.request("GET", f"/api/v1/nodes/{node.name}")["metadata"]["labels"]
    label(lab, node, **{key.removeprefix(DEPLOY): None for key in labels if key.startswith(DEPLOY)})
    wait("the operator's namespace to be gone", lambda: not _exists(lab), 60)


def _exists(lab: Lab) -> bool:
    items = lab.request("GET", "/api/v1/namespaces")["items"]
    return NAMESPACE in {item["metadata"]["name"] for item in items}


def label(lab: Lab, node: Node, **values: str | None) -> None:
    """`kubectl label node NODE nvidia.com/gpu.deploy.…`, by the last part of the label; None removes it."""
    labels = {DEPLOY + name.replace("_", "-"): value for name, value in values.items()}
    lab.request("PATCH", f"/api/v1/nodes/{node.name}", {"metadata": {"labels": labels}})


def reconcile(lab: Lab, node: Node, driver: str = "true") -> None:
    """What its controller makes of the user's labels `operands` and `driver`; returns when its pods have come or gone. From
    NVIDIA/gpu-operator#2575 on the driver's pod stays without the others. `driver`: "pre-installed" where the host has one."""
    labels = lab.request("GET", f"/api/v1/nodes/{node.name}")["metadata"]["labels"]
    here = labels.get(f"{DEPLOY}operands") != "false"
    driver = labels.get(f"{DEPLOY}driver") or driver
    wanted = {"driver": driver, **dict.fromkeys(OPERANDS.keys() - {"driver"}, "true" if here else None)}
    label(lab, node, **wanted)
    for operand, (name, _) in OPERANDS.items():
        count = int(wanted[operand] == "true")
        wait(
            f"{count} pods of {name}", lambda name=name, count=count: _ready(lab, name) == (count, count), 60
        )


def _ready(lab: Lab, name: str) -> tuple[int, int]:
    status = lab.request("GET", f"{DAEMONSETS}/{name}").get("status", {})
    pods = lab.request("GET", f"/api/v1/namespaces/{NAMESPACE}/pods?labelSelector=app%3D{name}")["items"]
    return int(status.get("numberReady", 0)), len(pods)


def start_driver(node: Node, version: str) -> None:
    """What its driver container does to the host: it loads its modules, and says that it is ready."""
    node.exec(["sh", "-ec", LOAD, "sh", version])
    node.exec(["sh", "-ec", f"mkdir -p $(dirname {READY}) && touch {READY}"])


def stop_driver(node: Node) -> None:
    """At its end it takes its mark away, and leaves the modules to whoever still uses them."""
    node.exec(["rm", READY])


def configure(node: Node) -> None:
    """What its toolkit container does to the host."""
    runtime = f"{TOOLKIT}/nvidia-container-runtime"
    node.exec(["mkdir", "-p", TOOLKIT, DROP_IN.rpartition("/")[0]])
    node.write(runtime, '#!/bin/sh\nexec runc "$@"\n')
    node.exec(["chmod", "755", runtime])
    node.write(DROP_IN, RUNTIMES)
    text = node.read(CONFIG)
    if IMPORTS not in text:
        node.write(CONFIG, text.replace("version = 3\n", f"version = 3\n{IMPORTS}"))
    node.exec(["systemctl", "restart", "containerd"])
