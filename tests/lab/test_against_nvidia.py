"""NVIDIA's own device plugin and this one: with the same GPUs, files and variables, the same answers to the kubelet.

Needs no cluster: the GPUs are those of mount namespaces, the kubelets the fake ones of the fast tests. What differs on
purpose stands in docs/switching.md; here it is not compared, or asserted of both. MPS is not here: it is done in
another way altogether.
"""

import asyncio
import contextlib
import json
import sys
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import grpc
import pytest

from tests import tables

from ..deviceplugin.kubelet import FakeKubelet
from . import builds, machine
from .builds import CHECKOUT
from .gpu.namespace import Namespace, namespace
from .progress import CannotRun

pytestmark = pytest.mark.lab

SAMPLES = Path(__file__).parents[1] / "deviceplugin/nvidia-samples"
SOCKETS = "/var/lib/kubelet/device-plugins"  # NVIDIA's plugin knows no other
TOOLKIT = "/var/run/cdi/nvidia.yaml"
SPEC = "/var/run/cdi/k8s.device-plugin.nvidia.com-gpu.json"
GPU = "nvidia.com/gpu"
MIG = [f"nvidia.com/mig-{profile}" for profile in ("3g.40gb", "2g.20gb", "1g.10gb")]
# 0.19.0 and 0.19.1, and no others, have these on by default: https://github.com/NVIDIA/k8s-device-plugin/pull/1837
OFF = {f"{feature}_ENABLED": "false" for feature in ("GDS", "GDRCOPY", "MOFED")}
H100 = "H100-SXM5-80GB"
MACHINES: dict[str, list[dict[str, Any]]] = {
    "whole": [{"model": H100}] * 4,
    # of 0 and 1, and of 2 and 3, each has most of its links to the other
    "pairs": [{"model": H100, "nvlinks": [gpu ^ 1] * 12 + [(gpu + 2) % 4] * 2} for gpu in range(4)],
    "old": [{"model": "P100-PCIE-16GB"}] * 2,
    "alike": [{"model": H100, "mig_layout": ["1g.10gb"] * count} for count in (7, 3)],
    "partly": [{"model": H100, "mig_layout": ["1g.10gb"]}, {"model": H100}],
    "half-cut": [{"model": H100, "mig_layout": ["1g.10gb"]}, {"model": H100, "mig_layout": []}],
    "lost": [{"model": H100}, {"model": H100, "lost": 1}],
    "unlike": [
        {"model": H100, "mig_layout": ["3g.40gb", "2g.20gb", "1g.10gb", "1g.10gb"]},
        {"model": H100},
    ],
}
T = TypeVar("T")
Question = Callable[[FakeKubelet], Coroutine[Any, Any, T]]


@dataclass(frozen=True)
class Plugin:
    """One of the two, on a machine of its own."""

    within: Namespace
    folder: Path
    program: Sequence[str | Path]

    async def ask(
        self, question: Question[T], resources: Sequence[str], config: str, env: dict[str, str]
    ) -> T:
        """The answer to a question, asked as soon as the kubelet has these resources."""
        kubelet = FakeKubelet(self.folder / "s")
        if config:
            (self.folder / "config.yaml").write_text(config)
            env = {**env, "CONFIG_FILE": str(self.folder / "config.yaml")}
        await kubelet.start()
        process = self.within.start(self.program, self.folder / "log", env)
        try:
            await kubelet.until(lambda: all(kubelet.devices(name) for name in resources), 10)
            return await question(kubelet)
        except (TimeoutError, asyncio.TimeoutError, grpc.aio.AioRpcError) as error:
            log = (self.folder / "log").read_text()[-4000:]
            raise AssertionError(f"{self.program[-1]}: {error!r}\n{log}") from error
        finally:
            process.kill()
            process.wait()
            await kubelet.stop()


