"""Kubelets: how a host's kubelet is started, and changes to its feature gates wherever they are set.

A kind of kubelet (kubeadm's) is a Place, in a module of its own; all else reads the Place.
"""

from __future__ import annotations

from gpunode.kubelets import k0s, places, rancher
from gpunode.kubelets.start import read as read_at
from gpunode.model import Facts, KubeletStart


def read(facts: Facts) -> KubeletStart:
    """How this host's kubelet would be started now."""
    place = places.of(facts)
    if place.brings == "k0s":
        return k0s.read(facts, place)
    return (rancher.read if place.brings else read_at)(facts, place)
