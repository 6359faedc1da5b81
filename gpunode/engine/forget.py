"""Takes a host out of gpunode's hands: the changes that leave nothing of gpunode's on it, and what has to stay. Pure."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import PurePath
from types import MappingProxyType

from gpunode import packages
from gpunode.agent.record import STATE
from gpunode.engine import chain
from gpunode.engine.undo import ENDS_WORK, RUNTIME, Journal, originals
from gpunode.errors import Refused
from gpunode.links import runtime as runtimes
from gpunode.links.driver import mig
from gpunode.links.kubelet import places
from gpunode.links.runtime import containerd, docker
from gpunode.links.runtime import link as runtime_link
from gpunode.model import (
    Entry,
    Facts,
    ForgetHost,
    Host,
    Left,
    Outcome,
    Packages,
    Plan,
    PluginImage,
    RemoveFile,
    RemoveImage,
    Service,
    StepPlan,
    Watch,
    WriteFile,
)
from gpunode.planning import files, services

OWN = "gpunode"  # in the names of all files that are gpunode's alone
LINKS = "/etc/systemd/system/multi-user.target.wants/gpunode-*.service"  # of units that were enabled
BEFORE = "as before gpunode"
# How a file that was changed since loses what gpunode merged into it, and keeps the rest.
TAKE_BACK: Mapping[str, Callable[[Facts], tuple[WriteFile | RemoveFile, ...]]] = MappingProxyType(
    {docker.FILE: docker.take_back, containerd.FILE: containerd.take_back}
)


@dataclass(frozen=True, slots=True)
class Aim:
    """What is to be forgotten of a host. `journal`: the host's. `keep_software`: only the records go. `offers`: the node's GPUs are
    offered by gpunode's plugin, whose `image` goes, too."""

    journal: Journal = ()
    image: PluginImage | None = None
    keep_software: bool = False
    offers: bool = True


def watch(known: Watch, journal: Journal) -> Watch:
    """What a probe reads: all that it reads for provision, files that gpunode changed, its own folder."""
    more = (entry.path for entry in journal if entry.path)
    return Watch(
        (*dict.fromkeys((*known.files, *more)), LINKS, STATE), known.units, known.packages, known.images
    )


def plan_host(host: Host, aim: Aim, facts: Facts) -> Outcome:
    """The outcome of a host that is to be forgotten: planned, right (nothing of gpunode's is left), or refused."""
    try:
        chain.check_readable(host, facts)
        with chain.refusing(host, "runtime"):
            steps, left = plan(aim, facts)
    except Refused as refused:
        return Outcome(host.name, "refused", facts, problem=refused.problem, left=())
    return Outcome(host.name, "planned" if steps else "right", facts, plan=Plan(host.name, steps), left=left)


def plan(aim: Aim, facts: Facts) -> tuple[tuple[StepPlan, ...], tuple[Left, ...]]:
    """The steps that have changes, in order, and what stays."""
    left: tuple[Left, ...] = ()
    steps: list[StepPlan] = []
    if not aim.keep_software:
        texts, kept = _files(aim.journal, facts)
        steps = [
            StepPlan("files", texts),
            StepPlan("restarts", tuple(_restarts(facts, [change.path for change in texts]))),
            StepPlan("image", tuple(_image(facts, aim.image))),
            StepPlan("packages", tuple(_packages(facts))),
        ]
        left = (*kept, *_what_stays(facts))
    steps = [step for step in steps if step.changes]
    if steps or files.exists(facts, STATE):  # an apply keeps records, too
        change = ForgetHost("nothing of gpunode's stays", offers=aim.offers and not aim.keep_software)
        steps.append(StepPlan("records", (change,)))
    return tuple(steps), left


