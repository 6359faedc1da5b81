"""The chain below Kubernetes, a list of links: what a probe reads, the decision, the plan and the verdicts are walks over it."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace

from gpunode import packages
from gpunode.errors import NO_RIGHTS, CannotPlan, Problem, Refused
from gpunode.links.driver import branches, choose, mig
from gpunode.links.driver import decide as driver_decision
from gpunode.links.driver import link as driver
from gpunode.links.kubelet import decide as kubelet_decision
from gpunode.links.kubelet import link as kubelet
from gpunode.links.link import Judge, Link, Step
from gpunode.links.machine import link as machine
from gpunode.links.plugin import link as plugin
from gpunode.links.runtime import link as runtime
from gpunode.links.runtime import link as runtime_decision
from gpunode.links.toolkit import decide as devices
from gpunode.links.toolkit import link as toolkit
from gpunode.links.toolkit.plan import decide_packages
from gpunode.model import (
    Change,
    Desired,
    Facts,
    Fault,
    Host,
    Layer,
    Outcome,
    Plan,
    PluginImage,
    Reboot,
    Service,
    StepPlan,
    Verdict,
    Watch,
)
from gpunode.packages import decide_sources, releases, unused_note
from gpunode.planning import services

LOSES = "its `systemctl daemon-reload` takes the GPUs from running containers"

# From the PCI bus to the kubelet; the cluster's links follow in `proof`.
CHAIN: tuple[Link, ...] = (
    machine.LINK,
    toolkit.SOURCES,
    driver.LINK,
    toolkit.LINK,
    runtime.LINK,
    kubelet.LINK,
    plugin.LINK,
)
STEPS: tuple[Step, ...] = tuple(step for link in CHAIN for step in link.steps)
FAULTS: Mapping[str, Fault] = {fault.name: fault for link in CHAIN for fault in link.faults}
JUDGES: tuple[Judge, ...] = tuple(judge for link in CHAIN for judge in link.judges)


def watch(image: PluginImage | None, *, lints: bool = False) -> Watch:
    """The probe's watch for all steps, and with `lints` for the links' lint."""
    watched = [*(step.watch for step in STEPS), *(link.linted for link in CHAIN if lints)]
    return Watch(
        files=_unique(path for entry in watched for path in entry.files),
        units=_unique(unit for entry in watched for unit in entry.units),
        packages=_unique(pattern for entry in watched for pattern in entry.packages),
        images=(image.reference,) if image else (),
    )


def lint(host: Host, facts: Facts, target: int) -> tuple[Problem, ...]:
    """Problems that Kubernetes 1.`target` would cause on this host, link by link."""
    return tuple(problem for link in CHAIN if link.lint for problem in link.lint(host, facts, target))


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def plan(host: Host, facts: Facts, desired: Desired) -> Plan:
    """The changes that make the host right, in order; at most one reboot, at the end."""
    steps: list[StepPlan] = []
    reboots: list[Reboot] = []
    for name, layer, planned, _ in STEPS:
        try:
            changes = planned(facts, desired)
        except CannotPlan as error:
            raise error.refusal(host.name, layer) from error
        reboots += [change for change in changes if isinstance(change, Reboot)]
        changes = tuple(_mark_reload(facts, desired, change) for change in changes)
        changes = ends_work(host, changes)
        steps.append(StepPlan(name, tuple(c for c in changes if not isinstance(c, Reboot))))
    if reboots:
        why = "; ".join(dict.fromkeys(reboot.why for reboot in reboots))
        _refuse_lost_driver(host, facts, desired, why)
        reboot = Reboot(why, services.user_keys(facts.gpu_users))
        steps.append(StepPlan("reboot", ends_work(host, (reboot,))))
    return Plan(host.name, tuple(_merge_restarts(steps)))


def ends_work(host: Host, changes: tuple[Change, ...]) -> tuple[Change, ...]:
    """The changes; with `work: kill` they end any work, also that which began after the plan."""
    if host.work != "kill":
        return changes
    return tuple(replace(c, ends=None) if isinstance(c, Service | Reboot) else c for c in changes)


def _refuse_lost_driver(host: Host, facts: Facts, desired: Desired, why: str) -> None:
    """Refuse a reboot into a kernel that will have no nvidia module. Where a change is to bring it, the agent checks."""
    driver = desired.driver
    if driver is None or not driver.ahead_why:
        return
    raise Refused(
        host.name,
        f"a reboot is needed, and kernel {driver.ahead}, which boots next, has no nvidia module: {driver.ahead_why}\n{why}",
        hint=f"Build its module (`dkms autoinstall -k {driver.ahead}`), or boot kernel {facts.kernel} next (`grubby --set-default`, GRUB_DEFAULT) if it has the module. Then run again.",
        layer="module",
    )


def _merge_restarts(steps: Sequence[StepPlan]) -> Iterable[StepPlan]:
    """The steps, each unit restarted by the last one that does: it needs the files of all of them to come up.

    k3s and RKE2 run containerd and kubelet in one unit.
    """
    last = {
        change.unit: number
        for number, step in enumerate(steps)
        for change in step.changes
        if isinstance(change, Service) and change.restart
    }
    earlier: dict[str, Service] = {}
    for number, step in enumerate(steps):
        kept: list[Change] = []
        for change in step.changes:
            if not isinstance(change, Service) or not change.restart:
                kept.append(change)
            elif number < last[change.unit]:
                before = earlier.get(change.unit)
                earlier[change.unit] = _merge(before, change) if before else change
            else:
                before = earlier.pop(change.unit, None)
                kept.append(_merge(before, change) if before else change)
        yield replace(step, changes=tuple(kept))


def _merge(first: Service, second: Service) -> Service:
    """One restart for the reasons of both."""
    faults = [service.why if service.fault is None else service.fault for service in (first, second)]
    ends = [service.ends for service in (first, second) if service.ends is not None]
    return replace(
        second,
        why="; ".join(_unique((first.why, second.why))),
        enable=first.enable or second.enable,
        guards=_unique((*first.guards, *second.guards)),
        note="; ".join(_unique(filter(None, (first.note, second.note)))),
        ends=_unique(key for keys in ends for key in keys) if ends else None,
        loses=first.loses or second.loses,
        fault="; ".join(_unique(filter(None, faults))),
    )


def _mark_reload(facts: Facts, desired: Desired, change: Change) -> Change:
    """The change; for a Service, whose reload of systemd takes the GPUs from running containers, with their users in `ends`. Device
    links made by the plan come too late for running containers."""
    inside = [user for user in facts.gpu_users if user.container]
    if not isinstance(change, Service) or not inside or not (desired.links or desired.device_loss):
        return change
    if change.ends is not None:
        return replace(change, loses=True, note="; ".join(filter(None, (change.note, LOSES))))
    return replace(change, loses=True, note=LOSES, ends=services.user_keys(inside))


def judge_host(outcome: Outcome) -> tuple[Verdict, ...]:
    """The host's verdicts in causal order; those after the first broken one are `unknown`."""
    seen, problem = outcome.facts, outcome.problem
    if problem and problem.code == NO_RIGHTS:
        return (Verdict.unknown("ssh", f"not judged: {problem.what}", problem),)
    if seen is None:
        return (Verdict.broken("ssh", outcome.why or "no answer", fix=problem.fix if problem else ""),)
    chain = [judge(outcome, seen) for judge in JUDGES]
    if outcome.status == "refused" and problem:
        if problem.layer == "ssh":
            chain.insert(0, Verdict.ok("ssh", "it answers"))
        chain = [_apply_refusal(problem, link) for link in chain]
    return stop_at_broken(chain)


