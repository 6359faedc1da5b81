"""The order of a run, what a probe looks at, and that plans read only what is watched."""

from __future__ import annotations

from fnmatch import fnmatchcase

from gpunode import desired, pipeline
from gpunode.model import PluginImage, Reboot, RemoveFile, WriteFile
from tests import cases


def test_steps_come_in_the_order_in_which_they_depend_on_each_other() -> None:
    """Sources before packages, packages before the runtime that needs them, the runtime before the kubelet."""
    assert [name for name, _ in pipeline.STEPS] == [
        "repository",
        "nouveau",
        "driver",
        "toolkit",
        "docker",
        "containerd",
        "kubelet",
        "image",
    ]


def test_every_file_that_a_plan_touches_was_looked_at() -> None:
    """A file that no probe reads could be overwritten unseen."""
    image = PluginImage("r:1", "/a.tar", "sha256:1")
    for base in ("legacy", "modern"):
        host, seen = cases.host(base), cases.facts(base)
        watch = pipeline.watch(image)
        for change in pipeline.plan(host, seen, desired.decide(host, seen, image)).changes:
            if isinstance(change, WriteFile | RemoveFile):
                assert any(fnmatchcase(change.path, pattern) for pattern in watch.files), change.path
        assert set(seen.units) <= set(watch.units)
        assert watch.images == ("r:1",)


def test_every_package_that_a_plan_names_was_looked_at() -> None:
    """What is installed must be seen the next time, or it is installed for ever."""
    for base in ("legacy", "modern"):
        host, seen = cases.host(base), cases.facts(base)
        wish = desired.decide(host, seen, None)
        assert wish.driver is not None
        for package in (*wish.driver.pin, *wish.driver.packages, *wish.toolkit):
            name = package.partition("=")[0]
            assert any(fnmatchcase(name, p) for p in pipeline.watch(None).packages), name


def test_two_reasons_to_reboot_are_one_reboot_at_the_end() -> None:
    """nouveau holds a GPU, and a stale module another."""
    over = {
        "pci": [
            {"address": "0000:19:00.0", "device": "2330", "driver": "nouveau"},
            {"address": "0000:3b:00.0", "device": "2330", "driver": "nvidia"},
        ]
    }
    host, seen = cases.host("modern"), cases.facts("modern", over)
    plan = pipeline.plan(host, seen, desired.decide(host, seen, None))
    reboots = [change for change in plan.changes if isinstance(change, Reboot)]
    assert len(reboots) == 1
    assert plan.changes[-1] is reboots[0]
    assert plan.steps[-1].step == "reboot"
