"""The commands that speak to the cluster alone: which nodes they find, what they say, how they end."""

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpunode.cli import app
from gpunode.cluster.api.kinds import path
from gpunode.contract.status import ENFORCED, LAYOUT, Reason, Unavailable
from gpunode.engine import converge, proof
from gpunode.engine.fleet import Visit
from gpunode.errors import ClusterError, Declined, Problem, UsageError
from gpunode.model import Gpu, MigDevice, Outcome
from gpunode.wording import Advice
from gpunode.wording import Command as Provision
from tests import cases
from tests.unit.test_inventory_archive import docker, tar

from .conftest import DAEMONSET, GPU_NODE, Kubelet, PluginController, add_node, pod, publish, status
from .fake import FakeApi, Fault

Command = Callable[..., Result]


@pytest.fixture
def command(fake: FakeApi, tmp_path, monkeypatch) -> Command:
    """Runs gpunode with an inventory of gpu-1, which is the node `inside`, and of the node gpu-2."""
    config = json.dumps(
        {
            "cluster": {"kubeconfig": fake.kubeconfig(tmp_path), "plugin": {"image": "plugin:1"}},
            "groups": {"all": {"hosts": ["gpu-1", "gpu-2"]}},
        }
    )
    (tmp_path / "inventory.yaml").write_text(config)
    monkeypatch.setattr(proof, "PLUGIN_SECONDS", 2.0)

    def look(visit: Visit, _: Any) -> Outcome:
        assert visit.host.name == "gpu-1", "only a host that no node is found for is asked"
        return Outcome("gpu-1", "right", replace(cases.facts("modern"), hostname="inside"))

    monkeypatch.setattr(converge, "probe_and_plan", look)
    return lambda *words: CliRunner().invoke(app, [*words, str(tmp_path / "inventory.yaml")])


def configure(folder: Path, **values: Any) -> None:
    """`cluster.plugin` of the inventory with these values."""
    inventory = json.loads((folder / "inventory.yaml").read_text())
    inventory["cluster"]["plugin"] |= values
    (folder / "inventory.yaml").write_text(json.dumps(inventory))


def test_a_node_with_another_name_than_the_inventorys_is_found_by_its_hosts_own(
    command: Command, fake: FakeApi
):
    """As `provision` finds it."""
    add_node(fake, "inside", 2)
    add_node(fake, "gpu-2", 1)
    PluginController(fake)
    deployed = command("plugin", "deploy", "--yes")
    assert deployed.exit_code == 0, deployed.output
    labels = {node["metadata"]["name"]: node["metadata"]["labels"] for node in fake.all("Node")}
    assert labels["inside"]["gpunode.dev/gpu"] == labels["gpu-2"]["gpunode.dev/gpu"] == "true"

    Kubelet(fake, {"inside": ["GPU-0", "GPU-1"], "gpu-2": ["GPU-2"]})
    ran = command("run", "vectoradd")
    assert ran.exit_code == 0, ran.output
    assert all(uuid in ran.output for uuid in ("GPU-0", "GPU-1", "GPU-2"))


def test_a_deploy_after_which_a_node_offers_no_gpu_has_failed(command: Command, fake: FakeApi):
    """The reason is told, and `plugin status` agrees."""
    add_node(fake, "inside", 0)
    add_node(fake, "gpu-2", 1)
    PluginController(fake)
    deployed = command("plugin", "deploy", "--yes")
    assert deployed.exit_code == 1
    assert "inside offers 0 GPUs after" in deployed.output
    assert "the kubelet does not count its GPUs yet" in deployed.output
    assert command("plugin", "status").exit_code == 1
    assert command("plugin", "status", "--limit", "gpu-2").exit_code == 0


def test_each_of_several_nodes_that_offer_no_gpu_is_said_to_have_had_the_whole_wait(
    command: Command, fake: FakeApi
):
    """They are waited for one after the other, until one end."""
    add_node(fake, "inside", 0)
    add_node(fake, "gpu-2", 0)
    PluginController(fake)
    said = command("plugin", "deploy", "--yes").output
    assert "inside offers 0 GPUs after 2 s" in said
    assert "gpu-2 offers 0 GPUs after 2 s" in said


