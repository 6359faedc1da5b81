"""Every way in which the device plugin gives GPUs to containers, with the two real kubelets and their runtimes.

One rollout a mode, then pods that say what they were given.
"""

import json
from collections import Counter
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from .api import Lab, Node
from .conftest import Ran
from .gpu import control, mig
from .plugin_log import plugin_log, registered
from .pods import Pods
from .progress import wait

pytestmark = pytest.mark.lab

GPUS = {"legacy": 2, "modern": 4}
GPU = "nvidia.com/gpu"
KIND = "k8s.device-plugin.nvidia.com/gpu"
SAMPLES = Path(__file__).parents[1] / "deviceplugin/nvidia-samples"
SPEC = "/var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json"
RUNC = {"runtimeClassName": "lab-runc"}  # a runtime that knows nothing of GPUs


@pytest.fixture(scope="module", autouse=True)
def provisioned(lab: Lab, gpunode: Callable[..., Ran]) -> Iterator[None]:
    """Both hosts are GPU nodes, and afterwards the plugin is as the inventory has it."""
    ran = gpunode("provision", "--yes", "--json", "--no-run")
    assert ran.code == 0, ran
    classes = "/apis/node.k8s.io/v1/runtimeclasses"
    runc = {
        "apiVersion": "node.k8s.io/v1",
        "kind": "RuntimeClass",
        "metadata": {"name": "lab-runc"},
        "handler": "runc",
    }
    if "lab-runc" not in {item["metadata"]["name"] for item in lab.request("GET", classes)["items"]}:
        lab.request("POST", classes, runc)
    yield
    lab.request("DELETE", f"{classes}/lab-runc")
    ran = gpunode("plugin deploy", "--yes", "--json")
    assert ran.code == 0, ran


class Deploy:
    """Rolls the plugin out with a configuration file, as a user does; at once where it is the same as before."""

    def __init__(self, lab: Lab, gpunode: Callable[..., Ran]) -> None:
        self._lab = lab
        self._gpunode = gpunode
        self._now = ""

    def __call__(self, config: str, *nodes: str) -> None:
        """Returns when it serves on these nodes (all, if none is named)."""
        if config == self._now:
            return
        self._lab.inventory.with_name("modes-plugin.yaml").write_text(config)
        inventory = yaml.safe_load(self._lab.inventory.read_text())
        inventory["cluster"]["plugin"]["config"] = "modes-plugin.yaml"
        file = self._lab.inventory.with_name("modes.yaml")
        file.write_text(yaml.safe_dump(inventory))
        limit = [f"--limit={','.join(nodes)}"] if nodes else []
        ran = self._gpunode("plugin deploy", "--yes", "--json", *limit, inventory=file)
        assert ran.code == 0, ran
        for node in nodes or GPUS:
            registered(self._lab, node)
        self._now = config


@pytest.fixture(scope="module")
def deploy(lab: Lab, gpunode: Callable[..., Ran]) -> Deploy:
    return Deploy(lab, gpunode)


@pytest.fixture(scope="module")
def by_cdi(lab: Lab, deploy: Deploy) -> Iterator[Node]:
    """modern with the strategy cdi-cri and GPUDirect Storage; its /var/run/cdi is a file system of 256 KiB."""
    modern, folder, storage = lab.node("modern"), "/var/run/cdi", "/dev/nvidia-fs0"
    modern.exec(["mount", "-t", "tmpfs", "-o", "size=256k", "lab-cdi", folder])
    modern.exec(["mknod", storage, "c", "508", "0"])
    try:
        modern.exec(["systemctl", "restart", "containerd", "nvidia-cdi-refresh"])  # both are to see it
        modern.exec(
            [
                "nvidia-ctk",
                "cdi",
                "generate",
                "--mode=gds",
                "--class=gds",
                f"--output={folder}/nvidia-gds.yaml",
            ]
        )
        config = json.loads(flags(deviceListStrategy=["cdi-cri"]))
        config["flags"]["gdsEnabled"] = True
        deploy(json.dumps(config), "modern")
        yield modern
    finally:
        modern.exec(["rm", storage])
        modern.exec(["umount", "-l", folder])
        modern.exec(["systemctl", "restart", "containerd", "nvidia-cdi-refresh"])


