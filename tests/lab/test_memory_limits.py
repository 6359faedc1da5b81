"""Memory limits by the driver, with the real kubelet, containerd and container toolkit; NVML and CUDA are stand-ins.

Where the machine has cgroup v1, it has v2's tree beside it, in which every container has a cgroup too. There the plugin and the
toolkit's hook are shown that tree as they would find it on a host with v2 alone; nothing else is different.
"""

import io
import json
import tarfile
from collections.abc import Callable, Iterator
from typing import Any
from urllib.parse import urlencode

import pytest
import yaml

from . import machine
from .api import Lab, Node
from .conftest import Ran
from .docker import docker
from .plugin_log import PLUGIN, plugin_log
from .pods import Pods
from .progress import wait

pytestmark = pytest.mark.lab

MEM = "aliyun.com/gpu-mem"
UNITS = 4 * 79
UNIFIED = "/sys/fs/cgroup/unified"
HOOK = "/usr/bin/nvidia-cdi-hook"
WRAPPER = f"""#!/bin/sh
if [ "$1" = apply-cuda-memory-limits ]; then
    exec unshare -m sh -c 'mount --bind {UNIFIED} /sys/fs/cgroup && exec {HOOK}.real "$@"' hook "$@"
fi
exec {HOOK}.real "$@"
"""


@pytest.fixture(scope="module")
def modern(lab: Lab, gpunode: Callable[..., Ran]) -> Iterator[Node]:
    """A host with a driver that can limit memory, which it shares; bare again afterwards."""
    node = lab.node("modern")
    node.reset()
    config = "{version: v1, flags: {plugin: {deviceListStrategy: cdi-cri}}, sharing: {memory: {}}}\n"
    lab.inventory.with_name("limits-plugin.yaml").write_text(config)
    inventory = yaml.safe_load(lab.inventory.read_text())
    inventory["cluster"]["plugin"]["config"] = "limits-plugin.yaml"
    inventory["groups"]["h100"]["hosts"][0]["driver"] = "615"
    file = lab.inventory.with_name("limits.yaml")
    file.write_text(yaml.safe_dump(inventory))
    ran = gpunode("provision", "--yes", "--json", "--no-run", "--limit", "modern", inventory=file)
    assert ran.code == 0, ran
    if not machine.has_cgroup2():
        node.exec(["mv", HOOK, f"{HOOK}.real"])
        node.write(HOOK, WRAPPER)
        node.exec(["chmod", "755", HOOK])
    yield node
    node.reset()


@pytest.fixture
def cgroup_v2(lab: Lab, modern: Node) -> Iterator[None]:
    """The plugin's pods are shown the tree of v2, where they would not see it anyway."""
    if machine.has_cgroup2():
        yield
        return
    volume = {"name": "cgroup", "hostPath": {"path": UNIFIED}}
    mount = {"name": "cgroup", "mountPath": "/sys/fs/cgroup", "readOnly": True}

    def change(act: Callable[[list[Any], Any], None]) -> None:
        query = urlencode({"labelSelector": PLUGIN})
        for listed in lab.request("GET", f"/apis/apps/v1/daemonsets?{query}")["items"]:
            meta = listed["metadata"]
            path = f"/apis/apps/v1/namespaces/{meta['namespace']}/daemonsets/{meta['name']}"
            daemonset = lab.request("GET", path)
            spec = daemonset["spec"]["template"]["spec"]
            act(spec["volumes"], volume)
            act(spec["containers"][0]["volumeMounts"], mount)
            lab.request("PUT", path, daemonset)

    change(lambda several, each: several.append(each))
    yield
    change(lambda several, entry: several.remove(next(it for it in several if it["name"] == entry["name"])))


