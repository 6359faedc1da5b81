"""The links of a host, judged from one probe: which is broken, and a fix that helps."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest

from gpunode.commands import verify
from gpunode.commands.verify import summarize
from gpunode.commands.why.chains import broken_link
from gpunode.engine import chain as pipeline
from gpunode.engine import converge, exit_codes
from gpunode.engine.chain import decide, judge_host
from gpunode.engine.fleet import failure
from gpunode.engine.member import Member
from gpunode.errors import NO_RIGHTS, AgentFailed, HostError, Problem, SudoRefused, Unreachable
from gpunode.explain import explain
from gpunode.links.capacity.link import judge_offer
from gpunode.links.driver.link import repair
from gpunode.links.node import parse
from gpunode.links.plugin.daemonset import State
from gpunode.links.plugin.link import judge_image, judge_plugin
from gpunode.model import Cluster, ExpectedGpus, Facts, Host, Inventory, Outcome, PluginImage, Reboot, Verdict
from tests import cases, tables

PROVISION = "gpunode provision --limit modern"


def broken(then: Mapping[str, Any]) -> Verdict:
    """The first broken link of a right host to which something happened."""
    host, seen = cases.right()
    return first(host, cases.overlaid(seen, then))


def first(host: Host, seen: Facts) -> Verdict:
    """The first broken link of a host that is seen like this."""
    outcome = converge.plan_host(host, seen, None)
    return next(link for link in judge_host(outcome) if link.status == "broken")


def test_every_link_of_a_right_host_holds():
    host, seen = cases.right()
    wish = decide(host, seen, None)
    outcome = Outcome(host.name, "right", seen, wish, pipeline.plan(host, seen, wish))
    assert {link.status for link in judge_host(outcome)} == {"ok"}


@pytest.mark.parametrize(
    ("expected", "devices", "what", "code"),
    [
        (ExpectedGpus(2), ("2330", "2330"), "", ""),
        (ExpectedGpus(2, "h100"), ("2330", "2330"), "", ""),
        (ExpectedGpus(8), ("2330",) * 7, "7 of 8 GPUs on the PCI bus", "gpus-missing"),
        (ExpectedGpus(1), ("2330", "2330"), "2 of 1 GPUs on the PCI bus", "gpus-unexpected"),
        (
            ExpectedGpus(2, "H100"),
            ("2330", "1db4"),
            "1 of 2 H100 GPUs on the PCI bus, 1 of another model",
            "gpus-missing",
        ),
        (
            ExpectedGpus(2, "H10"),
            ("2330", "2330"),
            "0 of 2 H10 GPUs on the PCI bus, 2 of another model",
            "gpus-missing",
        ),
        (
            ExpectedGpus(1, "H100"),
            ("2330", "1db4"),
            "1 of 1 H100 GPUs on the PCI bus, 1 of another model",
            "gpus-unexpected",
        ),
    ],
)
def test_gpus_are_those_that_the_inventory_expects(
    expected: ExpectedGpus, devices: tuple[str, ...], what: str, code: str
):
    """By number and model; else the bus is the broken link, and says what is on it."""
    host, seen = cases.right()
    bus = [{"address": f"0000:{n:02x}:00.0", "device": device} for n, device in enumerate(devices)]
    outcome = converge.plan_host(replace(host, gpus=expected), cases.overlaid(seen, {"pci": bus}), None)
    link = judge_host(outcome)[0]
    seen_at = f"{devices.count('2330')}x H100"
    assert (link.layer, link.problem.code if link.problem else "") == ("PCI", code)
    assert link.text == what or (not what and link.text.startswith(seen_at))
    assert link.cause == "" or link.cause.startswith(f"there are {seen_at}")


@pytest.mark.parametrize("owner", ["vfio-pci", "nvgrace_gpu_vfio_pci", "pci-stub"])
def test_a_gpu_for_a_virtual_machine_breaks_nothing_of_the_others(owner: str):
    """The plan is for those that NVIDIA's driver is for; so is the chain."""
    host, seen = cases.right()
    beside = [
        {"address": "0000:19:00.0", "device": "2330", "driver": "nvidia"},
        {"address": "0000:3b:00.0", "device": "1db4", "driver": owner},
    ]
    outcome = converge.plan_host(host, cases.overlaid(seen, {"pci": beside}), None)
    chain = judge_host(outcome)
    assert {link.status for link in chain} == {"ok"}
    assert "1x Tesla V100-PCIE-16GB (10de:1db4)" in chain[0].text
    assert f"3b:00.0 ({owner}, for a virtual machine)" in chain[0].text


