"""Pending changes of hosts and cluster, shown and not applied."""

import shlex
from collections.abc import Iterator, Sequence
from contextlib import suppress
from pathlib import Path

from gpunode import packages
from gpunode.cluster import rights
from gpunode.cluster.api import Api
from gpunode.commands.provision import ProvisionOptions
from gpunode.engine import (
    cluster_diff,
    control_plane,
    converge,
    exit_codes,
    gate,
    impact,
    nodes,
    plan_file,
    prerequisites,
    rounds,
)
from gpunode.engine.estimate import report_costs
from gpunode.engine.member import Members, outcomes
from gpunode.engine.session import Session
from gpunode.errors import NO_RIGHTS, ClusterError
from gpunode.links.driver import choose as driver
from gpunode.links.driver.branches import branches
from gpunode.links.kubelet import minors
from gpunode.links.machine import pci
from gpunode.links.runtime import link as runtime_decision
from gpunode.links.toolkit.plan import default_version
from gpunode.model import Choice, Desired, DriverSpec, Facts, Host, KubeletStart
from gpunode.packages import releases
from gpunode.planning.versions import upstream
from gpunode.wording import advise, several


def show_plan(
    session: Session,
    options: ProvisionOptions,
    *,
    diff: bool | None,
    waits: bool,
    why: bool = False,
    out: Path | None = None,
) -> int:
    """Show the plan of a provision with these options; the exit code. `diff`: as in `cluster_diff.show`. `waits`: pending changes have exit codes of their own.
    `why`: with the choices behind each plan. `out`: the file that gets the plan, for `provision`."""
    reporter, inventory = session.reporter, session.inventory
    nodes.check_kubeconfig(inventory)
    members = prerequisites.add_repositories(session, session.for_each_host(converge.probe_and_plan), None)
    api: Api | None = None
    placed: Members = ()
    wrong: ClusterError | None = None
    try:
        api = nodes.connect(inventory) if inventory.cluster.plugin else None
        placed = impact.locate(api, members, session.inventory)
    except ClusterError as error:  # the hosts' plans are shown and counted
        wrong = error
    namespace = inventory.cluster.namespace
    members = control_plane.refuse_unnamed(
        inventory, impact.find_impact(api, namespace, members, placed, strict=False)
    )
    reporter.plans(outcomes(members), diff=diff)
    if why:
        reporter.rows("why", ("host", "code", "chosen", "why"), list(_choices(members)))
    objects: int | None = None  # of the cluster, if it was checked
    shown = cluster_diff.ClusterPlan(0, ())
    order = rounds.order_batches(members, size=options.size, canary=options.canary)
    if inventory.cluster.plugin is None:
        reporter.note(nodes.WITHOUT_PLUGIN)
    elif api is not None and wrong is None:
        try:
            shown = cluster_diff.plan(
                api,
                inventory,
                placed,
                reporter,
                diff=diff,
                strict=False,
                order=order,
                tainted=options.taint,
                run=options.run,
            )
            objects = shown.objects
        except ClusterError as error:
            wrong = error
    if wrong is not None:
        wrong = nodes.name_rights(inventory, wrong)
        reporter.problem(wrong.problem)
    if api and (
        any(change.untried for change in shown.changes) or (wrong and wrong.problem.code == NO_RIGHTS)
    ):
        _note_rights(session, api, run=options.run or bool(options.accept))
    gate.show(inventory, reporter)
    costs = report_costs(
        session,
        order,
        members,
        shown,
        size=options.size,
        canary=options.canary,
        run=options.run,
        accepted=True,
    )
    if out is not None:
        replaced = " The earlier plan there is replaced." if out.exists() else ""
        context = api.access.context if api and objects is not None else ""
        made = plan_file.make(Path(inventory.path), members, shown.changes, context, costs, options.recorded)
        plan_file.write(out, made)
        apply = f"`gpunode provision {shlex.quote(str(out))}` applies exactly this plan"
        reporter.note(f"The plan is in {out}: {apply}.{replaced}")
    reporter.summary(outcomes(members), cluster=objects)
    code = (
        wrong.exit_code if wrong else 1 if shown.conflicts or shown.obstructed else exit_codes.worst(members)
    )
    if waits and (objects or any(member.outcome and member.outcome.plan for member in members)):
        return exit_codes.DRIFT_AND_MORE if code else exit_codes.DRIFT
    return code


def _note_rights(session: Session, api: Api, *, run: bool) -> None:
    """Note how many rights a provision needs that this user lacks: a plan needs fewer."""
    with suppress(ClusterError):
        now, later = nodes.rights_of_run(api, session.inventory, proves=run, deploys=True)
        if missing := rights.find_missing(api, (*now, *later)):
            count = several(len(missing), "right")
            text = f"To provision, this user lacks {count}: `gpunode provision` lists them before any change."
            session.reporter.note(advise(text))


def _choices(members: Members) -> Iterator[tuple[str, ...]]:
    for member in members:
        if member.outcome and member.outcome.facts:
            for choice in reasons(member.host, member.outcome.facts, member.outcome.desired):
                yield member.host.name, choice.code, choice.chosen, choice.why