@dataclass(frozen=True)
class Pair:
    """The two, on machines that are the same."""

    nvidia: Plugin
    gpunode: Plugin

    def ask(
        self, question: Question[T], *resources: str, config: str = "", off: bool = True, **env: str
    ) -> tuple[T, T]:
        """What NVIDIA's plugin answers, and what this one does."""
        common = {**(OFF if off else {}), "DRIVER_ROOT_CTR_PATH": "/", "PYTHONPATH": str(CHECKOUT), **env}

        async def both() -> tuple[T, T]:
            asked = [each.ask(question, resources, config, common) for each in (self.nvidia, self.gpunode)]
            theirs, ours = await asyncio.gather(*asked)
            return theirs, ours

        return asyncio.run(both())

    def same(self, *resources: str, **more: Any) -> dict[str, Any]:
        """Assert that all that a kubelet may ask is answered the same; the answers."""
        theirs, ours = self.ask(everything, *resources, **more)
        assert ours == theirs
        return ours


@pytest.fixture(scope="module")
def machines() -> Iterator[Callable[[str], Pair]]:
    """Machines by name, made when first asked for."""
    try:
        machine.check()
    except CannotRun as reason:
        pytest.skip(f"no lab: {reason}")
    programs: list[list[str | Path]] = [
        [builds.go(builds.NVIDIA_PLUGIN) / "nvidia-device-plugin"],
        [sys.executable, "-m", "gpunode.deviceplugin"],
    ]
    made: dict[str, Pair] = {}
    with contextlib.ExitStack() as stack:

        def plugin(name: str, program: list[str | Path]) -> Plugin:
            folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="dp-", dir="/tmp")))
            (folder / "s").mkdir()
            return Plugin(
                stack.enter_context(namespace(MACHINES[name], folder / "s", SOCKETS)), folder, program
            )

        def pair(name: str) -> Pair:
            if name not in made:
                made[name] = Pair(*(plugin(name, program) for program in programs))
            return made[name]

        yield pair


async def everything(kubelet: FakeKubelet) -> dict[str, Any]:
    """Of each resource: how it was registered, its devices, and what containers get that have one, two, all of them."""
    results: dict[str, Any] = {}
    for request in kubelet.requests:
        name = request.resource_name
        devices, numa = kubelet.devices(name), kubelet.plugins[name].numa
        ids = sorted(devices)
        results[name] = {
            "registered": (request.version, request.endpoint, str(request.options)),
            "devices": {plugin: (devices[plugin], numa[plugin]) for plugin in ids},
            "given": {
                asked: await given(kubelet, *asked, resource=name)
                for asked in {(ids[0],), (ids[-1],), tuple(ids[:2]), tuple(ids), ("GPU-unknown",)}
            },
        }
    return results


async def given(kubelet: FakeKubelet, *ids: str, resource: str = GPU) -> dict[str, Any] | str:
    """What a container gets, without what makes no difference to it: orders, and what is there twice."""
    try:
        answer = await kubelet.allocate(*ids, resource=resource)
    except grpc.aio.AioRpcError:
        return "refused"
    return {
        "envs": {name: sorted(value.split(",")) for name, value in answer.envs.items()},
        "mounts": {(mount.container_path, mount.host_path, mount.read_only) for mount in answer.mounts},
        "devices": {(each.container_path, each.host_path, each.permissions) for each in answer.devices},
        # each plugin has a key of its own behind the prefix, as the format wants it
        "annotations": [
            (key.partition("/")[0], sorted(value.split(","))) for key, value in answer.annotations.items()
        ],
        "cdi": sorted(device.name for device in answer.cdi_devices),
    }


