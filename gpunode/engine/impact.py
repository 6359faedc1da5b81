"""The work on the GPUs that the hosts' plans disturb: found before anything is shown or asked."""

import time
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TypeAlias

from gpunode import packages
from gpunode.cluster.api import Api, side_by_side
from gpunode.engine import accepted, chain, nodes
from gpunode.engine.fleet import Planner
from gpunode.engine.member import Member, Members
from gpunode.errors import ClusterError
from gpunode.links.driver import mig
from gpunode.links.driver.on_host.gpus import DAEMONS
from gpunode.links.node import drain
from gpunode.links.node.drain import Work
from gpunode.links.plugin import daemonset
from gpunode.links.runtime import RUNTIMES
from gpunode.links.toolkit import cdi
from gpunode.links.toolkit import plan as toolkit_config
from gpunode.model import (
    Change,
    Disturbance,
    Disturbed,
    Facts,
    ForgetHost,
    GpuUser,
    InstallDriver,
    Inventory,
    KernelModule,
    LoadImage,
    MigLayout,
    Package,
    Packages,
    Reboot,
    RemoveFile,
    RemoveImage,
    SelinuxBoolean,
    Service,
    UninstallDriver,
    WriteFile,
)
from gpunode.wording import Advice, Command, few, lines

NONE: Mapping[str, Planner] = MappingProxyType({})


def disturbance(member: Member, changes: Sequence[Change] | None = None) -> Disturbance:
    """What these changes of the host interrupt, made or not (None: its plan's). The toolkit's removal counts as a driver's change: no
    container that its runtime started could be stopped then."""
    changes = member.changes if changes is None else changes
    system = packages.system_of_host(member.facts) if member.facts else None
    if system is None or member.facts is None:
        return disturbance_of(changes)
    removed = {name: Package(name, "") for name in _removed(changes)}
    driver = system.names.driver_family({**removed, **member.facts.packages})
    return disturbance_of(changes, driver={*driver, *removed_toolkit(member.facts, changes)})


def removed_toolkit(facts: Facts | None, changes: Iterable[Change]) -> set[str]:
    """The packages of NVIDIA's container toolkit that these changes remove."""
    system = packages.system_of_host(facts) if facts else None
    return {spec.name for spec in system.names.toolkit("")} & _removed(changes) if system else set()


def _removed(changes: Iterable[Change]) -> set[str]:
    return {name for change in changes if isinstance(change, Packages) for name in change.remove}


def boot_id(member: Member) -> str:
    """The boot id of the host; "" where that is not known."""
    return member.facts.boot_id if member.facts else ""


def work_of(users: Iterable[GpuUser]) -> tuple[GpuUser, ...]:
    """The users of GPUs that are work, without the driver's own daemons."""
    return tuple(user for user in users if not user.command.startswith(DAEMONS))


def locate(api: Api | None, members: Sequence[Member], inventory: Inventory) -> Members:
    """The members that may be in the cluster, each with its node or the reason why it has none, and with what the run holds to from
    here on: whether its node closes again. () without a cluster."""
    able = [member for member in members if member.outcome and member.outcome.status in ("right", "planned")]
    located = nodes.locate(api, able, seconds=0, notify=lambda _: None) if api and able else ()
    now, records = time.time(), accepted.folder(inventory)
    return tuple(replace(member, closes=accepted.closes_again(records, member, now)) for member in located)


def find_impact(
    api: Api | None,
    namespace: str,
    members: Sequence[Member],
    located: Sequence[Member],
    *,
    strict: bool,
    planners: Mapping[str, Planner] = NONE,
) -> Members:
    """The members with their `located` nodes, and what each plan interrupts there. With strict=False, work that the API server
    does not disclose is unknown. `namespace`: of the device plugin. `planners`: host → planner, where it is not provision's."""
    known = {member.host.name: (member.node, member.closes) for member in located}
    placed = []
    for member in members:
        node, closes = known.get(member.host.name, (None, False))
        placed.append(replace(member, node=node, closes=closes))
    plugins: Mapping[str, Collection[str]] = {}
    if any(disturbance(member).reboot for member in placed):
        plugins = _plugins(api, namespace, strict=strict)

    def assess(member: Member) -> Member:
        if not member.has_changes or member.outcome is None:
            return member
        mine = plugins.get(member.node.name, frozenset()) if member.node else frozenset[str]()
        return replace(
            member,
            outcome=replace(
                member.outcome,
                disturbs=_assess(api, member, mine, planners.get(member.host.name), strict=strict),
            ),
        )

    return tuple(side_by_side(assess, placed))


