"""Deploys the scheduler extender and removes it, and a second scheduler with it; waits until a replica leads."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass

from gpunode.cluster import rights
from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress
from gpunode.cluster.objects import apply
from gpunode.cluster.objects.difference import Difference
from gpunode.cluster.objects.manifests import rendered
from gpunode.cluster.rights import Right
from gpunode.links.scheduler.extender import certificates
from gpunode.links.scheduler.extender import second_scheduler as second
from gpunode.links.scheduler.extender.rollout import rolled_out
from gpunode.model import PluginImage, Share
from gpunode.wording import Advice, Command

NAME = "gpunode-share"
STAYS = Advice(
    "The scheduler's configuration was not changed. The extender's objects stay, and so does the device plugin's "
    "FOLLOW_PROMISES. `",
    Command("share disable"),
    "` removes the objects; without `cluster.share` in the inventory `",
    Command("plugin deploy"),
    "` takes back the other.",
)


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
            certificates_id=self.certificates_id,
        )

    @property
    def certificates_id(self) -> str:
        """Changes with the certificates."""
        return hashlib.sha256(json.dumps(dict(self.secret)).encode()).hexdigest()[:16]


def spec(api: Api, namespace: str, image: PluginImage, share: Share) -> Spec:
    """The desired state, with the certificates that are there, or new ones where they cannot be used any more."""
    live = api.get("Secret", NAME, namespace)
    data = None if live is None else live.get("data")
    secret = data if data and certificates.usable(data) else certificates.made()
    return Spec(namespace, image, share, {name: secret[name] for name in certificates.FILES})


def plan(api: Api, wanted: Spec) -> tuple[Difference, ...]:
    """What `deploy` would change. A second scheduler that is not wished for any more is removed."""
    return apply.diff(api, wanted.manifests, _surplus(wanted))


def deploy(api: Api, wanted: Spec, *, seconds: float, tell: OnProgress) -> tuple[Difference, ...]:
    """Apply it and wait until a replica of this version leads. Raises ClusterError with why none does."""
    done = apply.apply(api, wanted.manifests) + apply.prune(api, wanted.manifests, _surplus(wanted))
    rolled_out(
        api,
        NAME,
        wanted.namespace,
        what="a replica of the scheduler extender to lead",
        seconds=seconds,
        tell=tell,
        hint=STAYS,
    )
    return done


def address(api: Api, namespace: str) -> str:
    """The Service's IP address, "" where there is none. Schedulers in the host's network know no cluster DNS."""
    service = api.get("Service", NAME, namespace) or {}
    return str(service.get("spec", {}).get("clusterIP") or "")


def rights_to_remove(api: Api, namespace: str) -> tuple[Right, ...]:
    """What `remove` takes."""
    own = [one for one in _own(namespace) if api.served.has(one["kind"])]
    lease = Right("delete", "leases.coordination.k8s.io", namespace)
    return (*rights.of_deletion(own), *rights.of_wait(own), lease)


def removable(api: Api, namespace: str, *, tell: OnProgress) -> tuple[str, ...]:
    """Titles of what `remove` would delete now."""
    return apply.removable(api, _own(namespace), tell=tell)


def remove(api: Api, namespace: str, *, seconds: float, tell: OnProgress) -> tuple[str, ...]:
    """Delete all that `deploy` made, but the namespace, and a second scheduler. Returns the titles of what was deleted."""
    removed = apply.remove(api, _own(namespace), seconds=seconds, tell=tell)
    for name in (NAME, second.NAME):
        api.delete("Lease", name, namespace)
    return removed


def _surplus(wanted: Spec) -> list[Object]:
    return [] if wanted.share.scheduler else second.everything(wanted.namespace)


def _own(namespace: str) -> list[Object]:
    wanted = Spec(namespace, PluginImage("any"), Share(), dict.fromkeys(certificates.FILES, ""))
    return [one for one in wanted.manifests if one["kind"] != "Namespace"] + second.everything(namespace)
