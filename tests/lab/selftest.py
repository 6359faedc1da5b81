"""Whether the lab is what tests take for granted right after `up`, shown on the parts themselves."""

import time

from . import faults
from .api import Lab, Node, load
from .process import run
from .progress import say, wait


def check() -> int:
    """Run every check, say how each went, and return the number of those that failed, at most 1."""
    lab = load()
    failed = 0
    for each in (ssh_reaches_all, sudo_needs_no_password, apt_updates, gpus_are_on_the_bus, modern_is_stopped_by_the_gate,
                 legacy_is_ready, legacy_runs_a_pod, modern_recovers_without_the_gate, modern_runs_a_pod,
                 reset_makes_modern_bare, reboot_keeps_what_is_on_disk):  # fmt: skip
        start = time.monotonic()
        try:
            each(lab)
            outcome = "ok"
        except Exception as error:  # noqa: BLE001  every check is to be run
            outcome, failed = f"FAILED: {error}", 1
        say(f"{time.monotonic() - start:6.1f} s  {each.__name__.replace('_', ' ')}: {outcome}")
    return failed


def ssh(node: Node, command: str) -> str:
    """Run a command the way a user would, with OpenSSH."""
    options = ["-i", str(node.key), "-o", f"UserKnownHostsFile={node.known_hosts}", "-o", "BatchMode=yes"]
    return run(["ssh", *options, "-p", str(node.port), f"{node.user}@{node.address}", command])


def ssh_reaches_all(lab: Lab) -> None:
    for name in ("control-plane", "modern", "legacy"):
        assert ssh(lab.node(name), "hostname").strip() == name


def sudo_needs_no_password(lab: Lab) -> None:
    for name in ("modern", "legacy"):
        assert ssh(lab.node(name), "sudo -n id -u").strip() == "0"


def apt_updates(lab: Lab) -> None:
    for name in ("modern", "legacy"):
        said = ssh(lab.node(name), "sudo apt-get update 2>&1")
        assert "W:" not in said, said
        assert "E:" not in said, said


def gpus_are_on_the_bus(lab: Lab) -> None:
    for name, device, count in (("modern", "0x2330", 4), ("legacy", "0x15f8", 2)):
        assert ssh(lab.node(name), "cat /sys/bus/pci/devices/*/device").split().count(device) == count


def modern_is_stopped_by_the_gate(lab: Lab) -> None:
    node = lab.node("modern")
    wait(
        "the gate to stop the kubelet",
        lambda: "unrecognized feature gate: DevicePlugins" in _journal(node),
        30,
    )
    assert not node.is_ready()


def legacy_is_ready(lab: Lab) -> None:
    lab.node("legacy").wait_ready(30)


def legacy_runs_a_pod(lab: Lab) -> None:
    _run_pod(lab, "legacy")


def modern_recovers_without_the_gate(lab: Lab) -> None:
    node = lab.node("modern")
    _take_gate_out(node)
    node.wait_ready(60)


def modern_runs_a_pod(lab: Lab) -> None:
    _run_pod(lab, "modern")


def reset_makes_modern_bare(lab: Lab) -> None:
    node = lab.node("modern")
    node.reset()
    ssh_reaches_all(lab)
    assert "DevicePlugins=true" in node.read("/etc/default/kubelet")
    assert not node.is_ready()


def reboot_keeps_what_is_on_disk(lab: Lab) -> None:
    node = lab.node("legacy")
    node.write("/etc/lab-selftest", "kept")
    before = node.read("/proc/sys/kernel/random/boot_id")
    node.reboot()
    assert node.read("/etc/lab-selftest") == "kept"
    assert node.read("/proc/sys/kernel/random/boot_id") != before, "the boot id is still the old one"
    node.exec(["rm", "/etc/lab-selftest"])
    node.wait_until("an active kubelet", ["systemctl", "is-active", "kubelet"])
    node.wait_ready()
    faults.cut_ssh(node)


def _journal(node: Node) -> str:
    return node.exec(["journalctl", "-u", "kubelet", "--no-pager", "-o", "cat"]).stdout


def _take_gate_out(node: Node) -> None:
    path = "/etc/default/kubelet"
    node.write(path, node.read(path).replace("--feature-gates=DevicePlugins=true ", ""))
    node.exec(["systemctl", "restart", "kubelet"])


def _run_pod(lab: Lab, name: str) -> None:
    """A pod that reaches the apiserver at its service's address, and ends."""
    pods = "/api/v1/namespaces/default/pods"
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": f"selftest-{name}"},
        "spec": {
            "nodeName": name,
            "restartPolicy": "Never",
            "containers": [
                {
                    "name": "nc",
                    "image": lab.table["images"]["busybox"],
                    "imagePullPolicy": "Never",
                    "command": ["sh", "-c", "nc -w 5 10.96.0.1 443 < /dev/null"],
                }
            ],
        },
    }
    lab.request("POST", pods, pod)
    try:
        path = f"{pods}/selftest-{name}"
        wait(
            f"the pod on {name}",
            lambda: lab.request("GET", path)["status"].get("phase") in ("Succeeded", "Failed"),
            60,
        )
        assert lab.request("GET", path)["status"]["phase"] == "Succeeded"
    finally:
        lab.request("DELETE", f"{pods}/selftest-{name}?gracePeriodSeconds=0")
