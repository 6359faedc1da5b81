"""Labels as of GPU feature discovery: their values by table, and that a running one is left alone."""

import json
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import pytest
from typer.testing import CliRunner, Result

from gpunode.cli import app
from gpunode.cluster.api import Api
from gpunode.contract import config_file
from gpunode.engine import converge
from gpunode.engine.cluster_diff import _features
from gpunode.engine.member import Member
from gpunode.engine.nodes import write_features
from gpunode.host.answers import parse_facts
from gpunode.links import node as nodes
from gpunode.links.plugin.features import STAMP, WRITER, clean, feature_labels, other_owner
from gpunode.model import Facts, Gpu, Host, MigDevice, Module, Outcome, PciDevice, Ssh
from tests import cases, tables

from .conftest import add_node
from .fake import FakeApi

DRIVER = {
    "cuda.driver-version.full": "580.95.05",
    "cuda.driver-version.major": "580",
    "cuda.driver-version.minor": "95",
    "cuda.driver-version.revision": "05",
    "cuda.driver.major": "580",
    "cuda.driver.minor": "95",
    "cuda.driver.rev": "05",
}
P100 = "Tesla P100-PCIE-16GB"
PLAIN = {
    **DRIVER,
    "gpu.family": "pascal",
    "gpu.product": "Tesla-P100-PCIE-16GB",
    "gpu.count": "2",
    "gpu.replicas": "1",
    "gpu.sharing-strategy": "none",
    "gpu.memory": "16384",
    "mig.capable": "false",
    "mig.strategy": "none",
}


def host(name: str = P100, device: str = "15f8", version: str = "580.95.05", **gpu: Any) -> Facts:
    gpus = tuple(Gpu(n, f"GPU-{n}", name, f"0000:0{n}:00.0", 16384, **gpu) for n in range(2))
    pci = tuple(PciDevice(f"0000:0{n}:00.0", "10de", device, "030200", "nvidia") for n in range(2))
    return replace(cases.facts("modern"), gpus=gpus, pci=pci, modules={"nvidia": Module(version, 0)})


def values(seen: Facts, config: str = "") -> Mapping[str, str]:
    labels = feature_labels(seen, config_file.parse(f"version: v1\n{config}") if config else None)
    assert all(key.startswith("nvidia.com/") for key in labels)
    return {key.removeprefix("nvidia.com/"): value for key, value in labels.items()}


def test_whole_gpus_have_product_count_memory_and_driver():
    assert values(host()) == PLAIN
    assert values(replace(host(), gpus=())) == {}


@tables.rows("shared-features")
def test_shared_gpus_say_how(config: str, other: Mapping[str, str]):
    """The product says so where shares have the GPUs' own name."""
    assert values(host(), config) == {**PLAIN, **other}


A100 = "NVIDIA A100-SXM4-40GB"
SEVENTHS = tuple(MigDevice(n, f"MIG-{n}", "1g.5gb") for n in range(7))


def test_mig_devices_are_named_as_the_strategy_offers_them():
    """`single`: as the node's GPUs; `mixed`: beside those that are whole; `none`: not at all."""
    cut = host(A100, "20b0", mig=SEVENTHS, mig_on=True, mig_pending=True, mig_capable=True)
    product = "NVIDIA-A100-SXM4-40GB"
    whole = {"gpu.product": product, "gpu.count": "2", "gpu.family": "ampere", "mig.capable": "true"}
    assert values(cut).items() >= whole.items()
    single = values(cut, "flags: {migStrategy: single}")
    assert (single["gpu.product"], single["gpu.count"]) == (f"{product}-MIG-1g.5gb", "14")
    assert "gpu.memory" not in single
    mixed = values(cut, "flags: {migStrategy: mixed}")
    assert (mixed["mig-1g.5gb.product"], mixed["mig-1g.5gb.count"]) == (f"{product}-MIG-1g.5gb", "14")
    assert (mixed["gpu.product"], mixed["gpu.count"]) == (product, "0")
    media = replace(cut, gpus=(replace(cut.gpus[0], mig=(MigDevice(0, "MIG-0", "1g.5gb+me"),)),))
    shared = "sharing: {timeSlicing: {resources: [{name: nvidia.com/mig-1g.5gb.me, replicas: 2}]}}"
    mixed = values(media, f"flags: {{migStrategy: mixed}}\n{shared}")
    assert (mixed["mig-1g.5gb.me.count"], mixed["mig-1g.5gb.me.replicas"]) == ("1", "2")


