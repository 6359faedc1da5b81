"""The cluster's links of hosts, in order: node, plugin, capacity, pod. `provision` makes them, `verify` changes nothing; both judge them
by the same functions. After a broken link a host takes no further part."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from gpunode.cluster.api import Api, side_by_side
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.objects.difference import Difference
from gpunode.contract.status import LAYOUT
from gpunode.engine import accepted, impact, nodes
from gpunode.engine.chain import find_manual_fix
from gpunode.engine.member import Member, Members
from gpunode.engine.phases import ACCEPTANCE, PLUGIN, PODS, WAITS, Laps
from gpunode.engine.reporter import ForPrograms, Reporter, progress
from gpunode.errors import ApiConnectionLost, ClusterError, Layer, Problem
from gpunode.links import plugin
from gpunode.links.capacity import link as capacity
from gpunode.links.capacity import mig, slices
from gpunode.links.kubelet import link as kubelet
from gpunode.links.machine.link import check_count
from gpunode.links.node import Node, cordon, parse
from gpunode.links.node.link import judge_missing, judge_node, read_gates
from gpunode.links.plugin import Scope, condition, daemonset, other_owners, published
from gpunode.links.plugin.daemonset import State
from gpunode.links.plugin.link import judge_image, judge_owned, judge_plugin
from gpunode.links.pod import vectoradd as pods
from gpunode.links.pod.link import judge_isolation, judge_pod
from gpunode.links.pod.requests import Target, published_target, target
from gpunode.links.pod.run_pod import run_strangers
from gpunode.links.pod.vectoradd import NodeResult, Result
from gpunode.model import Inventory, PluginConfig, Verdict
from gpunode.wording import Advice, Command, advise, few, several

LAYERS: tuple[Layer, ...] = ("node", "plugin", "capacity", "pod")
PLUGIN_SECONDS = 180.0  # for the plugin to run, and again for its GPUs to be offered
PODS_SECONDS = 180.0
VERIFY = advise("`gpunode verify` shows why.")


@dataclass(frozen=True, slots=True)
class Walk:
    """The input of every link. `acts`: links are made before they are judged. `run`: with test pods. `holder`: of the cluster's lease.
    `taint`: taints the nodes that take no pods before their proof. `accept`: the level of the acceptance after the proof; "": none. `note`: as of
    `nodes.apply_labels`. `laps`: the time of each stage goes there."""

    api: Api
    inventory: Inventory
    reporter: Reporter
    acts: bool
    run: bool
    holder: str = ""
    taint: Callable[[Members], Members] = lambda members: members
    accept: str = ""
    note: nodes.Note = lambda *_: None
    laps: Laps = field(default_factory=Laps)
    # By a DRA driver, by node
    published: dict[str, tuple[slices.Published, ...]] = field(default_factory=dict)

    @property
    def namespace(self) -> str:
        return self.inventory.cluster.namespace

    @property
    def config(self) -> PluginConfig | None:
        return self.inventory.cluster.plugin_config


def prove(walk: Walk, members: Members) -> Members:
    """The members with the verdicts of the cluster's links. If it `acts`, it reports why hosts that are right are not proven."""
    owners = other_owners.dra_owners(walk.api)
    members = _locate(walk, members)
    if walk.acts:
        members = walk.taint(members)  # before the plugin offers GPUs
        walk.laps.end(WAITS)
        outdated = _find_outdated_pods(walk, members)  # before labels bring new pods
        members = nodes.apply_labels(walk.api, members, owners, walk.note)
        states = _deploy(
            walk,
            [
                member
                for member in members
                if not _by_dra(member) and not (member.node and owners.reason(member.node))
            ],
            outdated,
        )
    else:
        states = read_states(walk, members)
    walk, members = _read_published(walk, members, owners)
    members = _judge(members, lambda member, node: _judge_node(walk, member, node, states))
    members = _judge(members, lambda member, node: _judge_plugin(walk, member, node, states, owners))
    if walk.acts:
        _write_features(walk, members)
        _wait_for_capacity(walk, members, states)
    members = _judge(members, lambda member, node: _judge_capacity(walk, member, node, states))
    if walk.acts:
        for member in members:
            if member.host_ok:
                report_problem(walk.reporter, member)
    walk.laps.end(PLUGIN)
    if walk.run:
        members = _judge_pods(walk, members, states)
    walk.laps.end(PODS)
    if walk.acts:
        members = _accept(walk, members)
    members = _judge_records(walk, members)
    walk.laps.end(ACCEPTANCE)
    return members