def flags(**plugin: Any) -> str:
    """A configuration file with these of the plugin's flags."""
    return json.dumps({"version": "v1", "flags": {"plugin": plugin}})


def offered(lab: Lab, node: str, number: int, resource: str = GPU) -> None:
    """Wait until the node offers so many."""
    wait(f"{number} {resource} on {node}", lambda: lab.units(node, resource) == number, 90)


def all_offered(lab: Lab) -> None:
    for name, number in GPUS.items():
        offered(lab, name, number)


def plugin_pid(node: Node) -> str:
    return node.exec(["pgrep", "-f", "-x", "python3 -S -m gpunode.deviceplugin"], check=False).stdout.strip()


def uuids(node: Node) -> list[str]:
    """Of the host's GPUs, in NVML's order."""
    said = node.exec(["nvidia-smi", "--query-gpu=uuid", "--format=csv,noheader"]).stdout
    return said.split()


def gpu_nodes(node: Node, *wanted: str) -> tuple[str, ...]:
    """The device nodes of these GPUs."""
    return tuple(f"/dev/nvidia{number}" for number, uuid in enumerate(uuids(node)) if uuid in wanted)


def one_gpu_each(made: Pods, node: Node, *names: str) -> None:
    """Each pod sees the device node of one GPU and can use that one; no two the same."""
    seen = made.seen(*names)
    assert [len(each.uuids) for each in seen] == [1] * len(names), seen
    assert len({each.uuids for each in seen}) == len(names), seen
    for view in seen:
        assert view.nodes == gpu_nodes(node, *view.uuids), view


def test_by_environment_variable_each_pod_sees_its_own_gpu(lab: Lab, deploy: Deploy, made: Pods):
    """NVIDIA's documented configuration and pod, with nothing changed but the pod's image; then all the other GPUs."""
    deploy((SAMPLES / "flags.yaml").read_text())
    all_offered(lab)
    pod = yaml.safe_load((SAMPLES / "gpu-pod.yaml").read_text())
    pod["spec"]["containers"][0] |= {"image": made.image, "args": ["-m", "gpunode.deviceplugin.vectoradd"]}
    made.create(pod)
    wait("gpu-pod to end", lambda: made.get("gpu-pod")["status"]["phase"] in ("Succeeded", "Failed"), 60)
    assert made.log("gpu-pod").endswith("Test PASSED\n")
    for name, number in GPUS.items():
        names = [made.make(f"{name}-{n}", name) for n in range(number)]
        one_gpu_each(made, lab.node(name), *names)


def test_by_cdi_the_runtime_alone_gives_each_pod_its_gpu(lab: Lab, by_cdi: Node, made: Pods):
    """containerd reads the plugin's specification; no nvidia runtime is needed, and none can be talked into more."""
    offered(lab, "modern", 4)
    spec = json.loads(by_cdi.read(SPEC))
    assert spec["kind"] == KIND
    assert {device["name"] for device in spec["devices"]} == set(uuids(by_cdi))
    greedy = made.make("greedy", "modern", env={"NVIDIA_VISIBLE_DEVICES": "all"})  # as CUDA images have it
    plain = [made.make(f"plain-{n}", "modern", **RUNC) for n in range(2)]
    one_gpu_each(made, by_cdi, greedy, *plain)
    # The specification's variables come after the pod's own.
    assert made.seen(greedy)[0].env["NVIDIA_VISIBLE_DEVICES"] == "void"
    assert all("/dev/nvidia-fs0" in view.control for view in made.seen(greedy, *plain))


