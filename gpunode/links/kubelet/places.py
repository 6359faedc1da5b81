"""The kinds of kubelets that gpunode configures, by where each keeps what it is started with."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Protocol

from gpunode.links.kubelet import k0s, kubeadm, microk8s, microshift, rancher, units
from gpunode.model import Change, Desired, Facts, KubeletStart, Place, Watch
from gpunode.planning import services


class Kind(Protocol):
    """The module of kubelets whose options are elsewhere than systemd's."""

    def read(self, facts: Facts, place: Place) -> KubeletStart:
        """How it would be started now."""

    def plan(self, facts: Facts, desired: Desired, before: KubeletStart) -> tuple[Change, ...]:
        """Its changes. Raises CannotPlan where they are not gpunode's to make."""


KINDS: Mapping[str, Kind] = MappingProxyType(
    {place.unit: kind for kind in (rancher, k0s, microk8s, microshift) for place in kind.PLACES}
)
PLACES = (kubeadm.PLACE, *rancher.PLACES, *k0s.PLACES, *microk8s.PLACES, *microshift.PLACES)
MANIFESTS = "/etc/kubernetes/manifests/"  # kubeadm's static pods
CONTROL_PLANE = (f"{MANIFESTS}kube-apiserver.*", f"{MANIFESTS}etcd.*")


def of(facts: Facts) -> Place:
    """The kind whose unit this host has, an active one first, then one that brings its runtime; else kubeadm's."""
    there = [one for one in PLACES if services.is_loaded(facts, one.unit)]
    there.sort(key=lambda one: (not services.is_active(facts, one.unit), one.brings is None))
    return there[0] if there else PLACES[0]


def watch() -> Watch:
    """What a probe reads to find each kind, and whether the host is of the control plane."""
    files = ((*one.variable_files, *one.files, one.config, *units.patterns(one.unit)) for one in PLACES)
    every = (*(path for paths in files for path in paths), *rancher.watch(), *microk8s.WATCH, *CONTROL_PLANE)
    return Watch(every, tuple(one.unit for one in PLACES))