@pytest.mark.parametrize(
    ("file", "machine", "resources"),
    [
        ("flags.yaml", "whole", [GPU]),
        ("flags.yaml", "old", [GPU]),
        ("mig-mixed.yaml", "unlike", [GPU, *MIG]),
        ("mig-mixed.yaml", "alike", MIG[2:]),
        ("time-slicing.yaml", "whole", [GPU]),
        ("time-slicing-renamed.yaml", "whole", [f"{GPU}.shared"]),
        ("time-slicing-mig.yaml", "unlike", [GPU, *MIG]),
    ],
)
def test_a_documented_file_means_the_same(machines, file, machine, resources):
    """Resources, device ids, NUMA nodes, options, and what containers get."""
    results = machines(machine).same(*resources, config=(SAMPLES / file).read_text())
    assert set(results) == set(resources)


@tables.rows("nvidia-variables")
def test_a_variable_means_the_same(machines, machine, resources, env):
    """The same questions for what the documented files leave at its default."""
    assert set(machines(machine).same(*resources, **env)) == set(resources)


@pytest.mark.parametrize(
    ("resources", "env"),
    [([GPU, *MIG], {"MIG_STRATEGY": "mixed"}), ([GPU], {"DEVICE_LIST_STRATEGY": "volume-mounts"})],
    ids=str,
)
def test_the_environment_wins_over_the_file(machines, resources, env):
    """In both; so what a DaemonSet sets beside its file goes on winning."""
    config = {"version": "v1", "flags": {"migStrategy": "none", "plugin": {"deviceListStrategy": "envvar"}}}
    results = machines("unlike").same(*resources, config=json.dumps(config), **env)
    assert results != machines("unlike").same(GPU)


@pytest.mark.parametrize(
    "config",
    ["# nothing\n", "flags: {migStrategy: none}\n", "version: v1\nimex: {channelIDs: [], required: false}\n"],
)
def test_a_file_that_says_little_is_taken(machines, config):
    """Without a version; with empty parts."""
    machines("whole").same(GPU, config=config)


@pytest.mark.parametrize(
    ("machine", "resources", "env"),
    [
        ("whole", [GPU], {"DEVICE_LIST_STRATEGY": "cdi-cri"}),
        (
            "whole",
            [GPU],
            {"DEVICE_LIST_STRATEGY": "cdi-annotations", "CDI_ANNOTATION_PREFIX": "example.org/"},
        ),
        ("whole", [GPU], {"DEVICE_LIST_STRATEGY": "cdi-annotations,cdi-cri", "DEVICE_ID_STRATEGY": "index"}),
        ("whole", [GPU], {"DEVICE_LIST_STRATEGY": "cdi-cri", "PASS_DEVICE_SPECS": "true"}),
        ("whole", [GPU], {"DEVICE_LIST_STRATEGY": "envvar,cdi-cri", "PASS_DEVICE_SPECS": "true"}),
        ("unlike", [GPU, *MIG], {"DEVICE_LIST_STRATEGY": "cdi-cri", "MIG_STRATEGY": "mixed"}),
    ],
    ids=str,
)
def test_cdi_names_and_gives_the_same_devices(machines, machine, resources, env):
    """Under the same names in the same file; each device has the same nodes, and each container the same mounts."""
    pair = machines(machine)
    for plugin in (pair.nvidia, pair.gpunode):
        plugin.within.run("rm", "-f", SPEC)  # this plugin keeps in it what containers may have from before
    pair.gpunode.within.run(
        str(builds.go(builds.TOOLKIT) / "nvidia-ctk"), "cdi", "generate", f"--output={TOOLKIT}"
    )
    pair.same(*resources, **env)
    theirs, ours = (json.loads(each.within.run("cat", SPEC)) for each in (pair.nvidia, pair.gpunode))
    assert ours["kind"] == theirs["kind"]
    assert nodes(ours) == nodes(theirs)
    for part in ("deviceNodes", "mounts", "env"):
        assert listed(ours, part) == listed(theirs, part), part


def nodes(specification: dict[str, Any]) -> dict[str, set[str]]:
    return {device["name"]: listed(device, "deviceNodes") for device in specification["devices"]}


