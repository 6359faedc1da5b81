"""Why a pod that has a node does not work, or was never created: status, events and log in, causes out."""

from typing import Any

import pytest

from gpunode.links.node.closed import why_closed
from gpunode.links.pod.symptom import add_new_pod, judge_absent, judge_placed

from .test_pending import UNVERIFIED, node, pod

Object = dict[str, Any]
RUNS: Object = {"phase": "Running", "containerStatuses": [{"name": "c", "state": {"running": {}}}]}
CRASHES: Object = {
    "phase": "Running",
    "containerStatuses": [
        {
            "name": "c",
            "state": {"waiting": {"reason": "CrashLoopBackOff"}},
            "lastState": {"terminated": {"exitCode": 1, "reason": "Error"}},
        }
    ],
}
CREATES: Object = {
    "phase": "Pending",
    "containerStatuses": [{"name": "c", "state": {"waiting": {"reason": "ContainerCreating"}}}],
}
UNPULLED: Object = {
    "phase": "Pending",
    "containerStatuses": [
        {"name": "c", "image": "registry.corp/train:2", "state": {"waiting": {"reason": "ErrImagePull"}}}
    ],
}
PULL = {"type": "Warning", "message": 'Failed to pull image "registry.corp/train:2": 401 Unauthorized'}
REFUSED: Object = {
    "phase": "Failed",
    "reason": "UnexpectedAdmissionError",
    "message": "Pod was rejected: Allocate failed due to rpc error: GPU-1 is Unhealthy: Xid 79, which is unexpected",
}
SANDBOX = {
    "type": "Warning",
    "message": 'Failed to create pod sandbox: rpc error: code = Unknown desc = failed to get sandbox runtime: no runtime for "nvidia" is configured',
}
NO_LIBRARY = "ImportError: libcuda.so.1: cannot open shared object file: No such file or directory"
GRAPH = "WARNING 11-26 10:00:00 [config.py:1668] CUDA graph is not supported with cascade attention; using eager for that part"
HEALTHY = (
    "INFO 11-26 10:00:00 [cuda.py:293] Using Flash Attention backend on V1 engine, xformers is not used. CUDA graphs: on",
    GRAPH,
    "Could not find TensorRT",
    "2026-11-26 10:00:00.1: W tensorflow/compiler/tf2tensorrt/utils/py_utils.cc:38] TF-TRT Warning: Could not find TensorRT",
    "UserWarning: torch.cuda.amp.autocast(args...) is deprecated.",
    "I1126 10:00:00.1 1 server.cc] | cuda_memory_pool_byte_size | error: none | TensorRT 10.0",
    'time=2026-11-26T10:00:00Z level=INFO source=gpu.go:217 msg="looking for compatible GPUs" library=cuda warnings=0',
    "DCGM successfully initialized! no unhealthy GPUs",
    "nvidia-persistenced: Started (1234), no errors",
    "This container image is governed by the NVIDIA Deep Learning Container License; if you do not agree, do not use it. cuDNN",
    "NOTE: CUDA Forward Compatibility mode ENABLED. Not all features are available.",
)  # of programs that work
OLD = "CUDA error: CUDA driver version is insufficient for CUDA runtime version"


@pytest.mark.parametrize(
    ("status", "events", "log", "codes", "words"),
    [
        pytest.param(RUNS, [], "step 1\nstep 2\n", [], "", id="it runs"),
        *[pytest.param(RUNS, [], line, [], "", id=f"it runs and logs {line}") for line in HEALTHY],
        pytest.param(RUNS, [], f"step 1\n{OLD}\n", ["driver-too-old"], OLD, id="its log has an error that explain knows"),
        pytest.param(CRASHES, [], f"{OLD}\n", ["driver-too-old"], OLD, id="it crashes by that"),
        pytest.param(CRASHES, [], NO_LIBRARY, ["gpu-not-given"], "It requests a GPU: `gpunode why node n1`", id="it crashes without the GPU that it requests"),
        pytest.param(CRASHES, [], "a\nb\nValueError: x\n", ["unexplained"], "CrashLoopBackOff: exit code 1", id="it crashes by itself"),
        pytest.param(CRASHES, [], f"{GRAPH}\nKeyError: 'lr'\n", ["unexplained"], "KeyError: 'lr'", id="it crashes after a line that proves no cause"),
        pytest.param(CREATES, [SANDBOX], "", ["runtime-handler-missing"], "nvidia", id="its sandbox is not created"),
        pytest.param(UNPULLED, [PULL], "", ["image-pull"], "401 Unauthorized", id="its image is not pulled"),
        pytest.param(UNPULLED, [], "", ["image-pull"], "registry.corp/train:2 cannot be pulled", id="of which no event is left"),
        pytest.param(REFUSED, [], "", ["pods-refused"], "kubectl replace --force", id="the kubelet refused it"),
        pytest.param({"phase": "Succeeded"}, [], f"{OLD}\n", [], "", id="it has ended well"),
    ],
)  # fmt: skip
def test_a_placed_pod_has_these_causes(
    status: Object, events: list[Object], log: str, codes: list[str], words: str
):
    problems = list(judge_placed({**pod(on="n1"), "status": status}, events, log))

    assert [problem.code for problem in problems] == codes
    assert words in " ".join(f"{problem.what} {problem.cause} {problem.fix}" for problem in problems)