def test_the_status_of_a_plugin_that_is_right_repeats_no_line_of_its_log(command: Command, fake: FakeApi):
    """The last line is of interest where something is wrong."""
    for name, gpus in (("inside", 1), ("gpu-2", 0)):
        add_node(fake, name, gpus, labels=GPU_NODE)
    PluginController(fake)
    command("plugin", "deploy", "--yes")
    for name in ("inside", "gpu-2"):
        publish(fake, name, status())
        fake.logs[f"{DAEMONSET}-{name}", "device-plugin"] += f"said on {name}\n"
    said = command("plugin", "status").output
    assert "said on gpu-2" in said
    assert "said on inside" not in said


def test_a_deploy_without_an_image_touches_no_node(command: Command, fake: FakeApi, tmp_path):
    """The mistake is in the inventory; the cluster stays as it is."""
    file = tmp_path / "inventory.yaml"
    config = json.loads(file.read_text())
    del config["cluster"]["plugin"]
    file.write_text(json.dumps(config))
    add_node(fake, "gpu-2", 1)
    deployed = command("plugin", "deploy", "--yes", "--limit", "gpu-2")
    assert deployed.exit_code != 0
    assert "names no image of the device plugin" in str(deployed.exception)
    assert "gpunode.dev/gpu" not in fake.all("Node")[0]["metadata"]["labels"]


def test_what_is_to_be_removed_is_shown_before_the_question(command: Command, fake: FakeApi):
    """If no user can answer, it is shown and nothing is removed."""
    with_plugin(command, fake, 2)
    elsewhere = command("plugin", "remove", "--yes", "--namespace", "typo")
    assert "namespace typo has no device plugin of gpunode's: it is in gpunode" in str(elsewhere.exception)
    declined = command("plugin", "remove")
    assert declined.exit_code != 0
    assert "DaemonSet gpunode/gpunode-device-plugin" in declined.output
    assert fake.all("DaemonSet")
    removed = command("plugin", "remove", "--yes")
    assert removed.exit_code == 0
    assert not fake.all("DaemonSet")
    assert "there is nothing to remove" in command("plugin", "remove").output


def with_plugin(command: Command, fake: FakeApi, gpus: int = 0, **offers: Any) -> None:
    """The node `inside`, on which the plugin was deployed."""
    add_node(fake, "inside", gpus, labels=GPU_NODE, **offers)
    PluginController(fake)
    command("plugin", "deploy", "--yes", "--limit", "gpu-1")


def reports(fake: FakeApi, index: int, xid: int) -> None:
    """The plugin on the node `inside` reports that this GPU had an Xid."""
    lost = Unavailable(f"GPU-{index}", str(index), f"xid-{xid}", f"Xid {xid}")
    publish(fake, "inside", status(lost=(lost,)))


ON: dict[str, Any] = {"mig_on": True, "mig_pending": True}


def looked(monkeypatch, gpu: Gpu | None = None) -> None:
    """The host gpu-1 is right and has one GPU."""
    _, seen = cases.right()
    outcome = Outcome("gpu-1", "right", replace(seen, hostname="inside", gpus=(gpu,) if gpu else seen.gpus))
    monkeypatch.setattr(converge, "probe_and_plan", lambda *_: outcome)


def test_devices_that_are_out_beside_whole_gpus_are_reported_where_the_capacity_holds(
    command: Command, fake: FakeApi, monkeypatch
):
    """A share of another name that is Unhealthy breaks nothing that verify counts, but is no secret."""
    with_plugin(command, fake, 1, gpu_shared=4)
    looked(monkeypatch)
    fake.update("Node", "inside", status={"allocatable": {"nvidia.com/gpu.shared": "3"}})
    reports(fake, 1, 79)
    verified = command("verify", "--limit", "gpu-1", "--no-run")
    assert verified.exit_code == 0, verified.output
    assert "! capacity  1 of 1 GPUs allocatable" in verified.output
    assert "1 of nvidia.com/gpu.shared not offered" in verified.output
    assert "the plugin reports: GPU 1 (GPU-1) is Unhealthy: Xid 79" in verified.output


def test_a_label_that_names_no_configuration_has_its_fix(
    command: Command, fake: FakeApi, tmp_path, monkeypatch
):
    """Shares of the configuration of before are not said to be too many GPUs."""
    add_node(fake, "inside", 16, labels={**GPU_NODE, "nvidia.com/device-plugin.config": "nosuch"})
    (tmp_path / "plugin.yaml").write_text("version: v1\n")
    configure(tmp_path, configs={"default": "plugin.yaml", "shared": "plugin.yaml"})
    PluginController(fake)
    command("plugin", "deploy", "--yes")
    looked(monkeypatch)
    verified = command("verify", "--limit", "gpu-1", "--no-run")
    assert verified.exit_code == 1, verified.output
    assert "✗ capacity  16 nvidia.com/gpu allocatable" in verified.output
    assert "names `nosuch`; there are default, shared" in verified.output
    assert "kubectl label node inside nvidia.com/device-plugin.config-" in verified.output
    assert command("plugin", "status", "--limit", "gpu-1").exit_code == 1