@pytest.mark.parametrize(
    ("device", "family"),
    [
        ("2330", "hopper"),
        ("2342", "hopper"),
        ("26b9", "ada-lovelace"),
        ("3182", "blackwell"),
        ("1db4", "volta"),
        ("ffff", None),
    ],
)
def test_families_have_the_names_of_gpu_feature_discovery(device: str, family: str | None):
    """By compute capability there: Grace Hopper is hopper, Blackwell Ultra blackwell."""
    assert values(host(device=device)).get("gpu.family") == family


@pytest.mark.parametrize(("version", "parts"), [("535.183", ("535", "183", None)), ("", (None, None, None))])
def test_a_version_with_fewer_parts_has_fewer_labels(version: str, parts: tuple[str | None, ...]):
    labels = values(host(version=version))
    assert tuple(labels.get(f"cuda.driver.{name}") for name in ("major", "minor", "rev")) == parts


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("NVIDIA GeForce RTX 4090 (Laptop/GPU)", "NVIDIA-GeForce-RTX-4090-LaptopGPU"),
        ("x" * 62 + "-y", "x" * 62),
        ("  GPU\t", "GPU"),
    ],
)
def test_values_are_such_as_labels_take(name: str, value: str):
    assert clean(name) == value


@pytest.mark.parametrize(("mode", "capable"), [("Enabled", True), ("Disabled", True), ("[N/A]", False)])
def test_a_gpu_without_mig_does_not_say_a_mode(mode: str, capable: bool):
    row = ["0", "GPU-0", A100, "00000000:01:00.0", "40960", mode, mode]
    (gpu,) = parse_facts({**RAW, "smi": {"gpus": [row], "error": None, "list": "", "list_error": None}}).gpus
    assert gpu.mig_capable is capable


RAW: dict[str, Any] = {"time": 1.0, "hostname": "a", "kernel": "6", "boot_id": "b", "errors": {}}


# --- On nodes -----------------------------------------------------------------------------------------------


@pytest.fixture
def command(fake: FakeApi, tmp_path, monkeypatch) -> Any:
    config = {"cluster": {"kubeconfig": fake.kubeconfig(tmp_path), "plugin": {"image": "plugin:1"}}}
    groups = {"all": {"hosts": ["gpu-1"]}}
    (tmp_path / "inventory.yaml").write_text(json.dumps({**config, "groups": groups}))
    monkeypatch.setattr(
        converge, "probe_and_plan", lambda *_: Outcome("gpu-1", "right", replace(host(), hostname="gpu-1"))
    )

    def run(*words: str) -> Result:
        return CliRunner().invoke(app, ["label", "--features", *words, str(tmp_path / "inventory.yaml")])

    return run


def features(fake: FakeApi) -> dict[str, str]:
    (node,) = fake.all("Node")
    return {key: value for key, value in node["metadata"]["labels"].items() if key.startswith("nvidia.com/")}


def own(fake: FakeApi) -> None:
    """The API server's books, which this one does not keep: all labels of this kind but the stamp are gpunode's."""
    fields = {f"f:{key}": {} for key in features(fake) if key != STAMP}
    entry = {"manager": WRITER, "operation": "Apply", "fieldsV1": {"f:metadata": {"f:labels": fields}}}
    fake.update("Node", "gpu-1", metadata={"managedFields": [entry]})


def test_they_are_written_once_and_taken_off_again(command: Any, fake: FakeApi):
    add_node(fake, "gpu-1", 2)
    assert command("--dry-run").exit_code == 0
    assert features(fake) == {}
    written = command("--json")
    assert written.exit_code == 0, written.output
    assert features(fake) == {f"nvidia.com/{key}": value for key, value in PLAIN.items()}
    rows = [json.loads(line) for line in written.stdout.splitlines()]
    assert {
        "type": "features", "node": "gpu-1", "label": "nvidia.com/gpu.product", "before": "",
        "after": "Tesla-P100-PCIE-16GB", "result": "changed",
    } in rows  # fmt: skip
    own(fake)
    assert "same" in command().stdout
    assert command("--remove").exit_code == 0
    assert features(fake) == {}


