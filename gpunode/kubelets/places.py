"""The kinds of kubelets that gpunode configures, by where each keeps what it is started with."""

from __future__ import annotations

from gpunode.kubelets import kubeadm, units
from gpunode.model import Facts, Place, Watch
from gpunode.planning import services

PLACES = (kubeadm.PLACE,)


def of(facts: Facts) -> Place:
    """The kind whose unit this host has; the first where it has none."""
    return next((one for one in PLACES if services.is_loaded(facts, one.unit)), PLACES[0])


def watch() -> Watch:
    """What a probe reads to find each kind."""
    files = ((*one.variable_files, *one.files, one.config, *units.patterns(one.unit)) for one in PLACES)
    return Watch(tuple(path for paths in files for path in paths), tuple(one.unit for one in PLACES))
