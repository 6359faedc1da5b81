"""The kinds of kubelets that gpunode configures; each keeps its arguments in another place."""

from collections.abc import Mapping
from typing import Protocol

from gpunode.links.kubelet import k0s, microk8s, microshift, minors, rancher, start, systemd
from gpunode.model import Change, Desired, Facts, KubeletStart, Place, Watch
from gpunode.planning import services


class Kind(Protocol):
    """The module of kubelets whose options are elsewhere than systemd's."""

    def read(self, facts: Facts, place: Place) -> KubeletStart:
        """How it would be started now."""

    def plan(self, facts: Facts, desired: Desired, before: KubeletStart) -> tuple[Change, ...]:
        """Its changes. Raises CannotPlan where they are not gpunode's to make."""

    def set_by_user(self, facts: Facts, now: KubeletStart) -> KubeletStart:
        """Its start with only the gates that the user sets, and the file that sets them. A release of the
        distribution decides all others."""

    def components(self, facts: Facts, now: KubeletStart) -> start.Components:
        """The commands of the control plane and of kubelets that the user's settings make."""


KUBEADM = Place(  # and the deb and rpm packages
    unit="kubelet.service",
    config="/var/lib/kubelet/config.yaml",
    variable="KUBELET_EXTRA_ARGS",
    variable_files=("/etc/default/kubelet", "/etc/sysconfig/kubelet"),  # Debian's, then the RPMs'
    files=("/var/lib/kubelet/kubeadm-flags.env",),
    drop_in="/etc/systemd/system/kubelet.service.d/20-gpunode.conf",
)
KINDS: Mapping[str, Kind] = {
    place.unit: kind for kind in (rancher, k0s, microk8s, microshift) for place in kind.PLACES
}
PLACES = (KUBEADM, *rancher.PLACES, *k0s.PLACES, *microk8s.PLACES, *microshift.PLACES)
MANIFESTS = "/etc/kubernetes/manifests/"  # kubeadm's static pods
CONTROL_PLANE = (f"{MANIFESTS}kube-apiserver.*", f"{MANIFESTS}etcd.*")


def find(facts: Facts) -> Place:
    """The place whose unit this host has, an active one first, then one that brings its runtime; else kubeadm's."""
    loaded = [place for place in PLACES if services.is_loaded(facts, place.unit)]
    loaded.sort(key=lambda place: (not services.is_active(facts, place.unit), place.brings is None))
    return loaded[0] if loaded else KUBEADM


def read(facts: Facts) -> KubeletStart:
    """How this host's kubelet would be started now."""
    place = find(facts)
    kind = KINDS.get(place.unit)
    return kind.read(facts, place) if kind else start.read(facts, place)


def watch() -> Watch:
    """What a probe reads to find each kind, whether the host is of the control plane, and whose node it is."""
    files = (
        (*place.variable_files, *place.files, place.config, *systemd.unit_patterns(place.unit))
        for place in PLACES
    )
    every = (*(path for paths in files for path in paths), *rancher.WATCH, *microk8s.WATCH, *CONTROL_PLANE)
    marks = minors.MANAGED
    units = (*(place.unit for place in PLACES), *(m for m in marks if "/" not in m))
    return Watch((*every, *(mark for mark in marks if mark.startswith("/"))), units)