def listed(holder: dict[str, Any], part: str) -> set[str]:
    """A part of some edits, in any order."""
    return {json.dumps(plugin, sort_keys=True) for plugin in holder["containerEdits"].get(part, ())}


def test_whole_gpus_are_preferred_that_are_wired_together(machines):
    """The same sets wherever one is the best."""

    async def preferred(kubelet: FakeKubelet) -> list[set[str]]:
        by_index = {
            (await kubelet.allocate(each)).envs["NVIDIA_VISIBLE_DEVICES"]: each for each in kubelet.devices()
        }
        gpus = [by_index[str(number)] for number in range(4)]
        asked = [
            (gpus[:3], [], 2),
            (gpus[1:], [], 2),
            (gpus, gpus[2:3], 2),
            (gpus, gpus[:1], 2),
            (gpus, gpus[:2], 3),
            (gpus, [], 4),
        ]
        answers = [set(await kubelet.prefer(*plugin)) for plugin in asked]
        assert answers[:2] == [set(gpus[:2]), set(gpus[2:])]
        return [
            each & set(gpus[:2]) if len(each) == 3 else each for each in answers
        ]  # the third may be either

    theirs, ours = machines("pairs").ask(preferred, GPU, DEVICE_ID_STRATEGY="index")
    assert ours == theirs


def test_shares_are_preferred_of_the_gpus_that_have_most_left(machines):
    """Counted by GPU: which of two that are alike is a matter of chance there."""

    async def preferred(kubelet: FakeKubelet) -> list[Any]:
        ids = sorted(kubelet.devices())
        gpus = sorted({text.partition("::")[0] for text in ids})
        some = [plugin for plugin in ids if plugin not in ids[:6]]  # the first has four left
        counts = [
            Counter(text.partition("::")[0] for text in await kubelet.prefer(available, must, size))
            for available, must, size in ((ids, [], 4), (some, [], 3), (some, ids[6:7], 4), (some, [], 18))
        ]
        return [sorted(counts[0].values()), counts[1], counts[2], counts[3][gpus[0]]]

    config = (SAMPLES / "time-slicing.yaml").read_text()
    theirs, ours = machines("whole").ask(preferred, GPU, config=config)
    assert ours == theirs
    assert ours[0] == [1, 1, 1, 1]


@pytest.mark.parametrize("machine", ["partly", "half-cut", "unlike"])
def test_mig_devices_that_strategy_single_cannot_offer_end_both(machines, machine):
    """MIG on for some GPUs only; on without a MIG device; devices of several profiles."""
    pair = machines(machine)
    env = {**OFF, "MIG_STRATEGY": "single", "PYTHONPATH": str(CHECKOUT)}
    for plugin in (pair.nvidia, pair.gpunode):
        assert plugin.within.start(plugin.program, plugin.folder / "log", env).wait(10) == 1


def test_more_shares_than_one_are_refused_in_the_same_words(machines):
    """What people search for."""

    async def refusal(kubelet: FakeKubelet) -> str:
        with pytest.raises(grpc.aio.AioRpcError) as caught:
            await kubelet.allocate(*sorted(kubelet.devices())[:2])
        return str(caught.value.details())

    for words in machines("unlike").ask(refusal, GPU, config=(SAMPLES / "time-slicing-mig.yaml").read_text()):
        assert "invalid request: maximum request size for shared resources is 1; found 2" in words


