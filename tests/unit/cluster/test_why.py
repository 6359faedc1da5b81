"""`gpunode why` with a kubeconfig alone, and with an inventory: its answer, its lines, its exit code."""

import json
from collections.abc import Callable
from dataclasses import replace
from typing import Any
from unittest import mock

import pytest
from typer.testing import CliRunner, Result

from gpunode.acceptance.stamp import Stamp
from gpunode.cli import app
from gpunode.commands import verify as verifying
from gpunode.commands.why import chains, cluster
from gpunode.commands.why.gpu import name_gpus
from gpunode.commands.why.node import _effect
from gpunode.commands.why.pod import _lost_gpus
from gpunode.contract.condition import ACCEPTED
from gpunode.contract.status import Reason
from gpunode.contract.usage import Gpu, User
from gpunode.engine import impact
from gpunode.engine.member import Member
from gpunode.errors import NO_RIGHTS, Problem, UsageError
from gpunode.links.capacity import link as capacity
from gpunode.links.node import cordon, parse
from gpunode.links.node.link import judge_node
from gpunode.links.plugin.usage import NodeUsage
from gpunode.model import (
    Cluster,
    Disturbance,
    Disturbed,
    GpuUser,
    Host,
    Inventory,
    Outcome,
    Plan,
    Reboot,
    Service,
    Ssh,
    StepPlan,
    Verdict,
)
from gpunode.wording import Advice, Command, advise
from tests import cases

from .conftest import GPU_NODE, add_node, pod
from .fake import FakeApi, Object

GPU = "nvidia.com/gpu"
Why = Callable[..., Result]


@pytest.fixture
def why(fake: FakeApi, tmp_path, monkeypatch) -> Why:
    """Runs `gpunode why` with a kubeconfig, in a folder without an inventory."""
    monkeypatch.chdir(tmp_path)
    kubeconfig = fake.kubeconfig(tmp_path)
    return lambda *words: CliRunner().invoke(app, ["why", *words, "--kubeconfig", kubeconfig])


def waiting(name: str, gpus: int = 1, **more: Any) -> Object:
    item = pod(name, namespace="ml", gpus=gpus)
    refused = {
        "type": "PodScheduled",
        "status": "False",
        "message": more.pop("says", "0/1 nodes are available: x."),
    }
    item["spec"] |= more
    return {**item, "status": {"phase": "Pending", "conditions": [refused]}}  # fmt: skip


def read(result: Result) -> tuple[Object, list[Object]]:
    """The answer, and its reasons."""
    lines = [json.loads(line) for line in result.stdout.splitlines()]
    (answer,) = [line for line in lines if line["type"] == "answer"]
    return answer, [line for line in lines if line["type"] == "reason"]


@pytest.mark.parametrize(
    ("words", "answer"),
    [
        (("p", "-n", "ml"), "ml/p, created"),
        (("ml/p", "-n", "ml", "--namespace", "gpus"), "ml/p, created"),
        (("ml/p", "-n", "web"), "ml/p is no pod of namespace web"),
    ],
)
def test_n_is_the_pods_namespace_as_of_kubectl(why: Why, fake: FakeApi, words: tuple[str, ...], answer: str):
    fake.put(waiting("p"))
    result = why("pod", *words, "--json")
    text = str(result.exception) if result.exception and not result.stdout else read(result)[0]["text"]
    assert text.startswith(answer), text


def test_a_pod_that_waits_for_gpus_in_use_is_told_who_has_them(why: Why, fake: FakeApi):
    add_node(fake, "n1", 2, labels=GPU_NODE)
    fake.put(pod("a", node="n1", namespace="ml", gpus=2))
    fake.put(waiting("p", says="0/1 nodes are available: 1 Insufficient nvidia.com/gpu."))

    result = why("pod", "ml/p", "--json")

    assert result.exit_code == 1, result.output
    answer, (reason,) = read(result)
    assert (answer["subject"], answer["state"]) == ("pod ml/p", "Pending")
    assert reason["code"] == "in-use"
    assert reason["evidence"] == ["n1: 0 of 2 free, in use by ml/a (2)"]