def test_a_full_cdi_directory_keeps_pods_waiting_and_says_why(lab: Lab, by_cdi: Node, made: Pods):
    """What runs stays; nothing is given out that could not be named; with space again all is well."""
    offered(lab, "modern", 4)
    before = made.make("before", "modern", **RUNC)
    made.seen(before)
    # Gone, and no room to write it anew.
    fill = f"rm {SPEC}; dd if=/dev/zero of=/var/run/cdi/fill bs=4k 2>/dev/null; stat -f -c %a /var/run/cdi"
    assert by_cdi.exec(["sh", "-c", fill]).stdout == "0\n"
    offered(lab, "modern", 0)
    assert lab.units("modern", which="capacity") == 4
    assert f"cannot write {SPEC}: No space left on device; free some space there" in plugin_log(lab, "modern")
    waiting = made.make("waiting", "modern", **RUNC)
    assert f"Insufficient {GPU}" in made.unschedulable(waiting)
    by_cdi.exec(["rm", "/var/run/cdi/fill"])
    one_gpu_each(made, by_cdi, before, waiting)


def test_by_cdi_annotation_it_is_the_same(lab: Lab, by_cdi: Node, deploy: Deploy, made: Pods):
    """For runtimes before CRI had a field for it; here by index, and a pod may have two GPUs."""
    deploy(flags(deviceListStrategy=["cdi-annotations"], deviceIDStrategy="index"), "modern")
    offered(lab, "modern", 4)
    two = made.make("two", "modern", 2, **RUNC)
    one_gpu_each(made, by_cdi, *[made.make(f"one-{n}", "modern", **RUNC) for n in range(2)])
    (seen,) = made.seen(two)
    assert len(seen.uuids) == 2
    assert seen.nodes == gpu_nodes(by_cdi, *seen.uuids)


def test_by_volume_mounts_each_pod_sees_its_own_gpu(lab: Lab, deploy: Deploy, made: Pods):
    """With the setting of NVIDIA's runtime that makes it safe: a pod's own variable then counts for nothing."""
    setting = "accept-nvidia-visible-devices-{}={}"
    strict = [setting.format("as-volume-mounts", "true"), setting.format("envvar-when-unprivileged", "false")]
    usual = [setting.format("as-volume-mounts", "false"), setting.format("envvar-when-unprivileged", "true")]
    deploy(flags(deviceListStrategy=["volume-mounts"]))
    all_offered(lab)
    try:
        for name in GPUS:
            lab.node(name).exec(["nvidia-ctk", "config", "--in-place", *(f"--set={view}" for view in strict)])
        for name in GPUS:
            env = {"NVIDIA_VISIBLE_DEVICES": "all"}
            names = [made.make(f"{name}-{n}", name, env=env) for n in range(2)]
            one_gpu_each(made, lab.node(name), *names)
    finally:
        for name in GPUS:
            lab.node(name).exec(["nvidia-ctk", "config", "--in-place", *(f"--set={view}" for view in usual)])


@pytest.fixture
def driver_root(lab: Lab) -> Iterator[str]:
    """Where the driver, with a /dev of its own, is on both hosts as well, as a driver container has it."""
    root = "/run/nvidia/driver"
    for name in GPUS:
        lab.node(name).exec(
            [
                "sh",
                "-c",
                f"mkdir -p {root} && mount --bind / {root} && mount -t tmpfs lab-dev {root}/dev && cp -a /dev/nvidia* {root}/dev/",
            ]
        )
    yield root
    for name in GPUS:
        lab.node(name).exec(["sh", "-c", f"umount -l {root}/dev; umount -l {root}"])


def test_device_specs_are_the_devices_and_the_control_nodes(
    lab: Lab, deploy: Deploy, made: Pods, driver_root: str
):
    """With a runtime that adds nothing one sees what the plugin gave; with NVIDIA's, the GPU can be used as well."""
    config = json.loads(flags(deviceListStrategy=["envvar"], passDeviceSpecs=True))
    config["flags"]["nvidiaDriverRoot"] = driver_root
    deploy(json.dumps(config))
    all_offered(lab)
    modern = lab.node("modern")
    nodes = gpu_nodes(modern, *uuids(modern))
    for name in GPUS:
        one_gpu_each(made, lab.node(name), made.make(name, name))
    aside = "mkdir /run/aside && mv /dev/nvidia[0-9] /run/aside/"  # what is given must be the driver root's
    modern.exec(["sh", "-c", aside])
    try:
        (seen,) = made.seen(made.make("bare", "modern", 3, **RUNC))
    finally:
        modern.exec(["sh", "-c", "mv /run/aside/* /dev/ && rmdir /run/aside"])
    given = seen.env["NVIDIA_VISIBLE_DEVICES"].split(",")
    assert len(given) == 3
    assert seen.nodes == tuple(node for node, uuid in zip(nodes, uuids(modern), strict=True) if uuid in given)
    assert {"/dev/nvidiactl", "/dev/nvidia-uvm"} <= set(seen.control)
    assert "libcuda.so.1 cannot be loaded" in seen.error


