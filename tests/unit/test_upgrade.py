"""What an upgrade of Kubernetes would break, by host: a case for each row of compat's table, and one for each kind."""

from typing import Any

import pytest

from gpunode.links.kubelet import upgrade
from tests import cases, tables

HOST = cases.host("gpu-1")
MODERN = "modern"
FLAGS = "/etc/default/kubelet"
MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
OLD = {"kubelet": {"version": "1.9.11"}}


def breaks(base: str, over: dict[str, Any], target: int, **wishes: Any) -> list[str]:
    """The codes of what would break, each once."""
    host = cases.host("gpu-1", wishes) if wishes else HOST
    if base == MODERN:  # its own file has a mistake
        over = {**over, "files": {FLAGS: "KUBELET_EXTRA_ARGS=--v=2\n", **over.get("files", {})}}
    made = upgrade.lint(host, cases.facts(base, over), target)
    assert all(problem.what and problem.fix for problem in made)
    return sorted({problem.code for problem in made})


def arguments(words: str, version: str = "1.9.11") -> dict[str, Any]:
    return {"files": {FLAGS: f"KUBELET_EXTRA_ARGS={words}\n"}, "kubelet": {"version": version}}


def causes(over: dict[str, Any], target: int) -> str:
    return "\n".join(finding.what for finding in upgrade.lint(HOST, cases.facts(MODERN, over), target))


def test_a_flag_that_is_gone_is_found():
    """From the minor that does not know it, with a value or without."""
    for name, (gone, _) in upgrade.removals()["kubelet_flags"].items():
        for words in (f"--{name}=x", f"--{name}"):
            assert f"--{name} is gone since 1.{gone}" in causes(arguments(words), gone)
            assert f"--{name} " not in causes(arguments(words), gone - 1)


def test_a_gate_that_is_gone_is_found():
    """Of the removed ones: from the last minor that documents it, whatever it is set to."""
    for name, last in upgrade.removals()["last_documented"].items():
        for state in ("true", "false"):
            over = arguments(f"--feature-gates={name}={state}", "1.7.0")
            assert f"the gate {name} is gone" in causes(over, last)
            assert name not in causes(over, last - 1)


@pytest.mark.parametrize(
    ("gate", "minor", "reported"),
    [
        ("DevicePlugins=false", 25, False),
        ("DevicePlugins=false", 26, True),  # locked
        ("DevicePlugins=true", 27, False),
        ("DevicePlugins=true", 28, True),  # gone
    ],
)
def test_a_gate_that_gpunode_manages_is_found(gate: str, minor: int, reported: bool):
    """Gone, or locked and set to false."""
    assert ("DevicePlugins" in causes(arguments(f"--feature-gates={gate}"), minor)) == reported


def scheduler(words: str) -> str:
    return f"kind: Pod\nspec:\n  containers:\n  - command: [kube-scheduler, {words}]\n"


def test_a_scheduling_policy_is_found():
    for name, gone in upgrade.removals()["scheduler_flags"].items():
        over = {"files": {MANIFEST: scheduler(f"--{name}=x")}, **OLD}
        assert f"--{name} in {MANIFEST}" in causes(over, gone)
        assert name not in causes(over, gone - 1)


def test_a_schedulers_configuration_of_an_old_version_is_found():
    for version, gone in upgrade.removals()["scheduler_config"].items():
        over = {"files": {"/etc/kubernetes/scheduler-config.yaml": f"apiVersion: {version}\n"}, **OLD}
        assert f"has apiVersion {version}" in causes(over, gone)
        assert version not in causes(over, gone - 1)


@tables.rows("upgrades")
def test_what_an_upgrade_breaks(base: str, over: dict[str, Any], target: int, codes: list[str]):
    assert breaks(base, over, target) == codes


ARGS = "/var/snap/microk8s/current/args/"


@tables.rows("microk8s-upgrades")
def test_a_node_of_microk8s_is_judged_by_its_files_of_arguments(files: dict[str, str], codes: list[str]):
    """Of kubelet and control plane; its containerd is the snap's own."""
    over = {
        "files": {f"{ARGS}{name}": text for name, text in files.items()},
        "containerd": {"version": "1.5.13"},
    }
    made = upgrade.lint(HOST, cases.facts("microk8s", over), 36)
    assert [problem.code for problem in made] == codes
    assert all(ARGS in finding.what or "kubelet" in finding.what for finding in made)


UNIT = "# /etc/systemd/system/node.service\n[Service]\nExecStart="
K3S, DROP_INS = "/etc/rancher/k3s/config.yaml", "/var/lib/rancher/k3s/agent/etc/kubelet.conf.d"
OWN_GATES = f"{DROP_INS}/00-k3s-defaults.conf"
GATES = "featureGates: {RuntimeClass: true}\n"


def node(unit: str, command: str, version: str, files: dict[str, str]) -> dict[str, Any]:
    """Of another distribution, on k3s' host."""
    kubelet = {"version": version, "unit_text": f"{UNIT}{command}\n"}
    there = {K3S: False, OWN_GATES: False, **files}
    return {"units": {"k3s-agent.service": "not-found", unit: "active"}, "kubelet": kubelet, "files": there}


def k0s(command: str, config: str = "") -> dict[str, Any]:
    unit = "k0scontroller.service" if config else "k0sworker.service"
    return node(
        unit, f"/usr/local/bin/k0s {command}", "1.33.1+k0s.0", {"/etc/k0s/k0s.yaml": config} if config else {}
    )


def microshift(**files: str) -> dict[str, Any]:
    named = {f"/etc/microshift/{name.replace('__', '.d/')}.yaml": text for name, text in files.items()}
    made = {"/var/lib/microshift/resources/kubelet/config/config.yaml": GATES}  # its own, of this release
    return node("microshift.service", "/usr/bin/microshift run", "4.18.4", {**named, **made})


@tables.rows("distributions")
def test_nodes_of_distributions_are_judged_by_what_their_users_pass(
    over: dict[str, Any], codes: list[str], words: str
):
    """Each in its own way; what a release of theirs sets itself is its own."""
    made = upgrade.lint(HOST, cases.facts("k3s", over), 37)
    assert [problem.code for problem in made] == codes
    assert all(words in finding.what for finding in made)


def test_a_cgroup_is_allowed_where_the_distribution_reads_it():
    """No file of kubeadm's."""
    for over, where in (
        ({}, "a file in /var/lib/rancher/k3s/agent/etc/kubelet.conf.d"),
        (k0s("worker"), "its worker profile"),
        (microshift(), "`kubelet` of /etc/microshift/config.yaml"),
    ):
        (made,) = upgrade.lint(HOST, cases.facts("k3s", {**over, "cgroup": "v1"}), 37)
        assert f"set `failCgroupV1: false` in {where}." in made.fix


def test_a_gate_of_the_inventory_is_found():
    """It would be written into the upgraded kubelet's files."""
    running = {"kubelet": {"version": "1.26.1"}}
    assert breaks(MODERN, running, 28, feature_gates={"DevicePlugins": True}) == ["gate"]
    assert breaks(MODERN, running, 27, feature_gates={"DevicePlugins": True}) == []