def test_up_to_8_nodes_in_use_have_a_line_each(why: Why, fake: FakeApi):
    """Also beside another reason; more are grouped by what is free."""

    def use_nodes(numbers: range) -> None:
        for number in numbers:
            add_node(fake, f"n{number}", 2, labels=GPU_NODE)
            fake.put(pod(f"a{number}", node=f"n{number}", namespace="ml", gpus=2))

    use_nodes(range(8))
    fake.put(waiting("p", says="0/8 nodes are available: 1 the moon is full, 7 Insufficient nvidia.com/gpu."))
    shown = why("pod", "ml/p").stdout
    assert all(f"n{number}: 0 of 2 free, in use by ml/a{number} (2)" in shown for number in range(8))
    use_nodes(range(8, 9))
    shown = why("pod", "ml/p").stdout
    assert (
        "n0, n1, n2, n3 and 5 more: 0 of 2 free, in use by ml/a0 (2), ml/a1 (2), ml/a2 (2), ml/a3 (2) and 5 more"
        in shown
    )


def test_the_answer_comes_first_and_takes_at_most_15_lines(why: Why, fake: FakeApi):
    for number in range(30):
        add_node(fake, f"n{number:02}", 2, labels=GPU_NODE)
        fake.put(pod(f"a{number}", node=f"n{number:02}", namespace="ml", gpus=2))
    fake.put(
        waiting("p", 2, says="0/30 nodes are available: 3 the moon is full, 27 Insufficient nvidia.com/gpu.")
    )

    shown = why("pod", "ml/p").stdout.splitlines()

    assert shown[0].startswith(" ml/p, created ")
    assert shown[0].endswith(
        "asks for 2 nvidia.com/gpu. Cause: no node has 2 nvidia.com/gpu free: other pods have them"
    )
    assert len(shown) <= 15
    assert any("the moon is full" in line for line in shown)


def test_what_several_nodes_have_is_one_reason_with_a_fix_for_all(why: Why, fake: FakeApi):
    for number in range(1, 5):
        add_node(fake, f"n{number}", 2, labels=GPU_NODE, ready=False)
    fake.put(waiting("p"))

    (reason, _) = read(why("pod", "ml/p", "--json"))[1]

    assert reason["what"] == "n1 is not Ready; the same on n[2:4]"
    assert reason["evidence"][1:] == [
        f"n{number}: Kubelet stopped posting node status." for number in (2, 3, 4)
    ]
    assert "gpunode verify --limit 'n[1:4]'" in reason["fix"]


def test_a_pod_that_is_not_there_is_a_mistake_that_names_one_that_is(why: Why, fake: FakeApi):
    fake.put(waiting("train-7"))
    result = why("pod", "train-7")
    assert isinstance(result.exception, UsageError)
    assert result.exception.hint == "Did you mean ml/train-7?"


def test_a_cause_that_nothing_shows_is_said_not_to_be_known(why: Why, fake: FakeApi):
    add_node(fake, "n1", 2, labels=GPU_NODE)
    fake.put(waiting("p", says="0/1 nodes are available: 1 the moon is full."))
    result = why("pod", "ml/p", "--json")
    assert result.exit_code == 7
    assert [reason["code"] for reason in read(result)[1]] == ["scheduler"]


def test_why_the_plugin_offers_no_gpu_is_what_its_judges_say(why: Why, fake: FakeApi, monkeypatch):
    """Also where its host may not be read."""
    monkeypatch.setattr(chains, "broken_links", lambda _: {"n1": Problem(NO_RIGHTS, "sudo")})
    add_node(fake, "n1", 0, labels=GPU_NODE)
    fake.put(waiting("p"))
    result = why("pod", "ml/p", "--json")
    assert result.exit_code == 1, result.output
    _, (reason, *_) = read(result)
    assert reason["what"] == "n1 offers no nvidia.com/gpu"
    assert reason["code"] == "no-pod"
    assert reason["evidence"]


def use(monkeypatch, *usages: NodeUsage) -> None:
    """What the plugins say of their GPUs."""
    monkeypatch.setattr(cluster, "read_usage", lambda *_: usages)


def gpu(uuid: str, *users: str, **more: Any) -> Gpu:
    return Gpu(
        uuid, "0", "H100", 80 * 1024**3, users=tuple(User(name, "c", GPU, 1) for name in users), **more
    )


