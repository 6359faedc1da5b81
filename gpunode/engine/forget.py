"""Takes a host out of gpunode's hands: the changes that leave nothing of gpunode's on it, and what has to stay. Pure."""

import re
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fnmatch import fnmatchcase
from pathlib import PurePath
from types import MappingProxyType

from gpunode import packages
from gpunode.agent.record import STATE
from gpunode.engine import chain, undo
from gpunode.engine.undo import Journal
from gpunode.errors import Refused
from gpunode.links import runtime as runtimes
from gpunode.links.runtime import containerd, docker
from gpunode.model import (
    Change,
    Facts,
    ForgetHost,
    Host,
    Left,
    Outcome,
    Packages,
    Plan,
    PluginImage,
    Reboot,
    RemoveFile,
    RemoveImage,
    Status,
    StepPlan,
    Watch,
    WriteFile,
)
from gpunode.planning import files, services, writers

OWN = "gpunode"  # in the names of all files that are gpunode's alone, which are these
NAMES = re.compile(
    r"((20|99)-)?gpunode\.conf|20-gpunode-command\.conf|gpunode-nouveau\.conf|gpunode-(mig|cdi|dev-char)\.service|gpunode-mig\.sh|"
    r"99-gpunode-(cdi|dev-char)\.rules|90-gpunode\.toml|9[012]-gpunode-(runtime|kubelet|taint)\.yaml|gpunode-(driver|toolkit|system)\.(sources|repo)|"
    r"gpunode-driver\.pref"
)
UNITS = "/etc/systemd/system/"
LINKS = "/etc/systemd/system/multi-user.target.wants/gpunode-*.service"  # of units that were enabled
# How a file that was changed since loses what gpunode merged into it, and keeps the rest.
TAKE_BACK: Mapping[str, Callable[[Facts, str], tuple[WriteFile | RemoveFile, ...]]] = MappingProxyType(
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
    """What a probe reads: all that it reads for provision, what gpunode changed, its own folder."""
    more = undo.watch(known, journal, undo.EVERY)
    return replace(more, files=(*more.files, LINKS, STATE))


def plan_host(host: Host, aim: Aim, facts: Facts) -> Outcome:
    """The outcome of a host that is to be forgotten: planned, right (nothing of gpunode's is left), or refused."""
    try:
        chain.check_readable(host, facts)
        with chain.refusing(host, "runtime"):
            steps, left = plan(aim, facts)
            steps = tuple(replace(step, changes=chain.ends_work(host, step.changes)) for step in steps)
    except Refused as refused:
        return Outcome(host.name, "refused", facts, problem=refused.problem, left=())
    status: Status = "planned" if steps else "right"
    return Outcome(host.name, status, facts, plan=Plan(host.name, steps), left=left)


def plan(aim: Aim, facts: Facts) -> tuple[tuple[StepPlan, ...], tuple[Left, ...]]:
    """The steps that have changes, in order, and what stays. Records go when all else has, so not before a reboot."""
    left: tuple[Left, ...] = ()
    steps: list[StepPlan] = []
    reboots: tuple[Change, ...] = ()
    if not aim.keep_software:
        # An image has a change of its own here; that the host was rebooted is no matter now.
        journal = [entry for entry in aim.journal if entry.kind not in ("load_image", "reboot")]
        before, left = undo.plan(journal, undo.EVERY, facts)
        before, left = _take_out(journal, facts, before, left)
        reboots = tuple(change for change in before if isinstance(change, Reboot))
        own, stays = _own_files(facts, before, left)
        left = (*left, *stays)
        steps = [
            StepPlan("links", tuple(_links(facts, (*before, *own)))),
            StepPlan("before", tuple(change for change in before if change not in reboots)),
            StepPlan("files", own),
            StepPlan("image", tuple(_image(facts, aim.image))),
            StepPlan("packages", tuple(_holds(journal, facts))),
        ]
        removed = {name for each in before if isinstance(each, Packages) for name in each.remove}
        left = (*left, *_what_stays(facts, removed))
    steps = [step for step in steps if step.changes]
    if reboots:
        steps.append(StepPlan("reboot", reboots))
    elif steps or files.exists(facts, STATE):  # an apply keeps records, too
        why = "driver, toolkit and plugin stay" if aim.keep_software else "nothing of gpunode's stays"
        change = ForgetHost(why, offers=aim.offers and not aim.keep_software)
        steps.append(StepPlan("records", (change,)))
    return tuple(steps), left


def _own_files(
    facts: Facts, planned: Sequence[Change], left: Sequence[Left]
) -> tuple[tuple[RemoveFile, ...], tuple[Left, ...]]:
    """gpunode's own files, by name and header, that no planned change removes; and others with its name, which stay."""
    known = {change.path for change in planned if isinstance(change, WriteFile | RemoveFile)}
    known |= {STATE, *(each.what for each in left)}
    own, stays = list[RemoveFile](), list[Left]()
    for path, file in sorted(facts.files.items()):
        name, text = PurePath(path).name, file.content or ""
        if path in known or not file.exists or OWN not in name or fnmatchcase(path, LINKS):
            continue
        if NAMES.fullmatch(name) and writers.OWN.search(text):
            own.append(RemoveFile(path, text, "gpunode wrote it", folder=path.endswith(".d/gpunode.conf")))
        else:
            stays.append(Left("kept", path, "neither a record nor its header shows that gpunode wrote it"))
    return tuple(own), tuple(stays)


def _links(facts: Facts, planned: Sequence[Change]) -> Iterator[RemoveFile]:
    """The links of units that are removed. They are removed first, as they lead to the units."""
    gone = {
        PurePath(change.path).name
        for change in planned
        if isinstance(change, RemoveFile) and change.path.startswith(UNITS)
    }
    for path, file in sorted(facts.files.items()):
        if file.exists and fnmatchcase(path, LINKS) and PurePath(path).name in gone:
            yield RemoveFile(path, file.content or "", "gpunode wrote it")


def _take_out(
    journal: Journal, facts: Facts, before: tuple[Change, ...], left: tuple[Left, ...]
) -> tuple[tuple[Change, ...], tuple[Left, ...]]:
    """The changes, with those that take what gpunode merged out of files that were changed since; and what is left then."""
    first = undo.originals(journal)
    for item in left:
        merged = TAKE_BACK.get(item.what) if item.code == "kept" else None
        if merged is None:
            continue
        original, unit = first[item.what].content, first[item.what].unit
        original = "" if first[item.what].was is None else original
        if original is not None and (changes := merged(facts, original)):
            left = tuple(other for other in left if other != item)
            due = {unit: [item.what]} if services.is_active(facts, unit) else {}
            before = (*undo.with_restarts(changes, due, facts), *before)
    return before, left


def _image(facts: Facts, image: PluginImage | None) -> Iterator[RemoveImage]:
    if image is None or image.archive is None:
        return
    name = runtimes.detect(facts)
    if image.reference in facts.images.get(name, {}):
        yield RemoveImage(image.reference, name, "gpunode loaded it for its device plugin")


def _holds(journal: Journal, facts: Facts) -> Iterator[Packages]:
    """The release of holds, where the journal is of an older gpunode, which noted no packages."""
    held = tuple(name for name in _software(facts) if facts.packages[name].held)
    if held and files.exists(facts, STATE) and not any(entry.packages for entry in journal):
        yield Packages("gpunode held them at their versions", release=held)


def _software(facts: Facts) -> tuple[str, ...]:
    """The installed packages of driver, fabric manager and toolkit."""
    system = packages.system_of_host(facts)
    if system is None:
        return ()
    names = system.names
    toolkit = {spec.name for spec in names.toolkit("")} & facts.packages.keys()
    return tuple(sorted({*names.driver_family(facts.packages), *names.fabric(facts.packages), *toolkit}))


def _what_stays(facts: Facts, removed: Collection[str]) -> Iterator[Left]:
    """What is for the user to remove."""
    system = packages.system_of_host(facts)
    if system and (names := [name for name in _software(facts) if name not in removed]):
        yield Left("stays", ", ".join(names), f"packages stay installed; `{system.purge} NAME` removes them")