@tables.rows("fixes")
def test_the_fix_is_provision_only_where_it_would_change_something(
    then: dict[str, Any], layer: str, fix: str
):
    """What no plan mends has a fix that a user can do."""
    link = broken(then)
    assert link.layer == layer
    assert fix in link.fix
    assert ("provision" in link.fix) == (fix == PROVISION)


@pytest.mark.parametrize(
    ("seen", "text", "code"),
    [
        ({"smi_error": " \n"}, "nvidia-smi failed", ""),
        (
            {"smi_error": "Failed to initialize NVML: Unknown Error"},
            "Failed to initialize NVML: Unknown Error",
            "",
        ),
        ({"smi_error": "GPU1: GPU is lost"}, "GPU1: GPU is lost", "gpus-silent"),
        (
            {"smi_error": "GPU1: GPU is lost.  Reboot the system to recover this GPU"},
            "GPU1: GPU is lost",
            "gpus-silent",
        ),
        ({"gpus": []}, "0 of 1 GPUs answer; missing: 0000:19:00.0", "gpus-silent"),
    ],
)
def test_an_nvidia_smi_that_does_not_list_all_gpus_breaks_nvml(seen: dict, text: str, code: str):
    """A code tells missing GPUs from what else breaks it."""
    problem = broken(seen).problem
    assert problem
    assert (problem.what, problem.code) == (text, code)


@pytest.mark.parametrize(
    "words", [("kubelet", "--hostname-override=Rack7-N3"), ("k3s", "agent", "--node-name", "rack7-n3")]
)
def test_a_lost_gpus_commands_name_the_node_not_the_host(words: tuple[str, ...]):
    host, seen = cases.right()
    assert seen.kubelet
    kubelet = replace(seen.kubelet, arguments=words)
    seen = replace(seen, smi_error="No devices were found", kubelet=kubelet)
    assert "kubectl drain rack7-n3 " in first(host, seen).fix
    assert "kubectl drain n7 " in first(replace(host, node="n7"), seen).fix


@pytest.mark.parametrize(
    ("text", "environment", "name"),
    [
        ("node-name: N8", "", "n8"),
        ("node-name: n9\nkubelet-arg+: [hostname-override=n8]", "K3S_NODE_NAME=n6", "n8"),
        ("with-node-id: false", "K3S_NODE_NAME=n8", "n8"),
        ("node-name: n8\nwith-node-id: true", "K3S_NODE_NAME=n8", "modern"),  # n8-1a2b3c4d
    ],
)
def test_a_lost_gpus_commands_name_the_node_of_k3s_settings(text: str, environment: str, name: str):
    host, seen = cases.right("k3s")
    paths = ("/etc/rancher/k3s/config.yaml.d/50.yaml", "/etc/systemd/system/k3s-agent.service.env")
    seen = cases.overlaid(seen, {"files": dict(zip(paths, (text, environment), strict=True))})
    assert f"kubectl drain {name} " in first(host, replace(seen, smi_error="No devices were found")).fix


def test_a_fabric_manager_that_does_not_run_breaks_nvml():
    """nvidia-smi answers on such a host, CUDA does not: error 802."""
    switch = {"address": "0000:05:00.0", "device": "22a3", "cls": "068000"}
    gpu = {"address": "0000:19:00.0", "device": "2330", "driver": "nvidia"}
    link = broken(
        {
            "pci": [gpu, switch],
            "packages": {
                "nvidia-fabricmanager": {"version": "595.91.07-1", "held": True},
                "nvidia-open": {"version": "595.91.07-1", "held": True},
            },
            "units": {
                "nvidia-fabricmanager.service": {"active": "failed", "sub": "failed", "enabled": "enabled"}
            },
        }
    )
    assert link.layer == "NVML"
    assert link.cause.startswith("nvidia-fabricmanager.service is not active: CUDA answers error 802")
    assert PROVISION in link.fix