def _read_published(walk: Walk, members: Members, owners: other_owners.Owners) -> tuple[Walk, Members]:
    """The walk with what DRA drivers publish. If it `acts`, it waits for the GPUs of nodes to which a driver comes, or has come. The
    members that they are to serve are excluded where the API server has no DRA, or does not say."""
    there = [member for member in members if _by_dra(member) and member.active and member.node]
    end = time.monotonic() + (PLUGIN_SECONDS if walk.acts else 0.0)
    while there:
        try:
            reason = slices.unserved(walk.api)
            published = {} if reason else slices.read(walk.api)
        except ApiConnectionLost:
            raise
        except ClusterError as error:
            reason = error.problem
        if reason:
            return walk, tuple(member.exclude(reason) if member in there else member for member in members)
        late = [
            member.node.name
            for member in there
            if member.node
            and (owners.objects or published.get(member.node.name))
            and slices.judge_devices(member.node, published.get(member.node.name, ()), member.gpus).status
            != "ok"
        ]
        if not late or time.monotonic() >= end:
            return replace(walk, published=published), members
        progress(walk.reporter)(f"waiting for the DRA driver to publish the GPUs of {few(late, 3)}")
        time.sleep(1)
    return walk, members


def _accept(walk: Walk, members: Members) -> Members:
    """The members after their acceptance, if it is asked for, or required and due; excluded where it failed."""
    now, notify, records = time.time(), progress(walk.reporter), accepted.folder(walk.inventory)
    proven = [
        member
        for member in members
        if member.active and member.host_ok and not member.in_use and not _by_dra(member)
    ]
    due = [
        member
        for member in proven
        if walk.run and accepted.is_due(records, member, _uuids(walk, member), now)
    ]
    if not (walk.accept or due):
        return members
    from gpunode.engine import acceptance  # few runs need it

    ended = acceptance.accept(
        walk.api,
        walk.inventory,
        proven if walk.accept else due,
        walk.accept or accepted.REQUIRED,
        walk.reporter,
        notify,
        holder=walk.holder,
    )
    return acceptance.exclude_failed(members, ended)


def _uuids(walk: Walk, member: Member) -> tuple[str, ...]:
    """The UUIDs that pods on the member's node see."""
    name = member.node.name if member.node else ""
    return target(walk.config, name, member.gpus, member.labels).uuids


def _judge_records(walk: Walk, members: Members) -> Members:
    """The members with what is known of their acceptance."""
    now, records = time.time(), accepted.folder(walk.inventory)

    def judge(member: Member) -> Member:
        if not member.active or member.node is None:
            return member
        verdicts = accepted.judge_record(records, member, member.verdicts, _uuids(walk, member), now)
        after = replace(member, verdicts=verdicts)
        if walk.acts and after.problem and member.problem is None:
            report_problem(walk.reporter, after)
        return after

    return tuple(map(judge, members))


def report_problem(reporter: Reporter, member: Member) -> None:
    """Report why the host is not proven, if a problem is known."""
    if problem := member.problem:
        about = problem.subject if member.reason else member.node.name if member.node else member.host.name
        reporter.problem(replace(problem, subject=about), member.host.name)


def _judge(members: Members, judge: Callable[[Member, Node], Verdict]) -> Members:
    """The members with one more verdict on each that still takes part."""

    def add_verdict(member: Member) -> Member:
        if not member.active or member.node is None:
            return member
        return replace(member, verdicts=(*member.verdicts, judge(member, member.node)))

    return tuple(side_by_side(add_verdict, members))


def _locate(walk: Walk, members: Members) -> Members:
    """The members with their nodes (if it `acts`, waits for them), or with the verdict that they have none."""
    seconds = 0.0
    if walk.acts:
        members, seconds = tuple(map(_begin_proof, members)), nodes.REGISTER_SECONDS
    located = nodes.locate(walk.api, members, seconds=seconds, notify=progress(walk.reporter))
    return tuple(
        replace(after, verdicts=(judge_missing(after.reason),))
        if after.node is None and after.reason and before.reason is None
        else after
        for before, after in zip(members, located, strict=True)
    )