def image_with(lab: Lab, node: Node, env: dict[str, str]) -> str:
    """The plugin's image with variables of its own, loaded on the node; its name."""
    archive, name = lab.inventory.with_name("greedy.tar"), "gpunode-lab/greedy:1"
    with tarfile.open(lab.table["images"]["plugin_archive"]) as old, tarfile.open(archive, "w") as new:
        files = {member.name: old.extractfile(member) for member in old.getmembers() if member.isfile()}
        content = {path: file.read() for path, file in files.items() if file is not None}
        manifest = json.loads(content["manifest.json"])[:1]
        config = json.loads(content[manifest[0]["Config"]])
        config["config"]["Env"] = [
            *(config["config"].get("Env") or []),
            *(f"{key}={value}" for key, value in env.items()),
        ]
        manifest[0] |= {"Config": "greedy.json", "RepoTags": [name]}
        content |= {
            "greedy.json": json.dumps(config).encode(),
            "manifest.json": json.dumps(manifest).encode(),
        }
        for path in ("manifest.json", "greedy.json", *manifest[0]["Layers"]):
            member = tarfile.TarInfo(path)
            member.size = len(content[path])
            new.addfile(member, io.BytesIO(content[path]))
    docker(lab.slot, "cp", archive, f"{node.name}:/root/greedy.tar")
    node.exec(["ctr", "-n", "k8s.io", "images", "import", "/root/greedy.tar"])
    return name


@pytest.mark.skipif(machine.has_cgroup2(), reason="this machine has cgroup v2: the driver can limit memory")
def test_cgroup_v1_alone_keeps_limits_off(lab: Lab, modern: Node, made: Pods):
    """Driver and toolkit could; the hook would fail every container that asks for it, so none does."""
    wait("the plugin's verdict", lambda: "does not enforce memory limits" in plugin_log(lab, "modern"), 60)
    (verdict,) = [
        line for line in plugin_log(lab, "modern").splitlines() if "does not enforce memory limits" in line
    ]
    assert "the host has cgroup v1: the driver limits cgroups of v2 only gpus=0,1,2,3" in verdict
    (seen,) = made.seen(made.make("unlimited", "modern", 4, MEM))
    assert seen.memory == (81559,)


def test_containers_have_no_more_than_they_asked_for(
    lab: Lab, modern: Node, cgroup_v2: None, made: Pods, gpunode: Callable[..., Ran]
):
    """The real hook sets what the plugin says; CUDA in the pod shows that as the GPU's size; verify says so."""
    wait("the plugin's verdict", lambda: "the driver enforces memory limits" in plugin_log(lab, "modern"), 60)
    wait(
        "the units",
        lambda: lab.request("GET", "/api/v1/nodes/modern")["status"]["allocatable"].get(MEM) == str(UNITS),
        60,
    )
    greedy = {"NVIDIA_GPU_MEMORY_REQUEST": "0", "NVIDIA_GPU_MEMORY_LIMIT": "90000"}
    image = image_with(lab, modern, greedy)
    names = [
        made.make("four", "modern", 4, MEM),
        made.make("greedy", "modern", 6, MEM, env=greedy),
        made.make("greedy-image", "modern", 5, MEM, image=image),
    ]
    four, six, five = made.seen(*names)
    assert (four.memory, six.memory, five.memory) == ((4096,), (6144,), (5120,))
    assert (six.env["NVIDIA_GPU_MEMORY_LIMIT"], five.env["NVIDIA_GPU_MEMORY_LIMIT"]) == ("6144", "5120")
    assert four.uuids == six.uuids == five.uuids
    assert modern.exec(["sh", "-c", "ls -d /run/gpunode-limits.* 2>/dev/null"], check=False).stdout == ""
    made.delete()
    ran = gpunode("verify", "--json", "--limit", "modern", inventory=lab.inventory.with_name("limits.yaml"))
    assert ran.code == 0, ran
    (pod,) = [link for link in ran.of("link", "modern") if link["layer"] == "pod"]
    assert "; two pods at the same time on GPU-" in pod["text"]
    sizes = "80896 MiB, 79872 MiB, 1024 MiB"
    assert pod["text"].endswith(f"; the driver held each to its share of memory: {sizes}")
