"""Why a pod is not admitted or scheduled: the API server's and the scheduler's sentences, each with its fix. Pure.

source: apiserver/pkg/admission/plugin/resourcequota/controller.go, plugin/pkg/admission/{limitranger,podsecurity,priority,runtimeclass,
serviceaccount,security/podsecuritypolicy} and scheduler/framework/plugins of kubernetes/kubernetes, 1.8 to 1.36.
`tests/lab/test_obstacles.py` provokes what admission writes on real API servers.
"""

from __future__ import annotations

import re
from dataclasses import dataclass

from gpunode.errors import Problem
from gpunode.wording import Advice, Command

ELSEWHERE = (
    "or let the pods run in another namespace (`cluster.namespace`, or --namespace where a command has it)"
)
QUOTA = "quota-exceeded"  # code


@dataclass(frozen=True, slots=True)
class Rule:
    """A sentence, and the fix, which may name the sentence's groups."""

    code: str
    pattern: str
    fix: str

    def reason(self, text: str) -> Problem | None:
        """The reason, in the cluster's own words, if the text has the sentence."""
        match = re.search(self.pattern, text)
        if match is None:
            return None
        names = {name: value or "" for name, value in match.groupdict().items()}
        fix = self.fix if isinstance(self.fix, Advice) else self.fix.format(**names)
        return Problem(self.code, text, fix=fix)