def reasons(host: Host, facts: Facts, desired: Desired | None) -> tuple[Choice, ...]:
    """All choices; for a refused host (None), those before the decision."""
    models = list({device.device: pci.gpu(device.device) for device in pci.driven(facts.pci)}.values())
    choices = [_system(facts), *map(_gpu, models)]
    if desired is not None:
        choices += [Choice("repository", source.uri, "the inventory names it") for source in desired.sources]
        choices += _driver(facts, desired.driver, models)
        choices += [_toolkit(host, desired), *_kubelet(facts, desired)]
    return tuple(choices)


def _system(facts: Facts) -> Choice:
    place, system = releases.release(facts.os), packages.system_of_host(facts)
    name = f"{facts.os.pretty or facts.os.id} on {facts.os.arch}"
    if place is None or system is None:
        return Choice("system", "no packages", releases.refusal(facts.os) or f"{name} is in no table")
    chosen = f"{system.name}, {place.directory}/{place.architecture}"
    return Choice("system", chosen, f"NVIDIA's packages for {name}")


def _gpu(model: pci.Model) -> Choice:
    until = f" to {model.last}" if model.last in branches() else " on"
    opens = f", open modules from {model.open_first} on" if "open" in model.flavours else ""
    ids = f"PCI id 10de:{model.device}: {model.generation}"
    return Choice("gpu", model.name, f"{ids}, driven from branch {model.first}{until}{opens}")


def _driver(facts: Facts, spec: DriverSpec | None, models: Sequence[pci.Model]) -> Iterator[Choice]:
    if spec is None:
        yield Choice("branch", "none", "the inventory has `driver: none`")
        return
    yield Choice("branch", spec.version or str(spec.branch), spec.why)
    system = packages.system_of_host(facts)
    offered = system.names.flavours if system and spec.run is None else driver.FLAVOURS
    usable = [flavour for flavour in driver.flavours(models, spec.branch) if flavour in offered]
    if len(usable) == 1:
        why = f"branch {spec.branch} has no other modules for all GPUs"
    elif spec.flavour == usable[0]:
        why = f"both kinds of modules support all GPUs; gpunode prefers {usable[0]}"
    else:
        why = "they are installed, and support all GPUs"
    if spec.run is not None and spec.run.flavour:
        why = "the inventory asks for them"
    if spec.modules:
        who = "built by NVIDIA" if spec.modules[0].origin == "nvidia" else "signed by the distribution"
        why = f"{why}; {spec.modules[0].name} has them, {who}"
    yield Choice("modules", spec.flavour, why)
    names = ", ".join(package.name for package in spec.headers)
    builds = ", and NVIDIA's installer builds its module" if spec.run else ""
    why = f"of kernel {facts.kernel}, now running{builds}" if names else f"no package for {facts.kernel}"
    if spec.modules or (system and system.names.prebuilt and spec.run is None):
        why = "the modules are prebuilt"
    yield Choice("headers", names or "none", why)
    if spec.fabric:
        parts = ", ".join(package.name for package in spec.fabric)
        why = "NVSwitches need it" if spec.switches else "it is installed"
        beside = (
            f"; with {' and '.join(package.name for package in spec.subnet)} for NVLink 5"
            if spec.subnet
            else ""
        )
        yield Choice("fabric", parts, f"{why}, in exactly the driver's version{beside}")


def _toolkit(host: Host, desired: Desired) -> Choice:
    if not desired.toolkit:
        return Choice("toolkit", "none", "the inventory has `toolkit: none`")
    version = upstream(desired.toolkit[0].version)
    if host.toolkit not in ("auto", "nvidia-docker2"):
        why = f"the inventory asks for {host.toolkit}"
    elif version == default_version():
        why = "gpunode was tested with it"
    else:
        why = f"it is installed, and newer than {default_version()}"
    with_wrapper = (
        "; with nvidia-docker2, which the inventory asks for" if host.toolkit == "nvidia-docker2" else ""
    )
    return Choice("toolkit", version, why + with_wrapper)


def _kubelet(facts: Facts, desired: Desired) -> Iterator[Choice]:
    start, kubelet = desired.kubelet, facts.kubelet
    minor = minors.minor(kubelet.version) if kubelet else None
    if start is None or kubelet is None or minor is None:
        return
    yield Choice("runtime", desired.runtime, _runtime(facts, minor, start))
    unit = start.command[0] if start.command and start.command[0] else start.place.unit
    setter = start.setters.get(start.place.variable)
    own = f", and your arguments from {setter}" if setter else ""
    yield Choice("kubelet", unit, f"it starts kubelet {kubelet.version} with {start.config_path}{own}")
    for name, state in desired.gates.items():
        chosen = f"without {name}" if state is None else f"{name}={str(state).lower()}"
        yield Choice("gate", chosen, desired.gate_reasons[name])


def _runtime(facts: Facts, minor: int, start: KubeletStart) -> str:
    if start.place.brings:
        return f"it is part of {start.place.unit}"
    endpoint = runtime_decision.endpoint(facts, minor, start)
    if endpoint is None:
        return f"kubelet 1.{minor} has dockershim, and no other runtime is configured"
    return f"the kubelet's endpoint is {endpoint or 'the default'}"