@pytest.mark.parametrize(("nodes", "asked"), [(2, 2), (21, 0)])
def test_the_models_of_few_nodes_are_asked_for(why: Why, fake: FakeApi, monkeypatch, nodes: int, asked: int):
    for number in range(nodes):
        add_node(fake, f"n{number}", 2, labels=GPU_NODE)
    fake.put(waiting("p", nodeSelector={"accelerator": "nvidia-l4"}))
    monkeypatch.setattr(cluster, "read_usage", usage := mock.Mock(return_value=()))

    assert why("pod", "ml/p").exit_code == 1
    assert [len(call.args[4]) for call in usage.call_args_list] == ([asked] if asked else [])


def test_a_running_pod_is_told_its_gpus(why: Why, fake: FakeApi, monkeypatch):
    add_node(fake, "n1", 2, labels=GPU_NODE)
    fake.put(pod("a", node="n1", namespace="ml", gpus=1))
    use(monkeypatch, NodeUsage("n1", (gpu("GPU-1", "ml/a"), gpu("GPU-2"))))

    result = why("pod", "ml/a", "--json")

    assert result.exit_code == 0, result.output
    assert read(result)[0]["text"].endswith("asks for 1 nvidia.com/gpu; it has GPU 0")


def test_a_pod_on_a_gpu_that_became_unhealthy_is_told_so(why: Why, fake: FakeApi, monkeypatch):
    add_node(fake, "n1", 2, labels=GPU_NODE)
    fake.put(pod("a", node="n1", namespace="ml", gpus=1))
    use(monkeypatch, NodeUsage("n1", (gpu("GPU-1", "ml/a", unhealthy=Reason("xid-79", "Xid 79: off the bus")),)))  # fmt: skip
    result = why("pod", "ml/a", "--json")
    assert result.exit_code == 1
    assert [reason["code"] for reason in read(result)[1]] == ["xid-79"]


def test_a_lost_gpu_leaves_the_others_to_their_pods_and_to_new_ones(why: Why, fake: FakeApi, monkeypatch):
    """Not where its host does not list the pod's own GPU, or another link is broken: the kubelet allocates all the same."""
    add_node(fake, "n1", 2, labels=GPU_NODE)
    fake.put(pod("a", node="n1", namespace="ml", gpus=1))
    lost = replace(gpu("GPU-9", unhealthy=Reason("xid-79", "Xid 79: off the bus")), index="1")
    usage = NodeUsage("n1", (gpu("GPU-0", "ml/a"), lost))
    use(monkeypatch, usage)
    fine = why("pod", "ml/a", "--json")
    says = "it has GPU 0, healthy. GPU 1 of its node is Unhealthy: `gpunode why gpu n1/1` shows the fix"
    assert (fine.exit_code, read(fine)[0]["text"].partition("; ")[2]) == (0, says), fine.output

    host, facts = cases.right()
    facts = replace(facts, pci=(*facts.pci, replace(facts.pci[0], address="0000:1a:00.0")))
    seen = Member(host, Outcome("n1", "right", facts))
    gone = replace(facts, gpus=(replace(facts.gpus[0], uuid="GPU-9"),))
    other = replace(seen, outcome=Outcome("n1", "right", gone))
    asked = mock.Mock(usage=lambda _: (usage,))
    (item,) = fake.all("Pod")
    for layer, code, members in (("NVML", "gpus-silent", [other]), ("runtime", "runtime", [seen, other])):
        problem = Problem(code, "link is broken", layer=layer)
        monkeypatch.setattr(chains, "broken_link", lambda *_, problem=problem: problem)
        blind = [each for each in (seen, other) if [*_lost_gpus(asked, each, item)]]
        assert blind == members

    node = parse(fake.all("Node")[0])
    silent, every = Problem("gpus-silent", "x", layer="NVML"), ", but new pods get no GPU"
    assert _effect(asked, node, silent, facts) == "; 1 of 2 GPUs usable; GPU 1 is lost"
    fewer = replace(
        node, resources={name: replace(each, allocatable=1) for name, each in node.resources.items()}
    )
    assert _effect(asked, fewer, silent, facts) == "; GPU 1 is lost"
    asked.usage = lambda _: ()  # its plugin does not know yet, or is not there
    assert _effect(asked, node, silent, facts) == "; 1 of 2 GPUs usable; GPU 0000:1a:00.0 is lost"
    unlisted = replace(facts, gpus=())  # nvidia-smi fails at the first of them
    assert _effect(asked, node, silent, unlisted) == "; how many of its GPUs are lost is not known"
    assert _effect(asked, node, silent, replace(unlisted, pci=facts.pci[-1:])) == every  # its only one
    assert _effect(asked, node, replace(silent, code="runtime", layer="runtime"), facts) == every


