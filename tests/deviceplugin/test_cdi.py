"""The plugin's own CDI specification: derived from the toolkit's, renewed with it, and what happens when it cannot be."""

import asyncio
import errno
import json
import os
import tempfile
import threading
from pathlib import Path

import grpc
import pytest
import yaml

from gpunode.deviceplugin import cdi
from gpunode.deviceplugin.cdi import FILE, KIND, OVER_KEPT, CdiUnavailable, Specs

from .nvml import FakeNvml, Gpu

HOOK = {
    "hookName": "createContainer",
    "path": "/usr/bin/nvidia-cdi-hook",
    "args": ["nvidia-cdi-hook", "update-ldcache"],
}


def toolkit(*uuids: str, version: str = "0.5.0", driver: str = "580.1", **edits: object) -> str:
    """A specification as `nvidia-ctk cdi generate` writes it, cut down to one entry of each sort."""
    devices = [
        {"name": name, "containerEdits": {"deviceNodes": [{"path": f"/dev/nvidia{number}"}], **edits}}
        for number, uuid in enumerate(uuids)
        for name in (str(number), uuid)
    ]
    library = f"/usr/lib/libcuda.so.{driver}"
    common = {
        "env": ["NVIDIA_VISIBLE_DEVICES=void"],
        "deviceNodes": [{"path": "/dev/nvidiactl"}],
        "hooks": [HOOK],
        "mounts": [{"hostPath": library, "containerPath": library, "options": ["ro", "bind"]}],
    }
    return yaml.safe_dump(
        {"cdiVersion": version, "kind": "nvidia.com/gpu", "devices": devices, "containerEdits": common}
    )


def put(directory: Path, text: str, name: str = "nvidia.yaml") -> None:
    """As nvidia-ctk does it: a new file takes the old one's place."""
    fresh = directory / f".{name}.new"
    fresh.write_text(text)
    fresh.rename(directory / name)


def offered(directory: Path) -> Specs:
    """Those of a directory with the toolkit's file, for one GPU."""
    put(directory, toolkit("GPU-a"))
    specs = Specs(directory)
    specs.refresh(names("GPU-a"))
    return specs


def read(directory: Path) -> dict:
    return json.loads((directory / FILE).read_text())


def named(directory: Path) -> dict[str, dict]:
    """The edits of each device."""
    return {entry["name"]: entry["containerEdits"] for entry in read(directory)["devices"]}


def names(*uuids: str) -> dict[str, str]:
    return {uuid: uuid for uuid in uuids}


def test_the_toolkits_edits_are_taken_over_under_a_kind_of_our_own(tmp_path):
    """Driver libraries, hooks and control nodes as the toolkit found them; only the devices asked for; no `all`."""
    put(tmp_path, toolkit("GPU-a", "GPU-b", "GPU-c"))
    assert Specs(tmp_path).refresh({"GPU-a": "GPU-a", "GPU-b": "1"}) == {}
    document, source = read(tmp_path), yaml.safe_load((tmp_path / "nvidia.yaml").read_text())
    assert document["kind"] == KIND == "k8s.device-plugin.nvidia.com/gpu"
    assert document["cdiVersion"] == "0.5.0"
    assert document["containerEdits"] == source["containerEdits"]
    assert named(tmp_path) == {
        "GPU-a": {"deviceNodes": [{"path": "/dev/nvidia0"}]},
        "1": {"deviceNodes": [{"path": "/dev/nvidia1"}]},
    }
    assert sorted(os.listdir(tmp_path)) == [FILE, "nvidia.yaml"]