def test_time_slicing_as_documented(lab: Lab, deploy: Deploy, made: Pods):
    """NVIDIA's example: ten of each GPU, and pods side by side on it."""
    deploy((SAMPLES / "time-slicing.yaml").read_text())
    for name, number in GPUS.items():
        offered(lab, name, number * 10)
    seen = made.seen(*(made.make(f"share-{n}", "legacy") for n in range(4)))
    assert Counter(view.uuids for view in seen) == {(uuid,): 2 for uuid in uuids(lab.node("legacy"))}


def test_vectoradd_shows_every_shared_gpu_with_one_pod_more(
    lab: Lab, deploy: Deploy, gpunode: Callable[..., Ran]
):
    """Not with one for each share; and that a GPU cannot be shared which one process at a time may use."""
    deploy((SAMPLES / "time-slicing.yaml").read_text())
    inventory = lab.inventory.with_name("modes.yaml")
    ran = gpunode("run vectoradd", "--json", inventory=inventory)
    assert ran.code == 0, ran
    pods_on = Counter[str]()
    for row in ran.of("vectoradd"):
        pods_on[row["node"]] += row["pods"]
    assert pods_on == {name: number + 1 for name, number in GPUS.items()}
    legacy = lab.node("legacy")
    assert {row["uuid"] for row in ran.of("vectoradd") if row["node"] == "legacy"} == set(uuids(legacy))
    legacy.exec(["lab-gpu", "set", "gpus.0.compute_mode", "3"])
    try:
        ran = gpunode("run vectoradd", "--json", "--limit", "legacy", inventory=inventory)
    finally:
        legacy.exec(["lab-gpu", "set", "gpus.0.compute_mode", "0"])
    assert ran.code == 1, ran
    assert {row["uuid"] for row in ran.of("vectoradd") if row["result"] == "failed"} == {uuids(legacy)[0]}
    assert f"run `nvidia-smi -i {uuids(legacy)[0]} -c DEFAULT` on the host" in ran.stdout


def test_renamed_shares_one_at_a_time(lab: Lab, deploy: Deploy, made: Pods):
    """renameByDefault, failRequestsGreaterThanOne, packed: what two shares would mean is said where the user looks."""
    resource = f"{GPU}.shared"
    sharing = {
        "renameByDefault": True,
        "failRequestsGreaterThanOne": True,
        "resources": [{"name": GPU, "replicas": 3}],
    }
    config = json.loads(flags(sharedDevicesAllocationPolicy="packed"))
    deploy(json.dumps({**config, "sharing": {"timeSlicing": sharing}}))
    for name, number in GPUS.items():
        offered(lab, name, number * 3, resource)
        offered(lab, name, 0)
    seen = made.seen(*(made.make(f"share-{n}", "modern", resource=resource) for n in range(3)))
    assert len({view.uuids for view in seen}) == 1
    for name in GPUS:
        refusal = made.refusal(made.make(f"two-{name}", name, 2, resource))
        assert "maximum request size for shared resources is 1; found 2" in refusal
        made.seen(made.make(f"again-{name}", name, resource=resource))  # the refusal has cost nothing


@pytest.fixture
def cut(lab: Lab) -> Iterator[Callable[[int, list[str]], list[str]]]:
    """Cut one of modern's GPUs into MIG devices; returns their UUIDs. All are whole again afterwards."""
    modern = lab.node("modern")
    gpus = json.loads(modern.read("/etc/lab-gpus.json"))["gpus"]

    def into(gpu: int, layout: list[str]) -> list[str]:
        devices = mig.devices(gpus[gpu], layout)
        for command in control.set_mig(gpu, devices):
            modern.exec(command)
        return [str(device["uuid"]) for device in devices]

    yield into
    for gpu in range(len(gpus)):
        into(gpu, [])
    modern.exec(["systemctl", "restart", "nvidia-cdi-refresh"])