def find_manual_fix(outcome: Outcome) -> Verdict | None:
    """The broken link of a host without changes, such as a lost GPU's; None if there is none."""
    return find_unfixed(outcome) if outcome.status == "right" else None


def find_unfixed(outcome: Outcome) -> Verdict | None:
    """The first broken link that no change of the plan fixes: its fix would be the same without the plan. Another driver brings no GPU
    back that the loaded one has lost."""
    seen = outcome.facts
    if outcome.status not in ("right", "planned") or seen is None or outcome.left is not None:
        return None  # an undo makes no chain hold
    bare = replace(outcome, plan=None)
    pairs = [(judge(outcome, seen), judge(bare, seen)) for judge in JUDGES]
    first = next((link for link, alone in pairs if alone.status == "broken"), None)
    lost = first if first and driver.loses_gpu(first) else None
    unfixed = (link for link, alone in pairs if link.status == "broken" and link.fix == alone.fix)
    return lost or next(unfixed, None)


def unfixed_note(outcome: Outcome) -> str:
    """A sentence on that link, without its full stop; "" if there is none."""
    link = find_unfixed(outcome)
    return f"{link.layer} is broken, see `gpunode verify`: {link.text}" if link else ""


def _apply_refusal(problem: Problem, link: Verdict) -> Verdict:
    """The link broken by the refusal of its layer, unless it is broken already."""
    if link.layer != problem.layer or link.status != "ok":
        return link
    what, _, why = problem.what.partition("\n")
    return Verdict.broken(link.layer, what, why, problem.fix, problem.code)


