"""Where no pod can run, `verify` runs a GPU container on the host: docker's on one, containerd's on the other."""

import re
from collections.abc import Callable
from pathlib import Path

import pytest

from .api import Lab
from .conftest import Ran
from .pods import Pods

pytestmark = pytest.mark.lab
FAILURES = Path(__file__).parents[2] / "docs/failures.md"


@pytest.mark.parametrize(("name", "tool", "gpus"), [("legacy", "docker", 2), ("modern", "ctr", 4)])
def test_without_a_kubelet_a_container_shows_the_gpus(
    lab: Lab, gpunode: Callable[..., Ran], name: str, tool: str, gpus: int
):
    """It is of the plugin's image, which is there; the kubelet's link is the first that is broken, and nothing stays behind."""
    node = lab.node(name)
    limited = ("--json", "--limit", name)
    ready = gpunode("provision", "--yes", *limited, timeout=800)
    assert ready.code == 0, ready
    node.exec(["systemctl", "stop", "kubelet"])
    try:
        ran = gpunode("verify", *limited)
    finally:
        node.exec(["systemctl", "start", "kubelet"])
        node.wait_ready()
    assert ran.code == 1, ran
    links = {link["layer"]: link for link in ran.of("link", name)}
    assert links["container"]["status"] == "ok", links["container"]
    assert links["container"]["text"].startswith(f"{gpus} of {gpus} GPUs answer in a container of ")
    assert f", by {tool}; its devices: /dev/nvidia" in links["container"]["text"]
    shown = set(re.findall(r"/dev/nvidia\d+", links["container"]["text"]))
    assert shown == {f"/dev/nvidia{number}" for number in range(gpus)}
    assert "libcuda.so." in links["container"]["text"]
    assert [layer for layer, link in links.items() if link["status"] == "broken"] == ["kubelet"]
    assert (
        "gpunode-verify" not in node.exec(["sh", "-c", "docker ps -a || ctr -n k8s.io containers ls"]).stdout
    )


@pytest.mark.parametrize("flags", [(), ("--runtime=nvidia",)], ids=["default", "named"])
def test_docker_run_shows_every_gpu(lab: Lab, gpunode: Callable[..., Ran], flags: tuple[str, ...]):
    """As articles do it by hand: with nvidia as docker's default runtime, and with the runtime named."""
    ready = gpunode("provision", "--yes", "--json", "--no-run", "--limit", "legacy", timeout=800)
    assert ready.code == 0, ready
    env = ("-e", "NVIDIA_VISIBLE_DEVICES=all", "-e", "NVIDIA_DRIVER_CAPABILITIES=utility")
    words = ("docker", "run", "--rm", *flags, *env, "--entrypoint", "nvidia-smi", Pods(lab).image, "-L")
    shown = lab.node("legacy").exec(words).stdout
    assert len(re.findall(r"^GPU \d+: .*P100.* \(UUID: GPU-", shown, re.M)) == 2, shown


def test_docker_run_with_devices_and_files_by_hand_shows_that_gpu(lab: Lab, gpunode: Callable[..., Ran]):
    """As docs/failures.md has it: without NVIDIA's runtime."""
    ready = gpunode("provision", "--yes", "--json", "--no-run", "--limit", "legacy", timeout=800)
    assert ready.code == 0, ready
    (command,) = re.findall(r"(?m)^docker run (?:.*\\\n)*.*$", FAILURES.read_text())
    command = command.replace("debian:12 ", f"{Pods(lab).image} ")
    kernel = "--volume /run/lab-gpus:/run/lab-gpus:ro"  # what the lab has for the kernel module, which containers share
    shown = lab.node("legacy").exec(["sh", "-c", command.replace("--rm", f"--rm {kernel}")]).stdout
    assert len(re.findall(r"^GPU \d+: .*P100.* \(UUID: GPU-", shown, re.M)) == 1, shown


def test_no_run_runs_none(lab: Lab, gpunode: Callable[..., Ran]):
    """As it runs no pod."""
    ran = gpunode("verify", "--no-run", "--json", "--limit", "legacy")
    assert "container" not in {link["layer"] for link in ran.of("link", "legacy")}