def test_mig_mixed_names_each_profile(
    lab: Lab, deploy: Deploy, made: Pods, cut: Callable[[int, list[str]], list[str]]
):
    """Whole GPUs beside MIG devices; by CDI they wait until the toolkit knows them, then each pod sees its own."""
    parts = cut(1, ["3g.40gb", "1g.10gb", "1g.10gb"])
    config = json.loads(flags(deviceListStrategy=["cdi-cri", "envvar"]))
    config["flags"]["migStrategy"] = "mixed"
    deploy(json.dumps(config))
    offered(lab, "modern", 3)
    offered(lab, "legacy", 2)
    small, large = "nvidia.com/mig-1g.10gb", "nvidia.com/mig-3g.40gb"
    wait("the MIG devices", lambda: lab.units("modern", small, "capacity") == 2, 120)
    assert lab.units("modern", small) == 0
    assert f"device {parts[0]} is not in " in plugin_log(lab, "modern")
    lab.node("modern").exec(["systemctl", "restart", "nvidia-cdi-refresh"])
    offered(lab, "modern", 2, small)
    offered(lab, "modern", 1, large)
    names = [made.make("large", "modern", resource=large, **RUNC)]
    names += [made.make(f"small-{n}", "modern", resource=small, **RUNC) for n in range(2)]
    seen = made.seen(*names)
    assert {each.uuids for each in seen} == {(part,) for part in parts}
    assert seen[0].uuids == (parts[0],)
    for view in seen:  # its GPU's node, and the two that open its GPU instance and its compute instance
        assert [node for node in view.nodes if "caps" not in node] == ["/dev/nvidia1"]
        assert len(view.nodes) == 3
    made.seen(made.make("legacy", "legacy"))  # a kubelet without CDI goes by the variable


def test_verify_runs_a_pod_on_each_whole_gpu_and_each_mig_device(
    lab: Lab, deploy: Deploy, gpunode: Callable[..., Ran], cut: Callable[[int, list[str]], list[str]]
):
    """What the host's own nvidia-smi lists is what the node has to offer, and what pods have to have seen."""
    modern = lab.node("modern")
    parts = cut(0, ["3g.40gb", "1g.10gb", "1g.10gb"])
    modern.exec(["systemctl", "restart", "nvidia-cdi-refresh"])
    deploy(json.dumps({"version": "v1", "flags": {"migStrategy": "mixed"}}), "modern")
    offered(lab, "modern", 2, "nvidia.com/mig-1g.10gb")
    ran = gpunode("verify", "--json", "--limit=modern", inventory=lab.inventory.with_name("modes.yaml"))
    assert ran.code == 0, ran
    said = {link["layer"]: link["text"] for link in ran.of("link", "modern")}
    for some in (
        "3 of 3 nvidia.com/gpu",
        "2 of 2 nvidia.com/mig-1g.10gb",
        "1 of 1 nvidia.com/mig-3g.40gb",
    ):
        assert some in said["capacity"]
    for uuid in (*uuids(modern)[1:], *parts):
        assert uuid in said["pod"]
    assert uuids(modern)[0] not in said["pod"]