def _begin_proof(member: Member) -> Member:
    """The member before its proof; excluded if the host itself is not right."""
    if member.reason is not None or member.outcome is None:
        return member
    if member.host_ok:  # what was known of its node is older than the host's changes
        return replace(member, node=None, verdicts=(), result=None)
    return member.exclude(Problem(member.outcome.status, f"{member.outcome.status}: {member.outcome.why}"))


def _judge_node(walk: Walk, member: Member, node: Node, states: Mapping[str, State]) -> Verdict:
    """The node's verdict; if gates are desired, the kubelet is asked which it has in force."""
    state = states.get(node.name)
    seen = state.node if state else node
    # gpunode lifts its own cordon after the proof; another's is in nobody's way where no pod is run.
    waits = walk.acts and (not walk.run or cordon.TAINT in seen.taints)
    verdict = judge_node(seen, cordoned=waits, unproven=walk.acts)
    if verdict.status == "broken" or member.outcome is None or not kubelet.desired_gates(member.outcome):
        return verdict
    return kubelet.compare_gates(verdict, member.outcome, read_gates(walk.api, node.name))


def _judge_plugin(
    walk: Walk, member: Member, node: Node, states: Mapping[str, State], owners: other_owners.Owners
) -> Verdict:
    if _by_dra(member):
        now = walk.api.get("Node", node.name)
        return slices.judge_driver(parse(now) if now else node, walk.published.get(node.name, ()))
    if owned := owners.reason(node):
        return judge_owned(owned)
    if member.outcome and (image := judge_image(member.outcome)):
        return image
    state = states[node.name]
    if member.no_driver and state.node.ready:
        # A plan has shown a link that it does not fix, with NVML's words
        broken = member.outcome and find_manual_fix(member.outcome)
        what, fix = (f"{broken.layer} is broken", broken.fix) if broken else (member.no_driver, VERIFY)
        state = replace(state, reason=Problem("no-driver", what, fix=fix))
    unfit = mig.problem(walk.config, member.gpus, member.labels, member.layouts)
    if unfit and state.reason and state.reason.code == LAYOUT:
        return judge_plugin(state, unfit.fix)
    verdict = judge_plugin(state, "" if walk.acts else Advice(Command("provision")))
    return (
        condition.judge(walk.api, verdict, state)
        if walk.inventory.cluster.plugin_publish.condition
        else verdict
    )


def _find_outdated_pods(walk: Walk, members: Members) -> set[str]:
    """UIDs of the plugin's pods whose containers keep a driver or a runtime that this run has changed."""
    changed = [
        member.node.name
        for member in members
        if member.node and member.outcome and impact.outdates_pods(member.outcome.applied, member.facts)
    ]
    return {pod["metadata"]["uid"] for pod in plugin.pods_on(walk.api, walk.namespace, changed)}


def read_states(walk: Walk, members: Members) -> dict[str, State]:
    """The plugin's state on the members' nodes, by node."""
    own_nodes = [member.node for member in members if member.node]
    by_node = daemonset.by_node(walk.api.find("Pod", walk.namespace, labels=daemonset.SELECTOR)[0])

    def read(node: Node) -> State:
        return daemonset.read_state(walk.api, walk.namespace, node, by_node.get(node.name))

    return {state.node.name: state for state in side_by_side(read, own_nodes)}


def read_pods(api: Api, members: Members) -> dict[str, list[Object]]:
    """The pods of the members' nodes, by host."""
    placed = [(member.host.name, member.node.name) for member in members if member.node]
    read = side_by_side(lambda pair: api.find("Pod", fields=f"spec.nodeName={pair[1]}")[0], placed)
    return {host: items for (host, _), items in zip(placed, read, strict=True)}


