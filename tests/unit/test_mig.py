"""Which MIG layouts fit into which GPUs, in which order, and how the inventory names them."""

from dataclasses import replace

import pytest

from gpunode.engine import chain, converge, forget, impact
from gpunode.inventory import load
from gpunode.links.capacity import mig as capacity
from gpunode.links.driver import mig as driver_mig
from gpunode.links.machine import pci
from gpunode.model import Entry, Facts, Gpu, GpuLayout, MigDevice, MigLayout, MigRule, PluginConfig
from gpunode.planning import mig
from gpunode.planning.tables import table
from tests import cases, tables

DEVICES = {"A30": "20b7", "A100": "20b0", "H100": "2330", "RTX": "2bb5"}
KNOWN = {name: mig.profiles(device) for name, device in DEVICES.items()}
A100 = KNOWN["A100"]


@tables.rows("mig-layouts")
def test_a_layout_fits_or_not(known: str, layout: str, fits: bool):
    """In whatever order it is written."""
    profiles = layout.split()
    assert mig.fit(profiles, KNOWN[known]) == mig.fit(profiles[::-1], KNOWN[known]) == fits


@tables.rows("mig-counts")
def test_as_many_as_fit_are_those_of_mig_parted(known: str, profile: str, count: int):
    """Its deployments/systemd/config-default.yaml has the numbers."""
    assert mig.expand((f"all-{profile}",), KNOWN[known]) == (profile,) * count


def test_the_largest_comes_first():
    """NVIDIA's User Guide: 3g.20gb must be specified first, else there are insufficient resources."""
    assert mig.expand(["1g.5gb", "1g.5gb", "2g.10gb", "3g.20gb"], A100) == (
        "3g.20gb",
        "2g.10gb",
        "1g.5gb",
        "1g.5gb",
    )


def test_the_tables_of_profiles_and_of_gpus_have_the_same_names():
    """An inventory's `mig: {MODEL: …}` is checked by one, a host by both."""
    for row in table("gpunode.planning", "mig.yaml")["models"]:
        for device, name in row["devices"].items():
            assert pci.gpu(device).name == name


def test_the_inventory_knows_the_gpus_without_mig():
    """Those of the table of GPUs: all of the generations without it, and none that has profiles."""
    gpus = table("gpunode.links.machine", "gpus.yaml")["gpus"]
    known = {pci.gpu(device).name: pci.gpu(device).generation for device in gpus}
    without = set(table("gpunode.planning", "mig.yaml")["without"])
    assert without <= known.keys()
    assert {name for name, generation in known.items() if generation in driver_mig.WITHOUT} <= without
    assert not without & {pci.gpu(device).name for device in gpus if mig.profiles(device)}


@pytest.mark.parametrize(
    ("words", "name", "fits"),
    [
        ("", "H100", True),
        ("a100", "A100-SXM4-80GB", True),
        ("H100 80GB", "H100 80GB HBM3", True),
        ("A10", "A100-SXM4-80GB", False),
        ("L4", "L40S", False),
        ("H200", "GH200 480GB", False),
    ],
)
def test_a_model_is_named_by_whole_words(words: str, name: str, fits: bool):
    """An L40S is no L4."""
    assert mig.matches(words, name) is fits


@pytest.mark.parametrize(
    ("text", "rules"),
    [
        ("off", [MigRule("", None)]),
        ("all-1g.10gb", [MigRule("", ("all-1g.10gb",))]),
        (
            "[1g.24gb, 3g.93gb]",
            [MigRule("", ("1g.24gb", "3g.93gb"))],
        ),  # of a GPU that the table does not have
        ("{A100: [7g.80gb], A30: off}", [MigRule("A100", ("7g.80gb",)), MigRule("A30", None)]),
    ],
)
def test_the_inventory_names_layouts(tmp_path, text: str, rules: list[MigRule]):
    """For all GPUs of a host, or by model; a host's own value is in place of its group's."""
    file = tmp_path / "inventory.yaml"
    file.write_text(f"groups:\n  g:\n    mig: {text}\n    hosts: [a, {{name: b, mig: all-7g.40gb}}]\n")
    first, second = load(file).hosts
    assert first.mig == tuple(rules)
    assert second.mig == (MigRule("", ("all-7g.40gb",)),)
    assert second.mig[0].place == f"{file}:4:31: groups.g.hosts[1].mig"


