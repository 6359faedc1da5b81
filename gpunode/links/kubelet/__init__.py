"""Kubelets: how a host's kubelet is started, and changes to its feature gates wherever they are set.

A kind of kubelet (kubeadm's) is a Place, in a module of its own; all else reads the Place.
"""

from __future__ import annotations

from gpunode.links.kubelet import places
from gpunode.links.kubelet.places import KINDS
from gpunode.links.kubelet.start import read as read_at
from gpunode.model import Facts, KubeletStart


def read(facts: Facts) -> KubeletStart:
    """How this host's kubelet would be started now."""
    place = places.of(facts)
    kind = KINDS.get(place.unit)
    return kind.read(facts, place) if kind else read_at(facts, place)