def test_an_image_that_asks_for_all_gpus_does_not_get_them(tmp_path):
    """CUDA images set NVIDIA_VISIBLE_DEVICES=all, which the nvidia runtime would follow after CDI is done."""
    document = yaml.safe_load(toolkit("GPU-a"))
    del document["containerEdits"]["env"]
    put(tmp_path, json.dumps(document), "nvidia.json")
    Specs(tmp_path).refresh(names("GPU-a"))
    assert read(tmp_path)["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


def test_a_new_driver_or_device_comes_over_and_nothing_is_written_otherwise(tmp_path):
    """The toolkit's file is followed; ours keeps its inode while nothing changes, so that no runtime reads it anew."""
    specs = offered(tmp_path)
    before = (tmp_path / FILE).stat().st_ino
    assert specs.refresh(names("GPU-a")) == {}
    assert (tmp_path / FILE).stat().st_ino == before
    put(tmp_path, toolkit("GPU-a", "MIG-b", driver="590.2"))
    with (tmp_path / FILE).open() as reader:
        assert specs.refresh(names("GPU-a", "MIG-b")) == {}
        assert json.load(reader)["devices"]  # whole, as it was: a runtime may be reading it just then
    assert read(tmp_path)["containerEdits"]["mounts"][0]["hostPath"] == "/usr/lib/libcuda.so.590.2"
    assert set(named(tmp_path)) == {"GPU-a", "MIG-b"}


def test_a_container_of_an_earlier_configuration_can_start_again(tmp_path):
    """The kubelet gives it the names that it was given first, by UUID or index, of a GPU or a MIG device. `all` nobody was given."""
    document = yaml.safe_load(toolkit("GPU-a", "MIG-b"))
    document["devices"].append({**document["devices"][0], "name": "all"})
    put(tmp_path, yaml.safe_dump(document))
    put(tmp_path, json.dumps({"devices": [{"name": "all"}, {"name": "GPU-gone"}]}), FILE)
    for devices in (names("GPU-a", "MIG-b"), {"GPU-a": "0"}, names("GPU-a"), {}):
        assert Specs(tmp_path).refresh(devices) == {}
    assert set(named(tmp_path)) == {"GPU-a", "MIG-b", "0"}
    put(tmp_path, toolkit("GPU-a", driver="590.2"))
    Specs(tmp_path).refresh(names("GPU-a"))
    assert set(named(tmp_path)) == {"GPU-a", "0"}  # what is no more cannot be given to anybody


def test_a_file_that_somebody_removed_or_broke_is_made_again(tmp_path):
    """It is looked at every few seconds."""
    specs = offered(tmp_path)
    good = read(tmp_path)
    for spoil in (lambda path: path.unlink(), lambda path: path.write_bytes(b'{"devices": [{"na')):
        spoil(tmp_path / FILE)
        assert specs.refresh(names("GPU-a")) == {}
        assert read(tmp_path) == good


def test_an_allocation_is_a_device_with_its_own_variables(tmp_path):
    """Edits of the specification come after the pod's variables: the container's program sees these."""
    hooks = [{"hookName": "createRuntime", "path": "/usr/bin/nvidia-cdi-hook"}]
    put(tmp_path, toolkit("GPU-a", "GPU-b", hooks=hooks))
    specs = Specs(tmp_path)
    specs.refresh(names("GPU-a", "GPU-b"))
    name = specs.write(["GPU-a::7", "GPU-a::3"], ["GPU-a"], {"NVIDIA_GPU_MEMORY_LIMIT": "4096"})
    assert name == f"{KIND}=allocation-GPU-a::3-2"
    assert named(tmp_path)["allocation-GPU-a::3-2"] == {
        "deviceNodes": [{"path": "/dev/nvidia0"}],
        "hooks": hooks,
        "env": ["NVIDIA_GPU_MEMORY_LIMIT=4096"],
    }
    assert set(named(tmp_path)) == {"GPU-a", "GPU-b", "allocation-GPU-a::3-2"}
    assert read(tmp_path)["cdiVersion"] == "0.6.0"  # the format's first with annotations
    both = specs.write(["GPU-a::8", "GPU-b::1"], ["GPU-a", "GPU-b"], {"A": "1"})
    edits = named(tmp_path)[both.partition("=")[2]]
    assert [node["path"] for node in edits["deviceNodes"]] == ["/dev/nvidia0", "/dev/nvidia1"]
    assert edits["hooks"] == hooks * 2


def test_allocations_outlive_the_plugin_and_follow_the_driver(tmp_path):
    """A container that starts anew asks for the name it was given; its edits are those of today's driver."""
    specs = offered(tmp_path)
    specs.write(["GPU-a::0"], ["GPU-a"], {"LIMIT": "1"})
    put(tmp_path, toolkit("GPU-a", additionalGids=[44]))
    assert Specs(tmp_path).refresh(names("GPU-a")) == {}
    assert named(tmp_path)["allocation-GPU-a::0-1"] == {
        "deviceNodes": [{"path": "/dev/nvidia0"}],
        "additionalGids": [44],
        "env": ["LIMIT=1"],
    }


def env_of_allocations(directory: Path) -> dict[str, list[str]]:
    return {name: edits["env"] for name, edits in named(directory).items() if "env" in edits}


def test_an_init_container_keeps_what_it_was_given_when_its_pod_is_given_the_units_again(tmp_path):
    """The kubelet asks for all containers before the first one starts, and lets them have an init container's units."""
    specs = offered(tmp_path)
    specs.write(["GPU-a::1", "GPU-a::2"], ["GPU-a"], {"LIMIT": "init"})
    specs.write(["GPU-a::1"], ["GPU-a"], {"LIMIT": "second init"})
    specs.write(["GPU-a::0", "GPU-a::1", "GPU-a::2"], ["GPU-a"], {"LIMIT": "app"})
    assert Specs(tmp_path).refresh(names("GPU-a")) == {}
    assert env_of_allocations(tmp_path) == {
        "allocation-GPU-a::1-2": ["LIMIT=init"],
        "allocation-GPU-a::1-1": ["LIMIT=second init"],
        "allocation-GPU-a::0-3": ["LIMIT=app"],
    }


def test_allocations_whose_units_were_given_again_go_in_time(tmp_path):
    """The kubelet says nothing when a container ends: without an end the file would grow and grow."""
    specs = offered(tmp_path)
    specs.write(["GPU-a::5000"], ["GPU-a"], {"LIMIT": "runs on"})
    for number in range(1, 100):
        specs.write([f"GPU-a::{n:02}" for n in range(number)], ["GPU-a"], {"LIMIT": str(number)})
    left = env_of_allocations(tmp_path)
    assert left.pop("allocation-GPU-a::5000-1") == ["LIMIT=runs on"]
    assert list(left.values()) == [[f"LIMIT={number}"] for number in range(99 - OVER_KEPT, 100)]


def test_without_the_toolkits_specification_nothing_is_named_and_the_way_out_is_reported(tmp_path):
    """None at all; one that cannot be parsed; one of another kind."""
    specs = Specs(tmp_path)
    why = specs.refresh(names("GPU-a"))["GPU-a"]
    assert f"no CDI specification of kind nvidia.com/gpu in {tmp_path}" in why
    assert "systemctl restart nvidia-cdi-refresh" in why
    put(tmp_path, "kind: [\n")
    assert (
        f"{tmp_path}/nvidia.yaml cannot be read as a CDI specification"
        in specs.refresh(names("GPU-a"))["GPU-a"]
    )
    put(tmp_path, toolkit("GPU-a").replace("kind: nvidia.com/gpu", "kind: vendor.com/nic"))
    assert "no CDI specification of kind nvidia.com/gpu" in specs.refresh(names("GPU-a"))["GPU-a"]
    assert not (tmp_path / FILE).exists()
    put(tmp_path, toolkit("GPU-a"), "toolkit.yaml")
    assert specs.refresh(names("GPU-a")) == {}


def test_of_several_specifications_the_newest_that_names_devices_counts(tmp_path):
    """An old one left behind; and one of GPUDirect Storage, which nvidia-ctk calls nvidia.com/gpu too, with `all` only."""
    put(tmp_path, toolkit("GPU-a", driver="570.1"), "old.yaml")
    os.utime(tmp_path / "old.yaml", (1, 1))
    put(tmp_path, toolkit("GPU-a", driver="580.1"))
    os.utime(tmp_path / "nvidia.yaml", (2, 2))
    storage = {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia-fs0"}]}}
    put(
        tmp_path,
        json.dumps({"cdiVersion": "0.5.0", "kind": "nvidia.com/gpu", "devices": [storage]}),
        "gds.json",
    )
    specs = Specs(tmp_path)
    assert specs.refresh(names("GPU-a")) == {}
    assert read(tmp_path)["containerEdits"]["mounts"][0]["hostPath"] == "/usr/lib/libcuda.so.580.1"
    for name in ("old.yaml", "nvidia.yaml"):
        (tmp_path / name).unlink()
    why = specs.refresh(names("GPU-a"))["GPU-a"]
    assert f"{tmp_path}/gds.json names no device by UUID" in why


def test_several_specifications_are_one_by_device(tmp_path):
    """One of nvidia-cdi-refresh, an older one made by hand for MIG, and one in /etc/cdi that the others override."""
    static = tmp_path / "etc"
    static.mkdir()
    put(tmp_path, toolkit("MIG-b", version="0.6.0"), "mig.yaml")
    os.utime(tmp_path / "mig.yaml", (1, 1))
    put(tmp_path, toolkit("GPU-a", "GPU-b"))
    os.utime(tmp_path / "nvidia.yaml", (2, 2))
    specs = Specs(tmp_path, static)
    assert specs.refresh(names("GPU-a", "GPU-b", "MIG-b")) == {}
    alike = read(tmp_path)
    assert (alike["cdiVersion"], named(tmp_path)["MIG-b"]) == (
        "0.6.0",
        {"deviceNodes": [{"path": "/dev/nvidia0"}]},
    )
    put(static, toolkit("GPU-a", "GPU-c", driver="590.1"))  # newest, but in the directory that counts less
    assert specs.refresh(names("GPU-a", "GPU-c")) == {}
    mounts = {
        name: [mount["hostPath"] for mount in edits.get("mounts", ())]
        for name, edits in named(tmp_path).items()
    }
    assert mounts["GPU-a"] == ["/usr/lib/libcuda.so.580.1"]
    assert mounts["GPU-c"] == ["/usr/lib/libcuda.so.590.1"]


def test_what_a_file_adds_is_for_its_own_devices(tmp_path):
    """Files that differ in it share none of it."""
    put(tmp_path, toolkit("GPU-a", driver="580.1"))
    put(tmp_path, toolkit("MIG-b", driver="590.1"), "mig.yaml")
    specs = Specs(tmp_path)
    assert specs.refresh(names("GPU-a", "MIG-b")) == {}
    assert read(tmp_path)["containerEdits"] == {"env": ["NVIDIA_VISIBLE_DEVICES=void"]}
    libraries = {name: edits["mounts"][0]["hostPath"] for name, edits in named(tmp_path).items()}
    assert libraries == {"GPU-a": "/usr/lib/libcuda.so.580.1", "MIG-b": "/usr/lib/libcuda.so.590.1"}
    os.utime(tmp_path / "mig.yaml", (1, 1))
    why = specs.refresh(names("GPU-x"))["GPU-x"]
    assert why.startswith(f"device GPU-x is not in {tmp_path}/mig.yaml, {tmp_path}/nvidia.yaml ")


def test_lists_that_are_none_or_no_lists_hurt_nobody(tmp_path):
    """`env:` without a value is an empty list; another kind of value makes the file no specification."""
    document = yaml.safe_load(toolkit("GPU-a"))
    document["containerEdits"]["env"] = None
    put(tmp_path, yaml.safe_dump(document))
    specs = Specs(tmp_path)
    assert specs.refresh(names("GPU-a")) == {}
    assert read(tmp_path)["containerEdits"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]
    document["containerEdits"]["env"] = 3
    put(tmp_path, yaml.safe_dump(document))
    assert "containerEdits.env is no list" in specs.refresh(names("GPU-a"))["GPU-a"]


@pytest.mark.parametrize(
    "junk",
    ["", "[]", "word", "1", "{", "{}", '{"kind": "nvidia.com/gpu"}', '{"devices": []}', '{"kind": [], "devices": []}',
     '{"kind": "nvidia.com/gpu", "devices": 3}', '{"kind": "nvidia.com/gpu", "devices": [1], "cdiVersion": "0.5.0"}',
     '{"kind": "nvidia.com/gpu", "devices": [], "cdiVersion": "new"}', "\x00", "a: &a [*a]"],
)  # fmt: skip
def test_a_file_that_is_no_specification_hurts_nobody(tmp_path, junk):
    """Alone it is named as the reason; beside the toolkit's it does not matter."""
    put(tmp_path, junk, "a.yaml")
    specs = Specs(tmp_path)
    assert "no CDI specification of kind nvidia.com/gpu" in specs.refresh(names("GPU-a"))["GPU-a"]
    put(tmp_path, toolkit("GPU-a"))
    assert specs.refresh(names("GPU-a")) == {}


def test_a_device_that_the_toolkit_does_not_know_is_no_others_trouble(tmp_path):
    """A MIG device made after the toolkit looked, say."""
    put(tmp_path, toolkit("GPU-a"))
    specs = Specs(tmp_path)
    assert list(specs.refresh(names("GPU-a", "MIG-b"))) == ["MIG-b"]
    assert set(named(tmp_path)) == {"GPU-a"}
    with pytest.raises(
        CdiUnavailable, match=r"device MIG-b is not in .*nvidia.yaml .* on the host: systemctl restart"
    ):
        specs.write(["MIG-b"], ["MIG-b"], {})


OLD = "MIG-GPU-a/7/0"


@pytest.mark.parametrize("files", [[toolkit("GPU-a")], []], ids=["toolkit", "no toolkit"])
def test_a_mig_device_of_an_old_driver_is_not_waited_for(tmp_path, files):
    """CDI cannot name it, whatever the toolkit is told to do; the toolkit itself writes no specification then."""
    for text in files:
        put(tmp_path, text)
    why = Specs(tmp_path).refresh(names("GPU-a", OLD))[OLD]
    assert why.startswith("drivers before branch 470 name MIG devices MIG-GPU-")
    assert "deviceListStrategy to envvar" in why
    assert "nvidia-cdi-refresh" not in why


def full(*_: object) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def test_a_full_disk_is_reported_and_leaves_the_file_as_it_was(tmp_path, monkeypatch):
    """The disk is full when the content is to be made safe: what was half written goes, the old file stays."""
    specs = offered(tmp_path)
    before = read(tmp_path)
    with monkeypatch.context() as patched:
        patched.setattr(cdi.os, "fsync", full)
        with pytest.raises(CdiUnavailable, match=f"{FILE}: No space left on device; free some space there"):
            specs.write(["GPU-a::0"], ["GPU-a"], {"LIMIT": "1"})
        assert specs.refresh(names("GPU-a")) == {}  # nothing new to write: those who run are not to suffer
    assert read(tmp_path) == before
    assert sorted(os.listdir(tmp_path)) == [FILE, "nvidia.yaml"]
    specs.write(["GPU-a::0"], ["GPU-a"], {"LIMIT": "1"})


@pytest.mark.parametrize(
    ("number", "hint"),
    [
        (errno.EROFS, "Read-only file system; the directory has to be the host's, mounted writable"),
        (errno.EACCES, "Permission denied; the plugin has to run as root"),
        (errno.EIO, "Input/output error"),
    ],
)
def test_a_directory_that_cannot_be_written_is_reported(tmp_path, monkeypatch, number, hint):
    """With what to do about it, where that is known. Such devices are not allocatable."""
    put(tmp_path, toolkit("GPU-a"))

    def refused(**_: object) -> tuple[int, str]:
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(tempfile, "mkstemp", refused)
    assert f"cannot write {tmp_path}/{FILE}: {hint}" in Specs(tmp_path).refresh(names("GPU-a"))["GPU-a"]


def test_a_directory_that_is_not_there_is_reported(tmp_path):
    """As when the host's directory was not mounted."""
    why = Specs(tmp_path / "cdi").refresh(names("GPU-a"))["GPU-a"]
    assert (
        why
        == f"cannot look into {tmp_path}/cdi: No such file or directory; mount the host's directory into the plugin's container"
    )


@pytest.mark.parametrize(("by", "name"), [("uuid", "GPU-a"), ("index", "0")])
async def test_cdi_reaches_the_kubelet_and_the_disk(kubelet, plugin, tmp_path, by, name):
    """By an annotation, and by the field of kubelets since 1.28; the names are in the specification by then."""
    put(tmp_path, toolkit("GPU-a"))
    strategies = ("cdi-cri", "cdi-annotations")
    settings = {"device_list_strategy": strategies, "device_id_strategy": by}

    async with plugin(FakeNvml(Gpu("GPU-a")), cdi_directory=str(tmp_path), **settings):
        await kubelet.until(kubelet.devices)
        assert set(named(tmp_path)) == {name}
        answer = await kubelet.allocate("GPU-a")
        assert [device.name for device in answer.cdi_devices] == [f"{KIND}={name}"]
        assert answer.annotations == {"cdi.k8s.io/gpunode_gpu": f"{KIND}={name}"}


async def test_a_device_without_a_cdi_name_is_unhealthy_until_it_has_one(kubelet, plugin, tmp_path):
    """So its pods wait instead of failing one after the other; an allocation under way is refused with the reason."""
    put(tmp_path, toolkit("GPU-a"))
    nvml = FakeNvml(Gpu("GPU-a"), Gpu("GPU-b"))

    async with plugin(nvml, device_list_strategy=("cdi-cri",), cdi_directory=str(tmp_path)):
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy", "GPU-b": "Unhealthy"})
        with pytest.raises(grpc.aio.AioRpcError, match="device GPU-b is not in "):
            await kubelet.allocate("GPU-b")
        await kubelet.allocate("GPU-a")
        put(tmp_path, toolkit("GPU-a", "GPU-b"))
        await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy", "GPU-b": "Healthy"})
        await kubelet.allocate("GPU-b")


async def test_a_slow_disk_keeps_nobody_else_waiting(kubelet, plugin, tmp_path, monkeypatch):
    """Allocations are answered while the specification is written, and what is written meanwhile is in it in the end."""
    put(tmp_path, toolkit("GPU-a"))
    go_on, fsync = threading.Event(), os.fsync

    def slow(handle: int) -> None:
        go_on.wait(30)
        fsync(handle)

    nvml = FakeNvml(Gpu("GPU-a"), Gpu("GPU-b"))

    try:
        async with plugin(nvml, device_list_strategy=("cdi-cri",), cdi_directory=str(tmp_path)):
            await kubelet.until(lambda: kubelet.devices() == {"GPU-a": "Healthy", "GPU-b": "Unhealthy"})
            monkeypatch.setattr(os, "fsync", slow)
            put(tmp_path, toolkit("GPU-a", "GPU-b"))
            while not list(tmp_path.glob("*.new")):
                await asyncio.sleep(0.01)
            await kubelet.allocate("GPU-a")
            assert kubelet.devices()["GPU-b"] == "Unhealthy"
            go_on.set()
            await kubelet.until(lambda: kubelet.devices()["GPU-b"] == "Healthy")
    finally:
        go_on.set()


def test_two_who_write_at_once_write_both(tmp_path, monkeypatch):
    """A container's device, while the devices of the node are renewed."""
    put(tmp_path, toolkit("GPU-a", "GPU-b"))
    specs, begun, go_on, fsync = Specs(tmp_path), threading.Event(), threading.Event(), os.fsync

    def slow(handle: int) -> None:
        if threading.current_thread() is first:
            begun.set()
            go_on.wait(30)
        fsync(handle)

    monkeypatch.setattr(os, "fsync", slow)
    first = threading.Thread(target=specs.refresh, args=(names("GPU-a", "GPU-b"),))
    second = threading.Thread(target=specs.write, args=(["GPU-a::3"], ["GPU-a"], {"LIMIT": "1"}))
    first.start()
    assert begun.wait(60)
    second.start()
    second.join(0.2)  # it would be through by now if it did not wait
    go_on.set()
    first.join()
    second.join()
    assert set(named(tmp_path)) == {"GPU-a", "GPU-b", "allocation-GPU-a::3-1"}


async def test_gpudirect_storage_comes_by_cdi_too_where_the_toolkit_specified_it(
    kubelet, plugin, tmp_path, caplog
):
    """With every GPU, as a device of the toolkit's own; where there is none the container starts without, and the log says so."""
    put(tmp_path, toolkit("GPU-a"))
    storage = {"name": "all", "containerEdits": {"deviceNodes": [{"path": "/dev/nvidia-fs0"}]}}
    gds = {"cdiVersion": "0.5.0", "kind": "nvidia.com/gds", "devices": [storage]}
    put(tmp_path, json.dumps(gds), "nvidia-gds.json")
    settings = {"device_list_strategy": ("cdi-cri",), "cdi_directory": str(tmp_path)}

    async with plugin(FakeNvml(Gpu("GPU-a")), gds_enabled=True, mofed_enabled=True, **settings):
        await kubelet.until(kubelet.devices)
        answer = await kubelet.allocate("GPU-a")
        assert [device.name for device in answer.cdi_devices] == [f"{KIND}=GPU-a", "nvidia.com/gds=all"]
    assert "containers get no mofed" in caplog.text
    assert f"--mode=mofed --class=mofed --output={tmp_path}/nvidia-mofed.yaml" in caplog.text
    assert caplog.text.count("containers get no") == 1
