"""The undo of a run on one host, planned from the host's journal and its facts: changes in reverse, and what has to stay.

`originals` and `brought` are for others who need a host's state before gpunode.
"""

import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import pairwise, takewhile
from typing import TypeAlias

from gpunode.engine import chain, impact
from gpunode.errors import Refused
from gpunode.links import runtime as runtimes
from gpunode.links.driver import mig, modules
from gpunode.links.driver.plan import FABRIC
from gpunode.links.kubelet.decide import refused_gate
from gpunode.model import (
    Change,
    Entry,
    Facts,
    Host,
    KernelModule,
    Left,
    Outcome,
    Package,
    PackageChange,
    Packages,
    PackageSpec,
    Plan,
    Reboot,
    RemoveFile,
    SelinuxBoolean,
    Service,
    StepPlan,
    UninstallDriver,
    Watch,
    WriteFile,
)
from gpunode.packages import system_of_host
from gpunode.planning import services
from gpunode.wording import few

STEP = "undo"
EVERY = "*"  # in the place of a run: all that gpunode has done
NAMED = 3
SOMEBODY = "changed since the run"
EARLIER = "Add a repository that has it and repeat the undo; or set `driver` or `toolkit` to an earlier one and provision"
RUNTIME = "nvidia"  # and nvidia-cdi, nvidia-legacy: gone with what names them
ENDS_WORK = ("docker.service", FABRIC)  # containers; jobs of CUDA
COMPUTE = re.compile(r"\d+c\.")  # the profile of a compute instance that is not all of its GPU instance
HEADERS = re.compile("headers|devel")
ARCH = r"\.(x86_64|aarch64)$"
SOURCES = ("/etc/apt/", "/etc/yum.repos.d/", "/etc/zypp/repos.d/")
KEYS = "gpg-pubkey"  # rpm's name for all keys that it has imported
Journal: TypeAlias = Sequence[Entry]


def _entries(journal: Journal, run: str) -> Journal:
    return [entry for entry in journal if run in (EVERY, entry.run)]


def _name(run: str) -> str:
    return "gpunode" if run == EVERY else f"run {run}"


def originals(journal: Journal) -> dict[str, Entry]:
    """Path → the oldest entry of each file that gpunode has changed: its `was`, `content`, `link` are of before gpunode."""
    oldest: dict[str, Entry] = {}
    for entry in journal:
        if entry.path:
            oldest.setdefault(entry.path, entry)
    return oldest


def brought(journal: Journal) -> dict[str, str]:
    """Name → version of the packages that were not installed before gpunode, as its last change of them left them."""
    return {
        name: change.now
        for name, change in _package_changes(journal).items()
        if change.was is None and change.now is not None
    }


def _package_changes(journal: Journal) -> dict[str, PackageChange]:
    """The changes of packages, each from its state before the first to that after the last."""
    changes: dict[str, PackageChange] = {}
    for name, change in ((name, change) for entry in journal for name, change in entry.packages.items()):
        first = changes.get(name, change)
        changes[name] = replace(change, was=first.was, held=first.held)
    return changes


def watch(known: Watch, journal: Journal, run: str) -> Watch:
    """The probe's watch, with what an undo of the run needs to know."""
    mine = _entries(journal, run)
    return replace(
        known,
        files=_unique((*known.files, *(entry.path for entry in mine))),
        units=_unique((*known.units, *(entry.unit for entry in mine))),
        packages=_unique((*known.packages, *_package_changes(mine))),
    )


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(filter(None, names)))


def plan_host(host: Host, journal: Journal, run: str, facts: Facts) -> Outcome:
    """The outcome of a host whose run is to be undone: planned, right (nothing is left to undo), or refused."""
    try:
        chain.check_readable(host, facts)
        with chain.refusing(host, "NVML"):
            changes, left = plan(journal, run, facts)
            changes = chain.ends_work(host, changes)
    except Refused as refused:
        return Outcome(host.name, "refused", facts, problem=refused.problem)
    steps = (StepPlan(STEP, changes),) if changes else ()
    undone = any(entry.undoes == run for entry in journal)  # as far as it can be
    return Outcome(
        host.name,
        "planned" if changes else "right",
        facts,
        plan=Plan(host.name, steps),
        left=left,
        kept=bool(left) and not changes and not undone,
    )