def add_to_fix(fix: str, member: Member, *, clustered: bool = True) -> str:
    """The fix, its command with what a provision of the member's host interrupts, and whose work. It can be pasted into a shell.
    `clustered`: the inventory has a cluster, or nothing is said of pods that are not known."""
    first, *more = fix.parts if isinstance(fix, Advice) else (fix,)
    commands = [part for part in (first, *more) if isinstance(part, Command) and part.name == "provision"]
    if not member.has_changes or not commands:
        return fix
    disturbed = member.disturbs
    what = disturbed.describe()
    hit = [*(disturbed.pods or ()), *map(str, disturbed.processes)] if disturbed.ends_work else []
    if disturbed.pods is None and clustered:
        whom = "its pods are not known"
    elif hit:
        whom = f"disturbs {few(hit, 3)}"
    else:
        whom = "" if disturbed.pods is None else "disturbs none of your pods"
    text = "; ".join(filter(None, ("" if commands[0].does else what, whom)))
    if not text:
        return fix
    if isinstance(first, Command) and str(more[0] if more else "\n").startswith("\n"):
        return Advice(replace(first, options=f"{first.options}   # {text}"), *more)
    return lines((fix, f"({text})"), " ")


def _assess(
    api: Api | None, member: Member, plugin: Collection[str], planner: Planner | None, *, strict: bool
) -> Disturbed:
    what, users = disturbance(member), member.facts.gpu_users if member.facts else ()
    if not what:
        return Disturbed(what, pods={})
    pods = _pods(api, member, strict=strict)
    return Disturbed(
        what,
        work=member.host.work if what.ends_gpu_work else "stays",
        timeout=member.host.work_timeout,
        pods=None if pods is None else {pod.name: pod.asks for pod in pods if not pod.service},
        users=work_of(users),
        reload=what.reboot and _reloads(member, pods, plugin, planner),
        standstill={pod.name: pod.standstill for pod in pods or () if pod.standstill and not pod.service},
    )


def _pods(api: Api | None, member: Member, *, strict: bool) -> tuple[Work, ...] | None:
    if member.bare:
        return ()
    if api is None or member.node is None:
        return None
    try:
        return drain.work_on(api, member.node.name, boot_id(member), whole=member.host.work == "drain")
    except ClusterError:
        if strict:
            raise
        return None


def _plugins(api: Api | None, namespace: str, *, strict: bool) -> Mapping[str, Collection[str]]:
    """UIDs of the device plugin's pods by node."""
    try:
        return daemonset.uids_by_node(api, namespace) if api else {}
    except ClusterError:
        if strict:
            raise
        return {}


def _reloads(
    member: Member, pods: Sequence[Work] | None, plugin: Collection[str], planner: Planner | None = None
) -> bool:
    """True if the plan needs no reboot once the users of the GPUs that are waited for, or make way, are gone."""
    if member.outcome is None or member.facts is None:
        return False
    if planner is None and member.outcome.desired is None:
        return False
    services = {key for pod in pods or () if pod.service for key in (pod.uid, pod.name)}

    def leaves(user: GpuUser) -> bool:
        if user.pod in plugin:
            return True
        if member.host.work == "kill" or user not in work_of([user]):
            return False
        return user.pod is None or (
            pods is not None and user.pod not in services and user.name not in services
        )

    stay = tuple(user for user in member.facts.gpu_users if not leaves(user))
    if len(stay) == len(member.facts.gpu_users):
        return False
    # What the users hold is free then; whether the kernel itself holds more shows only when they are gone.
    unheld = {name: replace(module, refcnt=0) for name, module in member.facts.modules.items()}
    facts = replace(member.facts, gpu_users=stay, modules=unheld)
    if planner is not None:
        plan = planner(facts).plan
    else:
        assert member.outcome.desired is not None
        plan = chain.plan(member.host, facts, member.outcome.desired)
    return plan is not None and not any(isinstance(change, Reboot) for change in plan.changes)


Act: TypeAlias = tuple[str, str]  # what is done, to what: ("install", "nvidia-open"), ("reboot", "")