CDI_MODE = {"/etc/nvidia-container-runtime/config.toml": '[nvidia-container-runtime]\nmode = "cdi"\n'}


@pytest.mark.parametrize(
    ("spec", "cause"),
    [
        (None, "no file in /run/cdi/ or /etc/cdi/ is a CDI specification of nvidia.com/gpu"),
        (
            "550.1.2",
            "/run/cdi/nvidia.yaml is older than the driver: it names the libraries of 550.1.2, and 595.91",
        ),
        ("595.91.07\n# /dev/nvidiactl", "/run/cdi/nvidia.yaml does not have /dev/nvidia-uvm"),
    ],
)
def test_a_specification_that_is_missing_old_or_incomplete_breaks_the_toolkit(spec: str | None, cause: str):
    """Its fix is a plan that has it written again."""
    text = f"kind: nvidia.com/gpu\ndevices:\n- name: GPU-0\n# /usr/lib/libcuda.so.{spec}\n" if spec else False
    units = {
        "nvidia-cdi-refresh.service": {"active": "inactive", "sub": "dead"},
        "nvidia-cdi-refresh.path": "active",
    }
    link = broken({"files": {**CDI_MODE, "/run/cdi/nvidia.yaml": text}, "units": units})
    assert link.layer == "toolkit"
    assert link.cause.startswith(cause)
    assert link.fix.startswith("gpunode provision --limit modern\nit will ")
    assert "enable and restart nvidia-cdi-refresh" in link.fix


def test_a_device_without_its_link_breaks_the_runtime():
    """Where the runc below loses such devices: containers work until the next daemon-reload."""
    host, seen = cases.right()
    seen = cases.overlaid(
        seen, {"versions": {"systemd": "252", "runc": "1.1.5"}, "unlinked": ["/dev/nvidia0"]}
    )
    assert seen.containerd is not None
    dump = f"{seen.containerd.dump}\n  SystemdCgroup = true\n"
    link = first(host, replace(seen, containerd=replace(seen.containerd, dump=dump)))
    assert link.layer == "runtime"
    assert "/dev/nvidia0 has no link in /dev/char: runc 1.1.5 passes systemd only" in link.cause
    assert PROVISION in link.fix


def test_a_hook_that_runc_does_not_know_of_is_said_beside_a_runtime_that_works():
    """Nothing is broken yet; what prevents it is the user's choice."""
    host = cases.host("modern", {"toolkit": "1.17.8"})
    _, seen = cases.right()
    seen = cases.applied(seen, pipeline.plan(host, seen, decide(host, seen, None)).changes)
    link = next(each for each in judge_host(converge.plan_host(host, seen, None)) if each.layer == "runtime")
    assert (link.status, "passDeviceSpecs" in link.fix) == ("ok", True)
    assert "NVIDIA's toolkit is 1.17.8: its hook" in link.cause


def test_a_missing_toolkit_is_explained_by_the_toolkit_not_by_what_apt_must_read_for_it():
    link = broken({"packages": {"nvidia-container-toolkit": "gone"}})
    assert link.cause == "nvidia-container-toolkit is not installed"
    assert "install nvidia-container-toolkit" in link.fix


@tables.rows("runtime-files-that-do-not-parse")
def test_a_file_that_does_not_parse_breaks_the_runtime_that_reads_it(
    base: str, path: str, text: str, cause: str
):
    """By its name; where and why is the cause."""
    host, seen = cases.right(base)
    link = first(host, cases.overlaid(seen, {"files": {path: text}}))
    assert (link.layer, link.text) == ("runtime", f"{path} does not parse")
    assert link.cause.startswith(f"{path}:")
    assert cause in link.cause
    assert "by hand" in link.fix


def test_a_refusal_is_no_cause_of_another_link():
    """Yet it is to be mended first: until then provision changes nothing."""
    host, seen = cases.right()
    file = {"/etc/containerd/config.toml": "version = 3\nroot = '/var\n"}
    link = first(host, cases.overlaid(seen, {"files": file, "modules": {"nvidia": "gone"}}))
    assert link.layer == "module"
    assert "TOML" not in link.cause
    assert "TOML" in link.fix