def cut(seen: Facts, *profiles: str) -> Facts:
    """The host with MIG on for all of its GPUs."""
    parts = tuple(MigDevice(n, f"MIG-{n}", profile) for n, profile in enumerate(profiles))
    gpus = (
        Gpu(n, f"GPU-{n}", "NVIDIA H100 80GB HBM3", device.address, 81559, parts, True, True, True)
        for n, device in enumerate(pci.driven(seen.pci))
    )
    return replace(seen, gpus=tuple(gpus))


def test_verify_names_a_layout_that_the_inventory_does_not_have():
    """As a cause of NVML's link, with provision as its fix."""
    host = cases.host("modern", {"mig": {"": ["7g.80gb"]}})
    bare = cases.facts("modern")
    seen = cases.applied(bare, chain.plan(host, bare, chain.decide(host, bare, None)).changes)
    links = {
        profile: next(
            link
            for link in chain.judge_host(converge.plan_host(host, cut(seen, profile), None))
            if link.layer == "NVML"
        )
        for profile in ("7g.80gb", "4g.40gb")
    }
    assert links["7g.80gb"].status == "ok"
    assert links["4g.40gb"].status == "broken"
    assert "0000:19:00.0: MIG is 4g.40gb, the inventory has 7g.80gb" in links["4g.40gb"].cause
    assert links["4g.40gb"].fix.startswith(
        "gpunode provision --limit modern\nit will MIG layout 7g.80gb on GPU"
    )


def test_work_ends_before_gpus_are_cut():
    """As for a change of the driver; a reboot that was accepted does as much."""
    change = MigLayout((GpuLayout("0000:19:00.0", ("7g.80gb",)),), "why")
    what = impact.disturbance_of([change])
    assert what.ends_gpu_work
    assert str(what) == "other MIG devices"
    assert impact.outdates_pods([change], None)
    assert impact.describe_unaccepted([change], ()) == "cut GPUs by MIG"
    assert impact.describe_unaccepted([change], [impact.REBOOT]) == ""


def test_a_forgotten_host_has_its_layout_of_before_gpunode():
    """By the journal; what gpunode wrote for its boots goes."""
    seen = cut(cases.facts("modern", {"files": {"/etc/gpunode-mig.sh": "# Written by gpunode"}}), "7g.80gb")
    before = {gpu.pci: (None, ("7g.80gb",)) for gpu in seen.gpus}
    journal = (Entry("a", "r", kind="mig_layout", layouts=before),)
    changes = [change for step in forget.plan(forget.Aim(journal), seen)[0] for change in step.changes]
    assert "/etc/gpunode-mig.sh" in [getattr(change, "path", "") for change in changes]
    (back,) = [change for change in changes if isinstance(change, MigLayout)]
    assert [gpu.after for gpu in back.gpus] == [None] * len(seen.gpus)


@pytest.mark.parametrize(
    ("config", "layout", "ignored"),
    [
        (None, ("1g.10gb",), True),
        (None, None, False),  # `mig: off`
        (PluginConfig("version: v1\nflags: {migStrategy: none}\n"), ("1g.10gb",), True),
        (PluginConfig("version: v1\nflags: {migStrategy: single}\n"), ("1g.10gb",), False),
    ],
)
def test_a_layout_that_the_plugin_does_not_offer_is_known_before_it_is_made(
    config: PluginConfig | None, layout: tuple[str, ...] | None, ignored: bool
):
    host, facts = cases.host("modern"), cases.facts("modern")
    desired = replace(chain.decide(host, facts, None), mig={"0000:01:00.0": layout})
    assert capacity.is_ignored(config, desired, {}) is ignored
