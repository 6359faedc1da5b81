"""A kube-scheduler beside the cluster's own, for pods that name it: deployed and removed."""

from __future__ import annotations

import hashlib
import re
from collections.abc import Sequence
from dataclasses import dataclass

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.watch import OnProgress
from gpunode.cluster.objects import apply
from gpunode.cluster.objects.difference import Difference
from gpunode.cluster.objects.manifests import rendered
from gpunode.errors import ClusterError, HttpError
from gpunode.links.scheduler import configuration
from gpunode.links.scheduler.configuration import Extender
from gpunode.links.scheduler.extender.rollout import rolled_out
from gpunode.model import SecondScheduler

NAME = "gpunode-share-scheduler"  # of its objects, and of its Lease
FOLDER = "/etc/gpunode-share"  # with the extender's CA and the scheduler's certificate
OLDEST = 19  # minor version: earlier ones know no configuration that fits


@dataclass(frozen=True, slots=True)
class Spec:
    """Its desired state in the cluster. `certificates_id` changes with the Secret's content."""

    namespace: str
    image: str
    configuration: str
    certificates_id: str

    @property
    def manifests(self) -> list[Object]:
        """In the order in which they are applied."""
        digest = hashlib.sha256(self.configuration.encode()).hexdigest()[:16]
        return rendered(
            "scheduler.yaml.j2",
            namespace=self.namespace,
            image=self.image,
            configuration=self.configuration,
            configuration_id=digest,
            certificates_id=self.certificates_id,
        )


def minor(wish: SecondScheduler, server: int) -> int:
    """Kubernetes' minor version of the scheduler: its tag's, or else the API `server`'s. Raises ClusterError where the
    server does not work with it: it may be as old as the server, or one minor version older (version skew policy)."""
    tag = re.search(r":v?1\.(\d+)\.[^:/]*$", wish.image.partition("@")[0])
    own = int(tag[1]) if tag else server
    if not max(server - 1, OLDEST) <= own <= server:
        what = f"a scheduler of Kubernetes 1.{own} does not fit an API server of 1.{server}"
        if server < OLDEST:
            what = f"Kubernetes 1.{server} is too old for a second scheduler: 1.{OLDEST} is the first"
        raise ClusterError(
            f"cluster.share.scheduler.image {wish.image}: {what}",
            hint=f"Name a kube-scheduler of 1.{server}, the version of the cluster.",
        )
    return own


def spec(
    namespace: str, wish: SecondScheduler, version: int, extender: Extender, certificates_id: str
) -> Spec:
    """The desired state; `version`: by `minor`."""
    text = configuration.second(extender, version, wish.name, namespace, NAME)
    return Spec(namespace, wish.image, text, certificates_id)


def everything(namespace: str) -> list[Object]:
    """All that any `Spec` has, to be found and removed."""
    return Spec(namespace, "any", "", "").manifests


def there(api: Api, namespace: str) -> bool:
    """Whether one that is gpunode's is in the cluster, or what an interrupted removal left of it."""
    return bool(apply.present(api, everything(namespace)))


def serves(api: Api, namespace: str) -> bool:
    """Whether one is Ready; False, too, where the user may not know."""
    try:
        found = api.get("Deployment", NAME, namespace)
    except HttpError as error:
        if error.status == 403:
            return False
        raise
    return bool(found and (found.get("status") or {}).get("readyReplicas"))


def plan(api: Api, wanted: Spec, before: Sequence[Object] = ()) -> tuple[Difference, ...]:
    """What `deploy` would change. `before`: what is to be applied first, its namespace among it."""
    return apply.diff(api, [*before, *wanted.manifests])


def deploy(api: Api, wanted: Spec, *, seconds: float, tell: OnProgress) -> tuple[Difference, ...]:
    """Apply it and wait until it is Ready. Raises ClusterError with why it is not."""
    done = apply.apply(api, wanted.manifests)
    rolled_out(
        api, NAME, wanted.namespace, what="the second scheduler to be Ready", seconds=seconds, tell=tell
    )
    return done