def test_a_crashing_pod_is_explained_by_its_log(why: Why, fake: FakeApi):
    add_node(fake, "n1", 2, labels=GPU_NODE)
    states = [{"name": "c", "state": {"waiting": {"reason": "CrashLoopBackOff"}}}]
    fake.put(pod("a", node="n1", namespace="ml", gpus=1, containerStatuses=states))
    fake.logs["a", "c"] = "start\nFailed to initialize NVML: Driver/library version mismatch\n"
    result = why("pod", "ml/a", "--json")
    assert result.exit_code == 1, result.output
    answer, (reason,) = read(result)
    assert answer["state"] == "CrashLoopBackOff"
    assert reason["evidence"] == ["Failed to initialize NVML: Driver/library version mismatch"]
    assert reason["fix"]


def test_a_failed_pod_of_a_host_that_is_right_by_now_is_to_be_replaced(why: Why, fake: FakeApi, monkeypatch):
    """By its host's probe; a host that does not answer shows no links."""
    add_node(fake, "n1", 2, labels=GPU_NODE)
    ended = [{"name": "c", "state": {"terminated": {"exitCode": 1, "reason": "Error"}}}]
    fake.put(pod("a", node="n1", namespace="ml", gpus=1, phase="Failed", containerStatuses=ended))
    fake.logs["a", "c"] = "Failed to initialize NVML: Driver/library version mismatch\n"
    chain = [Verdict.ok("module", "590"), Verdict.ok("library", "590"), Verdict.unknown("pod")]
    fixes = []
    for links in (chain, []):
        judged = {"n1": (Member(Host("h1", Ssh("h1"))), links)}
        monkeypatch.setattr(chains, "judge", lambda *_, judged=judged: judged)
        (reason,) = read(why("pod", "ml/a", "--json"))[1]
        fixes.append(reason["fix"])
    assert fixes[0].startswith("Nothing on the node: host h1 is OK now: module, library. Replace the pod: ")
    assert "kubectl delete pod -n ml a" in fixes[0]
    assert fixes[1].startswith("Drain the node")
    wrong = {
        "n1": (Member(Host("h1", Ssh("h1"))), [Verdict.broken("library", "595 ≠ 590", "new", "Replace it.")])
    }
    monkeypatch.setattr(chains, "judge", lambda *_: wrong)
    (reason,) = read(why("pod", "ml/a", "--json"))[1]
    assert reason["fix"].startswith("Replace it.\nAfter that, replace the pod: ")
    assert reason["evidence"][-1].startswith("Failed to initialize NVML"), "the host's fault is its cause"


def test_a_refused_pod_is_told_why_its_node_offers_fewer_gpus(why: Why, fake: FakeApi):
    add_node(fake, "n1", 0, labels=GPU_NODE)
    refused = {"phase": "Failed", "reason": "UnexpectedAdmissionError", "message": "Allocate failed"}
    fake.put(pod("a", node="n1", namespace="ml", gpus=1, **refused))
    result = why("pod", "ml/a", "--json")
    assert result.exit_code == 1, result.output
    assert [reason["code"] for reason in read(result)[1]] == ["no-pod", "pods-refused"]


def test_a_pod_bound_to_a_node_that_is_too_small_is_told_to_ask_for_fewer(why: Why, fake: FakeApi):
    add_node(fake, "n1", 2, labels=GPU_NODE)
    refused = {
        "phase": "Failed",
        "reason": "UnexpectedAdmissionError",
        "message": "Requested: 64, Available: 2",
    }
    fake.put(pod("a", node="n1", namespace="ml", gpus=64, **refused))
    result = why("pod", "ml/a", "--json")
    assert [reason["code"] for reason in read(result)[1]] == ["too-many", "pods-refused"]


