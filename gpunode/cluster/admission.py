"""Dry runs of the pods that a run will create, before any change: would the cluster's admission refuse them?

A dry run asks quotas, limits, pod security, policies and webhooks, and keeps nothing. It is this user's; a DaemonSet's pods are its
controller's, so what counts by user (PodSecurityPolicies, exemptions) may differ.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace

from gpunode.cluster import obstacles
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object, title
from gpunode.cluster.objects.difference import Difference
from gpunode.errors import HttpError, Problem

BUSY = (429, 502, 503, 504)  # of an API server that cannot answer now: this is no judgement of the pod
UNKNOWN = "not-admitted"  # code: the API server's sentence is none of those that are known
OPTIONAL = (("serviceAccountName", "ServiceAccount"), ("runtimeClassName", "RuntimeClass"))


@dataclass(frozen=True, slots=True)
class Trial:
    """A pod of `what`, and why it would not be admitted; `untried`: why the API server cannot say."""

    what: str
    reason: Problem | None
    untried: str = ""


def try_pods(
    api: Api,
    manifests: Sequence[Object],
    would: Sequence[Difference],
    pods: Sequence[Object],
) -> tuple[Trial, ...]:
    """Trials that would be refused or could not be made: a pod of each changed DaemonSet among the manifests, and these pods.
    `would`: the changes by applying the manifests. () if their namespace is new: it has no quotas. One pod of each kind is tried, so
    a quota with room for one but not for all refuses the others later."""
    actions = {change.what: change.action for change in would}
    if not api.served.dry_run or any(
        manifest["kind"] == "Namespace" and actions.get(title(manifest)) == "created"
        for manifest in manifests
    ):
        return ()
    trials: dict[tuple[str, str], Trial] = {}  # the first of those with one cause
    for pod in (*_templates(manifests, actions), *pods):
        trial = _try(api, pod, actions)
        if trial.reason is not None or trial.untried:
            trials.setdefault((trial.reason.code if trial.reason else "", trial.untried), trial)
    return tuple(trials.values())


def _templates(manifests: Sequence[Object], actions: Mapping[str, str]) -> Iterator[Object]:
    for manifest in manifests:
        if manifest["kind"] == "DaemonSet" and actions.get(title(manifest)) in ("created", "changed"):
            template, meta = manifest["spec"]["template"], manifest["metadata"]
            yield {
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {**template["metadata"], "name": meta["name"], "namespace": meta["namespace"]},
                "spec": template["spec"],
            }


def _try(api: Api, pod: Object, actions: Mapping[str, str]) -> Trial:
    meta = {key: value for key, value in pod["metadata"].items() if key != "name"}
    name, namespace = pod["metadata"]["name"], meta["namespace"]
    spec = {
        key: value
        for key, value in pod["spec"].items()
        if not any(key == field and _is_new(actions, kind, str(value)) for field, kind in OPTIONAL)
    }
    draft = {**pod, "metadata": {**meta, "generateName": f"{name}-"}, "spec": spec}
    what = f"pods like {namespace}/{name}"
    try:
        api.create(api.served.fit(draft) or draft, dry_run=True)
    except HttpError as error:
        if error.untried:
            return Trial(what, None, error.untried if error.status == 400 else "")
        if error.status in BUSY:
            return Trial(what, None, error.message)
        known = obstacles.match_admission(error.detail) or Problem(UNKNOWN, "", fix=error.hint)
        reason = replace(known, what=error.message)
        if not _passes(reason.code, name, namespace, actions):
            return Trial(what, reason)
    return Trial(what, None)


def _is_new(actions: Mapping[str, str], kind: str, name: str) -> bool:
    """True if the manifests create this object, so no pod can use it yet."""
    new = [what for what, action in actions.items() if action == "created"]
    return any(what.startswith(f"{kind} ") and what.split(" ")[1].rpartition("/")[2] == name for what in new)


def _passes(code: str, name: str, namespace: str, actions: Mapping[str, str]) -> bool:
    """True if the manifests remove the obstacle: the namespace's level, or the quota used by pods that a DaemonSet replaces."""
    if code == "pod-security":
        return actions.get(f"Namespace {namespace}") == "changed"
    return code == obstacles.QUOTA and actions.get(f"DaemonSet {namespace}/{name}") == "changed"