def test_a_pod_that_failed_has_the_plugins_words_beside_its_own(command: Command, fake: FakeApi, monkeypatch):
    """A GPU may have become ill just now: the kubelet counts it yet, the plugin has heard its Xid."""
    with_plugin(command, fake, 1)
    looked(monkeypatch)
    Kubelet(fake, {"inside": ["GPU-0"]}).broken.add("GPU-0")
    reports(fake, 0, 48)
    verified = command("verify", "--limit", "gpu-1")
    assert verified.exit_code == 1
    assert "element 7 is 0.0" in verified.output
    assert "the plugin reports: GPU 0 (GPU-0) is Unhealthy: Xid 48" in verified.output


def test_a_gpu_given_whole_though_cut_into_mig_devices_is_the_cause_where_its_pod_failed(
    command: Command, fake: FakeApi, monkeypatch
):
    """In the pod the driver sees no GPU, which says nothing of MIG."""
    with_plugin(command, fake, 1)
    _, seen = cases.right()
    looked(monkeypatch, replace(seen.gpus[0], mig=(MigDevice(0, "MIG-0", "3g.40gb"),), **ON))
    Kubelet(fake, {"inside": ["GPU-0"]}).broken.add("GPU-0")
    verified = command("verify", "--limit", "gpu-1")
    assert verified.exit_code == 1
    assert "GPU 0: MIG is on, but pods get it whole" in verified.output
    assert "element 7 is 0.0" in verified.output


@pytest.fixture
def strategy(tmp_path) -> Callable[[str], None]:
    """Sets the plugin's MIG strategy in the inventory."""

    def put(word: str) -> None:
        (tmp_path / "plugin.yaml").write_text(f"version: v1\nflags: {{migStrategy: {word}}}\n")
        configure(tmp_path, config="plugin.yaml")

    return put


def two(monkeypatch, **second: Any) -> None:
    """The host gpu-1 is right and has two GPUs; something is special with the second."""
    _, seen = cases.right()
    (device,) = seen.pci
    other = replace(device, address="0000:3b:00.0")
    (first,) = seen.gpus
    gpus = (first, replace(first, index=1, uuid="GPU-1", pci=other.address, **second))
    errors = {"mig": "nvidia-smi -L: exit status 255"} if second.get("mig", ()) is None else {}
    now = replace(seen, hostname="inside", gpus=gpus, pci=(device, other), errors=errors)
    monkeypatch.setattr(converge, "probe_and_plan", lambda *_: Outcome("gpu-1", "right", now))


def links(ran: Result) -> dict[str, dict[str, str]]:
    lines = [json.loads(line) for line in ran.stdout.splitlines()]
    return {line["layer"]: line for line in lines if line["type"] == "link"}


@pytest.mark.parametrize(
    ("whole", "text"),
    [(1, "1 of 1 nvidia.com/gpu allocatable; nothing of GPU 1"), (0, "0 of 1 GPUs allocatable")],
)
def test_a_gpu_whose_mig_is_on_and_that_has_no_mig_device_is_named_with_what_to_do(
    command: Command, fake: FakeApi, monkeypatch, strategy: Callable[[str], None], whole: int, text: str
):
    """The usual state after a reboot. Nothing else is asked: the host's own nvidia-smi says so."""
    strategy("mixed")
    with_plugin(command, fake, whole)
    two(monkeypatch, **ON)
    if not whole:
        looked(monkeypatch, replace(cases.right()[1].gpus[0], index=1, **ON))
    verified = command("verify", "--limit", "gpu-1", "--no-run", "--json")
    assert verified.exit_code == 1, verified.output
    said = links(verified)
    assert said["NVML"]["text"].endswith(", MIG is on for GPU 1")
    assert said["capacity"]["status"] == "broken"
    assert said["capacity"]["text"] == text
    assert said["capacity"]["cause"] == (
        "GPU 1: MIG is on, but no MIG device was made, so nothing of it is offered"
    )
    assert "nvidia-smi mig -i 1 -cgi PROFILE -C" in said["capacity"]["fix"]