def test_who_lacks_a_cordoned_gpu_is_told_how_to_give_it_back(why: Why, fake: FakeApi, monkeypatch):
    add_node(fake, "n1", 2, labels=GPU_NODE)
    fake.update("Node", "n1", status={"allocatable": {GPU: "1"}})
    cordoned = Reason("cordoned", "cordoned by ann since 2026-01-01T00:00:00Z: fan")
    monkeypatch.setattr(capacity, "why_not", lambda *_: Problem("cordoned", "1 of 2 are cordoned"))
    use(monkeypatch, NodeUsage("n1", (gpu("GPU-1"), gpu("GPU-2b", unhealthy=cordoned))))
    fake.put(waiting("a", 2, says="0/1 nodes are available: 1 Insufficient nvidia.com/gpu."))
    for subject in ("node n1", "pod ml/a"):  # the pod would fit with it
        (reason,) = read(why(*subject.split(), "--json"))[1]
        assert (
            reason["fix"]
            == "Once that reason is settled, `gpunode uncordon-gpu GPU-2b` gives it back; it disturbs no pod."
        )


def test_a_pod_that_its_quota_keeps_from_being_created_is_explained(why: Why, fake: FakeApi):
    event = {"kind": "Event", "metadata": {"name": "e", "namespace": "ml"}, "reason": "FailedCreate",
             "message": 'pods "t-1" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=1',
             "involvedObject": {"kind": "Job", "name": "t"}}  # fmt: skip
    fake.put(event)
    result = why("pod", "ml/t-1", "--json")
    assert result.exit_code == 1, result.output
    answer, (reason,) = read(result)
    assert (answer["state"], reason["code"]) == ("absent", "quota-exceeded")


def test_a_node_that_is_fine_is_said_to_be_with_who_has_its_gpus(why: Why, fake: FakeApi):
    add_node(fake, "n1", 2, labels=GPU_NODE)
    fake.put(pod("a", node="n1", namespace="ml", gpus=1))
    result = why("node", "n1", "--json")
    assert result.exit_code == 0, result.output
    answer, reasons = read(result)
    assert answer["text"] == "node n1 is Ready and offers 2 of 2 nvidia.com/gpu; in use by ml/a (1)"
    assert (answer["state"], reasons) == ("fine", [])


@pytest.mark.parametrize(
    ("status", "spec", "ready", "codes"),
    [
        ({"allocatable": {GPU: "1"}}, {}, True, ["no-pod"]),
        ({}, {"unschedulable": True}, True, ["cordoned"]),
        ({}, {}, False, ["node-not-ready"]),
    ],
)
def test_a_node_is_told_why_it_takes_no_pods_or_fewer(
    why: Why, fake: FakeApi, status: Object, spec: Object, ready: bool, codes: list[str]
):
    add_node(fake, "n1", 2, labels=GPU_NODE, ready=ready)
    fake.update("Node", "n1", status=status, spec=spec)
    result = why("node", "n1", "--json")
    assert result.exit_code == 1, result.output
    assert [reason["code"] for reason in read(result)[1]] == codes


@pytest.mark.parametrize("subject", ["node n1", "pod ml/p"])
def test_a_cordon_hides_no_cause_of_gpus_that_are_missing_and_is_named_once(
    why: Why, fake: FakeApi, monkeypatch, subject: str
):
    add_node(fake, "n1", 2, labels=GPU_NODE)
    fake.update("Node", "n1", status={"allocatable": {GPU: "0"}}, spec={"unschedulable": True})
    fake.put(waiting("p", says="0/1 nodes are available: 1 node(s) were unschedulable."))
    link = Problem("node", "link `node` of host h1 is broken: n1 is cordoned", layer="node")
    monkeypatch.setattr(chains, "broken_links", lambda *_: {"n1": link})
    reasons = read(why(*subject.split(), "--json"))[1]
    assert sorted(reason["code"] for reason in reasons) == ["cordoned", "no-pod"]
    assert "n1 is cordoned" not in [line for each in reasons for line in each["evidence"]]


def test_a_node_in_the_hands_of_a_run_is_left_to_it(why: Why, fake: FakeApi, monkeypatch):
    """Whoever lifted its cordon would let pods come in the middle of a change. What is wrong on its host comes first: `resume` verifies it."""
    add_node(fake, "n1", 2, labels=GPU_NODE)
    owner = {"annotations": {cordon.OWNER: "run r1 of ada@ws"}}
    fake.update("Node", "n1", spec={"unschedulable": True}, metadata=owner)
    result = why("node", "n1", "--json")
    reasons = read(result)[1]
    assert [reason["code"] for reason in reasons] == ["cordoned"]
    assert all("`gpunode top` shows a running run" in reason["fix"] for reason in reasons)
    assert "run `gpunode forget` of the same hosts" in reasons[0]["fix"]  # which `resume` passes over
    verdict = judge_node(parse(fake.all("Node")[0]))
    assert (verdict.problem.cause, verdict.problem.fix) == (
        "by gpunode, run r1 of ada@ws: no pod is scheduled on it",
        cordon.FOLLOW,
    )
    lost = {"n1": Problem("module", "link `module` of host n1 is broken", fix="Reboot.")}
    monkeypatch.setattr(chains, "broken_links", lambda *_: lost)
    assert [reason["code"] for reason in read(why("node", "n1", "--json"))[1]] == ["module", "cordoned"]