def test_a_node_that_gets_no_label_counts_before_a_host_that_is_unreachable(
    command: Any, tmp_path, monkeypatch
):
    path = tmp_path / "inventory.yaml"
    path.write_text(path.read_text().replace('"gpu-1"', '"gpu-1", "gpu-2"'))
    ends = {"gpu-1": Outcome("gpu-1", "unreachable"), "gpu-2": Outcome("gpu-2", "right", host())}
    monkeypatch.setattr(converge, "probe_and_plan", lambda visit, _: ends[visit.host.name])
    assert command().exit_code == 1


def test_a_running_gpu_feature_discovery_keeps_its_labels(command: Any, fake: FakeApi):
    """Whichever it has written, and with --overwrite, too."""
    theirs = {STAMP: "1700000000", "nvidia.com/gpu.product": "another"}
    add_node(fake, "gpu-1", 2, labels=theirs)
    left = command("--overwrite")
    assert left.exit_code == 0, left.output
    assert "leaves these labels alone" in left.output
    assert features(fake) == theirs


def test_what_gpunode_wrote_goes_once_gpu_feature_discovery_runs(command: Any, fake: FakeApi, api: Api):
    add_node(fake, "gpu-1", 2)
    command()
    own(fake)
    fake.update("Node", "gpu-1", metadata={"labels": {STAMP: "1700000000"}})
    assert command().exit_code == 0
    assert features(fake) == {STAMP: "1700000000"}


def test_only_another_writers_labels_are_in_the_way(api: Api, fake: FakeApi):
    add_node(fake, "gpu-1", labels={"nvidia.com/gpu.count": "8"})
    (node,) = nodes.fetch(api)
    assert other_owner(node, {"nvidia.com/gpu.product": "x"}) == ""
    assert other_owner(node, {"nvidia.com/gpu.count": "8"}) == "nvidia.com/gpu.count"
    own(fake)
    (node,) = nodes.fetch(api)
    assert other_owner(node, {"nvidia.com/gpu.count": "9"}) == ""


# --- By provision -------------------------------------------------------------------------------------------


def member(api: Api, seen: Facts, *, asked: bool = True) -> Member:
    (node,) = nodes.fetch(api)
    inventory_host = Host("gpu-1", Ssh("192.0.2.1"), feature_labels=asked)
    return Member(inventory_host, Outcome("gpu-1", "right", seen), node=node)


def test_provision_writes_those_that_it_has_shown(api: Api, fake: FakeApi):
    """Where the inventory asks for them, and once: what is right is not shown again."""
    add_node(fake, "gpu-1", 2)
    assert _features(member(api, host(), asked=False), None) is None
    shown = _features(member(api, host()), None)
    assert set(shown.lines) == {f"+nvidia.com/{key}={value}" for key, value in PLAIN.items()}
    write_features(api, member(api, host(), asked=False), None)
    assert features(fake) == {}
    write_features(api, member(api, host()), None)
    assert features(fake) == {f"nvidia.com/{key}": value for key, value in PLAIN.items()}
    own(fake)
    assert _features(member(api, host()), None) is None
    fewer = _features(member(api, host(version="")), None)
    assert "-nvidia.com/cuda.driver.major=580" in fewer.lines


def test_before_the_driver_is_there_the_plan_says_that_they_come(api: Api, fake: FakeApi):
    add_node(fake, "gpu-1", 2)
    shown = _features(member(api, replace(host(), gpus=())), None)
    assert shown.lines == (
        "+nvidia.com/gpu.product and others of GPU feature discovery, once the driver lists the GPUs",
    )


def test_provision_leaves_a_running_gpu_feature_discovery_alone(api: Api, fake: FakeApi):
    add_node(fake, "gpu-1", 2, labels={STAMP: "1700000000"})
    for seen in (host(), replace(host(), gpus=())):
        assert _features(member(api, seen), None) is None
        write_features(api, member(api, seen), None)
    assert features(fake) == {STAMP: "1700000000"}