@pytest.mark.parametrize(("allocatable", "count", "renew"), [(0, 0, True), (1, 1, True), (1, 2, False)])
def test_a_plugin_that_was_started_before_the_mig_devices_were_made_is_to_be_started_again(
    command: Command,
    fake: FakeApi,
    monkeypatch,
    strategy: Callable[[str], None],
    allocatable: int,
    count: int,
    renew: bool,
):
    """Its container has no device nodes of them. One that is Unhealthy it has seen."""
    strategy("mixed")
    name = "nvidia.com/mig-3g.40gb"
    with_plugin(command, fake, 1)
    fake.update(
        "Node", "inside", status={"capacity": {name: str(count)}, "allocatable": {name: str(allocatable)}}
    )
    two(monkeypatch, mig=tuple(MigDevice(n, f"MIG-{n}", "3g.40gb") for n in range(2)), **ON)
    verified = command("verify", "--limit", "gpu-1", "--no-run", "--json")
    said = links(verified)["capacity"]
    assert said["status"] == "broken"
    assert said["text"] == f"1 of 1 nvidia.com/gpu, {allocatable} of 2 {name} allocatable"
    assert (
        "if some were made since, kubectl -n gpunode delete pod gpunode-device-plugin-inside" in said["fix"]
    ) == renew


def test_a_plugin_that_refuses_a_mig_layout_is_repaired_on_the_host(
    command: Command, fake: FakeApi, monkeypatch, strategy: Callable[[str], None]
):
    """`gpunode provision` would not help."""
    strategy("single")
    add_node(fake, "inside", 0, labels=GPU_NODE)
    running = {"name": "device-plugin", "ready": False, "state": {"running": {}}}
    not_ready = {"phase": "Running", "conditions": [{"type": "Ready", "status": "False"}]}
    PluginController(fake, {"inside": {**not_ready, "containerStatuses": [running]}})
    command("plugin", "deploy", "--yes", "--limit", "gpu-1")
    why = "MIG strategy single: MIG is on for some GPUs but off for GPU 0; make them alike, or use MIG strategy mixed"
    publish(fake, "inside", status(not_ready=Reason(LAYOUT, why)))
    two(monkeypatch, **ON)
    verified = command("verify", "--limit", "gpu-1", "--no-run", "--json")
    said = links(verified)["plugin"]
    assert (verified.exit_code, said["status"]) == (1, "broken")
    assert said["cause"] == f"the plugin is not ready: {why}"
    assert "nvidia-smi -i 1 -mig 0" in said["fix"]


def test_a_node_whose_mig_devices_are_not_known_is_not_called_broken(
    command: Command, fake: FakeApi, monkeypatch, strategy: Callable[[str], None]
):
    """`nvidia-smi -L` failed: what the node offers is all there is to go by, and every part of it is tried."""
    strategy("mixed")
    with_plugin(command, fake, 1, **{"mig-3g.40gb": 1})
    Kubelet(fake, {"inside": ["GPU-0", "MIG-0"]})
    two(monkeypatch, mig=None, **ON)
    verified = command("verify", "--limit", "gpu-1", "--json")
    assert verified.exit_code == 0, verified.output
    said = links(verified)
    assert "nvidia-smi -L: exit status 255" in said["NVML"]["cause"]
    assert said["capacity"]["text"] == "1 nvidia.com/gpu, 1 nvidia.com/mig-3g.40gb allocatable"
    assert "not compared with the host" in said["capacity"]["cause"]
    assert said["pod"]["text"] == "vectoradd passed on GPU-0, MIG-0"


def test_a_mig_mode_that_waits_for_a_reset_is_reported_and_breaks_nothing(
    command: Command, fake: FakeApi, monkeypatch
):
    """Until then the GPU is what it was."""
    with_plugin(command, fake, 2)
    two(monkeypatch, mig_pending=True)
    verified = command("verify", "--limit", "gpu-1", "--no-run")
    assert verified.exit_code == 0, verified.output
    assert "GPU 1: MIG is off, and on only after the GPU's next reset" in verified.output
    assert "`nvidia-smi -i 1 --gpu-reset`; or reboot the host" in verified.output


def test_a_gpu_that_is_given_whole_with_mig_on_is_reported_before_a_pod_fails_on_it(
    command: Command, fake: FakeApi, monkeypatch
):
    """It is offered, and of no use."""
    with_plugin(command, fake, 2)
    two(monkeypatch, **ON)
    verified = command("verify", "--limit", "gpu-1", "--no-run", "--json")
    assert verified.exit_code == 0, verified.output
    assert links(verified)["capacity"]["cause"] == (
        "GPU 1: MIG is on, but pods get it whole, as the plugin's migStrategy is none"
    )