def _files(journal: Journal, facts: Facts) -> tuple[tuple[WriteFile | RemoveFile, ...], tuple[Left, ...]]:
    """gpunode's own files go, the links of its units first, which lead to them; others are as before gpunode. One that was changed
    since keeps that, and loses what gpunode merged into it, where that can be told."""
    own = [path for path, file in facts.files.items() if file.exists and OWN in PurePath(path).name]
    changes: list[WriteFile | RemoveFile] = [
        RemoveFile(
            path, files.text(facts, path) or "", "gpunode wrote it", folder=path.endswith(".d/gpunode.conf")
        )
        for path in sorted(own, key=lambda path: (not fnmatchcase(path, LINKS), path))
        if path != STATE
    ]
    left = []
    for path, first in originals(journal).items():
        file = facts.files.get(path)
        state = file.sha256 if file and file.exists else None
        if path in own or state == first.was:
            continue
        wrote = any(entry.path == path and entry.wrote == state for entry in journal)
        merged = TAKE_BACK.get(path)
        taken = (_restore(facts, first),) if wrote else merged(facts) if merged else ()
        left += [item for item in taken if isinstance(item, Left)]
        changes += [item for item in taken if not isinstance(item, Left)]
        if not taken:
            left.append(Left("kept", path, "changed since gpunode wrote it"))
    return tuple(changes), tuple(left)


def _restore(facts: Facts, first: Entry) -> WriteFile | RemoveFile | Left:
    """The file as it was before its `first` change."""
    text = files.text(facts, first.path)
    if first.link is not None:
        return Left("irreversible", first.path, f"it was a link to {first.link}")
    if first.was is None:
        return RemoveFile(first.path, text or "", "gpunode made it", folder=first.new_folder)
    if first.content is None:
        return Left("irreversible", first.path, f"its original cannot be read: {first.error or 'it is gone'}")
    mode = 0o644 if first.mode is None else first.mode
    owner = (first.uid, first.gid)
    return WriteFile(first.path, first.content, BEFORE, text, mode=mode, owner=owner, label=first.label)


def _restarts(facts: Facts, changed: Sequence[str]) -> Iterator[Service]:
    """The restarts of the units that read changed files at their start: the runtime's, then the kubelet's."""
    name, start = runtimes.detect(facts), places.read(facts)
    kubelets = (*start.environment_files, *start.units, *start.config_files, start.place.drop_in)
    by_unit: dict[str, list[str]] = {}
    for path in changed:
        if any(fnmatchcase(path, pattern) for pattern in runtimes.RUNTIMES[name].WATCH.files):
            by_unit.setdefault(runtimes.unit(name, facts), []).append(path)
        if path in kubelets:
            by_unit.setdefault(start.place.unit, []).append(path)
    for unit, paths in by_unit.items():
        if services.is_active(facts, unit):
            guards = tuple(dict.fromkeys(paths))
            ends = services.user_keys(facts.gpu_users) if unit == ENDS_WORK else None
            yield Service(unit, services.AT_START, restart=True, guards=guards, ends=ends, drops=RUNTIME)


def _image(facts: Facts, image: PluginImage | None) -> Iterator[RemoveImage]:
    if image is None or image.archive is None:
        return
    name = runtimes.detect(facts)
    if image.reference in facts.images.get(name, {}):
        yield RemoveImage(image.reference, name, "gpunode loaded it for its device plugin")


def _packages(facts: Facts) -> Iterator[Packages]:
    """The holds of the driver's and the toolkit's packages, which provision makes."""
    held = tuple(name for name in _software(facts) if facts.packages[name].held)
    if held and files.exists(facts, STATE):
        yield Packages("gpunode held them at their versions", release=held)


def _software(facts: Facts) -> tuple[str, ...]:
    """The installed packages of driver, fabric manager and toolkit."""
    system = packages.system_of_host(facts)
    if system is None:
        return ()
    names = system.names
    toolkit = {spec.name for spec in names.toolkit("")} & facts.packages.keys()
    return tuple(sorted({*names.driver_family(facts.packages), *names.fabric(facts.packages), *toolkit}))


def _what_stays(facts: Facts) -> Iterator[Left]:
    """What is for the user to remove."""
    system = packages.system_of_host(facts)
    if system and (names := _software(facts)):
        yield Left("stays", ", ".join(names), f"packages stay installed; `{system.purge} NAME` removes them")
    if facts.installed_run is not None:
        yield Left("stays", f"driver {facts.installed_run.version}", "`nvidia-uninstall` removes it")
    for gpu in facts.gpus if files.exists(facts, mig.SCRIPT) else ():
        if gpu.mig_on:
            yield Left("stays", f"MIG of {gpu.pci}", f"`nvidia-smi -i {gpu.pci} -mig 0` switches it off")
    if (files.text(facts, runtime_link.STATE) or "").startswith("1"):
        name = runtime_link.BOOLEAN
        yield Left("stays", f"SELinux boolean {name}", f"`setsebool -P {name} off` switches it off")
