"""What API servers and schedulers write where a pod cannot be: each sentence has its code and its fix."""

from __future__ import annotations

import pytest

from gpunode.cluster import obstacles, pods

POD = 'pods "x" is forbidden: '
# As API servers 1.16.15, 1.20.15 and 1.36.3 wrote them (tests/lab/test_obstacles.py); marked ones are of their sources or of issues.
ADMISSION = [
    (
        "exceeded quota: gpus, requested: requests.nvidia.com/gpu=1, used: requests.nvidia.com/gpu=0, limited: requests.nvidia.com/gpu=0",
        "quota-exceeded",
        "kubectl describe resourcequota gpus",
    ),
    (
        "failed quota: gpus: must specify limits.cpu for: c; requests.memory for: c",
        "quota-values",
        "wants limits.cpu for: c; requests.memory for: c, which gpunode's pods do not set",
    ),
    (
        "failed quota: gpus: must specify limits.cpu,requests.memory",
        "quota-values",
        "wants limits.cpu,requests.memory",
    ),
    (
        "insufficient quota to match these scopes: [{PriorityClass In [system-node-critical system-cluster-critical]}]",
        "quota-scope",
        "cluster.namespace: kube-system",
    ),
    (
        "pods with system-node-critical priorityClass is not permitted in r1 namespace",
        "priority-namespace",
        "cluster.namespace: kube-system",
    ),
    ("no PriorityClass with name absent was found", "priority-missing", "kubectl get priorityclass"),
    ('pod rejected: RuntimeClass "nvidia" not found', "runtimeclass-missing", "gpunode plugin deploy"),
    (
        'violates PodSecurity "baseline:latest": hostPath volumes (volume "v")',
        "pod-security",
        "pod-security.kubernetes.io/enforce=privileged",
    ),
    (
        'violates PodSecurity "restricted:latest": allowPrivilegeEscalation != false (container "c" must set …)',
        "pod-security",
        "enforces the level restricted",
    ),
    ("no providers available to validate pod request", "pod-security-policy", "create rolebinding"),
    (
        'unable to validate against any pod security policy: [spec.volumes[0]: Invalid value: "hostPath": hostPath volumes are not '
        "allowed to be used]",
        "pod-security-policy",
        "hostPath volumes",
    ),
    (
        'PodSecurityPolicy: unable to admit pod: [spec.volumes[0]: Invalid value: "hostPath": …]',
        "pod-security-policy",
        "hostPath volumes",
    ),
    (  # an issue's
        "unable to validate against any security context constraint: [provider restricted: …]",
        "security-context",
        "add-scc-to-user privileged",
    ),
    (
        "maximum nvidia.com/gpu usage per Container is 0, but limit is 1",
        "limit-range",
        "kubectl describe limitrange",
    ),
    (
        "minimum cpu usage per Pod is 1.  No request is specified",
        "limit-range",
        "kubectl describe limitrange",
    ),
    (  # its source
        "cpu max limit to request ratio per Container is 2, but provided ratio is 4.000000",
        "limit-range",
        "kubectl describe limitrange",
    ),
    (
        "ValidatingAdmissionPolicy 'no-gpus' with binding 'no-gpus' denied request: failed expression: false",
        "policy-denied",
        "validatingadmissionpolicybinding no-gpus",
    ),
    (
        'error looking up service account gpunode/gone: serviceaccount "gone" not found',
        "service-account-missing",
        "kubectl -n gpunode get serviceaccounts",
    ),
    (
        "unable to create new content in namespace t1 because it is being terminated",
        "namespace-ending",
        "kubectl get namespace t1",
    ),
    (  # its source
        "pod node label selector conflicts with its namespace node label selector",
        "namespace-selector",
        "scheduler.alpha.kubernetes.io/node-selector",
    ),
    (  # its source
        "pod tolerations (possibly merged with namespace default tolerations) conflict with its namespace whitelist",
        "namespace-tolerations",
        "tolerationsWhitelist",
    ),
]
WEBHOOKS = [
    'admission webhook "validation.gatekeeper.sh" denied the request: [must-have-owner] missing owner',
    'admission webhook "image-signature.example.com" denied the request without explanation',
]


@pytest.mark.parametrize(("text", "code", "fix"), ADMISSION, ids=[one[1] for one in ADMISSION])
def test_what_admission_forbids_has_a_code_and_a_fix(text: str, code: str, fix: str) -> None:
    """The words stay the API server's, also in the event that a DaemonSet gets."""
    for words in (POD + text, f"Error creating: {POD}{text}"):
        reason = obstacles.admission(words)
        assert reason is not None
        assert (reason.code, reason.what) == (code, words)
        assert fix in reason.fix


@pytest.mark.parametrize("text", WEBHOOKS)
def test_a_webhook_that_refuses_is_named(text: str) -> None:
    """It has no `is forbidden`, and any status."""
    reason = obstacles.admission(text)
    assert reason is not None
    assert reason.code == "webhook-denied"
    assert text.split('"')[1] in reason.fix


def test_what_is_not_known_has_no_reason() -> None:
    """An event of another kind."""
    assert obstacles.admission('Error creating: Post "https://10.96.0.1": EOF') is None
    assert obstacles.scheduling("no nodes available to schedule pods") is None


@pytest.mark.parametrize(
    ("text", "code", "fix"),
    [
        (
            "0/3 nodes are available: 1 node(s) had untolerated taint {dedicated: gpu}, 2 node(s) didn't match Pod's node "
            "affinity/selector. preemption: 0/3 nodes are available: 3 Preemption is not helpful for scheduling.",
            "tainted",
            "Tolerate the taint",
        ),
        (
            "0/1 nodes are available: 1 node(s) had taint {dedicated: gpu}, that the pod didn't tolerate.",
            "tainted",
            "kubectl taint node",
        ),
        (
            "0/1 nodes are available: 1 node(s) had taints that the pod didn't tolerate.",
            "tainted",
            "kubectl taint node",
        ),
        (
            "No nodes are available that match all of the predicates: PodToleratesNodeTaints (1).",
            "tainted",
            "taint",
        ),
        ("0/2 nodes are available: 2 Insufficient nvidia.com/gpu.", "no-gpu-free", "gpunode status"),
        (
            "0/2 nodes are available: 1 Insufficient aliyun.com/gpu-mem, 1 Too many pods.",
            "no-gpu-free",
            "status",
        ),
        ("0/1 nodes are available: 1 node(s) were unschedulable.", "cordoned", "kubectl uncordon"),
        ("0/1 nodes are available: 1 node(s) didn't match node selector.", "no-node", "--show-labels"),
        (
            "0/1 nodes are available: 1 node(s) didn't match Pod's node affinity/selector.",
            "no-node",
            "nodeSelector",
        ),
    ],
)
def test_what_the_scheduler_writes_has_a_code_and_a_fix(text: str, code: str, fix: str) -> None:
    """Of releases from 1.8 on."""
    pod = {
        "metadata": {"name": "x"},
        "status": {"conditions": [{"type": "PodScheduled", "status": "False", "message": text}]},
    }
    reason = pods.obstacle(pod)
    assert reason is not None
    assert reason.code == code
    assert fix in reason.fix
    assert pods.problem(pod) == f"not scheduled: {text}"