@pytest.mark.parametrize("annotation", [True, False])
def test_memory_that_is_not_limited_has_its_reason(
    command: Command, fake: FakeApi, monkeypatch, annotation: bool
):
    """Nothing is broken, so nobody would look for it in a log."""
    with_plugin(command, fake, shared=(1, 16))
    looked(monkeypatch)
    Kubelet(fake, {"inside": ["GPU-0", "GPU-0"]})
    limits = {"GPU-0": Reason("not-enforced", "the driver is too old"), "GPU-1": Reason(ENFORCED, "")}
    publish(fake, "inside", status(memory_limits=limits), annotation=annotation)
    verified = command("verify", "--limit", "gpu-1")
    assert verified.exit_code == 0, verified.output
    assert "shares of memory are not limited by the driver: the driver is too old" in verified.output


def test_a_gpu_that_fell_off_the_bus_has_its_xid_as_the_cause(command: Command, fake: FakeApi, monkeypatch):
    """The driver says only that it is lost; the device plugin has heard why, and told the cluster."""
    with_plugin(command, fake, 2)
    _, seen = cases.right()
    lost = replace(seen, hostname="inside", smi_error="Unable to determine the device handle: GPU is lost.")
    monkeypatch.setattr(converge, "probe_and_plan", lambda *_: Outcome("gpu-1", "right", lost))
    verified = command("verify", "--limit", "gpu-1", "--no-run")
    assert "✗ NVML" in verified.output
    assert "the plugin" not in verified.output
    reports(fake, 1, 79)
    verified = command("verify", "--limit", "gpu-1", "--no-run")
    assert "cause     the plugin reports: GPU 1 (GPU-1) is Unhealthy: Xid 79" in verified.output
    assert verified.exit_code == 1


def test_a_plan_that_the_cluster_refuses_ends_with_its_summary_too(
    command: Command, fake: FakeApi, monkeypatch
):
    """What the hosts would change is told and counted; the refusal is a line of its own."""
    monkeypatch.setattr(converge, "probe_and_plan", lambda visit, _: Outcome(visit.host.name, "right"))
    fake.fail("GET", "/nodes", Fault(403, "Forbidden", "nodes is forbidden"))
    planned = command("plan", "--json")
    *_, error, last = map(json.loads, planned.stdout.splitlines())

    assert planned.exit_code == 1
    assert error["type"] == "error"
    assert (last["type"], last["right"]) == ("summary", 2)


def test_a_label_that_nobody_named_is_explained_by_an_example(command: Command):
    ended = command("label")

    assert isinstance(ended.exception, UsageError)
    assert "gpunode label --accelerator inventory.yaml" in ended.exception.hint


@pytest.mark.parametrize(
    "words", [("plugin", "deploy", "--yes"), ("run", "vectoradd"), ("label", "--accelerator")]
)
def test_a_host_without_a_gpu_is_not_told_to_name_its_node(
    command: Command, fake: FakeApi, monkeypatch, words: tuple[str, ...]
):
    """Its own refusal says more than that it is no node."""
    add_node(fake, "gpu-2", 1)
    PluginController(fake)
    Kubelet(fake, {"gpu-2": ["GPU-2"]})
    why, hint = "no NVIDIA GPU on the PCI bus", "Check that it is seated."

    def look(visit: Visit, _: Any) -> Outcome:
        facts = replace(cases.facts("modern"), hostname=visit.host.name)
        if visit.host.name == "gpu-1":
            return Outcome("gpu-1", "refused", facts, problem=Problem("", why, fix=hint))
        return Outcome("gpu-2", "right", facts)

    monkeypatch.setattr(converge, "probe_and_plan", look)
    ended = command(*words)

    assert ended.exit_code == 1
    assert f"gpu-1: {why}; it is not a node of the cluster" in ended.output
    assert hint in ended.output
    assert "`node:`" not in ended.output


def test_a_fix_works_with_the_inventory_that_was_given(
    command: Command, fake: FakeApi, monkeypatch, tmp_path
):
    """Not with the default one, which the person may not have."""
    add_node(fake, "gpu-2", 1)
    lost = Outcome(
        "", "failed", problem=Problem("", "lost", fix=Advice("`", Provision("provision"), "` follows it."))
    )
    monkeypatch.setattr(converge, "probe_and_plan", lambda visit, _: replace(lost, host=visit.host.name))

    assert f"`gpunode provision {tmp_path}/inventory.yaml` follows it." in command("plan").output