def stop_at_broken(chain: list[Verdict]) -> tuple[Verdict, ...]:
    """The chain with the links after a broken one `unknown`."""
    judged: list[Verdict] = []
    for link in chain:
        follows = any(before.status == "broken" for before in judged)
        judged.append(Verdict.unknown(link.layer) if follows else link)
    return tuple(judged)


@contextmanager
def refusing(host: Host, layer: Layer) -> Iterator[None]:
    """Make CannotPlan the host's refusal, of this layer where it names none."""
    try:
        yield
    except CannotPlan as error:
        raise error.refusal(host.name, layer) from error


def decide(host: Host, facts: Facts, image: PluginImage | None) -> Desired:
    """The desired state. Raises Refused where nothing fits, or where a change would break the host."""
    check_readable(host, facts)
    with refusing(host, "PCI"):
        machine.check(facts)
    system = packages.system_of_host(facts)
    if system is None and (host.driver != "none" or host.toolkit != "none"):
        raise _unknown_system(host, facts)
    with refusing(host, "module"):
        spec = driver_decision.decide(host, facts, system) if system and host.driver != "none" else None
    with refusing(host, "NVML"):
        layouts = mig.decide(host, facts)
    with refusing(host, "kubelet"):
        minor, start, gates, reasons = kubelet_decision.decide(host, facts)
    with refusing(host, "runtime"):
        runtime = runtime_decision.runtime(host, facts, minor, start)
    with refusing(host, "toolkit"):
        toolkit = decide_packages(host, facts, system) if system and host.toolkit != "none" else ()
        sources = decide_sources(host, facts, system, spec, toolkit) if system else ()
    with refusing(host, "runtime"):
        handed = devices.decide(host, facts, runtime, start, toolkit)
    with refusing(host, "kubelet"):
        notes = (
            *choose.notes(host, facts, spec),
            *branches.kernel_notes(facts),
            *unused_note(host, system),
            *(system.notes(facts, sources) if system else ()),
            *mig.notes(host, facts, layouts),
            *kubelet_decision.notes(facts, minor, start, tainted=host.taint_until_verified),
            *handed.notes,
        )
    return Desired(
        runtime=runtime,
        runtime_mode=host.runtime,
        gates=gates,
        gate_reasons=reasons,
        driver=spec,
        toolkit=toolkit,
        sources=sources,
        image=image,
        notes=notes,
        isolation=host.isolation,
        gpus=host.gpus,
        registers_tainted=host.taint_until_verified,
        toolkit_version=handed.toolkit,
        links=handed.links,
        cdi=handed.cdi,
        device_loss=handed.loss,
        mig=layouts,
        kubelet=start,
        node=host.node or "",
    )


NEEDED = (
    "os",
    "arch",
    "uptime",
    "pci",
    "modules",
    "library_version",
    "installed_run",
    "packages",
    "files",
    "units",
    "kubelet",
    "gpu_users",
    "unconfirmed",
)


def check_readable(host: Host, facts: Facts) -> None:
    """Refuse facts with a needed section that could not be read: it looks like an empty one. A user who is not root reads few."""
    if user := facts.errors.get("root"):
        hint = "Log in as root, or set `sudo: true`."
        raise Refused(host.name, f"{user}, not as root", hint=hint, code=NO_RIGHTS, layer="ssh")
    failed = [f"{section}: {error}" for section, error in facts.errors.items() if section in NEEDED]
    if failed:
        raise Refused(
            host.name,
            "some facts could not be read, so nothing is planned\n" + "\n".join(failed),
            hint="Fix what the host reports, then run again.",
            layer="ssh",
        )


def _unknown_system(host: Host, facts: Facts) -> Refused:
    system = f"{facts.os.pretty or facts.os.id or 'a system without /etc/os-release'} on {facts.os.arch or 'an unknown architecture'}"
    reason = releases.refusal(facts.os)
    return Refused(
        host.name,
        f"{system}: {reason}"
        if reason
        else f"{system}: gpunode installs packages on {releases.releases()} (amd64, arm64)",
        hint="Install driver and toolkit by hand and set `driver: none` and `toolkit: none` for this host.",
        layer="toolkit" if host.driver == "none" else "module",
    )