def after_xids(pair: Pair, *xids: str, last: str, **env: str) -> tuple[set[str], set[str]]:
    """Indexes of the Unhealthy GPUs when `last` is, after the first GPU had the first of these Xids, and so on."""

    async def sick(kubelet: FakeKubelet) -> set[str]:
        within = next(
            each.within for each in (pair.nvidia, pair.gpunode) if each.folder == kubelet.directory.parent
        )
        indexes = {
            each: (await kubelet.allocate(each)).envs["NVIDIA_VISIBLE_DEVICES"] for each in kubelet.devices()
        }

        def unhealthy() -> set[str]:
            return {indexes[plugin] for plugin, health in kubelet.devices().items() if health == "Unhealthy"}

        for _ in range(10):  # NVIDIA's registers first, and listens to the driver some time later
            for gpu, xid in enumerate(xids):
                within.run("lab-gpu", "xid", str(gpu), xid)
            with contextlib.suppress(asyncio.TimeoutError):
                await kubelet.until(lambda: last in unhealthy(), 1)
                break
        return unhealthy()

    return pair.ask(sick, GPU, DEVICE_ID_STRATEGY="index", **env)


@pytest.mark.parametrize(
    ("env", "xids", "sick"),
    [
        ({"DP_DISABLE_HEALTHCHECKS": "48,63"}, ("48", "79"), "1"),
        ({"DP_ENABLE_HEALTHCHECKS": "13,31"}, ("13",), "0"),
        ({"DP_DISABLE_HEALTHCHECKS": "48", "DP_ENABLE_HEALTHCHECKS": "48"}, ("48",), "0"),
    ],
)
def test_which_xids_count_is_set_by_the_same_variables(machines, env, xids, sick):
    """What is enabled wins over what is disabled."""
    assert after_xids(machines("whole"), *xids, last=sick, **env) == ({sick}, {sick})


# What docs/switching.md says of NVIDIA's plugin.


def test_it_passes_over_which_devices_are_shared_and_under_which_name(machines):
    """This one does not; a number of devices it refuses."""
    share = {"name": GPU, "replicas": 2, "rename": "nvidia.com/half", "devices": ["0"]}
    config = json.dumps({"version": "v1", "sharing": {"timeSlicing": {"resources": [share]}}})

    async def offered(kubelet: FakeKubelet) -> dict[str, int]:
        half = "nvidia.com/half"
        if GPU in kubelet.plugins and len(kubelet.devices()) < 8:
            await kubelet.until(lambda: kubelet.devices(half))
        return {name: len(kubelet.devices(name)) for name in kubelet.plugins}

    assert machines("whole").ask(offered, GPU, config=config) == ({GPU: 8}, {GPU: 3, "nvidia.com/half": 2})


def test_an_xid_that_asks_for_an_applications_restart_costs_it_the_gpu(machines):
    """94 does, and 13 as one of the six that it knows does not; 48 costs both of them the GPU."""
    assert after_xids(machines("whole"), "13", "94", "48", last="2") == ({"1", "2"}, {"2"})


def test_a_gpu_that_is_lost_at_the_start_ends_it(machines):
    """This one offers the other."""
    pair = machines("lost")
    assert pair.nvidia.within.start(pair.nvidia.program, pair.nvidia.folder / "log").wait(10) == 1

    async def offered(kubelet: FakeKubelet) -> int:
        return len(kubelet.devices())

    assert asyncio.run(pair.gpunode.ask(offered, [GPU], "", {"PYTHONPATH": str(CHECKOUT)})) == 1


def test_0_19_has_gds_gdrcopy_and_mofed_on(machines):
    """Who switches from 0.19.0 or 0.19.1 and needs them says so."""

    async def variables(kubelet: FakeKubelet) -> set[str]:
        return set((await kubelet.allocate(*list(kubelet.devices())[:1])).envs)

    theirs, ours = machines("whole").ask(variables, GPU, off=False)
    assert theirs - ours == {"NVIDIA_GDS", "NVIDIA_GDRCOPY", "NVIDIA_MOFED"}


def test_an_empty_allocation_names_no_device(machines):
    """An empty variable leaves it to the image, which may say "all"; "void" does not."""

    async def variable(kubelet: FakeKubelet) -> str:
        return str((await kubelet.allocate()).envs["NVIDIA_VISIBLE_DEVICES"])

    assert machines("whole").ask(variable, GPU) == ("", "void")