def test_verify_says_what_a_gpu_with_mig_on_lacks(
    lab: Lab, deploy: Deploy, gpunode: Callable[..., Ran], cut: Callable[[int, list[str]], list[str]]
):
    """Nothing was cut; then something was, which a container that runs already has no device nodes of."""
    modern = lab.node("modern")
    modern.exec(control.set_fact(2, "mig.enabled", "1"))
    deploy(json.dumps({"version": "v1", "flags": {"migStrategy": "mixed"}}), "modern")
    offered(lab, "modern", 3)

    def capacity() -> dict[str, Any]:
        inventory = lab.inventory.with_name("modes.yaml")
        ran = gpunode("verify", "--json", "--no-run", "--limit=modern", inventory=inventory)
        assert ran.code == 1, ran
        return next(link for link in ran.of("link", "modern") if link["layer"] == "capacity")

    wait("the kubelet counts the plugin's GPUs", lambda: "\n" not in capacity()["cause"])
    uncut = capacity()
    assert uncut["cause"] == "GPU 2: MIG is on, but no MIG device was made, so nothing of it is offered"
    assert "nvidia-smi mig -i 2 -cgi PROFILE -C" in uncut["fix"]
    cut(2, ["2g.20gb"])
    unseen = capacity()
    assert "0 of 1 nvidia.com/mig-2g.20gb" in unseen["text"]
    assert "kubectl -n gpunode delete pod gpunode-device-plugin-" in unseen["fix"]


def test_mig_single_counts_devices_as_gpus(
    lab: Lab, deploy: Deploy, made: Pods, cut: Callable[[int, list[str]], list[str]]
):
    """All GPUs cut alike: eight of nvidia.com/gpu; a pod gets one MIG device, or two."""
    parts = [part for gpu in range(4) for part in cut(gpu, ["3g.40gb", "3g.40gb"])]
    deploy(json.dumps({"version": "v1", "flags": {"migStrategy": "single"}}), "modern")
    offered(lab, "modern", 8)
    single, pair = made.seen(made.make("one", "modern"), made.make("two", "modern", 2))
    assert len(single.uuids) == 1
    assert set(single.uuids) < set(parts)
    # CUDA uses one MIG device of those it sees; the runtime was told of both.
    assert set(pair.uuids) < set(parts) - set(single.uuids)
    assert len([node for node in pair.nodes if "caps" in node]) == 4


def test_a_plugin_killed_while_it_allocates_costs_that_pod_only(lab: Lab, deploy: Deploy, made: Pods):
    """The pod fails and says so; its GPU is not lost, those of others neither; nor by a new kubelet."""
    modern = lab.node("modern")
    deploy(flags(recoverySeconds=12, healthInterval=2), "modern")
    offered(lab, "modern", 4)
    first = made.make("first", "modern")
    one_gpu_each(made, modern, first)
    pid = plugin_pid(modern)
    caught = caught_allocating(lab, made, pid)
    modern.exec(["kill", "-KILL", pid])
    assert "Allocate failed due to rpc error" in made.refusal(caught)
    wait("another plugin", lambda: plugin_pid(modern) not in ("", pid), 60)
    registered(lab, "modern")
    offered(lab, "modern", 4)
    nexts = [made.make(f"next-{n}", "modern") for n in range(2)]
    one_gpu_each(made, modern, first, *nexts)
    modern.exec(["systemctl", "restart", "kubelet"])
    registered(lab, "modern", times=2)
    modern.wait_ready()
    one_gpu_each(made, modern, first, *nexts, made.make("last", "modern"))


def caught_allocating(lab: Lab, made: Pods, pid: str) -> str:
    """Stop modern's plugin at a moment when the kubelet waits for its answer to Allocate; the pod that it is for.

    The kubelet asks for a preferred allocation first, so the plugin is let run in slices until that is answered.
    """
    modern = lab.node("modern")
    for attempt in range(5):
        seconds = 0.001  # of a slice; on a busy machine the plugin gets no processor in so short a time
        modern.exec(["kill", "-STOP", pid])
        name = made.make(f"caught-{attempt}", "modern")
        while made.get(name)["status"]["phase"] == "Pending":
            stacks = lab.request("GET", "/api/v1/nodes/modern/proxy/debug/pprof/goroutine?debug=2")
            if "devicemanager.(*endpointImpl).allocate(" in stacks:
                return name
            if "devicemanager.(*endpointImpl).getPreferredAllocation(" in stacks:
                modern.exec(["sh", "-c", f"kill -CONT {pid}; sleep {seconds:.3f}; kill -STOP {pid}"])
                seconds *= 1.2
        modern.exec(["kill", "-CONT", pid])
        made.delete(name)
    pytest.fail("Allocate was never seen under way")
