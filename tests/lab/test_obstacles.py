"""What real API servers of several releases write where admission forbids a pod: each sentence has its reason and its fix."""

import json
import time
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from gpunode.cluster import admission as trial
from gpunode.cluster.api import Api, connect
from gpunode.cluster.obstacles import match_admission
from gpunode.errors import HttpError
from gpunode.model import Cluster

from .api_servers import NEW, OLD, TOKEN, running

pytestmark = [pytest.mark.lab, pytest.mark.matrix]

GPU = {"resources": {"limits": {"nvidia.com/gpu": "1"}}}
CRITICAL = "system-node-critical"
POLICY = {
    "metadata": {"name": "no-gpus"},
    "spec": {
        "matchConstraints": {
            "resourceRules": [
                {"apiGroups": [""], "apiVersions": ["v1"], "operations": ["CREATE"], "resources": ["pods"]}
            ]
        },
        "validations": [{"expression": "object.spec.containers.all(c, c.name != 'forbidden')"}],
    },
}
BINDING = {"metadata": {"name": "no-gpus"}, "spec": {"policyName": "no-gpus", "validationActions": ["Deny"]}}
UNPRIVILEGED = {
    "metadata": {"name": "restricted"},
    "spec": {
        "volumes": ["emptyDir"],
        **{key: {"rule": "RunAsAny"} for key in ("seLinux", "runAsUser", "supplementalGroups", "fsGroup")},
    },
}
SCOPED = {
    "apiVersion": "apiserver.config.k8s.io/v1",
    "kind": "AdmissionConfiguration",
    "plugins": [
        {
            "name": "ResourceQuota",
            "configuration": {
                "apiVersion": "apiserver.config.k8s.io/v1",
                "kind": "ResourceQuotaConfiguration",
                "limitedResources": [
                    {
                        "resource": "pods",
                        "matchScopes": [
                            {"scopeName": "PriorityClass", "operator": "In", "values": [CRITICAL]}
                        ],
                    }
                ],
            },
        }
    ],
}


@contextmanager
def server(minor: str, folder: Path, **flags: str) -> Iterator[Api]:
    with running(minor, folder, **flags) as kubeconfig:
        yield connect(Cluster(kubeconfig=kubeconfig))


def raw(api: Api, method: str, path: str, body: dict[str, Any]) -> None:
    """A request that gpunode has no kind for."""
    kind = "application/merge-patch+json" if method == "PATCH" else "application/json"
    headers = {"Authorization": f"Bearer {TOKEN}", "Content-Type": kind}
    url = f"{api.access.server}{path}"
    request = urllib.request.Request(url, json.dumps(body).encode(), headers, method=method)
    urllib.request.urlopen(request, context=api.access.tls).close()


def namespace(api: Api, name: str, **labels: str) -> str:
    labels = {f"pod-security.kubernetes.io/{key}": value for key, value in labels.items()}
    raw(api, "POST", "/api/v1/namespaces", {"metadata": {"name": name, "labels": labels}})
    return f"/api/v1/namespaces/{name}"


def quota(api: Api, name: str, hard: dict[str, str]) -> None:
    """With its status, which is a controller's work."""
    where = f"{namespace(api, name)}/resourcequotas"
    raw(api, "POST", where, {"metadata": {"name": "gpus"}, "spec": {"hard": hard}})
    status = {"hard": hard, "used": dict.fromkeys(hard, "0")}
    raw(api, "PATCH", f"{where}/gpus/status", {"status": status})


def limit_range(api: Api, name: str, limit: dict[str, Any]) -> None:
    where = f"{namespace(api, name)}/limitranges"
    raw(api, "POST", where, {"metadata": {"name": "l"}, "spec": {"limits": [limit]}})


def refused(api: Api, namespace: str, container: dict[str, Any] | None = None, **spec: Any) -> str:
    """The code of what the API server writes about a pod there; "" where it takes it."""
    pod = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"generateName": "x", "namespace": namespace},
        "spec": {"containers": [{"name": "c", "image": "i", **(container or {})}], **spec},
    }
    error = None
    try:
        api.create(pod)
    except HttpError as refusal:
        error = refusal
    if error is None:
        return ""
    obstacle = match_admission(error.message)
    assert obstacle is not None, error.message
    assert error.hint == obstacle.fix
    return obstacle.code