def test_a_gpu_is_found_by_the_beginning_of_its_uuid_or_by_node_and_index(
    why: Why, fake: FakeApi, monkeypatch
):
    add_node(fake, "n1", 2, labels=GPU_NODE)
    cordoned = Reason("cordoned", "cordoned by ann since 2026-01-01T00:00:00Z: fan")
    second = replace(gpu("GPU-2b", unhealthy=cordoned), index="1")
    use(monkeypatch, NodeUsage("n1", (gpu("GPU-1a", "ml/a"), second)))

    fine, out = why("gpu", "GPU-1", "--json"), why("gpu", "n1/1", "--json")

    assert fine.exit_code == 0, fine.output
    assert read(fine)[0]["text"] == "GPU-1a is GPU 0 (H100) of node n1, in use by ml/a (1 nvidia.com/gpu)"
    assert out.exit_code == 1
    (reason,) = read(out)[1]
    assert reason["code"] == "cordoned"
    assert "gpunode uncordon-gpu GPU-2b" in reason["fix"]

    wrong = {"n1": Problem("module", "link `module` of host n1 is broken", fix="Reboot.")}
    monkeypatch.setattr(chains, "broken_links", lambda *_: wrong)
    assert [each["code"] for each in read(why("gpu", "GPU-1", "--json"))[1]] == ["module"]


def test_a_healthy_gpu_beside_a_lost_one_is_fine_and_the_lost_one_is_named(
    why: Why, fake: FakeApi, monkeypatch
):
    """What else breaks the host's link, or a link that no lost GPU explains, is this GPU's, too."""
    add_node(fake, "n1", 2, labels=GPU_NODE)
    lost = replace(gpu("GPU-2b", unhealthy=Reason("gpu-lost", "GPU is lost")), index="1")
    use(monkeypatch, NodeUsage("n1", (gpu("GPU-1a", "ml/a"), lost)))
    wrong = {"n1": Problem("gpus-silent", "GPU1: GPU is lost", fix="Reboot.", layer="NVML")}
    monkeypatch.setattr(chains, "broken_links", lambda *_: wrong)

    fine = why("gpu", "n1/0", "--json")

    assert (fine.exit_code, read(fine)[1]) == (0, []), fine.output
    assert (
        read(fine)[0]["text"]
        == "GPU-1a is GPU 0 (H100) of node n1, healthy and in use by ml/a (1 nvidia.com/gpu). GPU 1 of its node is Unhealthy: `gpunode why gpu n1/1` shows the fix"
    )
    for code, missing in (("gpu-lost", "NVML"), ("xid-94", "gpus-silent")):
        wrong["n1"] = replace(wrong["n1"], code=missing)
        use(monkeypatch, NodeUsage("n1", (gpu("GPU-1a"), replace(lost, unhealthy=Reason(code, "x")))))
        assert [each["code"] for each in read(why("gpu", "n1/0", "--json"))[1]] == [missing]

    use(monkeypatch, NodeUsage("n1", (gpu("GPU-1a"), lost)))  # and its host lists another alone
    host, facts = cases.right()
    there = Member(
        host, Outcome("n1", "right", replace(facts, gpus=(replace(facts.gpus[0], uuid="GPU-3c"),)))
    )
    monkeypatch.setattr(chains, "judge", lambda *_: {"n1": (there, ())})
    assert [each["code"] for each in read(why("gpu", "n1/0", "--json"))[1]] == ["gpus-silent"]


