"""The kubelet's own record of what containers have, in the formats that kubelets wrote."""

import base64
import json

import pytest

from gpunode.contract.checkpoint import Entry, entries, healthy_ids
from gpunode.contract.status import Pod
from gpunode.deviceplugin.kubelet.reclaim import pod_names, unreported_entries
from gpunode.deviceplugin.state import ContainerDevices
from gpunode.sim.node import v1beta1_pb2

GPU = "nvidia.com/gpu"
GPUSHARES = {
    "ALIYUN_COM_GPU_MEM_POD": "4",
    "ALIYUN_COM_GPU_MEM_CONTAINER": "4",
    "ALIYUN_COM_GPU_MEM_DEV": "16",
}


def has(container: str, *ids: str, pod: str = "1-2-3") -> Entry:
    return Entry(pod, container, GPU, frozenset(ids))


def written(path, *devices: object) -> None:
    entries = [
        {
            "PodUID": "1-2-3",
            "ContainerName": f"c{number}",
            "ResourceName": GPU,
            "DeviceIDs": device_ids,
            "AllocResp": "CgA=",
        }
        for number, device_ids in enumerate(devices)
    ]
    data = {"PodDeviceEntries": entries or None, "RegisteredDevices": {GPU: ["GPU-a"]}}
    path.write_text(json.dumps({"Data": data, "Checksum": 4242}))


@pytest.mark.parametrize(
    "devices",
    [
        {"0": ["GPU-a"], "1": ["GPU-b"]},
        {"-1": ["GPU-b", "GPU-a"]},  # of no NUMA node
    ],
)
def test_numa_nodes_do_not_matter(tmp_path, devices):
    """pkg/kubelet/cm/devicemanager/checkpoint of Kubernetes 1.23 and 1.36."""
    written(tmp_path / "file", devices)
    assert entries(tmp_path / "file") == (has("c0", "GPU-a", "GPU-b"),)


@pytest.mark.parametrize(
    ("envs", "index"),
    [
        (GPUSHARES | {"ALIYUN_COM_GPU_MEM_IDX": "1", "NVIDIA_VISIBLE_DEVICES": "1"}, "1"),
        (
            GPUSHARES | {"ALIYUN_COM_GPU_MEM_IDX": "-1", "NVIDIA_VISIBLE_DEVICES": "no-gpu-has-4GiB-to-run"},
            "-1",
        ),
        ({"ALIYUN_COM_GPU_MEM_IDX": "12"}, "12"),
        ({"ALIYUN_COM_GPU_MEM_IDX": "3" * 200}, ""),
        (GPUSHARES, ""),
        ({}, ""),
    ],
)
def test_the_gpu_that_a_plugin_named_in_its_answer_is_read(tmp_path, envs, index):
    """gpushare's ids do not say which; the kubelet keeps the answer as it came.

    The first two are its real plugin's (commit 45fb8b8): the kubelet asked for a pod that its annotation places on GPU 0, and the
    plugin gave it the 1 of an equal pod that had waited longer.
    """
    answer = v1beta1_pb2.ContainerAllocateResponse(envs=envs)
    answer.mounts.add(container_path="/a", host_path="/b")
    written(tmp_path / "file", {"0": ["GPU-a-_-0"]})
    text = (tmp_path / "file").read_text()
    kept = base64.b64encode(answer.SerializeToString()).decode()
    (tmp_path / "file").write_text(text.replace("CgA=", kept))
    assert [entry.index for entry in entries(tmp_path / "file")] == [index]


def test_a_kubelet_before_1_20_is_not_believed(tmp_path):
    """Pods that have ended stay in its record until it gives devices again (Kubernetes 1.10 to 1.15): perhaps for ever."""
    written(tmp_path / "file", ["GPU-a", "GPU-b"])
    assert entries(tmp_path / "file") == (has("c0"),)


def test_no_file_and_no_pods_are_nothing(tmp_path):
    """Of a new node, and of one without pods that have devices."""
    assert entries(tmp_path / "file") == ()
    written(tmp_path / "file")
    assert entries(tmp_path / "file") == ()


@pytest.mark.parametrize(
    "written",
    [
        {"Entries": [{"PodUID": "1", "ContainerName": "c", "ResourceName": GPU, "DeviceID": "GPU-a"}]},
        {"PodDeviceEntries": None, "RegisteredDevices": {GPU: ["GPU-a"]}},
    ],
)
def test_an_old_kubelets_record_counts_for_nothing(tmp_path, written):
    """As 1.8.15 and 1.9.11 wrote it; it would have pods that ended long ago."""
    (tmp_path / "file").write_text(json.dumps(written))
    assert entries(tmp_path / "file") == ()


def test_the_order_is_always_the_same(tmp_path):
    """The kubelet's is another one each time."""
    written(tmp_path / "file", {"0": ["GPU-a"]}, {"0": ["GPU-b"]})
    once = entries(tmp_path / "file")
    text = json.loads((tmp_path / "file").read_text())
    text["Data"]["PodDeviceEntries"].reverse()
    (tmp_path / "file").write_text(json.dumps(text))
    assert entries(tmp_path / "file") == once


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"Data": {"PodDeviceEntries": [{"PodUID": "1"}]}}'])
def test_what_is_no_record_is_an_error(tmp_path, text):
    """Not a node whose devices are all free."""
    (tmp_path / "file").write_text(text)
    with pytest.raises(ValueError):  # noqa: PT011 (json has words of its own)
        entries(tmp_path / "file")


@pytest.mark.parametrize(
    "text", ["[]", "[" * 9999, '{"Data": {"RegisteredDevices": {"nvidia.com/gpu": 1.5}}}']
)
def test_what_registers_no_units_is_an_error(text):
    with pytest.raises(ValueError, match="not a device checkpoint"):
        healthy_ids(text)


def test_a_device_that_a_pod_uses_twice_counts_once():
    """Init containers pass theirs on to the others, and to each other."""
    reported = [ContainerDevices(Pod("ml/train"), "main", GPU, ("GPU-a",))]
    entries = (has("load", "GPU-a", "GPU-b"), has("main", "GPU-a"), has("more", "GPU-b", "GPU-c"))
    assert unreported_entries(entries, reported) == (has("load", "GPU-b"), has("more", "GPU-c"))


def test_a_pod_has_the_name_under_which_the_kubelet_tells_one_of_its_containers():
    """The record has its UID alone, and the kubelet does not tell that."""
    reported = [
        ContainerDevices(Pod("ml/train"), "main", GPU, ("GPU-a",)),
        ContainerDevices(Pod("ml/other"), "main", GPU, ("GPU-c",)),
    ]
    entries = (has("main", "GPU-a"), has("load", "GPU-b"), has("main", "GPU-d", pod="4-5-6"))
    assert pod_names(entries, reported) == {"1-2-3": "ml/train"}


@pytest.mark.parametrize(
    ("data", "units"),
    [
        ({"Data": {"RegisteredDevices": {GPU: ["GPU-a", "GPU-b"]}}}, {GPU: {"GPU-a", "GPU-b"}}),
        ({"Data": {"RegisteredDevices": {GPU: None}}}, {GPU: set()}),
        ({"Data": {"RegisteredDevices": None}}, {}),
        ({"Entries": {}}, {}),
    ],
)
def test_the_units_that_a_kubelet_counts_are_in_its_file(data, units):
    """Healthy ones; kubelets before 1.11 wrote another file."""
    assert healthy_ids(json.dumps(data)) == units