def test_what_could_not_be_read_is_the_answers_fault_not_the_hosts():
    host, seen = cases.right()
    link = first(host, replace(seen, errors={"packages": "dpkg-query: not found"}))
    assert (link.layer, link.cause) == ("ssh", "packages: dpkg-query: not found")


@pytest.mark.parametrize("refused", [True, False], ids=["sudo refuses", "sudo: false"])
def test_what_a_user_may_not_read_is_not_judged(*, refused: bool):
    host, seen = cases.right()
    outcome = converge.plan_host(host, replace(seen, errors={"root": "the agent runs as user 1000"}), None)
    if refused:
        outcome = failure(SudoRefused(host.name, "sudo needs a password", hint="Run again with -K."))
    (link,) = judge_host(outcome)
    assert (link.layer, link.status, link.problem and link.problem.code) == ("ssh", "unknown", NO_RIGHTS)
    assert link.fix
    assert summarize({host.name: (link,)}) == f"1 host not checked: {host.name}"
    problem = broken_link(Member(host, outcome), (link,))
    assert (problem.what, problem.fix) == (f"link `ssh` of host modern is {link.text}", link.fix)


@pytest.mark.parametrize(
    ("problems", "code"),
    [
        ([SudoRefused("a", "sudo needs a password")], 4),
        ([SudoRefused("a", "sudo needs a password"), Unreachable("b", "no answer")], 4),
        ([Unreachable("b", "no answer")], 3),
        ([SudoRefused("a", "sudo needs a password"), AgentFailed("b", "killed")], 1),
    ],
)
def test_a_missing_right_ends_every_command_alike(monkeypatch, problems: list[HostError], code: int):
    monkeypatch.setattr(verify.nodes, "check_kubeconfig", mock.Mock())
    host, _ = cases.right()
    members = tuple(Member(replace(host, name=each.host), outcome=failure(each)) for each in problems)
    inventory = Inventory("", tuple(member.host for member in members), Cluster())
    session = mock.Mock(inventory=inventory, for_each_host=lambda *_, **__: members)
    assert (verify.verify(session, run=False), exit_codes.worst(members)) == (code, code)


def test_a_right_that_is_lost_in_the_middle_of_changes_is_a_failure():
    outcome = replace(failure(SudoRefused("a", "sudo needs a password")), applied=(Reboot("why"),))
    assert exit_codes.worst((Member(cases.host("a"), outcome),)) == 1


@pytest.mark.parametrize(
    ("base", "path", "old", "new", "cause"),
    [
        (
            "legacy",
            "/etc/docker/daemon.json",
            '"default-runtime": "nvidia"',
            '"debug": true',
            "no longer names nvidia as its default runtime: docker still has it, and its next start loses it",
        ),
        ("legacy", "/etc/docker/daemon.json", '"nvidia": {', '"amd": {', "does not hold the nvidia runtime"),
    ],
)
def test_a_runtimes_cause_is_what_its_file_lacks_and_its_fix_what_is_done_about_it(
    base: str, path: str, old: str, new: str, cause: str
):
    host, seen = cases.right(base)
    text = seen.files[path].content or ""
    assert old in text
    link = first(host, cases.overlaid(seen, {"files": {path: text.replace(old, new)}}))
    assert (link.layer, link.cause) == ("runtime", f"{path} {cause}")
    assert link.fix == f"gpunode provision --limit {host.name}\nit will change {path}; restart docker"


@pytest.mark.parametrize(
    ("old", "new", "cause"),
    [
        ("default_runtime_name = ", "other = ", "does not name nvidia as its default runtime"),
        ("nvidia", "runsc", "does not hold the nvidia runtime"),
    ],
)
def test_containerds_cause_is_what_its_file_lacks(old: str, new: str, cause: str):
    host, seen = cases.right()
    path = "/etc/containerd/config.toml"
    text = seen.files[path].content or ""
    assert old in text
    edited = text.replace(old, new)
    dump = {"dump": edited, "version": seen.containerd.version} if seen.containerd else {}
    link = first(host, cases.overlaid(seen, {"files": {path: edited}, "containerd": dump}))
    assert (link.layer, link.cause) == ("runtime", f"{path} {cause}")