def test_a_lost_gpu_has_one_cause_which_names_its_hosts_link(why: Why, fake: FakeApi, monkeypatch):
    add_node(fake, "n1", 1, labels=GPU_NODE)
    use(monkeypatch, NodeUsage("n1", (gpu("GPU-2b", unhealthy=Reason("gpu-lost", "GPU is lost")),)))
    silent = Problem("gpus-silent", "link `NVML` of host n1 is broken", fix="Reboot.", layer="NVML")
    monkeypatch.setattr(chains, "broken_links", lambda *_: {"n1": silent})
    (reason,) = read(why("gpu", "n1/0", "--json"))[1]
    assert (reason["code"], reason["evidence"]) == ("gpu-lost", ["same fault at link NVML"])


def test_a_gpu_that_nobody_lists_is_looked_for_in_the_acceptances(why: Why, fake: FakeApi, monkeypatch):
    add_node(fake, "n1", 1, labels=GPU_NODE)
    stamp = Stamp("quick", "accepted", 0.0, 1.0, "615", "6.1", "", ("GPU-gone", "GPU-1"))
    fake.update("Node", "n1", metadata={"annotations": {ACCEPTED: stamp.text()}})
    use(
        monkeypatch,
        NodeUsage("n1", (gpu("GPU-1"),)),
        NodeUsage("n2", reason=Problem("no-plugin", "not there")),
    )

    gone, nobody = why("gpu", "GPU-gone", "--json"), why("gpu", "GPU-x", "--json")

    assert (gone.exit_code, nobody.exit_code) == (1, 7), gone.output
    assert read(gone)[1][-1]["code"] == "gpu-gone"
    assert [reason["code"] for reason in read(nobody)[1]] == ["no-plugin"]


def test_a_gpu_of_a_host_with_a_broken_link_is_answered_with_the_link(why: Why, fake: FakeApi, monkeypatch):
    """Without its driver, or with its plugin crashing, no host lists a GPU."""
    add_node(fake, "n1", 2, labels=GPU_NODE)
    member = Member(Host("h1", Ssh("h1")), Outcome("h1", "planned", cases.facts("modern")))
    link = Verdict("module", "broken", "it is not loaded", Problem("", "it is not loaded", fix="load it"))
    monkeypatch.setattr(chains, "probe", lambda *_: (member,))
    monkeypatch.setattr(chains, "judge_chains", lambda *_, **__: {"h1": (link,)})
    answer, (reason,) = read(why("gpu", "n1/0", "--json"))
    text = "host h1 lists no GPU 0. Cause: link `module` of host h1 is broken: it is not loaded"
    assert answer["text"] == text
    assert reason["fix"] == "load it"
    silent = replace(member, outcome=Outcome("h1", "unreachable"))
    monkeypatch.setattr(chains, "probe", lambda *_: (silent,))
    assert read(why("gpu", "n1/7", "--json"))[0]["text"].startswith("host h1 lists no GPU 7. ")
    monkeypatch.setattr(chains, "probe", lambda *_: (member,))
    absent = why("gpu", "n1/7", "--json")  # which its PCI bus does not have either
    assert (absent.exit_code, [each["code"] for each in read(absent)[1]]) == (7, ["no-plugin"])


def test_what_is_no_gpu_is_a_mistake(why: Why, fake: FakeApi):
    assert isinstance(why("gpu", "MIG-1").exception, UsageError)
    add_node(fake, "n1", 1)
    assert isinstance(why("node", "n2").exception, UsageError)
    assert isinstance(why("gpu", "n2/0").exception, UsageError)
    unlisted = why("gpu", "n1/7")
    assert (unlisted.exit_code, "n1 reports no GPU 7" in unlisted.output) == (7, True), unlisted.output


@pytest.mark.parametrize(
    ("indexes", "words"),
    [
        ([0, 1, 10, *range(2, 10)], "GPUs 0 to 10"),  # as strings are sorted
        ([0, 1, 3], "GPUs 0, 1 and 3"),
        ([0, 1], "GPUs 0 and 1"),
        ([2], "GPU 2"),
    ],
)
def test_a_nodes_gpus_are_listed_where_some_are_missing(indexes: list[int], words: str):
    gpus = tuple(Gpu(f"GPU-{index}", str(index), "H100", 1) for index in indexes)
    assert name_gpus(gpus) == words


@pytest.mark.parametrize("name", ["a/b/c", "/b", "a/", "/"])
def test_what_is_no_name_of_a_pod_is_a_mistake(why: Why, name: str):
    result = why("pod", name)
    assert isinstance(result.exception, UsageError)
    assert f"{name} is no pod" in str(result.exception)


