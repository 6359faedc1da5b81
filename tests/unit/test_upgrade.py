"""What an upgrade of Kubernetes would break, by host: a case for each row of compat's table, and one for each kind."""

from __future__ import annotations

from typing import Any

import pytest

from gpunode import compat
from gpunode.compat import upgrades
from gpunode.desired import upgrade
from tests import cases

HOST = cases.host("gpu-1")
MODERN, LEGACY = "modern", "legacy"
FLAGS = "/etc/default/kubelet"
CONFIG = "/var/lib/kubelet/config.yaml"
MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"
OLD = {"kubelet": {"version": "1.9.11"}}


def found(base: str, over: dict[str, Any], target: int, **wishes: Any) -> list[str]:
    """The codes of what would break, each once."""
    host = cases.host("gpu-1", wishes) if wishes else HOST
    if base == MODERN:  # its own file has a mistake
        over = {**over, "files": {FLAGS: "KUBELET_EXTRA_ARGS=--v=2\n", **over.get("files", {})}}
    made = upgrade.findings(host, cases.facts(base, over), target)
    assert all(one.cause and one.fix for one in made)
    return sorted({one.code for one in made})


def arguments(words: str, version: str = "1.9.11") -> dict[str, Any]:
    return {"files": {FLAGS: f"KUBELET_EXTRA_ARGS={words}\n"}, "kubelet": {"version": version}}


def causes(over: dict[str, Any], target: int) -> str:
    return "\n".join(one.cause for one in upgrade.findings(HOST, cases.facts(MODERN, over), target))


@pytest.mark.parametrize(
    ("name", "gone"), [(name, gone) for name, (gone, _) in upgrades.removed_flags().items()]
)
def test_a_flag_that_is_gone_is_found(name: str, gone: int) -> None:
    """From the minor that does not know it, with a value or without."""
    for words in (f"--{name}=x", f"--{name}"):
        assert f"--{name} is gone since 1.{gone}" in causes(arguments(words), gone)
        assert f"--{name} " not in causes(arguments(words), gone - 1)


@pytest.mark.parametrize(("name", "last"), upgrades.documented_gates().items())
def test_a_gate_that_is_gone_is_found(name: str, last: int) -> None:
    """Of the removed ones: from the last minor that documents it, whatever it is set to."""
    for state in ("true", "false"):
        over = arguments(f"--feature-gates={name}={state}", "1.7.0")
        assert f"the gate {name} is gone" in causes(over, last)
        assert name not in causes(over, last - 1)


@pytest.mark.parametrize(("name", "gate"), compat.gates().items())
def test_a_gate_that_gpunode_manages_is_found(name: str, gate: compat.Gate) -> None:
    """Gone, or locked and set to false."""
    off, on = (arguments(f"--feature-gates={name}={state}") for state in ("false", "true"))
    for minor in range(9, upgrades.newest() + 1):
        assert (name in causes(on, minor)) == gate.is_gone(minor)
        assert (name in causes(off, minor)) == (gate.is_gone(minor) or gate.is_locked(minor))


def scheduler(words: str) -> str:
    return f"kind: Pod\nspec:\n  containers:\n  - command: [kube-scheduler, {words}]\n"


@pytest.mark.parametrize(("name", "gone"), upgrades.scheduler_flags().items())
def test_a_scheduling_policy_is_found(name: str, gone: int) -> None:
    over = {"files": {MANIFEST: scheduler(f"--{name}=x")}, **OLD}
    assert f"--{name} in {MANIFEST}" in causes(over, gone)
    assert name not in causes(over, gone - 1)


@pytest.mark.parametrize(("version", "gone"), upgrades.scheduler_configs().items())
def test_a_schedulers_configuration_of_an_old_version_is_found(version: str, gone: int) -> None:
    over = {"files": {"/etc/kubernetes/scheduler-config.yaml": f"apiVersion: {version}\n"}, **OLD}
    assert f"has apiVersion {version}" in causes(over, gone)
    assert version not in causes(over, gone - 1)