def test_the_fix_of_an_explained_failure_names_the_pods_node():
    """`gpunode explain` knows no host, so its table has HOST."""
    placed = pod(2)
    placed["spec"]["nodeName"] = "n1"
    placed["status"] = {"phase": "Running"}
    (problem,) = judge_placed(placed, [], f"{OLD}\n")
    assert problem.fix.endswith("`gpunode provision --limit n1`")


MISMATCH = "Failed to initialize NVML: Driver/library version mismatch"
RIGHT = "host h1 is OK now: module, library"


@pytest.mark.parametrize(
    ("phase", "log", "right", "words"),
    [
        ("Failed", MISMATCH, RIGHT, f"Nothing on the node: {RIGHT}. Replace the pod: it does not restart on its own: `kubectl delete pod -n default p`, then create it again, unless its Job does."),
        ("Failed", NO_LIBRARY, RIGHT, "unless its Job does. If it fails again, check NVIDIA_VISIBLE_DEVICES,"),
        ("Failed", MISMATCH, "", "`gpunode provision --limit n1`\nAfter that, replace the pod: it does not restart on its own: `kubectl delete"),
        ("Running", MISMATCH, RIGHT, "Drain the node"),
        ("Failed", OLD, RIGHT, "`gpunode provision --limit n1`"),
    ],
    ids=["the host is right by now", "and showed no GPU", "the host is not", "its container starts again", "the driver stays too old for it"],
)  # fmt: skip
def test_a_failed_pod_has_to_be_created_again(phase: str, log: str, right: str, words: str):
    failed = {**pod(on="n1"), "status": {"phase": phase}}
    failed["metadata"].update(name="p", namespace="default", ownerReferences=[{"kind": "Job"}])
    (problem,) = judge_placed(failed, [], log)
    fix = add_new_pod(problem, failed, right).fix
    assert words in fix
    assert ("rain" in fix) == (log == MISMATCH and not (right and phase == "Failed"))


def test_a_pod_that_asks_for_no_gpu_is_told_so_unless_it_offers_them():
    running = {**pod(gpus=0, on="n1"), "status": RUNS}
    (problem,) = judge_placed(running, [], "")
    assert problem.code == "asks-none"
    (problem,) = judge_placed({**running, "status": {"phase": "Failed"}}, [], NO_LIBRARY)
    assert (problem.code, problem.cause) == ("asks-none", NO_LIBRARY), "the missing library is its effect"
    running["metadata"]["labels"] = {"app.kubernetes.io/name": "gpunode-device-plugin"}
    assert not list(judge_placed(running, [], ""))


QUOTA = 'pods "train-7f9c-x" is forbidden: exceeded quota: gpus, requested: requests.nvidia.com/gpu=2, used: requests.nvidia.com/gpu=4, limited: requests.nvidia.com/gpu=4'


def failed(message: str, name: str = "train-7f9c", reason: str = "FailedCreate") -> Object:
    return {"reason": reason, "message": message, "involvedObject": {"kind": "ReplicaSet", "name": name}}


@pytest.mark.parametrize(
    ("name", "events", "code"),
    [
        ("ml/train-7f9c-x", [failed(QUOTA)], "quota-exceeded"),
        ("ml/train", [failed(QUOTA)], "quota-exceeded"),  # the Deployment's name
        ("ml/train-7f9c", [failed("admission webhook \"v\" denied the request: no")], "webhook-denied"),
        ("ml/train-7f9c", [failed("the moon is full")], "unexplained"),
        ("ml/other", [failed(QUOTA)], None),
        ("ml/train", [failed(QUOTA, reason="SuccessfulCreate")], None),
    ],
)  # fmt: skip
def test_a_pod_that_could_not_be_created_has_its_controllers_reason(
    name: str, events: list[Object], code: str | None
):
    problem = judge_absent(name, events, [pod("a", 4, on="n1")])

    assert (problem and problem.code) == code
    if problem and code == "quota-exceeded":
        assert problem.cause.splitlines()[-1] == "GPUs of ml: ml/a (4)"


def test_a_node_has_each_reason_for_which_it_takes_no_pods():
    closed = list(why_closed(node("n1", ready=False, taints=[UNVERIFIED], unschedulable=True)))
    assert [problem.code for problem in closed] == ["node-not-ready", "unverified", "cordoned"]
    assert all(problem.fix and problem.subject == "n1" for problem in closed)
    assert list(why_closed(node("n2"))) == []
