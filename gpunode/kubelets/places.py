"""The kinds of kubelets that gpunode configures, by where each keeps what it is started with."""

from __future__ import annotations

from gpunode.kubelets import k0s, kubeadm, rancher, units
from gpunode.model import Facts, Place, Watch
from gpunode.planning import services

PLACES = (kubeadm.PLACE, *rancher.PLACES, *k0s.PLACES)
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
    every = (*(path for paths in files for path in paths), *rancher.watch(), *CONTROL_PLANE)
    return Watch(every, tuple(one.unit for one in PLACES))