def plan(journal: Journal, run: str, facts: Facts) -> tuple[tuple[Change, ...], tuple[Left, ...]]:
    """The changes that take the run's back, in reverse order, and what is left as it is."""
    mine = _entries(journal, run)
    first = originals(mine)
    packages = brought(mine)
    gone = bool(packages) and not packages.keys() & facts.packages.keys()
    software, layouts = list(_software(journal, run, facts)), list(_layouts(mine, run, facts))
    changes: list[Change | Left] = []
    due: dict[str, list[str]] = {}  # unit → files to restore that it reads
    for entry in reversed(mine):
        if entry.path in first:
            planned = _restore(journal, run, facts, first.pop(entry.path), gone=gone)
            if planned is not None:
                changes.append(planned)
            if isinstance(planned, (WriteFile, RemoveFile)) and services.is_active(facts, entry.unit):
                due.setdefault(entry.unit, []).append(planned.path)
        elif entry.layouts:
            changes += layouts
            layouts = []
        elif entry.modules is not None:  # all of them at the place of the last, which the others rest on
            changes += software
            software = []
        else:
            changes += _take_back(mine, entry, run, facts, changes)
    left = tuple(dict.fromkeys(change for change in changes if isinstance(change, Left)))
    made = [change for change in changes if not isinstance(change, Left)]
    if "nvidia" in facts.modules and not any(isinstance(change, (KernelModule, Reboot)) for change in made):
        off = [change.unit for change in made if isinstance(change, Service) and change.disable]
        made += modules.start(facts, off)
    last = [change for change in made if isinstance(change, Reboot)]
    left += tuple(_containers(mine, made, facts))
    return (*with_restarts([change for change in made if change not in last], due, facts), *last), left


def _containers(mine: Journal, made: Iterable[Change], facts: Facts) -> Iterable[Left]:
    """Containers that outlive NVIDIA's runtime: the shim that holds them stops them by the program that started them, and a kill fails
    without it (seen on containerd 2.2). docker's end with its restart."""
    units = {unit for name, each in runtimes.RUNTIMES.items() if name != "docker" for unit in each.UNITS}
    configured = units & {entry.unit for entry in mine if entry.path}
    if configured and impact.removed_toolkit(facts, made):
        why = "they cannot be stopped before the next reboot, because the runtime is removed"
        yield Left("irreversible", "containers of NVIDIA's runtime", why)


def _take_back(
    mine: Journal, entry: Entry, run: str, facts: Facts, planned: Sequence[Change | Left]
) -> Iterable[Change | Left]:
    """For an entry of a unit, a boolean, an image or a reboot. `planned`: what comes before it, and may bring its unit back."""
    why, unit = f"as before {_name(run)}", facts.units.get(entry.unit)
    kind = (entry.kind, entry.unit, entry.name)
    if entry.kind == "load_image":
        yield Left("irreversible", entry.name, "an undo does not remove images from container runtimes")
    elif entry.kind == "reboot":
        yield Left("irreversible", "reboot", f"the host was rebooted; before, it ran kernel {entry.name}")
    elif entry is not next(each for each in mine if (each.kind, each.unit, each.name) == kind):
        return  # the first has the state of before
    elif entry.kind == "selinux_boolean" and entry.state in ("on", "off"):
        yield SelinuxBoolean(entry.name, why, on=entry.state == "on")
    elif entry.kind == "service" and unit is not None and unit.enabled == "enabled":
        if entry.enabled != "enabled" and entry.active == "active":
            yield Left(
                "irreversible",
                entry.unit,
                "it ran before the run, so it stays enabled: disabling it would stop it",
            )
        elif entry.enabled != "enabled":
            yield Service(entry.unit, why, disable=True, ends=_ends(entry.unit, facts))
    elif entry.state == "disable" and entry.enabled == "enabled":
        if services.is_loaded(facts, entry.unit) or any(_brings_files(change) for change in planned):
            yield Service(entry.unit, why, enable=True, start=entry.active == "active")
        else:
            yield Left("irreversible", entry.unit, "it no longer exists, or is masked")


def _brings_files(change: Change | Left) -> bool:
    return isinstance(change, WriteFile) or (isinstance(change, Packages) and bool(change.install))


def _ends(unit: str, facts: Facts) -> tuple[str, ...] | None:
    """The users of the GPUs that the end of this unit may end; None: it ends none."""
    return services.user_keys(facts.gpu_users) if unit in ENDS_WORK else None


def _layouts(mine: Journal, run: str, facts: Facts) -> Iterable[Change | Left]:
    """MIG as before the run, of GPUs that have still what the run gave them."""
    pairs = [(at, pair) for entry in mine for at, pair in entry.layouts.items()]
    before, after = {at: pair[0] for at, pair in reversed(pairs)}, {at: pair[1] for at, pair in pairs}
    for gpu in facts.gpus:
        if gpu.pci in before and all(mig.differs(facts, gpu, known[gpu.pci]) for known in (before, after)):
            yield Left("kept", f"MIG of {gpu.pci}", SOMEBODY)
            del before[gpu.pci]
            continue
        own = [profile for profile in before.get(gpu.pci) or () if COMPUTE.match(profile)]
        if own and mig.differs(facts, gpu, before[gpu.pci]):
            why = f"its devices were {', '.join(own)}; an undo makes no compute instances of their own"
            yield Left("irreversible", f"MIG of {gpu.pci}", why)
            del before[gpu.pci]
    yield from mig.restore(facts, before, f"as before {_name(run)}")