ADMISSION = (
    Rule(
        QUOTA,
        r"exceeded quota: (?P<name>[^,\s]+)",
        "The ResourceQuota `{name}` does not allow so much: see `kubectl describe resourcequota {name}` in that namespace and raise "
        f"it, {ELSEWHERE}.",
    ),
    Rule(
        "quota-values",
        r"failed quota: (?P<name>[^:\s]+): must specify (?P<what>.+)",
        "The ResourceQuota `{name}` wants {what}, which gpunode's pods do not set: add a LimitRange with defaults for them to the "
        f"namespace, {ELSEWHERE}.",
    ),
    Rule(
        "quota-scope",
        r"insufficient quota to (match these scopes|consume): ?(?P<what>.*)",
        "This cluster, as GKE does, admits such pods only where a ResourceQuota is for them: add one to the namespace, with a "
        "`scopeSelector` for the priority classes that the message names; or use `cluster.namespace: kube-system`.",
    ),
    Rule(
        "priority-namespace",
        r"pods with (?P<name>\S+) priorityClass is not permitted in (?P<where>\S+) namespace",
        "Up to Kubernetes 1.16 kube-system alone has pods of this class: use `cluster.namespace: kube-system`.",
    ),
    Rule(
        "priority-missing",
        r"no PriorityClass with name (?P<name>\S+) was found",
        "The API server makes its own classes when it starts: see its log; a class of yours belongs to `kubectl get priorityclass`.",
    ),
    Rule(
        "runtimeclass-missing",
        r'RuntimeClass "?(?P<name>[^"\s]+)"? not found',
        Advice("`", Command("plugin deploy"), "` creates the RuntimeClass nvidia; others are their owners'."),
    ),
    Rule(
        "pod-security",
        r'violates PodSecurity "(?P<level>[^":]+)',
        "The namespace enforces the level {level}. The plugin mounts the kubelet's sockets from the host, which privileged alone "
        "allows: `kubectl label --overwrite namespace NAMESPACE pod-security.kubernetes.io/enforce=privileged`, "
        f"{ELSEWHERE}; where no label is there, the API server's own default is to except the namespace.",
    ),
    Rule(
        "pod-security-policy",
        r"against any pod security policy|PodSecurityPolicy: unable to admit pod|no providers available to validate pod",
        "No PodSecurityPolicy that the pod's service account may use allows it: bind it to one with hostPath volumes, as in `kubectl -n "
        "NAMESPACE create rolebinding gpunode-psp --clusterrole=CLUSTERROLE --group=system:serviceaccounts:NAMESPACE`.",
    ),
    Rule(
        "security-context",
        r"against any security context constraint",
        "No SecurityContextConstraints of OpenShift allow it: `oc -n NAMESPACE adm policy add-scc-to-user privileged -z "
        "gpunode-device-plugin`.",
    ),
    Rule(
        "limit-range",
        r"(minimum|maximum) \S+ usage per \w+ is|max limit to request ratio per \w+ is",
        "A LimitRange of the namespace forbids it: see `kubectl describe limitrange` there and change it, "
        f"{ELSEWHERE}.",
    ),
    Rule(
        "webhook-denied",
        r'admission webhook "(?P<name>[^"]+)" denied the request',
        "It is a rule of this cluster's own: `kubectl get validatingwebhookconfigurations,mutatingwebhookconfigurations` has whose "
        "{name} is; except gpunode's namespace there, or ask the cluster's administrator.",
    ),
    Rule(
        "policy-denied",
        r"ValidatingAdmissionPolicy '(?P<name>[^']+)' with binding '(?P<binding>[^']+)' denied request",
        "It is a rule of this cluster's own: except gpunode's namespace in `kubectl edit validatingadmissionpolicybinding {binding}`, "
        "or ask the cluster's administrator.",
    ),
    Rule(
        "service-account-missing",
        r"error looking up service account (?P<where>[^/\s]+)/(?P<name>[^:\s]+)",
        "Where {name} is `default`, the controller manager makes it a moment after the namespace: check that it runs; "
        "`kubectl -n {where} get serviceaccounts` shows what is there.",
    ),
    Rule(
        "namespace-ending",
        r"unable to create new content in namespace (?P<name>\S+) because it is being terminated",
        "Wait until it is gone, then run again; `kubectl get namespace {name} -o yaml` names what it waits for.",
    ),
    Rule(
        "namespace-selector",
        r"pod node label selector conflicts with its namespace node label selector",
        "The namespace's annotation scheduler.alpha.kubernetes.io/node-selector keeps its pods from these nodes: change it, "
        f"{ELSEWHERE}.",
    ),
    Rule(
        "namespace-tolerations",
        r"pod tolerations \(.*\) conflict with its namespace whitelist",
        "The namespace's annotation scheduler.alpha.kubernetes.io/tolerationsWhitelist forbids what gpunode's pods tolerate: change "
        f"it, {ELSEWHERE}.",
    ),
)
SCHEDULING = (
    Rule(
        "tainted",
        r"had (untolerated )?taints? \{(?P<name>[^}]*)\}|had taints that the pod didn't tolerate|PodToleratesNodeTaints",
        "Tolerate the taint in the pod, or take it off the node: `kubectl taint node NODE KEY-`.",
    ),
    Rule(
        "no-gpu-free",
        r"Insufficient (?P<name>nvidia\.com/\S+?|aliyun\.com/\S+?)[.,;]?(\s|$)",
        Advice(
            "`", Command("status"), "` shows which pods have the GPUs, and nodes whose plugin offers none."
        ),
    ),
    Rule(
        "cordoned",
        r"node\(s\) were unschedulable|NodeUnschedulable",
        "`kubectl uncordon NODE` ends the cordon, once what it is for is done.",
    ),
    Rule(
        "no-node",
        r"didn't match (Pod's )?node (selector|affinity)|MatchNodeSelector",
        "No other node has the labels that the pod asks for: see its nodeSelector and affinity, and `kubectl get nodes --show-labels`.",
    ),
)


def match_admission(text: str) -> Problem | None:
    """Why a pod was not admitted; None where the text has none of the known sentences."""
    return next(filter(None, (rule.reason(text) for rule in ADMISSION)), None)


def match_scheduling(text: str) -> Problem | None:
    """Why a pod is on no node, by the scheduler's message; the first cause of those that it has."""
    return next(filter(None, (rule.reason(text) for rule in SCHEDULING)), None)
