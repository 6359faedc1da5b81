"""The RPM host's story: from bare to proven by dnf, nothing left to do afterwards, and what goes wrong on the way."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest
import yaml

from gpunode.model import Outcome
from gpunode.sim.demo import Demo
from gpunode.sim.host import kinds
from gpunode.sim.host.programs.systemd import systemctl
from tests.sim import operators
from tests.sim.clusters import Client, until
from tests.sim.fleets import Fleet, serving

LOCKS = "etc/dnf/plugins/versionlock.list"


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """A demo of that host alone, for gpunode's own commands."""
    with Demo([kinds.rpm("rocky-1")]) as running:
        yield running


def gpunode(demo: Demo, *words: str) -> subprocess.CompletedProcess[str]:
    """One of gpunode's commands."""
    return operators.gpunode(demo.folder, words[0], str(demo.inventory), *words[1:])


def test_it_goes_from_bare_to_a_finished_pod_and_has_nothing_left_to_do(demo: Demo) -> None:
    """By the same commands as every other host."""
    planned = gpunode(demo, "plan", "--why")
    assert planned.returncode == 0, planned.stdout + planned.stderr
    for words in (
        "dnf, rhel9/x86_64",
        "write /etc/yum.repos.d/gpunode-driver.repo",
        "stream=595-open",
        "install kernel-devel-matched-5.14.0-570.el9, kernel-devel-5.14.0-570.el9",
        "install nvidia-driver-cuda, kmod-nvidia-open-dkms 3:595.*",
    ):
        assert words in planned.stdout
    done = gpunode(demo, "provision", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert gpunode(demo, "plan", "--exit-code").returncode == 0
    checked = gpunode(demo, "verify")
    assert checked.returncode == 0, checked.stdout + checked.stderr
    assert "pod" in checked.stdout
    state = demo.states["rocky-1"]
    names = state.now().packages
    assert not {"nvidia-driver", "nvidia-driver-libs", "nvidia-open"} & set(names)  # nothing of a display's
    assert "nvidia-driver-cuda-3:595.91.07-1.el9.*" in (state.root / LOCKS).read_text().splitlines()
    assert "libnvidia-ml-3:595.91.07-1.el9.*" in (state.root / LOCKS).read_text().splitlines()


@pytest.fixture
def fleet(tmp_path: Path) -> Iterator[Fleet]:
    """The same host, for what gpunode makes of it."""
    with serving(tmp_path, [kinds.rpm("rocky-1")]) as served:
        yield served


def provisioned(fleet: Fleet, **wishes: str) -> Outcome:
    """How it ends with these wishes in the inventory."""
    told = tuple(replace(host, **wishes) for host in fleet.hosts())  # type: ignore[arg-type]
    return replace(fleet, inventory=replace(fleet.inventory, hosts=told)).provision()["rocky-1"]


def test_the_branch_goes_up_and_down_with_the_inventory(fleet: Fleet) -> None:
    """Stream, packages and module change together."""
    for driver, release in (
        ("580", "580.178.04"),
        ("auto", "580.178.04"),
        ("595", "595.91.07"),
        ("580", "580.178.04"),
    ):
        outcome = provisioned(fleet, driver=driver)
        assert (outcome.error, bool(outcome.plan)) == (None, False)
        assert outcome.facts is not None
        assert outcome.facts.library_version == release
        assert outcome.facts.modules["nvidia"].version == release
    stream = (fleet.states["rocky-1"].root / "etc/dnf/modules.d/nvidia-driver.module").read_text()
    assert "stream=580-open\n" in stream


def test_a_gate_that_the_running_kubelet_does_not_go_by_breaks_its_node(demo: Demo) -> None:
    """Its file has what is wished, and looks older than the process: only /configz shows that it was never read."""
    state = demo.states["rocky-1"]
    file = state.root / "var/lib/kubelet/config.yaml"
    before = file.read_text()
    written = yaml.safe_load(demo.inventory.read_text())
    written["defaults"]["kubelet"] = {"feature_gates": {"GracefulNodeShutdown": False}}
    demo.inventory.write_text(yaml.safe_dump(written))
    client, where = Client(demo.folder / "kubeconfig"), "/api/v1/nodes/rocky-1/proxy/configz"

    def told() -> object:
        """By the kubelet, which sees its restart a moment later."""
        code, answer = client.ask("GET", where)
        return answer["kubeletconfig"]["featureGates"].get("GracefulNodeShutdown") if code == 200 else None

    file.write_text(f"{before}featureGates:\n  GracefulNodeShutdown: true\n")
    assert systemctl(state, ["restart", "kubelet.service"]) == 0
    until(lambda: told() is True)
    file.write_text(f"{before}featureGates:\n  GracefulNodeShutdown: false\n")
    os.utime(file, (1, 1))
    assert gpunode(demo, "plan", "--exit-code").returncode == 0
    checked = gpunode(demo, "verify", "--no-run")
    assert checked.returncode == 1
    assert "the running kubelet goes by GracefulNodeShutdown=true" in checked.stdout
    assert "/var/lib/kubelet/config.yaml has it, and the kubelet has not read that" in checked.stdout
    assert systemctl(state, ["restart", "kubelet.service"]) == 0
    # A kubelet that restarts offers no GPU until the plugin has registered again.
    until(lambda: gpunode(demo, "verify", "--no-run").returncode == 0)


def test_a_runc_that_loses_devices_gets_their_links_by_a_unit_of_gpunodes(demo: Demo) -> None:
    """Shown with why, made over SSH by the real agent, and right afterwards; the device plugin alone has GPUs there."""
    state = demo.states["rocky-1"]
    runc = state.folder / "bin/runc"
    runc.parent.mkdir(exist_ok=True)
    runc.write_text("#!/bin/sh\necho runc version 1.1.4\n")
    runc.chmod(0o755)
    planned = gpunode(demo, "plan")
    for words in (
        "write /etc/udev/rules.d/99-gpunode-dev-char.rules",
        "enable and restart gpunode-dev-char",
        "runc 1.1.4 tells systemd only of devices with a link in /dev/char",
        "disturbs reload of systemd, which takes the GPUs from containers; nobody works there",
    ):
        assert words in " ".join(planned.stdout.split()), planned.stdout
    done = gpunode(demo, "provision", "--yes")
    assert done.returncode == 0, done.stdout + done.stderr
    assert state.now().units["gpunode-dev-char.service"].enabled
    assert (
        "create-dev-char-symlinks" in (state.root / "etc/systemd/system/gpunode-dev-char.service").read_text()
    )
    assert gpunode(demo, "plan", "--exit-code").returncode == 0


def test_a_specification_that_the_toolkits_unit_does_not_write_is_written_by_gpunodes(demo: Demo) -> None:
    """It skips a module of a name that it does not know; the plan says so, and gpunode's unit goes where it does not."""
    root = demo.states["rocky-1"].root
    spec, own = root / "run/cdi/nvidia.yaml", root / "etc/systemd/system/gpunode-cdi.service"
    config = root / "etc/nvidia-container-runtime/config.toml"
    config.parent.mkdir(exist_ok=True)
    config.write_text('[nvidia-container-runtime]\nmode = "cdi"\n')
    (listed,) = (root / "lib/modules").glob("*/modules.dep")
    listed.write_text("extra/nvidia-current-open.ko.xz:\n")
    spec.unlink(missing_ok=True)
    planned = gpunode(demo, "plan")
    for words in (
        "write /etc/systemd/system/gpunode-cdi.service",
        "enable and restart gpunode-cdi",
        "the driver's module here is nvidia-current-open.ko.xz",
    ):
        assert words in " ".join(planned.stdout.split()), planned.stdout
    done = gpunode(demo, "provision", "--yes", "--no-run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert own.exists()
    assert "kind: nvidia.com/gpu" in spec.read_text()
    assert gpunode(demo, "plan", "--exit-code").returncode == 0
    listed.write_text("extra/nvidia.ko.xz:\n")
    done = gpunode(demo, "provision", "--yes", "--no-run")
    assert done.returncode == 0, done.stdout + done.stderr
    assert not own.exists()
    assert gpunode(demo, "plan", "--exit-code").returncode == 0