@pytest.mark.parametrize(
    ("gpus", "named", "stale"),
    [(4, "nvidia.com/gpu.shared", True), (3, "nvidia.com/gpu.shared", False), (4, "nvidia.com/gpu", False)],
    ids=["left from an earlier configuration", "a GPU is missing, too", "nothing is short"],
)
def test_a_count_that_the_kubelet_has_not_forgotten_is_no_reason(gpus: int, named: str, stale: bool):
    """It counts the resources of an earlier configuration for minutes, and nothing of them is missing."""
    status = {
        "capacity": {"nvidia.com/gpu": "4", named: "4"},
        "allocatable": {named: "0", "nvidia.com/gpu": str(gpus)},
    }
    item = {"metadata": {"name": "a", "uid": "1"}, "spec": {}, "status": status}
    assert (named not in capacity.drop_stale(item, None)["status"]["capacity"]) == stale


def test_a_resource_of_an_earlier_configuration_is_offered_by_no_node(why: Why, fake: FakeApi):
    name = "nvidia.com/gpu.shared"
    add_node(fake, "n1", 2, labels=GPU_NODE)["status"]["capacity"][name] = "4"
    item = waiting("p", says=f"0/1 nodes are available: 1 Insufficient {name}.")
    item["spec"]["containers"][0]["resources"] = {"limits": {name: "1"}}
    fake.put(item)
    _, (reason,) = read(why("pod", "ml/p", "--json"))
    assert reason["code"] == "no-such-resource"


def test_the_command_of_a_fix_can_be_pasted_and_says_what_it_interrupts():
    """Also where a line follows it; a sentence has it in parentheses."""
    restart = Disturbed(Disturbance(restarts=("containerd.service",)), pods={"ml/a": {}})
    outcome = Outcome("n1", "planned", plan=Plan("n1", (StepPlan("x", (Reboot("x"),)),)), disturbs=restart)
    member = Member(Host("n1", Ssh("n1")), outcome)
    command = Advice(Command("provision", "--limit n1"))
    assert (
        impact.add_to_fix(command, member)
        == "gpunode provision --limit n1   # restart of containerd; disturbs none of your pods"
    )
    more = impact.add_to_fix(Advice(Command("provision", "--limit n1", "restart containerd")), member)
    assert more == "gpunode provision --limit n1   # disturbs none of your pods\nit will restart containerd"
    reboot = replace(outcome, disturbs=replace(restart, what=Disturbance(reboot=True)))
    sentence = impact.add_to_fix(advise("Then `gpunode provision`."), replace(member, outcome=reboot))
    assert sentence == "Then `gpunode provision`. (reboot; disturbs ml/a)"
    assert impact.add_to_fix(command, replace(member, outcome=replace(outcome, plan=None))) == command


@pytest.mark.parametrize(
    ("users", "said"), [((), ""), ((GpuUser(7, "python3"),), "; disturbs python3 (pid 7)")]
)
def test_a_fix_without_a_cluster_says_nothing_of_pods(users: tuple[GpuUser, ...], said: str):
    """`verify` says what it interrupts, and which processes."""
    host = Host("n1", Ssh("n1"))
    plan = Plan("n1", (StepPlan("x", (Service("docker.service", "why", restart=True),)),))
    member = Member(
        host, Outcome("n1", "planned", replace(cases.facts("modern"), gpu_users=users), plan=plan)
    )
    fix = Advice(Command("provision", "--limit n1"))
    chains = {"n1": (Verdict("runtime", "broken", "it is", Problem("", "it is", fix=fix)),)}
    session = mock.Mock(inventory=Inventory("i.yaml", (host,), Cluster()))
    ((link,),) = verifying._with_impact(session, (member,), chains).values()
    assert link.fix == f"gpunode provision --limit n1   # restart of docker{said}"


def test_a_gpu_with_a_problem_is_answered_with_it_before_its_use(why: Why, fake: FakeApi, monkeypatch):
    add_node(fake, "n1", 1, labels=GPU_NODE)
    cordoned = Reason("cordoned", "cordoned by ann since 2026-01-01T00:00:00Z: fan")
    use(monkeypatch, NodeUsage("n1", (gpu("GPU-2b", unhealthy=cordoned),)))
    text = read(why("gpu", "GPU-2b", "--json"))[0]["text"]
    assert text.endswith("of node n1, free. Cause: it is cordoned by ann since 2026-01-01T00:00:00Z: fan")
