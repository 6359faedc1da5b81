"""Deploys the scheduler extender and removes it, with a wait until one of its replicas leads."""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Mapping
from dataclasses import dataclass

from gpunode.cluster import pods, rights
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress
from gpunode.cluster.extender import certificates
from gpunode.cluster.objects import apply
from gpunode.cluster.objects.difference import Difference
from gpunode.cluster.objects.manifests import rendered
from gpunode.cluster.rights import Right
from gpunode.errors import ClusterError
from gpunode.model import PluginImage, Share

NAME = "gpunode-share"
SELECTOR = f"app.kubernetes.io/name={NAME}"
LOOK = 1.0  # seconds between two looks while it is waited for


@dataclass(frozen=True, slots=True)
class Spec:
    """The extender's desired state in the cluster. `secret`: its certificates as a Secret has them."""

    namespace: str
    image: PluginImage
    share: Share
    secret: Mapping[str, str]

    @property
    def manifests(self) -> list[Object]:
        """In the order in which they are applied."""
        return rendered(
            "share.yaml.j2",
            namespace=self.namespace,
            image=self.image.reference,
            image_id=self.image.image_id,
            pull=self.image.pull,
            loaded=self.image.archive is not None,
            resource=self.share.resource,
            policy=self.share.policy,
            certificates=dict(self.secret),
            certificates_id=hashlib.sha256(json.dumps(dict(self.secret)).encode()).hexdigest()[:16],
        )


def spec(api: Api, namespace: str, image: PluginImage, share: Share) -> Spec:
    """The desired state, with the certificates that are there, or new ones where they cannot be used any more."""
    live = api.get("Secret", NAME, namespace)
    data = None if live is None else live.get("data")
    secret = data if data and certificates.usable(data) else certificates.made()
    return Spec(namespace, image, share, {name: secret[name] for name in certificates.FILES})


def plan(api: Api, wanted: Spec) -> tuple[Difference, ...]:
    """What `deploy` would change."""
    return apply.diff(api, wanted.manifests)


def deploy(api: Api, wanted: Spec, *, seconds: float, tell: OnProgress) -> tuple[Difference, ...]:
    """Apply it and wait until a replica of this version leads. Raises ClusterError with why none does."""
    done, end = apply.apply(api, wanted.manifests), time.monotonic() + seconds
    while not _leads(api.get("Deployment", NAME, wanted.namespace) or {}):
        if time.monotonic() > end:
            raise ClusterError(
                f"no replica of the scheduler extender leads after {seconds:.0f} s: {_why(api, wanted.namespace)}",
                hint=f"See `kubectl -n {wanted.namespace} describe pods -l {SELECTOR}`, and their logs. "
                "The scheduler's configuration was not changed.",
            )
        tell("waiting for a replica of the scheduler extender to lead")
        time.sleep(LOOK)
    return done


def address(api: Api, namespace: str) -> str:
    """The Service's IP address, "" where there is none. Schedulers in the host's network know no cluster DNS."""
    service = api.get("Service", NAME, namespace) or {}
    return str(service.get("spec", {}).get("clusterIP") or "")


def rights_to_remove(namespace: str) -> tuple[Right, ...]:
    """What `remove` takes."""
    own = _own(namespace)
    lease = Right("delete", "leases.coordination.k8s.io", namespace)
    return (*rights.of_deletion(own), *rights.of_wait(own), lease)


def removable(api: Api, namespace: str, *, tell: OnProgress) -> tuple[str, ...]:
    """Titles of what `remove` would delete now."""
    return apply.removable(api, _own(namespace), tell=tell)


def remove(api: Api, namespace: str, *, seconds: float, tell: OnProgress) -> tuple[str, ...]:
    """Delete all that `deploy` made, but the namespace. Returns the titles of what was deleted."""
    removed = apply.remove(api, _own(namespace), seconds=seconds, tell=tell)
    api.delete("Lease", NAME, namespace)
    return removed


def _own(namespace: str) -> list[Object]:
    wanted = Spec(namespace, PluginImage("any"), Share(), dict.fromkeys(certificates.FILES, ""))
    return [one for one in wanted.manifests if one["kind"] != "Namespace"]


def _leads(deployment: Object) -> bool:
    status, wanted = deployment.get("status", {}), deployment.get("spec", {}).get("replicas", 0)
    current = status.get("observedGeneration", 0) >= deployment.get("metadata", {}).get("generation", 1)
    all_new = status.get("updatedReplicas", 0) == wanted == status.get("replicas", 0)
    return bool(current and all_new and status.get("readyReplicas", 0) > 0)


def _why(api: Api, namespace: str) -> str:
    found = [{"kind": "Pod", **one} for one in api.find("Pod", namespace, labels=SELECTOR)[0]]
    why = [problem for pod in found if (problem := pods.problem(pod, pods.events(api, pod)))]
    return "; ".join(dict.fromkeys(why)) or (f"{len(found)} pods are starting" if found else "it has no pods")