def _software(journal: Journal, run: str, facts: Facts) -> Iterable[Change | Left]:
    """Packages, an installer's driver, and the kernel modules of both: unloaded before, loaded after where they were."""
    mine = _entries(journal, run)
    entries = [entry for entry in mine if entry.modules is not None]
    if not entries:
        return
    before = entries[0].modules or ()
    drivers = [entry for entry in entries if entry.kind in ("install_driver", "uninstall_driver")]
    unavailable = {name for entry in entries for name in entry.unavailable}
    if any(entry.path.startswith(SOURCES) and entry.wrote is None for entry in mine):
        unavailable = set()  # a repository comes back first
    changes, left = _packages(journal, run, facts, unavailable)
    yield from left
    unknown = [entry.error for entry in entries if entry.error]
    yield from (Left("irreversible", "packages", f"{error} before or after a change") for error in unknown)
    if {each.what for each in left} & unavailable:
        return
    installed = facts.installed_run.version if facts.installed_run else ""
    if drivers and drivers[0].state != installed:
        if drivers[0].state:
            what = f"driver {drivers[0].state}"
            yield Left("irreversible", what, "an undo has no copy of NVIDIA's installer")
        elif installed == drivers[-1].name:
            # First, as it deletes files by their names, those of the packages of before as well.
            changes.insert(0, UninstallDriver(installed, f"{_name(run)} installed it"))
    yield from (
        Left("irreversible", name, "it was loaded before the run; the next boot loads it again")
        for name in before
        if name in ("nouveau", "nova_core") and name not in facts.modules
    )
    was_loaded = "nvidia" in before
    is_loaded, reloaded = "nvidia" in facts.modules, any(entry.kind == "kernel_module" for entry in entries)
    load = KernelModule(f"as before {_name(run)}", load=modules.LOAD, services=modules.stopped(facts))
    driver, known = _driver(facts, facts.packages), _package_changes(entries).items()
    stays = driver.keys() & {each.what for each in left if each.code == "kept"}  # and its modules
    changed = _driver(facts, {name: Package(name, each.now or each.was or "") for name, each in known})
    changes_driver = impact.disturbance_of(changes, driver=driver).packages
    reloads = (reloaded and not (was_loaded or stays)) or changes_driver
    # Of another version than the library: an undo was killed between the packages and their modules.
    stale = is_loaded and facts.library_version not in (None, facts.modules["nvidia"].version)
    if not is_loaded or not (reloads or (stale and changed)):
        yield from changes
        if not is_loaded and was_loaded and (reloaded or changed):
            yield load
        return
    why = f"{'of another version' if was_loaded else 'not loaded'} before {_name(run)}"
    if held := modules.holders(facts):
        ends = services.user_keys(facts.gpu_users)
        yield from (*changes, Reboot(f"the modules were {why}; {held}", ends, bare=not was_loaded))
        return
    unload = modules.unload(facts, why)
    yield unload
    yield from changes
    if was_loaded:
        yield replace(load, services=(*unload.services, *load.services))


def _driver(facts: Facts, installed: Mapping[str, Package]) -> Mapping[str, Package]:
    """Those of these packages that make up a driver."""
    system = system_of_host(facts)
    return system.names.driver_family(installed) if system else {}


def _why_kept(journal: Journal, run: str, name: str, change: PackageChange, package: Package | None) -> str:
    """Why a package is not as the run's change left it, or its change was taken back since and made again; "" where it is the run's."""
    now = package.version if package else None
    entries = [entry for entry in reversed(journal) if name in entry.packages]
    if now and change.now is None:
        last = entries[0]
        by = (
            f"run {last.run} installed {now}" if last.packages[name].now == now else f"{now} is installed now"
        )
        return f"{SOMEBODY}: the run removed it; {by}"
    if now != change.now:
        return f"{SOMEBODY}: now {now or 'removed'}, after the run {change.now}"
    since = list(takewhile(lambda entry: run not in (EVERY, entry.run), entries))
    ends: dict[tuple[str, bool], str | None] = {}  # how each later run left it, and (True) its undos
    for entry in since:
        ends.setdefault((entry.undoes or entry.run, bool(entry.undoes)), entry.packages[name].now)
    # A run and its undos cancel out.
    if any(end == change.was and (later, not undo) not in ends for (later, undo), end in ends.items()):
        return _since(since[0].run if since[0].packages[name].now == now else "")
    return f"{SOMEBODY}: it is held" if package and package.held and not change.holds else ""