def _deploy(walk: Walk, members: Sequence[Member], renew: set[str]) -> dict[str, State]:
    """Deploy the plugin to the members' nodes; its state on each. A node that the API server still reported as Ready can turn NotReady
    just after its kubelet started: it is waited for once."""
    going = {member.node.name: member for member in members if member.active and member.node}
    if not going:
        return {}
    hopeless = [name for name, member in going.items() if member.no_driver]
    scope, spec = Scope(only=going, renew=renew, hopeless=hopeless), nodes.spec_of(walk.inventory)
    notify = progress(walk.reporter)
    rollout = plugin.deploy(walk.api, spec, scope, seconds=PLUGIN_SECONDS, notify=notify)
    report_made(walk.reporter, rollout.differences)
    states = rollout.states
    flapped = [
        replace(member, node=None)
        for name, member in going.items()
        if member.node and member.node.ready and name in states and not states[name].node.ready
    ]
    if flapped:
        nodes.locate(walk.api, flapped, seconds=nodes.REGISTER_SECONDS, notify=notify)
        states = plugin.deploy(walk.api, spec, scope, seconds=PLUGIN_SECONDS, notify=notify).states
    gone = Problem("no-node", "the node is gone, or has lost its label")
    return {
        name: states.get(name) or State(member.node, None, gone)
        for name, member in going.items()
        if member.node
    }


def report_made(reporter: Reporter, differences: Sequence[Difference]) -> None:
    made = [(each.action, each.what) for each in differences if each.is_change]
    reporter.rows("object", ("action", "object"), made)


def _write_features(walk: Walk, members: Members) -> None:
    """Write the labels as of GPU feature discovery that the inventory asks for; a label that cannot be written is reported alone."""
    for member in members:
        try:
            nodes.write_features(walk.api, member, walk.config, walk.note)
        except ApiConnectionLost:
            raise
        except ClusterError as error:
            walk.reporter.problem(error.problem, member.host.name)


def _wait_for_capacity(walk: Walk, members: Members, states: dict[str, State]) -> None:
    """Wait until the nodes offer all expected units, and update the nodes in `states`."""
    end, notify = time.monotonic() + PLUGIN_SECONDS, progress(walk.reporter)
    for member in members:
        if not member.active or member.node is None or _by_dra(member):
            continue
        name = member.node.name
        expected = capacity.expected_units(walk.config, member.gpus, member.labels)
        left = max(0.0, end - time.monotonic())
        try:
            node = capacity.wait_allocatable(
                walk.api, name, expected, namespace=walk.namespace, seconds=left, notify=notify
            )
        except ApiConnectionLost:
            raise
        except ClusterError:  # the judge says why
            item = walk.api.get("Node", name)
            node = parse(item) if item else member.node
        states[name] = replace(states[name], node=node)


def _judge_capacity(walk: Walk, member: Member, node: Node, states: Mapping[str, State]) -> Verdict:
    """The node offers all of its host's GPUs, and these are all that the inventory expects."""
    if _by_dra(member):
        verdict = slices.judge_devices(node, walk.published.get(node.name, ()), member.gpus)
    else:
        verdict = capacity.judge_capacity(
            walk.api,
            states[node.name],
            member.gpus,
            config=walk.config,
            namespace=walk.namespace,
            layouts=member.layouts,
        )
    problem = check_count(member.host.gpus, member.facts) if member.facts else None
    if verdict.status != "ok" or problem is None:
        return verdict
    return Verdict.broken("capacity", verdict.text, problem.what, problem.fix, problem.code)


def _judge_pods(walk: Walk, members: Members, states: Mapping[str, State]) -> Members:
    """The last link: vectoradd on the free GPUs, and for isolated hosts a pod that requests no GPU."""
    notify = progress(walk.reporter)
    going = [member for member in members if member.active and member.node]
    if not going:
        return members
    run = nodes.pod_run(walk.api, walk.inventory, PODS_SECONDS, notify, holder=walk.holder)
    aims = [_target(walk, member, member.node) for member in going if member.node]
    results = pods.run(walk.api, aims, run)
    if walk.acts:
        show_results(results, walk.reporter)
    by_node = {result.node: result for result in results}
    isolated = [member.node for member in going if member.node and member.host.isolation]
    strangers = run_strangers(walk.api, isolated, run) if isolated else {}

    def judge(member: Member) -> Member:
        if not member.active or member.node is None:
            return member
        state = states.get(member.node.name)
        result, pod, verdicts = by_node[member.node.name], state and state.pod, member.verdicts
        failed = not all(ran.passed for ran in result.results)
        status = published.read(walk.api, member.node, pod) if pod and (failed or result.shared) else None
        why = published.why_missing(status) if status and failed else None
        unlimited = published.why_unlimited(status) if status and result.shared else ""
        verdict = judge_pod(result, why.what if why else "", unlimited)
        if verdict.status == "broken" and not _by_dra(member):
            unfit = mig.problem(walk.config, member.gpus, member.labels, member.layouts)
            verdict = capacity.with_mig(verdict, unfit)
        if member.node.name in strangers:
            verdict = judge_isolation(verdict, strangers[member.node.name])
        if walk.acts and verdict.status == "broken" and member.problem is None:
            report_problem(walk.reporter, replace(member, verdicts=(verdict,)))
        return replace(member, result=result, verdicts=(*verdicts, verdict))

    return tuple(map(judge, members))


