"""Report every host's chain, from the PCI bus to a finished CUDA pod, link by link."""

import time
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import TypeAlias, get_args

from gpunode.cluster import rights
from gpunode.cluster.api.kinds import Object
from gpunode.commands.causes import report_causes
from gpunode.commands.differences import report_differences
from gpunode.engine import accepted, converge, fleet, history, impact, nodes
from gpunode.engine.chain import judge_host, stop_at_broken
from gpunode.engine.exit_codes import DRIFT, REFUSED
from gpunode.engine.member import Member, Members
from gpunode.engine.proof import LAYERS, Walk, prove, read_pods, read_states
from gpunode.engine.session import Session
from gpunode.errors import NO_RIGHTS, ClusterError, Problem
from gpunode.host import wire
from gpunode.links.plugin import published
from gpunode.links.pod.work import judge_work
from gpunode.links.runtime import link as runtime
from gpunode.model import Event, Gpu, Host, Layer, OnEvent, Outcome, Verdict
from gpunode.wording import advise, few, lines, several

Chain: TypeAlias = tuple[Verdict, ...]


def verify(session: Session, *, run: bool) -> int:
    """Judge and report every link; the exit code. `run`: with pods."""
    reporter, inventory = session.reporter, session.inventory
    nodes.check_kubeconfig(inventory)
    members = session.for_each_host(converge.probe_and_plan, plans=False)
    chains = judge_chains(session, members, run=run)
    if run:
        chains = _with_containers(session, members, chains)
    chains = _with_work(session, members, chains)
    broken = list(find_broken(chains))
    shown = _with_impact(session, members, chains)
    for host, chain in sorted(shown.items(), key=lambda item: item[0] in broken):  # last: what is read first
        reporter.links(host, chain)
    for member in members:
        for restart in member.facts.unconfirmed if member.facts else ():
            reporter.note(advise(f"{member.host.name}: {restart}. `gpunode provision` confirms it."))
    for host, when in _find_taken_back(session, members, broken).items():
        reporter.note(f"{host}: not provisioned ({when}).")  # its chain has the fix
    if inventory.cluster.plugin is None:
        reporter.note(
            "The inventory has no `cluster.plugin`, so nothing in the cluster was checked. Add it to check the whole chain."
        )
    report_differences(members, session.inventory.path, reporter)
    report_causes(chains, reporter)
    reporter.total(summarize(chains), count_links(chains))
    unreachable = {
        member.host.name for member in members if member.outcome and member.outcome.status == "unreachable"
    }
    if set(broken) - unreachable:
        return 1
    if any(link.lacks_right for chain in chains.values() for link in chain):
        return REFUSED
    return 3 if broken else DRIFT if find_pending(chains) else 0


def _find_taken_back(session: Session, members: Members, broken: Collection[str]) -> Mapping[str, str]:
    """As `history.find_taken_back`, without hosts that were set up since with another inventory: a `forget` leaves no journal."""
    known = [(member.host.name, member.facts) for member in members if member.facts]
    changed = {host for host, seen in known if seen.holds or any(trace.run for trace in seen.traces.values())}
    return history.find_taken_back(Path(session.inventory.path), broken, changed) if broken else {}


def judge_chains(session: Session, members: Members, *, run: bool) -> Mapping[str, Chain]:
    """Every link of every host; those above the kubelet only if the inventory names a plugin. `run`: with pods."""
    below = {member.host.name: judge_host(member.outcome) for member in members if member.outcome}
    if session.inventory.cluster.plugin is None:
        now, records = time.time(), accepted.folder(session.inventory)
        return {
            member.host.name: accepted.judge_record(
                records, member, below[member.host.name], list_uuids(member.gpus), now
            )
            for member in members
            if member.host.name in below
        }
    lost = tuple(member for member in members if any(map(_has_lost_gpus, below[member.host.name])))
    reported = _read_lost_gpus(session, lost) if lost else {}
    below = {host: _explain(chain, reported.get(host, "")) for host, chain in below.items()}
    sound = tuple(
        member
        for member in members
        if not any(link.status == "broken" or link.lacks_right for link in below[member.host.name])
    )
    above = _judge_cluster(session, sound, run=run) if sound else {}

    def join(host: str, chain: Chain) -> Chain:
        judged = above.get(host)
        layers = LAYERS if run or judged is None else LAYERS[:-1]
        verdicts = judged or ()
        return stop_at_broken([*chain, *verdicts, *map(Verdict.unknown, layers[len(verdicts) :])])

    return {host: join(host, chain) for host, chain in below.items()}