@pytest.fixture
def right_hosts(fake: FakeApi, monkeypatch) -> None:
    """Two nodes with a GPU each; nothing is to be done on their hosts."""
    monkeypatch.setattr(converge, "probe_and_plan", lambda visit, _: Outcome(visit.host.name, "right"))
    for name in ("gpu-1", "gpu-2"):
        add_node(fake, name, 1)
    PluginController(fake)


@pytest.fixture
def deployed(command: Command, right_hosts: None) -> Command:
    """The cluster is as the inventory has it."""
    done = command("plugin", "deploy", "--yes")
    assert done.exit_code == 0, done.output
    return command


def test_a_drift_check_covers_the_cluster(deployed: Command, fake: FakeApi):
    """5 where the cluster alone is not as it was left; and where it is, that is said."""
    planned = deployed("plan", "--exit-code")
    assert planned.exit_code == 0
    assert " cluster  test  = up to date\n" in planned.stdout

    (live, _) = fake.all("DaemonSet")
    live["spec"]["template"]["spec"]["containers"][0]["image"] = "theirs:1"
    fake.update("Node", "gpu-2", metadata={"labels": {"gpunode.dev/gpu": None}})
    planned = deployed("plan", "--exit-code")
    assert planned.exit_code == 5
    assert "-        image: theirs:1\n" in planned.stdout
    assert "+        image: plugin:1\n" in planned.stdout
    assert "~ label Node gpu-2\n" in planned.stdout
    assert "2 changes to make in the cluster" in planned.stderr
    assert deployed("plan").exit_code == 0
    assert fake.all("DaemonSet")[0]["spec"]["template"]["spec"]["containers"][0]["image"] == "theirs:1"


def test_a_label_that_would_be_refused_is_no_good_plan(deployed: Command, fake: FakeApi):
    """As provision would end: with 1, whatever else waits."""
    fake.update("Node", "gpu-1", metadata={"labels": {"gpunode.dev/gpu": "false"}})
    planned = deployed("plan", "--exit-code")
    assert planned.exit_code == 1
    assert "gpu-1: another client set gpunode.dev/gpu=false" in planned.stderr


def test_who_may_only_look_gets_a_plan_that_says_so(deployed: Command, fake: FakeApi):
    """Node by node nothing is asked any more once it is known; a drift check works."""
    for name in ("gpu-1", "gpu-2"):
        fake.update("Node", name, metadata={"labels": {"gpunode.dev/gpu": None}})
    no = 'User "jane" cannot patch resource "nodes" in API group "" at the cluster scope'
    fake.fail("PATCH", "/nodes/", Fault(403, "Forbidden", no))
    fake.requests.clear()
    planned = deployed("plan", "--exit-code")
    assert planned.exit_code == 5
    assert "~ label Node gpu-1, gpu-2\n                 +gpunode.dev/gpu=true\n" in planned.stdout
    assert (
        "could not dry-run Node gpu-1, Node gpu-2: the user `jane` may not patch nodes in the whole cluster."
        in planned.stderr
    )
    assert [where for method, where, _ in fake.requests if method == "PATCH" and "/nodes/" in where] == [
        "/api/v1/nodes/gpu-1"
    ]


@pytest.mark.usefixtures("right_hosts")
@pytest.mark.parametrize("options", [[], ["--json"]])
def test_a_deploy_is_shown_and_accepted_before_anything_changes(
    command: Command, fake: FakeApi, options: list[str]
):
    """Where nobody can answer, nothing is done; where nothing changes, nobody is asked."""
    before = json.dumps(fake.objects)
    declined = command("plugin", "deploy", *options)
    assert isinstance(declined.exception, Declined)
    assert "DaemonSet gpunode/gpunode-device-plugin" in declined.stdout
    assert "gpunode.dev/gpu=true" in declined.stdout
    assert json.dumps(fake.objects) == before
    assert command("plugin", "deploy", "--yes", *options).exit_code == 0
    assert command("plugin", "deploy", *options).exit_code == 0


SLICED = "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"


