"""What is in force on a host differs from what its files say, or is lost: gpunode names it and makes it right."""

import os
import subprocess
from collections.abc import Iterator

import pytest
import yaml

from gpunode.sim.host import kinds
from gpunode.sim.host.systemd import systemctl
from gpunode.sim.process import Demo
from tests.sim import operators
from tests.sim.clusters import Client, until

from .operators import worked


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """A demo of one host that is provisioned."""
    with Demo([kinds.new_host("h100-1", count=2)]) as running:
        worked(gpunode(running, "provision", "--yes"))
        yield running


def gpunode(demo: Demo, *words: str) -> subprocess.CompletedProcess[str]:
    """One of gpunode's commands."""
    return operators.gpunode(demo.folder, words[0], str(demo.inventory), *words[1:])


def test_a_gate_that_the_running_kubelet_does_not_go_by_breaks_its_node(demo: Demo):
    """Its file has what is wished, and looks older than the process: only /configz shows that it was never read."""
    state = demo.states["h100-1"]
    file = state.root / "var/lib/kubelet/config.yaml"
    before = file.read_text()
    written = yaml.safe_load(demo.inventory.read_text())
    written["defaults"]["kubelet"] = {"feature_gates": {"GracefulNodeShutdown": False}}
    demo.inventory.write_text(yaml.safe_dump(written))
    client, where = Client(demo.folder / "kubeconfig"), "/api/v1/nodes/h100-1/proxy/configz"

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
    assert "the running kubelet uses GracefulNodeShutdown=true" in checked.stdout
    assert "/var/lib/kubelet/config.yaml has it, and the kubelet has not read that" in checked.stdout
    assert systemctl(state, ["restart", "kubelet.service"]) == 0
    # A kubelet that restarts offers no GPU until the plugin has registered again.
    until(lambda: gpunode(demo, "verify", "--no-run").returncode == 0)


def test_a_runc_that_loses_devices_gets_their_links_by_a_unit_of_gpunodes(demo: Demo):
    """Shown with why, made over SSH by the real agent, and right afterwards; the device plugin alone has GPUs there."""
    state = demo.states["h100-1"]
    runc = state.folder / "bin/runc"
    runc.parent.mkdir(exist_ok=True)
    runc.write_text("#!/bin/sh\necho runc version 1.1.4\n")
    runc.chmod(0o755)
    planned = gpunode(demo, "plan")
    for words in (
        "write /etc/udev/rules.d/99-gpunode-dev-char.rules",
        "enable and restart gpunode-dev-char",
        "runc 1.1.4 passes systemd only devices with a link in /dev/char",
        "disturbs systemd reload (containers lose their GPUs); no GPU pods or processes affected",
    ):
        assert words in " ".join(planned.stdout.split()), planned.stdout
    worked(gpunode(demo, "provision", "--yes"))
    assert state.now().units["gpunode-dev-char.service"].enabled
    assert (
        "create-dev-char-symlinks" in (state.root / "etc/systemd/system/gpunode-dev-char.service").read_text()
    )
    assert gpunode(demo, "plan", "--exit-code").returncode == 0


def test_a_specification_that_the_toolkits_unit_does_not_write_is_written_by_gpunodes(demo: Demo):
    """It skips a module of a name that it does not know; the plan says so, and gpunode's unit goes where it does not."""
    root = demo.states["h100-1"].root
    spec, own = root / "run/cdi/nvidia.yaml", root / "etc/systemd/system/gpunode-cdi.service"
    config = root / "etc/nvidia-container-runtime/config.toml"
    config.parent.mkdir(exist_ok=True)
    config.write_text('[nvidia-container-runtime]\nmode = "cdi"\n')
    (listed,) = (root / "lib/modules").glob("*/modules.dep")
    listed.write_text("updates/dkms/nvidia-current-open.ko.xz:\n")
    spec.unlink(missing_ok=True)
    planned = gpunode(demo, "plan")
    for words in (
        "write /etc/systemd/system/gpunode-cdi.service",
        "enable and restart gpunode-cdi",
        "the driver's module here is nvidia-current-open.ko.xz",
    ):
        assert words in " ".join(planned.stdout.split()), planned.stdout
    worked(gpunode(demo, "provision", "--yes", "--no-run"))
    assert own.exists()
    assert "kind: nvidia.com/gpu" in spec.read_text()
    assert gpunode(demo, "plan", "--exit-code").returncode == 0
    listed.write_text("updates/dkms/nvidia.ko.xz:\n")
    worked(gpunode(demo, "provision", "--yes", "--no-run"))
    assert not own.exists()
    assert gpunode(demo, "plan", "--exit-code").returncode == 0