@pytest.mark.parametrize(
    ("base", "over", "target", "codes"),
    [
        (MODERN, {}, 37, []),
        (MODERN, {}, 20, []),  # back: nothing is judged
        (LEGACY, {}, 23, []),
        (LEGACY, {}, 24, ["dockershim", "flag"]),  # --network-plugin, of kubeadm's own file
        (LEGACY, {}, 35, ["cgroup-v1", "dockershim", "flag"]),
        (
            LEGACY,
            {"files": {CONFIG: "apiVersion: kubelet.config.k8s.io/v1beta1\nfailCgroupV1: false\n"}},
            35,
            ["dockershim", "flag"],
        ),
        (LEGACY, arguments("--fail-cgroupv1=false", "1.23.17"), 35, ["dockershim", "flag"]),
        (MODERN, {"cgroup": "v1", "kubelet": {"version": "1.34.0"}}, 34, []),
        (MODERN, {"cgroup": "v1", "kubelet": {"version": "1.34.0"}}, 35, ["cgroup-v1"]),
        (MODERN, {"containerd": {"version": "1.5.13"}, "kubelet": {"version": "1.25.0"}}, 25, []),
        (MODERN, {"containerd": {"version": "1.5.13"}, "kubelet": {"version": "1.25.0"}}, 26, ["containerd"]),
        (MODERN, {"containerd": {"version": "1.6.20~ds1"}}, 37, []),
        (MODERN, {"containerd": {"version": "1.7.27"}}, 38, ["containerd"]),
        (MODERN, {"containerd": {"version": "2.0.0"}}, 38, []),
        (
            MODERN,
            {"files": {CONFIG: "apiVersion: kubeletconfig/v1alpha1\nkind: KubeletConfiguration\n"}, **OLD},
            9,
            [],
        ),
        (
            MODERN,
            {"files": {CONFIG: "apiVersion: kubeletconfig/v1alpha1\nkind: KubeletConfiguration\n"}, **OLD},
            10,
            ["kubelet-config"],
        ),
        (MODERN, {"files": {CONFIG: "a: [\n"}}, 37, ["unreadable"]),
        (MODERN, {"files": {MANIFEST: scheduler("--feature-gates=RuntimeClass=true")}}, 37, ["gate"]),
        (MODERN, {"files": {MANIFEST: "a: [\n"}}, 37, []),
        (MODERN, {"files": {MANIFEST: "spec: {containers: null}\n"}}, 37, []),
        (MODERN, {"kubelet": None}, 37, ["not-judged"]),
        (MODERN, {"units": {"k3s.service": "active"}}, 37, ["not-judged"]),
        (MODERN, {"errors": {"kubelet": "no answer within 60 seconds"}}, 37, ["not-judged"]),
    ],
)
def test_what_an_upgrade_breaks(base: str, over: dict[str, Any], target: int, codes: list[str]) -> None:
    assert found(base, over, target) == codes


ARGS = "/var/snap/microk8s/current/args/"


@pytest.mark.parametrize(
    ("files", "codes"),
    [
        ({}, []),
        ({"kubelet": "--feature-gates=RuntimeClass=true\n"}, ["gate"]),
        ({"kubelet": "--network-plugin=cni\n"}, ["flag"]),
        ({"kubelite": "", "kube-apiserver": "--feature-gates=RuntimeClass=true\n"}, ["gate"]),
        (
            {"kubelite": "", "kube-scheduler": "--policy-config-file=${SNAP_DATA}/policy.json\n"},
            ["scheduler"],
        ),
        ({"kube-apiserver": "--feature-gates=RuntimeClass=true\n"}, []),  # a worker's, which starts none
    ],
)
def test_a_node_of_microk8s_is_judged_by_its_files_of_arguments(
    files: dict[str, str], codes: list[str]
) -> None:
    """Of kubelet and control plane; its containerd is the snap's own."""
    over = {
        "files": {f"{ARGS}{name}": text for name, text in files.items()},
        "containerd": {"version": "1.5.13"},
    }
    made = upgrade.findings(HOST, cases.facts("microk8s", over), 36)
    assert [one.code for one in made] == codes
    assert all(ARGS in one.cause or "kubelet" in one.cause for one in made)


def test_a_gate_of_the_inventory_is_found() -> None:
    """It would be written into the upgraded kubelet's files."""
    running = {"kubelet": {"version": "1.26.1"}}
    assert found(MODERN, running, 28, feature_gates={"DevicePlugins": True}) == ["gate"]
    assert found(MODERN, running, 27, feature_gates={"DevicePlugins": True}) == []
