"""The containerd that k3s or RKE2 brings. It writes its configuration itself, at every start of the node's service."""

from __future__ import annotations

from gpunode.links.kubelet.rancher_settings import PRODUCTS
from gpunode.links.runtime.rancher.step import Brought

K3S, RKE2 = Brought(PRODUCTS["k3s"]), Brought(PRODUCTS["rke2"])

__all__ = ["K3S", "RKE2"]