def _by_dra(member: Member) -> bool:
    return member.host.allocation == "dra"


def _target(walk: Walk, member: Member, node: Node) -> Target:
    if not _by_dra(member):
        return target(walk.config, node.name, member.gpus, member.labels)
    return published_target(node.name, walk.published.get(node.name, ()))


def report_proofs(members: Members, reporter: Reporter) -> None:
    """Report a row per host: whether it is verified, the proof, and the broken link."""
    rows = []
    for member in members:
        problem = member.problem
        link = ForPrograms((problem and problem.layer) or ""), ForPrograms(problem.code if problem else "")
        node = member.node.name if member.node else ""
        rows.append((member.host.name, node, *describe_proof(member), *link))
    reporter.rows("verified", ("host", "node", "result", "proof", "layer", "code"), rows)


def describe_proof(member: Member) -> tuple[str, str]:
    """Whether a host is verified (as text), and the proof."""
    result, uuids = member.result, member.result.expected if member.result else ()
    if member.in_use and result:
        if member.outcome and member.outcome.status == "changed":
            return "in use", advise(
                f"changed; not verified now: {result.why}; `gpunode verify` verifies it later"
            )
        return "in use", f"nothing to change; not verified now: {result.why}"
    if problem := member.problem:
        texts = [text.splitlines()[0] for text in (problem.what, problem.cause) if text]
        return "not verified", ": ".join(dict.fromkeys(texts))
    if member.outcome and not member.host_ok:
        return "not verified", f"{member.outcome.status}: {member.outcome.why}".splitlines()[0]
    if result is None:
        offered = next((verdict.text for verdict in member.verdicts if verdict.layer == "capacity"), "")
        return "not verified", f"{offered}; no pod was run on them"
    if not result.passed:
        return "not verified", result.why
    seen = dict.fromkeys(pod.uuid or pod.pod for pod in result.results)
    if not uuids:  # MIG devices that are not known
        return "verified", f"vectoradd passed on {', '.join(seen)}"
    parts = sum(uuid.startswith("MIG-") for uuid in uuids)
    kinds = [(len(uuids) - parts, "GPU"), (parts, "MIG device")]
    count = " and ".join(several(number, kind) for number, kind in kinds if number)
    if result.uncovered or len(seen) < len(uuids):
        where = " in a share" if result.shared else ""
        users = f"; in use by {few(result.users, 3)}" if result.users else ""
        return "verified", f"{len(seen)} of {count} passed{where}{users}"
    cordoned = len(member.facts.gpus) - len(member.gpus) if member.facts else 0
    return "verified", f"{count}, vectoradd passed on each" + (f"; {cordoned} cordoned" if cordoned else "")


def show_results(results: Sequence[NodeResult], reporter: Reporter) -> None:
    """Report a row per GPU with the number of its pods, and the GPUs without any."""
    alike: dict[tuple[str, ...], list[Result]] = {}
    for ran in (ran for result in results for ran in result.results):
        end = "passed" if ran.passed else "failed"
        alike.setdefault((ran.node, ran.uuid or ran.pod, end, ran.why), []).append(ran)
    rows: list[tuple[object, ...]] = [
        (node, same[0].uuid, same[0].gpu, end, len(same), max(ran.seconds for ran in same), why)
        for (node, _, end, why), same in alike.items()
    ]
    for result in results:
        why = f"in use by {', '.join(result.users)}" if result.users else ""
        rows += [(result.node, uuid, "", "not covered", 0, None, why) for uuid in result.uncovered]
    reporter.rows("vectoradd", ("node", "uuid", "gpu", "result", "pods", "seconds", "why"), rows)