def list_uuids(gpus: Iterable[Gpu]) -> list[str]:
    """What programs see of these GPUs: of one with MIG its devices."""
    return [uuid for gpu in gpus for uuid in ([part.uuid for part in gpu.mig or ()] or [gpu.uuid])]


def _judge_cluster(session: Session, members: Members, *, run: bool) -> Mapping[str, Chain]:
    """The cluster's links of the hosts whose own links hold."""
    try:
        api, untried = nodes.connect(session.inventory), ""
        if run and (
            missing := rights.find_missing(api, rights.of_proof(session.inventory.cluster.namespace))
        ):
            untried = f"not tried: no right to {', '.join(rights.name_all(missing))}"
        walk = Walk(api, session.inventory, session.reporter, acts=False, run=run and not untried)
        pods = (Verdict.unknown("pod", untried, Problem(NO_RIGHTS, untried, "pod")),) if untried else ()
        return {member.host.name: (*member.verdicts, *pods) for member in prove(walk, members)}
    except ClusterError as failure:
        error = nodes.name_rights(session.inventory, failure)
        text = "the Kubernetes API does not answer as it should"
        node = Verdict.broken("node", text, error.message, error.hint, error.problem.code)
        if node.lacks_right:
            text = "not judged: this user has no right to read the cluster"
            node = Verdict.unknown("node", text, node.problem)
        chain = (node, *map(Verdict.unknown, LAYERS[1:]))
        return {member.host.name: chain for member in members}


def _has_lost_gpus(link: Verdict) -> bool:
    """True if GPUs do not answer the driver."""
    return link.layer == "NVML" and link.status == "broken"


def _explain(chain: Chain, why: str) -> Chain:
    """The chain with the plugin's report on GPUs that do not answer."""
    return tuple(
        link.with_cause(lines((why, link.cause))) if why and _has_lost_gpus(link) else link for link in chain
    )


def _read_lost_gpus(session: Session, members: Members) -> Mapping[str, str]:
    """Why GPUs do not answer, by host, from the device plugin, which receives their Xids. Ignores a cluster that cannot be asked: it
    has its own link."""
    reasons: dict[str, str] = {}
    with suppress(ClusterError):
        walk = Walk(
            nodes.connect(session.inventory), session.inventory, session.reporter, acts=False, run=False
        )
        placed = nodes.locate(walk.api, members, seconds=0, notify=session.reporter.note)
        states = read_states(walk, placed)
        for member in placed:
            if member.node and (pod := states[member.node.name].pod):
                why = published.why_missing(published.read(walk.api, member.node, pod))
                reasons[member.host.name] = why.what if why else published.outage(walk.api, member.node, pod)
    return reasons


def _with_containers(
    session: Session, members: Sequence[Member], chains: Mapping[str, Chain]
) -> Mapping[str, Chain]:
    """The chains, with the link `container` for hosts where no pod can run."""
    outcomes = {
        member.host.name: member.outcome
        for member in members
        if member.outcome and runtime.needs_container(chains[member.host.name])
    }
    plugin = session.inventory.cluster.plugin
    verdicts: dict[str, Verdict] = {}

    def task(host: Host, emit: OnEvent) -> Outcome:
        outcome = outcomes[host.name]
        emit(Event("stage", host.name, "run a GPU container"))
        job = wire.container_job(runtime.runtime_of(outcome), plugin.reference if plugin else "")
        for message in session.visits[host.name].ask(job):
            if message["type"] == "container" and outcome.facts is not None:
                verdicts[host.name] = runtime.judge_container(message, outcome.facts)
        return outcome

    for item in fleet.run(
        [host for host in session.hosts if host.name in outcomes], task, forks=session.forks
    ):
        if isinstance(item, Event):
            session.reporter.event(item)
        elif item.host not in verdicts:  # the connection was lost since
            verdicts[item.host] = Verdict.unknown("container", f"not run: {item.why or 'no answer'}")

    def add(chain: Chain, verdict: Verdict | None) -> Chain:
        # The missing right says why.
        if verdict is None or (verdict.status == "unknown" and any(link.lacks_right for link in chain)):
            return chain
        return runtime.insert_container(chain, verdict)

    return {host: add(chain, verdicts.get(host)) for host, chain in chains.items()}


