"""The plugin's objects, rendered from templates/cluster."""

from __future__ import annotations

import hashlib

from gpunode.cluster.api.kinds import Object
from gpunode.cluster.objects.manifests import rendered
from gpunode.model import PluginConfig, PluginImage, PluginPublish

PLAIN = PluginPublish()


def manifests(
    namespace: str,
    image: PluginImage,
    config: PluginConfig | None = None,
    publish: PluginPublish = PLAIN,
    *,
    isolated: bool = False,
) -> list[Object]:
    """Namespace, service account with its RBAC, configuration, RuntimeClass and two DaemonSets (the template explains
    why two), and two more of MPS control daemons where GPUs are shared by MPS."""
    files = config.files if config else {}
    common = {
        "namespace": namespace,
        "image": image.reference,
        "image_id": image.image_id,
        "pull": image.pull,
        "configs": files,
    }
    mps_root = config.mps_root if config else ""
    made = rendered(
        "plugin.yaml.j2",
        **common,
        mps_root=mps_root,
        config=config.text if config and not files else None,
        cdi_directory=config.cdi_directory if config else None,
        mig=bool(config and config.mig),
        events=publish.events,
        annotation=publish.annotation,
        promises=publish.promises,
        metrics=publish.metrics,
        isolated=isolated,
        config_id=hashlib.sha256(config.text.encode()).hexdigest()[:16] if config and not files else None,
    )
    return [*made, *rendered("mps.yaml.j2", **common, mps_root=mps_root)] if mps_root else made


def everything(namespace: str) -> list[Object]:
    """All objects that `deploy` may have applied, whatever the inventory."""
    publish = PluginPublish(events=True, annotation=True, metrics=True, promises=True)
    return manifests(namespace, PluginImage("any"), PluginConfig(mps_root="/any", files={"any": ""}), publish)