@pytest.mark.parametrize(
    ("words", "outside"),
    [
        (["plugin", "deploy", "--limit", "gpu-1"], "gpu-2, new-1"),
        (["plan", "--limit", "gpu-1"], "gpu-2, new-1"),
        (["plan"], "new-1"),
    ],
    ids=["deploy", "plan", "no limit"],
)
def test_another_configuration_is_told_of_every_node_that_it_reaches(
    deployed: Command, fake: FakeApi, tmp_path, words: list[str], outside: str
):
    """The DaemonSet is one for all: nodes outside --limit, and those in no inventory, are shared too. A node without the
    plugin is none of them."""
    add_node(fake, "new-1", 2, labels=GPU_NODE)
    add_node(fake, "cpu-1")
    (tmp_path / "plugin.yaml").write_text(SLICED)
    configure(tmp_path, config="plugin.yaml")

    told = " ".join(deployed(*words).output.split())

    meaning = "time-slicing, no memory isolation"
    assert f"gpu-1, gpu-2, each node: 1 GPU becomes 4 shares by {meaning}" in told
    assert f"new-1: 2 GPUs become 8 shares by {meaning}" in told
    assert "cpu-1" not in told
    assert f"It also changes nodes outside this command's hosts: {outside}." in told
    assert "`cluster.plugin.configs`" in told


def test_nodes_whose_configuration_stays_are_not_told_of(deployed: Command, tmp_path):
    """Of several configurations each node has its own: gpu-2 keeps what it had."""
    path = tmp_path / "inventory.yaml"
    config = json.loads(path.read_text())
    for name, text in {"default": "version: v1\n", "sliced": SLICED}.items():
        (tmp_path / f"{name}.yaml").write_text(text)
        config["cluster"]["plugin"].setdefault("configs", {})[name] = f"{name}.yaml"
    label = {"nvidia.com/device-plugin.config": "sliced"}
    config["groups"] = {"sliced": {"hosts": ["gpu-1"], "labels": label}, "whole": {"hosts": ["gpu-2"]}}
    path.write_text(json.dumps(config))

    told = " ".join(deployed("plugin", "deploy", "--limit", "gpu-1").output.split())

    assert "gpu-1: 1 GPU becomes 4 shares" in told
    assert "gpu-2" not in told
    assert "It also changes nodes" not in told


def test_without_a_node_nothing_of_the_plugin_is_asked_or_shown(command: Command, fake: FakeApi):
    """It would run nowhere."""
    add_node(fake, "other", 1)
    ended = command("plugin", "deploy", "--limit", "gpu-1")
    assert ended.exit_code == 1
    assert "gpu-1: no node of the cluster" in ended.output
    assert "DaemonSet" not in ended.output
    assert not fake.all("DaemonSet")


THEIRS = "kube-system/nvidia-device-plugin-daemonset"


def theirs(fake: FakeApi, *nodes: str, **metadata: Any) -> None:
    """NVIDIA's DaemonSet, with a pod on each of these nodes."""
    meta = {"name": THEIRS.partition("/")[2], "namespace": "kube-system", **metadata}
    volume = {"name": "v", "hostPath": {"path": "/var/lib/kubelet/device-plugins"}}
    spec = {"containers": [{"name": "c", "image": "nvcr.io/nvidia/k8s-device-plugin:1"}], "volumes": [volume]}
    made = {"kind": "DaemonSet", "metadata": meta, "spec": {"template": {"spec": spec}}}
    made = fake.put({**made, "status": {"desiredNumberScheduled": len(nodes)}})
    for node in nodes:
        item = pod(f"theirs-{node}", node=node, namespace="kube-system")
        item["metadata"]["ownerReferences"] = [{"name": meta["name"], "uid": made["metadata"]["uid"]}]
        fake.put(item)


def test_another_plugin_is_replaced_where_it_is_named(command: Command, fake: FakeApi):
    """Its deletion is in the plan and comes before this plugin; the note about it is gone."""
    for name in ("inside", "gpu-2"):
        add_node(fake, name, 1)
    PluginController(fake)
    theirs(fake, "inside", "gpu-2")
    declined = command("plugin", "deploy", "--replace", THEIRS)
    assert "cancelled; nothing changed" in str(declined.exception)
    assert f"- remove DaemonSet {THEIRS}" in declined.output
    assert "offers NVIDIA GPUs too" not in declined.output
    assert [daemonset["metadata"]["namespace"] for daemonset in fake.all("DaemonSet")] == ["kube-system"]
    done = command("plugin", "deploy", "--yes", "--json", "--replace", THEIRS)
    assert done.exit_code == 0, done.output
    lines = [json.loads(line) for line in done.output.splitlines() if line.startswith("{")]
    changes = [(line["change"], line["object"]) for line in lines if line["type"] == "cluster"]
    assert ("remove", f"DaemonSet {THEIRS}") in changes
    assert lines[-1]["type"] == "plugin"
    assert {daemonset["metadata"]["namespace"] for daemonset in fake.all("DaemonSet")} == {"gpunode"}