def test_a_module_beside_nvidia_that_is_not_loaded_breaks_the_module():
    link = broken({"modules": {"nvidia_uvm": "gone"}})
    assert link.layer == "module"
    assert link.cause.startswith("nvidia_uvm is not loaded")


@tables.rows("next-kernels")
def test_a_kernel_that_boots_next_without_a_module_is_named_at_the_module(
    then: Mapping[str, Any], status: str, cause: str
):
    """Broken where the plan gives it one; else the GPUs work until then, and a user has to act."""
    host, seen = cases.right()
    outcome = converge.plan_host(host, cases.overlaid(seen, then), None)
    link = next(link for link in judge_host(outcome) if link.layer == "module")
    assert link.status == status
    assert link.cause.startswith(cause)
    assert bool(link.cause) == bool(link.fix) == bool(cause)


def test_a_library_that_is_in_the_operators_driver_container_alone_is_named():
    """Where the driver is left to its owner; else the host is refused."""
    seen = cases.facts(
        "modern",
        {"modules": {"nvidia": "580.95.05"}, "files": {"/run/nvidia/validations/.driver-ctr-ready": ""}},
    )
    chain = judge_host(converge.plan_host(cases.host("modern", {"driver": "none"}), seen, None))
    link = next(link for link in chain if link.status == "broken")
    assert (link.layer, link.text) == (
        "library",
        "libnvidia-ml.so.1 is in the GPU Operator's driver container alone",
    )


def test_nova_is_named_with_what_the_kernel_logs_and_provision_as_the_fix():
    """sysfs has the PCI driver's name, which is not the module's."""
    link = broken(
        {
            "pci": [{"address": "0000:19:00.0", "device": "20b2", "driver": "NovaCore"}],
            "modules": {"nvidia": "gone", "nova_core": {"version": None, "refcnt": 1}},
        }
    )
    assert (link.layer, link.text) == ("module", "NovaCore holds the GPUs, not nvidia")
    assert "“NVRM: GPU … is already bound to NovaCore”" in link.cause
    assert "provision" in str(link.fix)


@pytest.mark.parametrize("broken", [{}, {"smi_error": "no answer", "gpus": []}], ids=["works", "broken"])
def test_another_driver_than_the_loaded_one_is_a_pending_change(broken: dict[str, Any]):
    """The chain is judged to its end: what is broken is named, and what works is called no less."""
    run = {"version": "580.178.04", "url": "https://mirror.example/d.run"}
    host = cases.host("modern", {"run": run})
    old = "570.124.06"
    modules = dict.fromkeys(("nvidia", "nvidia_uvm", "nvidia_modeset"), old)
    seen = cases.overlaid(
        cases.right()[1],
        {"installed_run": {"version": old, "built": True}, "library_version": old, "modules": modules}
        | broken,
    )
    chain = judge_host(converge.plan_host(host, seen, None))
    (link,) = (link for link in chain if link.is_pending)
    assert (link.layer, link.status, link.text) == ("library", "ok", f"libnvidia-ml {old}")
    assert f"nvidia {old} is loaded; the plan brings 580.178.04" in link.cause
    assert link.fix == f"gpunode provision --limit {host.name}"
    assert ("NVML" in [link.layer for link in chain if link.status == "broken"]) == bool(broken)


def test_a_runtime_that_failed_has_failed():
    link = broken({"units": {"containerd.service": {"active": "failed", "sub": "failed"}}})
    assert link.text == "containerd has failed"


def test_a_gate_that_keeps_k3s_from_starting_is_the_cause_and_provision_the_fix():
    """Its one unit is the runtime's and the kubelet's; the plan restarts it after the files of both."""
    host, seen = cases.right("k3s")
    gate = "kubelet-arg+:\n  - feature-gates=DevicePlugins=true\n"
    path = "/etc/rancher/k3s/config.yaml.d/50.yaml"
    link = first(
        host, cases.overlaid(seen, {"files": {path: gate}, "units": {"k3s-agent.service": "loaded"}})
    )
    assert (link.layer, link.text) == ("runtime", "k3s-agent is inactive (dead)")
    assert "DevicePlugins: gone since 1.28" in link.cause
    assert link.fix.startswith("gpunode provision --limit k3s")