def _with_impact(session: Session, members: Members, chains: Mapping[str, Chain]) -> Mapping[str, Chain]:
    """The chains; the fix of a broken link has what it interrupts, as far as that is known."""
    broken = [member for member in members if member.host.name in find_broken(chains) and member.has_changes]
    if not broken:
        return chains
    inventory, api = session.inventory, None
    placed: Members = ()
    if inventory.cluster.plugin is not None:
        with suppress(ClusterError):
            api = nodes.connect(inventory)
            placed = nodes.locate(api, broken, seconds=0, notify=lambda _: None)
    known = impact.find_impact(api, inventory.cluster.namespace, broken, placed, strict=False)
    by_host = {member.host.name: member for member in known}

    def add(host: str, link: Verdict) -> Verdict:
        if host not in by_host or link.status != "broken":
            return link
        clustered = inventory.cluster.plugin is not None
        return link.with_cause(link.cause, impact.add_to_fix(link.fix, by_host[host], clustered=clustered))

    return {host: tuple(add(host, link) for link in chain) for host, chain in chains.items()}


def _with_work(session: Session, members: Members, chains: Mapping[str, Chain]) -> Mapping[str, Chain]:
    """The chains, with the link `work` for hosts whose GPUs containers have, or where the kubelet refused pods. Without an answer of
    the cluster, by the host alone; none for a host that this user may not read."""
    pods: Mapping[str, Sequence[Object]] = {}
    if session.inventory.cluster.plugin is not None:
        with suppress(ClusterError):
            api = nodes.connect(session.inventory)
            pods = read_pods(api, nodes.locate(api, members, seconds=0, notify=session.reporter.note))
    verdicts = {
        member.host.name: judge_work(member.facts, pods.get(member.host.name, ()))
        for member in members
        if member.facts and not chains[member.host.name][0].lacks_right
    }
    return {
        host: (*chain, verdict) if (verdict := verdicts.get(host)) else chain
        for host, chain in chains.items()
    }


CHAIN: tuple[Layer, ...] = get_args(Layer)[3:]  # `ssh`, `container` and `work` are not always there
NAMED = 5

Chains = Mapping[str, Sequence[Verdict]]  # by host


def find_broken(chains: Chains) -> dict[str, Layer]:
    """Host -> its first broken link, of hosts that have one."""
    pairs = (
        (host, [link.layer for link in links if link.status == "broken"]) for host, links in chains.items()
    )
    return {host: layers[0] for host, layers in pairs if layers}


def find_pending(chains: Chains) -> list[str]:
    """Hosts that work, and whose plan replaces something."""
    return [host for host, links in chains.items() if any(link.is_pending for link in links)]


def list_unchecked(links: Iterable[Verdict]) -> tuple[Layer, ...]:
    """The links that were not checked, in causal order."""
    judged = {link.layer for link in links if link.status != "unknown"}
    return tuple(layer for layer in CHAIN if layer not in judged)


def summarize(chains: Chains) -> str:
    """`1 of 3 hosts broken: gpu-03 (module); 2 hosts OK: 10 of 11 links checked; not checked: pod`."""
    bad = find_broken(chains)
    unread = [host for host, links in chains.items() if all(link.status == "unknown" for link in links)]
    alike: dict[tuple[Layer, ...], list[str]] = {}
    for host, links in chains.items():
        if host not in bad and host not in unread:
            alike.setdefault(list_unchecked(links), []).append(host)
    parts = []
    if bad:
        named = few([f"{host} ({layer})" for host, layer in bad.items()], NAMED)
        parts.append(f"{len(bad)} of {several(len(chains), 'host')} broken: {named}")
    if unread:
        parts.append(f"{several(len(unread), 'host')} not checked: {few(unread, NAMED)}")
    good = f"{several(len(chains) - len(bad) - len(unread), 'host')} OK: "
    if len(alike) == 1:
        (missing,) = alike
        parts.append(good + _format_checked(missing, "; "))
    elif alike:
        each = (f"{few(hosts, NAMED)}: {_format_checked(missing, ', ')}" for missing, hosts in alike.items())
        parts.append(good + "; ".join(each))
    if waiting := find_pending(chains):
        parts.append(f"changes pending on {few(waiting, NAMED)}: `gpunode provision` makes them")
    return "; ".join(parts)


def count_links(chains: Chains) -> dict[str, object]:
    """The summary as JSON values; `not_checked` is layer -> count of hosts."""
    missing = Counter(layer for links in chains.values() for layer in list_unchecked(links))
    total = len(CHAIN) * len(chains)
    return {
        "hosts": len(chains),
        "broken": len(find_broken(chains)),
        "pending": len(find_pending(chains)),
        "links": total,
        "checked": total - missing.total(),
        "not_checked": dict(missing),
    }


def _format_checked(missing: Sequence[Layer], mark: str) -> str:
    text = f"{len(CHAIN) - len(missing)} of {len(CHAIN)} links checked"
    return f"{text}{mark}not checked: {', '.join(missing)}" if missing else text