REBOOT = ("reboot", "")
# They do one thing and end; no work depends on them. The reload of systemd before it is another matter: Service.loses.
QUIET = frozenset({cdi.UNIT, cdi.OWN, cdi.DEV_CHAR, mig.UNIT})
RUNTIME_UNITS = frozenset(unit for runtime in RUNTIMES.values() for unit in runtime.WATCH.units)
CUT = ("cut", "GPUs by MIG")
MODULES = frozenset({("unload", "modules"), ("load", "modules")})


def disturbance_of(changes: Iterable[Change], *, driver: Collection[str] = ()) -> Disturbance:
    """What these changes interrupt. `driver`: the names of installed packages that make up the driver."""
    changes = tuple(changes)
    names = [name for change in changes if isinstance(change, Packages) for name in _names(change)]
    return Disturbance(
        reboot=any(isinstance(change, Reboot) for change in changes),
        restarts=tuple(
            dict.fromkeys(
                change.unit
                for change in changes
                if isinstance(change, Service)
                and (change.restart or change.disable)
                and change.unit not in QUIET
            )
        ),
        modules=any(isinstance(change, KernelModule) and change.unload for change in changes),
        mig=any(isinstance(change, MigLayout) for change in changes),
        devices=any(isinstance(change, Service) and change.loses for change in changes),
        plugin=any(isinstance(change, ForgetHost) and change.offers for change in changes),
        packages=(
            *dict.fromkeys(name for name in names if name in driver),
            *(f"driver {change.version}" for change in changes if isinstance(change, UninstallDriver)),
        ),
    )


def outdates_pods(changes: Iterable[Change], facts: Facts | None) -> bool:
    """True if these change the driver or the runtime, whose old version running containers keep, or reload systemd so that
    containers lose their GPUs. Headers of the host's kernels do not count: they only build modules."""
    system = packages.system_of_host(facts) if facts else None
    kernels = (*facts.kernels, facts.kernel) if facts and system else ()
    headers = {spec.name for kernel in kernels if system for spec in system.names.headers(kernel)}
    return any(
        isinstance(change, (InstallDriver, KernelModule, MigLayout, Reboot))
        or (isinstance(change, Packages) and set(_names(change)) - headers)
        or (isinstance(change, Service) and change.restart and change.unit in RUNTIME_UNITS)
        or (isinstance(change, Service) and change.loses)
        or (isinstance(change, WriteFile) and change.path in toolkit_config.CONFIG_WATCH.files)
        for change in changes
    )


def acts(changes: Iterable[Change]) -> frozenset[Act]:
    """The kinds of acts that these changes are: packages and units by name, files and modules without."""
    return frozenset(act for change in changes for act in _acts(change))


def accepted_acts(members: Members) -> Mapping[str, frozenset[Act]]:
    """Host → the acts that its plan has shown."""
    return {member.host.name: acts(member.changes) for member in members if member.has_changes}


def describe_unaccepted(changes: Iterable[Change], accepted: Collection[Act]) -> str:
    """The acts that were not accepted, as text; "" if all were."""
    new = sorted(
        act for act in acts(changes) - frozenset(accepted) if REBOOT not in accepted or not _is_milder(act)
    )
    return few([" ".join(filter(None, act)) for act in new], 5)


def _is_milder(act: Act) -> bool:
    """True if a reboot does as much: it reloads modules, restarts every unit, and makes the MIG layouts."""
    return act in (*MODULES, CUT) or act[0] == "restart"


def _acts(change: Change) -> Iterable[Act]:
    match change:
        case WriteFile() | RemoveFile():
            return [("write", "files")]
        case Packages():
            return [("remove" if name in change.remove else "install", name) for name in _names(change)]
        case Service():
            verb = "disable" if change.disable else "restart" if change.restart else "enable"
            return [(verb, change.unit)]
        case KernelModule():
            return [("unload" if change.unload else "load", "modules")]
        case MigLayout():
            return [CUT]
        case LoadImage():
            return [("load", "image")]
        case RemoveImage():
            return [("remove", "image")]
        case InstallDriver():
            return [("install", f"driver {change.version} by NVIDIA's installer")]
        case UninstallDriver():
            return [("uninstall", f"driver {change.version}")]
        case SelinuxBoolean():
            return [("set", f"SELinux boolean {change.name}")]
        case Reboot():
            return [REBOOT]
    return []


def _names(change: Packages) -> Iterable[str]:
    """The packages that are installed or removed; a hold changes none."""
    return [*(spec.name for spec in change.install), *change.remove]