def _since(later: str) -> str:
    return f"{SOMEBODY} by run {later}: undo that first" if later else SOMEBODY


def _packages(
    journal: Journal, run: str, facts: Facts, unavailable: Collection[str]
) -> tuple[list[Change], list[Left]]:
    """At most one change. Nothing of it is planned while a version of before cannot be had."""
    mine = _entries(journal, run)
    purged = any(entry.state == "purge" for entry in mine if entry.kind == "packages")
    left: list[Left] = []
    back: list[str] = []
    install: list[PackageSpec] = []
    remove: list[str] = []
    release: list[str] = []
    hold: list[str] = []
    for name, change in _package_changes(mine).items():
        package = facts.packages.get(name)
        now = package.version if package else None
        if now == change.was:
            pass
        elif why := _why_kept(journal, run, name, change, package):
            left.append(Left("kept", name, why))
            continue
        elif name.startswith(KEYS):
            left.append(Left("irreversible", name, "an undo removes no key from rpm's database"))
        elif re.sub(ARCH, "", facts.kernel) in name and not HEADERS.search(name):
            left.append(Left("irreversible", name, "it is of the running kernel"))
        elif change.was is None:
            remove.append(name)
        elif name in unavailable:
            why = f"no repository has {change.was}, so no package and no module is changed. {EARLIER}"
            left.append(Left("irreversible", name, why))
        else:
            install.append(PackageSpec(name, change.was, downgrade=True))
            back += [name] if now is None and purged else []
        if (
            package is not None and package.held
        ) == change.holds:  # else somebody has set or released it since
            release += [name] if change.holds and not change.held else []
            hold += [name] if change.held and not change.holds else []
    if back:
        why = f"the purged configuration of {few(back, NAMED)} is lost; the package returns with its defaults"
        left.append(Left("irreversible", "configuration", why))
    if not (install or remove or release or hold):
        return [], left
    why, specs, names = f"as before {_name(run)}", tuple(install), tuple(remove)
    return [Packages(why, specs, names, tuple(hold), tuple(release), bool(install), bool(remove))], left


def _restore(
    journal: Journal, run: str, facts: Facts, first: Entry, *, gone: bool
) -> WriteFile | RemoveFile | Left | None:
    """The change that restores a file as it was before the run; None: it is so. `gone`: the packages that the run brought are removed,
    and their files went with them."""
    path, now = first.path, facts.files.get(first.path)
    state = now.sha256 if now and now.exists else None
    if state == first.was:
        return None
    wrote = [entry for entry in journal if entry.path == path and entry.wrote == state]
    if not _entries(wrote, run):
        if state is None and gone:
            return None
        later = next((entry.run for entry in reversed(wrote) if entry.run), "")
        return Left("kept", path, _since(later))
    own = [entry for entry in _entries(journal, run) if entry.path == path]
    while own[-1].wrote != state:  # killed before its change, or undone already
        own.pop()
    # Each found what the one before it wrote, or what that had found: a failure restores it.
    if any(entry.was not in (earlier.was, earlier.wrote) for earlier, entry in pairwise(own)):
        return Left("kept", path, f"changed between two writes of {_name(run)}")
    text = now.content if now and now.exists else None
    if first.link is not None:
        return Left("irreversible", path, f"it was a link to {first.link}")
    if first.was is None and text is not None:
        return RemoveFile(path, text, f"{_name(run)} made it", folder=first.new_folder)
    if first.content is None or (text is None and state is not None):
        return Left("irreversible", path, f"its original cannot be read: {first.error or 'it is gone'}")
    if gate := refused_gate(facts, path, first.content):
        return Left(
            "kept",
            path,
            f"stays as gpunode wrote it: the kubelet does not start with the original (feature gate {gate})",
        )
    mode = 0o644 if first.mode is None else first.mode
    why = f"as before {_name(run)}"
    return WriteFile(
        path, first.content, why, text, mode=mode, owner=(first.uid, first.gid), label=first.label
    )


def with_restarts(
    changes: Sequence[Change], due: Mapping[str, Sequence[str]], facts: Facts
) -> Iterable[Change]:
    """The changes, with each unit's files together, at the place of the last, and its restart after them: one guard covers them."""
    units = {path: unit for unit, paths in due.items() for path in paths}
    own: dict[str, list[Change]] = {unit: [] for unit in due}
    for change in changes:
        unit = units.get(change.path) if isinstance(change, (WriteFile, RemoveFile)) else None
        if unit is None:
            yield change
            continue
        own[unit].append(change)
        if len(own[unit]) == len(due[unit]):
            yield from own[unit]
            ends, guards = _ends(unit, facts), tuple(due[unit])
            yield Service(unit, services.AT_START, restart=True, guards=guards, ends=ends, drops=RUNTIME)