def test_an_image_that_is_not_on_the_node_is_said_to_be_so():
    host, seen = cases.right()
    wished = PluginImage("plugin:1", "plugin.tar", "sha256:1")
    wish = decide(host, seen, wished)
    link = judge_image(Outcome(host.name, "planned", seen, wish, pipeline.plan(host, seen, wish)))
    assert (link.layer, link.cause) == ("plugin", "the plugin's image is not on the node")
    assert link.fix.endswith("it will load image plugin:1 into containerd")


def test_an_unhealthy_gpu_breaks_the_capacity_not_the_plugin():
    """The plugin runs and says so; it is the GPU that wants mending, which provision cannot."""
    counts = {"capacity": {"nvidia.com/gpu": "2"}, "allocatable": {"nvidia.com/gpu": "1"}}
    node = parse({"metadata": {"name": "a", "uid": "u"}, "status": counts})
    state = State(node, {"metadata": {"name": "plugin-x"}})
    assert judge_plugin(state, "gpunode provision").status == "ok"
    link = judge_offer(node, 2, Problem("unhealthy", "1 of 2 GPUs are unhealthy"))
    assert (link.status, link.cause) == ("broken", "1 of 2 GPUs are unhealthy")
    assert "reboot the host" in link.fix
    assert "provision" not in link.fix


@pytest.mark.parametrize(
    ("code", "text"),
    [
        ("xid-79", "xid 79"),
        ("gpu-lost", "GPU is lost"),
        ("xid-48", "xid 48"),
        ("xid-56", "gpu-requires-reset"),
        ("of no table", "gpu-requires-reset"),
    ],
)
def test_a_gpu_is_repaired_as_explain_has_it(code: str, text: str):
    meaning = explain(text)
    assert meaning.more in repair("n", code).splitlines()[-1]
    assert meaning.alternative is None or repair("n", code).endswith(meaning.alternative.next)


def test_a_kubelet_that_says_the_same_at_every_start_is_quoted_once():
    """Without klog's prefix, whose time differs."""
    words = '"command failed" err="unrecognized feature gate: DevicePlugins"'
    journal = [f"E1121 03:00:0{second}.689499     423 run.go:72] {words}" for second in range(3)]
    unit = {"active": "activating", "sub": "auto-restart"}
    kubelet = {"version": "1.36.3", "unit_text": "", "journal": journal}
    link = broken({"units": {"kubelet.service": unit}, "kubelet": kubelet})
    assert (link.layer, link.cause) == ("kubelet", words)


@tables.rows("fabric-states")
def test_a_gpu_that_the_fabric_manager_has_not_joined_breaks_nvml(fabric: str, text: str):
    """As nvidia-smi names the states of nvmlDeviceGetGpuFabricInfo; a GPU without a fabric has none."""
    host, seen = cases.right()
    seen = replace(seen, gpus=tuple(replace(gpu, fabric=fabric) for gpu in seen.gpus))
    link = next(link for link in judge_host(converge.plan_host(host, seen, None)) if link.layer == "NVML")
    assert (link.status, link.text if text else "") == ("broken" if text else "ok", text)
    assert not text or (fabric in link.cause and "fabricmanager" in link.fix)


@pytest.mark.parametrize(
    ("library", "cause"), [("595.1", "driver 595.1 is installed, but"), (None, "no driver is")]
)
def test_an_unloaded_module_is_no_missing_driver(library: str | None, cause: str):
    """Where another link's refusal leaves no plan that would name what is missing."""
    _, seen = cases.right()
    seen = replace(seen, modules={}, library_version=library)
    refused = Outcome("gpu-1", "refused", seen, problem=Problem("", "config.toml does not parse", "runtime"))
    broken = next(link for link in judge_host(refused) if link.status == "broken")
    assert (broken.layer, broken.cause[: len(cause)]) == ("module", cause)