@pytest.mark.parametrize("minor", [*OLD, NEW])
def test_what_admission_forbids_has_a_reason(minor: str, tmp_path):
    """By each plugin that this release has on by itself."""
    with server(minor, tmp_path) as api:
        quota(api, "amount", {"requests.nvidia.com/gpu": "0"})
        quota(api, "values", {"limits.cpu": "4", "requests.memory": "1Gi"})
        limit_range(api, "most", {"type": "Container", "max": {"nvidia.com/gpu": "0"}})
        limit_range(api, "least", {"type": "Pod", "min": {"cpu": "1"}})
        namespace(api, "restricted", enforce="restricted")
        namespace(api, "baseline", enforce="baseline")
        namespace(api, "free")
        raw(api, "DELETE", namespace(api, "ending"), {})
        host = [{"name": "v", "hostPath": {"path": "/var/lib/kubelet"}}]
        reasons = {
            "amount": refused(api, "amount", GPU),
            "values": refused(api, "values", GPU),
            "most": refused(api, "most", GPU),
            "least": refused(api, "least"),
            "restricted": refused(api, "restricted"),
            "baseline": refused(api, "baseline", volumes=host),
            "runtime": refused(api, "free", runtimeClassName="nvidia"),
            "class": refused(api, "free", priorityClassName="absent"),
            "critical": refused(api, "free", priorityClassName=CRITICAL),
            "ending": refused(api, "ending"),
        }
    secure = minor == NEW  # the namespace's level is enforced from 1.23 on
    assert reasons == {
        "amount": "quota-exceeded",
        "values": "quota-values",
        "most": "limit-range",
        "least": "limit-range",
        "restricted": "pod-security" if secure else "",
        "baseline": "pod-security" if secure else "",
        "runtime": "runtimeclass-missing",
        "class": "priority-missing",
        "critical": "priority-namespace" if minor == "1.16" else "",
        "ending": "namespace-ending",
    }


@pytest.mark.parametrize("minor", [*OLD, NEW])
def test_a_trial_finds_what_would_refuse_a_pod_and_makes_none(minor: str, tmp_path):
    """A dry run has the same admission."""
    with server(minor, tmp_path) as api:
        quota(api, "amount", {"requests.nvidia.com/gpu": "0"})
        namespace(api, "free")
        for where, code in (("amount", "quota-exceeded"), ("free", "")):
            pod = {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {"name": "x", "namespace": where},
                "spec": {"containers": [{"name": "c", "image": "i", **GPU}]},
            }
            codes = [each.reason and each.reason.code for each in trial.try_pods(api, [], [], [pod])]
            assert codes == ([code] if code else [])
            assert api.find("Pod", where)[0] == []


@pytest.mark.parametrize("minor", list(OLD))
def test_a_pod_security_policy_has_a_reason(minor: str, tmp_path):
    """None at all, and one that allows no hostPath."""
    with server(minor, tmp_path, enable_admission_plugins="PodSecurityPolicy") as api:
        namespace(api, "free")
        assert refused(api, "free") == "pod-security-policy"
        raw(api, "POST", "/apis/policy/v1beta1/podsecuritypolicies", UNPRIVILEGED)
        host = [{"name": "v", "hostPath": {"path": "/var/lib/kubelet"}}]
        end = time.monotonic() + 30
        while refused(api, "free") and time.monotonic() < end:  # until its cache has the policy
            time.sleep(0.2)
        assert refused(api, "free", volumes=host) == "pod-security-policy"


def test_classes_with_a_quota_and_a_policy_of_the_clusters_own_have_reasons(tmp_path):
    """As GKE keeps the system's priorities; and without a service account, where accounts are asked for."""
    (tmp_path / "admission.yaml").write_text(json.dumps(SCOPED))
    config, none = str(tmp_path / "admission.yaml"), "AlwaysDeny"
    flags = {"admission_control_config_file": config, "disable_admission_plugins": none}
    with server(NEW, tmp_path, **flags) as api:
        namespace(api, "free")
        account = {"serviceAccountName": "gone"}
        assert refused(api, "free", **account) == "service-account-missing"
        raw(api, "POST", "/api/v1/namespaces/free/serviceaccounts", {"metadata": {"name": "default"}})
        assert refused(api, "free", priorityClassName=CRITICAL) == "quota-scope"
        group = "/apis/admissionregistration.k8s.io/v1/validatingadmissionpolic"
        raw(api, "POST", f"{group}ies", POLICY)
        raw(api, "POST", f"{group}ybindings", BINDING)
        end = time.monotonic() + 30
        code = ""
        while not code and time.monotonic() < end:
            code = refused(api, "free", {"name": "forbidden"})
        assert code == "policy-denied"
