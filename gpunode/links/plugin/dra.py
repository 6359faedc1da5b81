"""Nodes whose GPUs a DRA driver allocates. A device plugin there would give each GPU a second time.

Source: kubernetes-sigs/dra-driver-nvidia-gpu (its chart's DeviceClass gpu.nvidia.com has `extendedResourceName:
nvidia.com/gpu`), NVIDIA/gpu-operator v26.7.0 (controllers/nodelabeling_controller.go, manifests/state-dra-driver). A driver's
ResourceSlices go when it does: the kubelet deletes them.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass

from gpunode.cluster.api import Api
from gpunode.cluster.api.kinds import Object, title
from gpunode.cluster.pods import GPU
from gpunode.errors import HttpError, Problem
from gpunode.links.node import GPU_LABEL, Node
from gpunode.links.plugin import other_plugins
from gpunode.wording import few

OTHER_OWNER = "other-owner"  # code
DRIVER = "gpu.nvidia.com"  # NVIDIA's for ComputeDomains is compute-domain.nvidia.com, and allocates no GPU
LABEL = "nvidia.com/gpu.deploy.dra-driver"  # "true": a GPUCluster of the GPU Operator brings its driver to the node
SELECTS = re.compile(r"device\.driver\s*==\s*['\"]([^'\"]+)['\"]")  # in CEL
FEW = 2  # ResourceSlices of a node that a message names


@dataclass(frozen=True, slots=True)
class Owners:
    """By node, the ResourceSlices with its GPUs; the cluster's objects that go with them. `unknown`: why slices could not be read."""

    slices: Mapping[str, tuple[str, ...]]
    objects: tuple[str, ...] = ()
    unknown: str = ""
    brought: bool = (
        False  # some object brings the driver to labelled nodes; else a label is left over, and means nothing
    )

    def reason(self, node: Node) -> Problem | None:
        """Why the node may have no device plugin; None where it may."""
        labelled = node.labels.get(LABEL) == "true" and (self.brought or node.name in self.slices)
        signs = [few(self.slices[node.name], FEW)] if node.name in self.slices else []
        signs += [f"label {LABEL}=true"] if labelled else []
        if not signs:
            return self._doubt(node) if self.unknown and self.objects else None
        words = (
            f"a DRA driver allocates the GPUs of this node ({', '.join([*signs, *self.objects])}); "
            "a device plugin there would give each to a second pod"
        )
        way = (
            f"with `kubectl label node {node.name} {LABEL}=false --overwrite`, once no pod has a claim"
            if labelled
            else "with the nodeSelector of its DaemonSet, or with `resources.gpus.enabled=false` in its chart"
        )
        off = f"`kubectl label node {node.name} {GPU_LABEL}-`"
        keep = f" and take gpunode's plugin off it: {off}." if GPU_LABEL in node.labels else "."
        fix = (
            f"To use the plugin, take the DRA driver off the node, {way}. To keep DRA, exclude the host{keep}"
        )
        return Problem(OTHER_OWNER, words, fix=fix, subject=node.name)

    def _doubt(self, node: Node) -> Problem:
        """Whether a DRA driver that is there has this node's GPUs cannot be read."""
        words = f"a DRA driver may allocate the GPUs of this node ({', '.join(self.objects)}): {self.unknown}"
        fix = "Give this user the right to list resourceslices.resource.k8s.io, or exclude the host."
        return Problem(OTHER_OWNER, words, fix=fix, subject=node.name)


NONE = Owners({})


def owners(api: Api) -> Owners:
    """What the API server has of it. An older one has none; what this user may not list is `unknown`."""
    if not api.served.has("ResourceSlice"):
        return NONE
    found, unknown = list[Object](), ""
    try:
        found = [
            one["spec"] | {"title": title({**one, "kind": "ResourceSlice"})}
            for one in api.find("ResourceSlice")[0]
        ]
    except HttpError as error:
        unknown = error.message
    # The DeviceClasses by which pods that ask for GPUs as a resource get them from DRA.
    classes = [one for one in _found(api, "DeviceClass") if one["spec"].get("extendedResourceName") == GPU]
    drivers = {DRIVER}
    for selector in (selector for one in classes for selector in one["spec"].get("selectors") or ()):
        drivers.update(SELECTS.findall((selector.get("cel") or {}).get("expression", "")))
    slices: dict[str, tuple[str, ...]] = {}
    for spec in found:
        if spec.get("nodeName") and spec.get("devices") and spec.get("driver") in drivers:
            slices[spec["nodeName"]] = (*slices.get(spec["nodeName"], ()), spec["title"])
    offers = [f"{title(one)} for {GPU}" for one in classes]
    bring = [title(one) for one in _found(api, "GPUCluster")]
    bring += [one.title for one in other_plugins.every(api) if one.does == "allocates"]
    return Owners(slices, (*bring, *offers), unknown, brought=bool(bring))


def _found(api: Api, kind: str) -> list[Object]:
    """Also empty where the API server has no such kind, or the user may not list it: it only adds names."""
    try:
        return [{**item, "kind": kind} for item in api.find(kind)[0]] if api.served.has(kind) else []
    except HttpError:
        return []