@pytest.mark.parametrize("annotation", [False, True])
def test_who_has_no_right_to_admission_policies_needs_none_where_none_is_wanted(
    command: Command, fake: FakeApi, tmp_path, annotation: bool
):
    """A ClusterRole of before gpunode had them goes on to work. Where one is wanted, the right is named, and its rule."""
    for node in ("inside", "gpu-2"):
        add_node(fake, node, 1)
    PluginController(fake)
    for kind in ("ValidatingAdmissionPolicy", "ValidatingAdmissionPolicyBinding"):
        where = path(kind, None, "gpunode-device-plugin")
        no = f'User "u" cannot get resource "{where.split("/")[-2]}" in API group "admissionregistration.k8s.io"'
        fake.closed[where] = Fault(403, "Forbidden", f"{no} at the cluster scope")
    configure(tmp_path, annotation=annotation)

    deployed = command("plugin", "deploy", "--yes")

    right = "get validatingadmissionpolicies.admissionregistration.k8s.io in the whole cluster"
    if annotation:
        assert isinstance(deployed.exception, ClusterError)
        assert f"does not let the user `u` {right}" in deployed.exception.message
        assert "`gpunode help rights`" in deployed.exception.hint
        assert not fake.all("DaemonSet")
        return
    for done in (deployed, command("plugin", "remove", "--yes")):
        assert done.exit_code == 0, (done.exception, done.output)
        said = " ".join(done.output.split())
        assert said.count("Remaining admission policies are unknown: the user `u` may not get") == 1
    assert not fake.all("DaemonSet")


QUOTA = "pods is forbidden: exceeded quota: gpus, requested: pods=1, used: pods=1, limited: pods=1"


@pytest.mark.parametrize(
    ("image", "refused", "words"),
    [
        ({}, QUOTA, "pods like gpunode/gpunode-device-plugin would not be admitted"),
        ({"archive": "plugin.tar"}, "", "the kubelet reports no image of this plugin on gpu-2"),
    ],
    ids=["a quota", "no image"],
)
def test_another_plugin_stays_where_this_one_would_not_run(
    command: Command, fake: FakeApi, tmp_path, image: dict[str, str], refused: str, words: str
):
    """Else the nodes would offer no GPU any more. Nothing is changed."""
    for node in ("inside", "gpu-2"):
        add_node(fake, node, 1)
    fake.update("Node", "gpu-2", status={"images": [{"names": ["other:1"]}]})
    fake.put({"kind": "Namespace", "metadata": {"name": "gpunode", "labels": {}}})
    theirs(fake, "inside", "gpu-2")
    if refused:
        fake.refused["POST", "/api/v1/namespaces/gpunode/pods"] = Fault(403, "Forbidden", refused)
    tar(tmp_path / "plugin.tar", docker("plugin:1"))
    configure(tmp_path, **image)
    stopped = command("plugin", "deploy", "--yes", "--replace", THEIRS)
    assert f"DaemonSet {THEIRS} stays: {words}" in str(stopped.exception)
    assert [daemonset["metadata"]["namespace"] for daemonset in fake.all("DaemonSet")] == ["kube-system"]
    assert not any("gpunode.dev/gpu" in item["metadata"].get("labels", {}) for item in fake.all("Node"))


@pytest.mark.parametrize(
    ("name", "nodes", "metadata", "words"),
    [
        ("kube-system/typo", ("inside",), {}, "no DaemonSet of another device plugin has this name"),
        (THEIRS, ("inside", "gpu-3"), {}, "it also serves gpu-3"),
        (
            THEIRS,
            ("inside",),
            {"ownerReferences": [{"name": "c", "uid": "u"}]},
            "its manager would create it again",
        ),
        (
            THEIRS,
            ("inside",),
            {"labels": {"app.kubernetes.io/managed-by": "Helm"}},
            "its manager would create it again",
        ),
        (THEIRS, ("inside",), {"namespace": "gpu-operator"}, "no DaemonSet of another"),
    ],
)
def test_another_plugin_is_not_replaced_in_part_or_where_it_comes_back(
    command: Command, fake: FakeApi, name: str, nodes: tuple[str, ...], metadata: dict[str, Any], words: str
):
    """Nothing is changed."""
    for node in ("inside", "gpu-2"):
        add_node(fake, node, 1)
    theirs(fake, *nodes, **metadata)
    refused = command("plugin", "deploy", "--yes", "--replace", name)
    assert words in str(refused.exception)
    assert len(fake.all("DaemonSet")) == 1
