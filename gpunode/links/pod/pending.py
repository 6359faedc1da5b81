"""Why a pod is on no node: the causes, checked against the cluster's objects, in the order of what to do first. Pure.

The scheduler's message is read by a table. What the objects can show is judged by them; what they cannot, such as anti-affinity,
is reported in the scheduler's words.
"""

import re
from collections import Counter
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches

from gpunode.cluster.api.kinds import Object
from gpunode.cluster.pods import GPU
from gpunode.contract.promises import has_ended, pod_name
from gpunode.errors import Problem
from gpunode.links.node import GPU_LABEL, OFFERED, Node, drain, parse, taint
from gpunode.links.node.closed import changed_by, why_closed
from gpunode.links.pod import fit
from gpunode.wording import advise, few, lines, several

NAMED = 4  # pods of a node
SINGLE = 8  # nodes with a line each
UNKNOWN = "scheduler"  # code of a reason that is only quoted
DEFAULT_SCHEDULER = "default-scheduler"

# The scheduler's reasons and this module's code for each; "": the objects show it, or show that it has passed.
# source: kubernetes/kubernetes, the Reason constants of pkg/scheduler/framework/plugins/*, 1.16 to 1.36.
REASONS: Sequence[tuple[str, str, str]] = (
    (r"Insufficient \S+|Too many pods", "", ""),  # noderesources
    (r"node\(s\) didn't match (Pod's )?node (affinity|selector)", "", ""),  # nodeaffinity
    (r"node\(s\) had (untolerated )?taint", "", ""),  # tainttoleration
    (r"node\(s\) were unschedulable", "", ""),  # nodeunschedulable
    (r"unbound immediate PersistentVolumeClaims|persistentvolumeclaim \S+ (not found|is being deleted)", "", ""),  # volumebinding
    (r"node\(s\) had volume node affinity conflict|PersistentVolume's node affinity|no available volume zone",
     "volume-elsewhere", "Its volume is bound to other nodes: `kubectl get pv -o wide` shows which. Let it run there, or use another volume."),  # volumebinding, volumezone
    (r"didn't find available persistent volumes|not have enough free storage|non-existent pv",
     "volume-missing", "`kubectl get pv` shows the volumes: add a matching volume, or free storage."),  # volumebinding
    (r"exceed max volume count|no available disk|ReadWriteOncePod",
     "volume-busy", "Another pod uses the volume, or its node has no room for more volumes: `kubectl describe pvc` names the users."),  # nodevolumelimits, volumerestrictions
    (r"pod (anti-)?affinity|existing pods anti-affinity",
     "pod-affinity", "Its pod affinity, or that of running pods, excludes these nodes: see `spec.affinity` of both."),  # interpodaffinity
    (r"topology spread", "spread", "Relax `topologySpreadConstraints` of the pod, or label the nodes with their topology key."),  # podtopologyspread
    (r"free ports", "host-port", "A pod has the same `hostPort` there: end it, or use another port."),  # nodeports
    (r"requested node name", "node-name", "The pod's `nodeName` names no such node."),  # nodename
    (r"fewer than \d+ units of GPU memory are free", "", ""),  # gpunode's extender, as the next: share/fit
    (r"no single GPU has|no GPU of it has|no choice of its GPUs|fewer than \d+ GPUs|does not publish|publishes of its GPUs",
     "gpu-memory", advise("A share comes from one GPU: `gpunode share inspect` shows the free part of each GPU, and its pods. Ask for less, or wait.")),
    (r"resourceclaim|claims|DeviceClass|device class",
     "resource-claim", "`kubectl describe resourceclaim` in its namespace shows what its DRA driver waits for."),  # dynamicresources
)  # fmt: skip


@dataclass(frozen=True, slots=True)
class Waiting:
    """A pod that is on no node, and the cluster around it. `claims`: its PersistentVolumeClaims by name; None: not there.
    `wrong`: why a node does not offer all of its GPUs, by node, as its judges say. `models`: the accelerator that a node would be
    labelled with, by node; "": not known."""

    pod: Object
    nodes: Sequence[Object]
    pods: Sequence[Object]
    claims: Mapping[str, Object | None] = field(default_factory=dict)
    wrong: Mapping[str, Problem] = field(default_factory=dict)
    models: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class _Place:
    """One node as the pod finds it. `short`: extended resources of which it offers too little, even empty; `beyond`: of which it has
    too few, as far as its kubelet has counted them; `taken`: resources of which too little is `free` (in thousandths)."""

    item: Object
    node: Node
    selected: bool
    taints: Sequence[Mapping[str, str]]
    short: Sequence[str]
    beyond: Sequence[str]
    taken: Sequence[str]
    free: Mapping[str, int]
    users: Sequence[str]

    @property
    def fewer(self) -> bool:
        """It offers fewer GPUs than it has, as far as the cluster knows."""
        counted = any(unit.capacity for name, unit in self.node.resources.items() if name.startswith(OFFERED))
        unknown = self.node.labels.get(GPU_LABEL) == "true" and not counted
        return unknown or any(
            self.node.resources[name].capacity > self.node.resources[name].allocatable
            for name in self.short
            if name in self.node.resources
        )

    @property
    def has_room(self) -> bool:
        """An empty node has room for the pod, or may have once it offers all of its GPUs."""
        return not self.short or (self.fewer and not self.beyond)


def is_waiting(pod: Object) -> bool:
    """True for a pod that no scheduler has placed."""
    return not pod["spec"].get("nodeName") and (pod.get("status") or {}).get("phase", "Pending") == "Pending"


def message(pod: Object) -> str:
    """Why it was not scheduled, as the scheduler reports it; "" for nothing."""
    conditions = (pod.get("status") or {}).get("conditions") or []
    refused = (each for each in conditions if each["type"] == "PodScheduled" and each["status"] == "False")
    return next((str(each.get("message") or "") for each in refused), "")


def reasons(text: str) -> list[str]:
    """The scheduler's reasons in its message, without their counts: `0/5 nodes are available: 2 Insufficient nvidia.com/gpu, …`."""
    match = re.match(r"\d+/\d+ nodes are (?:un)?available: (.*?)(?:\.\s|\.?$)", " ".join(text.split()))
    if match is None:
        return [text] if text else []
    return [re.sub(r"^\d+ ", "", part) for part in re.split(r", (?=\d+ )", match[1])]


def suspects(pod: Object, nodes: Sequence[Object]) -> list[str]:
    """Nodes that the pod may run on, and that are not Ready, or offer fewer GPUs than they should: their judges know why."""
    places = _candidates(_places(Waiting(pod, nodes, ())))
    return [place.node.name for place in places if place.fewer or not place.node.ready]


def unlabelled(pod: Object, nodes: Sequence[Object]) -> list[str]:
    """Nodes whose model may show why the pod waits: it asks for a label `accelerator`, and no node has one."""
    places = _places(Waiting(pod, nodes, ()))
    able = [] if any("accelerator" in place.node.labels for place in places) else _able(places)
    if "accelerator" not in fit.keys(pod["spec"]) or any(place.selected for place in able):
        return []
    return [place.node.name for place in able]


def judge(waiting: Waiting) -> list[Problem]:
    """The causes, first what is to be done first; [] where none is known. `cause` has the evidence, a line each."""
    pod, places = waiting.pod, _places(waiting)
    steps: Sequence[Callable[[], Iterator[Problem]]] = (
        lambda: _gates(pod),
        lambda: _names(pod, places),
        lambda: _claims(waiting),
        lambda: _sizes(waiting, places),
        lambda: _selector(waiting, places),
        lambda: _nodes(waiting, places),
        lambda: _in_use(waiting, places),
        lambda: _scheduler(pod),
    )
    problems = [problem for step in steps for problem in step()]
    return problems or list(_retried(places))


def _gpus(pod: Object) -> dict[str, int]:
    """Extended resources that the pod asks for, in units."""
    return {name: amount // fit.MILLI for name, amount in fit.requests(pod).items() if "/" in name}


def asks(pod: Object) -> str:
    """`2 nvidia.com/gpu`, for people; "" for none."""
    return ", ".join(f"{count} {name}" for name, count in _gpus(pod).items())


def _places(waiting: Waiting) -> list[_Place]:
    spec, need, used = waiting.pod["spec"], fit.requests(waiting.pod), fit.used(waiting.pods)
    users = _users(waiting.pods, need)
    places = []
    for item in waiting.nodes:
        node = parse(item)
        room = {
            key: fit.thousandths(value)
            for key, value in ((item.get("status") or {}).get("allocatable") or {}).items()
        }
        has = used.get(node.name, Counter())
        counted = {key: amount for key, amount in need.items() if "/" in key or key in room}
        free = {key: room.get(key, 0) - has[key] for key in counted}
        short = [key for key, amount in counted.items() if "/" in key and amount > room.get(key, 0)]
        known = {key: unit.capacity for key, unit in node.resources.items() if unit.capacity}
        beyond = [key for key in short if key in known and need[key] > known[key] * fit.MILLI]
        taken = [key for key, amount in counted.items() if key not in short and amount > free[key]]
        places.append(
            _Place(
                item,
                node,
                fit.selects(spec, item),
                fit.untolerated(spec, item),
                short,
                beyond,
                taken,
                free,
                users.get(node.name, ()),
            )
        )
    return places


def _users(pods: Sequence[Object], need: Mapping[str, int]) -> dict[str, list[str]]:
    """Node -> pods with the resources that are needed, each with what it has, those with the most first."""
    by_node: dict[str, list[tuple[int, str]]] = {}
    for pod in pods:
        if not pod["spec"].get("nodeName") or has_ended(pod):
            continue
        units = sum(count for name, count in drain.asks(pod).items() if name in need)
        if units:
            by_node.setdefault(pod["spec"]["nodeName"], []).append((units, pod_name(pod)))
    return {
        node: [f"{name} ({units})" for units, name in sorted(having, reverse=True)]
        for node, having in by_node.items()
    }


def _gates(pod: Object) -> Iterator[Problem]:
    spec = pod["spec"]
    if gates := [gate["name"] for gate in spec.get("schedulingGates") or []]:
        yield Problem(
            "gated",
            f"its scheduling gate {', '.join(gates)} is closed",
            fix="The gate's controller (a queue such as Kueue) removes it on admission: see its queue.",
        )
    scheduler = spec.get("schedulerName") or DEFAULT_SCHEDULER
    if not gates and not (pod.get("status") or {}).get("conditions"):
        yield Problem(
            "no-scheduler",
            f"no scheduler has picked it up; it requests {scheduler}",
            fix=f"Check that {scheduler} runs: `kubectl get pods -A | grep scheduler`; or correct `schedulerName` of the pod.",
        )


def _names(pod: Object, places: Sequence[_Place]) -> Iterator[Problem]:
    """Resources that no node offers."""
    offered = Counter[str]()
    for place in places:
        offered.update({name: place.node.units[name] for name in place.node.offers})
    for name in _gpus(pod):
        if any(name in place.node.resources and place.node.resources[name].capacity for place in places):
            continue
        if name.startswith(OFFERED) and any(place.fewer for place in places):
            continue  # those nodes may be to offer it
        near = get_close_matches(name, offered, 1, 0.0) or ([GPU] if GPU in offered else [])
        there = ", ".join(f"{count} {each}" for each, count in offered.items())
        yield Problem(
            "no-such-resource",
            f"no node offers {name}",
            cause=f"The nodes offer {there}" if there else "No node offers GPUs",
            fix=f"Ask for {near[0]} in the pod's limits; `mig` and `cluster.plugin.config` in the inventory make other resources."
            if near
            else advise("`gpunode provision` makes hosts GPU nodes."),
        )


def _claims(waiting: Waiting) -> Iterator[Problem]:
    namespace = waiting.pod["metadata"].get("namespace", "default")
    for name, claim in waiting.claims.items():
        if claim is None:
            yield Problem(
                "no-claim",
                f"its PersistentVolumeClaim {name} does not exist",
                fix=f"Create it in namespace {namespace}, or correct the pod's volumes.",
            )
        elif (claim.get("status") or {}).get("phase") != "Bound" and "unbound immediate" in message(
            waiting.pod
        ):
            kind = (claim.get("spec") or {}).get("storageClassName") or "the default one"
            yield Problem(
                "claim-unbound",
                f"its PersistentVolumeClaim {name} has no volume yet",
                cause=f"storage class: {kind}",
                fix=f"`kubectl -n {namespace} describe pvc {name}` shows what its provisioner waits for.",
            )


def largest(pod: Object, nodes: Sequence[Object]) -> list[str]:
    """Nodes with the most of a resource of which the pod asks for more: the advice names them."""
    return [
        place.node.name for *_, most in _too_small(pod, _places(Waiting(pod, nodes, ()))) for place in most
    ]


def _sizes(waiting: Waiting, places: Sequence[_Place]) -> Iterator[Problem]:
    """More than any node has, even if all of its GPUs worked; with what else is wrong with the largest nodes."""
    for name, most, there in _too_small(waiting.pod, places):
        named = few([place.node.name for place in there], NAMED)
        wrong = [problem.what for place in there for problem in why_closed(place.item)]
        wrong += [
            f"{waiting.wrong[node].what}: see `gpunode why node {node}`"
            for node in (place.node.name for place in there)
            if node in waiting.wrong
        ]
        yield Problem(
            "too-many",
            f"no node has more than {most} {name}",
            cause=lines((f"{named}: {most}" + (" each" if len(there) > 1 else ""), *wrong)),
            fix=f"Ask for at most {most} in a pod, which runs on one node; split larger work into several pods.",
        )


def _too_small(pod: Object, places: Sequence[_Place]) -> Iterator[tuple[str, int, list[_Place]]]:
    """Each resource of which no node has enough, with the most that a node has, and these nodes."""
    for name, count in _gpus(pod).items():
        having = [place for place in places if name in place.node.resources]
        most = max((place.node.resources[name].capacity for place in having), default=0)
        if 0 < most < count and not any(place.fewer and not place.beyond for place in places):
            yield name, most, [place for place in having if place.node.resources[name].capacity == most]


def _able(places: Sequence[_Place]) -> list[_Place]:
    """Nodes with GPUs for the pod, whatever their labels."""
    return [place for place in places if place.has_room] or [place for place in places if place.node.offers]


def _selector(waiting: Waiting, places: Sequence[_Place]) -> Iterator[Problem]:
    """No node with GPUs has the labels that it requires."""
    pod = waiting.pod
    wanted = fit.selector(pod["spec"])
    able = _able(places)
    if not wanted or not able or any(place.selected for place in able):
        return
    keys = fit.keys(pod["spec"])
    shows = f"-L {','.join(keys)}" if keys else "--show-labels"
    models = {name: waiting.models.get(name, "") for name in unlabelled(pod, waiting.nodes)}
    known = set(models.values())
    asked = fit.values(pod["spec"], "accelerator") if models and all(known) else set()
    other = bool(asked) and not asked & known
    lacks = other and not {value.lower() for value in asked} & known
    alike: dict[str, list[str]] = {}
    for place in able:
        labels = [f"{key}={place.node.labels[key]}" for key in keys if key in place.node.labels]
        has = models[place.node.name] if other else ", ".join(labels)
        alike.setdefault(has or "has none of these labels", []).append(place.node.name)
    fix: str = f"Correct nodeSelector or affinity of the pod, or label a node; `kubectl get nodes {shows}` lists them."
    if other:
        fix = advise(
            f"No node has the label accelerator yet. Select a model that you have ({', '.join(alike)}), "
            "and run `gpunode label --accelerator` once."
        )
    elif any(_is_selected_with(pod, place, models[place.node.name]) for place in able if models):
        fix = advise("`gpunode label --accelerator` labels the nodes with their model.")
    yield Problem(
        "selector",
        f"no node {'has the GPU' if lacks else 'with GPUs for it has the labels'} that it requires: {', '.join(wanted)}",
        cause="\n".join(f"{few(nodes, NAMED)}: {has}" for has, nodes in alike.items()),
        fix=fix,
    )


def _is_selected_with(pod: Object, place: _Place, model: str) -> bool:
    """Whether the label `accelerator` would let the pod onto the node; "": a model that is not known may."""
    labels = {**place.node.labels, "accelerator": model}
    return not model or fit.selects(pod["spec"], {"metadata": {"name": place.node.name, "labels": labels}})


def _candidates(places: Sequence[_Place]) -> list[_Place]:
    """Nodes that could take the pod, were nothing in the way that passes."""
    return [place for place in places if place.selected and place.has_room]


def _nodes(waiting: Waiting, places: Sequence[_Place]) -> Iterator[Problem]:
    """Nodes that would have GPUs for it, and are NotReady, offer fewer than they have, or take no pods."""
    for place in _candidates(places):
        name, node = place.node.name, place.node
        closed = list(why_closed(place.item))
        if node.ready and place.short:
            why = waiting.wrong.get(name) or Problem("fewer", "")
            offers = ", ".join(_part(node, key) for key in place.short)
            users = f"in use there: {few(place.users, NAMED)}" if place.users else ""
            verify = advise(f"`gpunode verify --limit {name}` names the broken link and its fix.")
            yield Problem(
                why.code,
                f"{name} offers {offers}",
                None,
                name,
                lines((why.what, why.cause, users)),
                why.fix or verify,
                why.holders,
            )
        elif not node.ready and name in waiting.wrong:  # by its host: the cause
            yield waiting.wrong[name]
        yield from closed[: 1 if not node.ready else None]
    yield from _tainted([place for place in _candidates(places) if place.node.ready and not place.short])


def _part(node: Node, resource: str) -> str:
    counted = node.resources.get(resource)
    if counted and counted.capacity:
        return f"{counted.allocatable} of {counted.capacity} {resource}"
    return f"no {resource}"


def _tainted(places: Sequence[_Place]) -> Iterator[Problem]:
    """Taints that others set, each once with its nodes."""
    nodes: dict[tuple[str, str, str], list[str]] = {}
    setters: dict[tuple[str, str, str], str] = {}
    for place in places:
        if taint.run_of(place.node):
            continue
        for each in place.taints:
            key = each["key"], each.get("value", ""), each["effect"]
            nodes.setdefault(key, []).append(place.node.name)
            moment, manager = changed_by(place.item, "f:spec", "f:taints")
            setters.setdefault(key, f"taints last set by {manager} at {moment}" if manager else "")
    for (name, value, effect), names in nodes.items():
        text = f"{name}={value}:{effect}" if value else f"{name}:{effect}"
        yield Problem(
            "tainted",
            f"it does not tolerate the taint {text} of {few(names, NAMED)}",
            cause=setters[name, value, effect],
            fix=f"The node reports it itself: `kubectl describe node {names[0]}`."
            if name.startswith(fit.ALIVE)
            else f"If it may run there, add the toleration {{key: {name}, operator: Exists, effect: {effect}}} to the pod.",
        )


def _in_use(waiting: Waiting, places: Sequence[_Place]) -> Iterator[Problem]:
    """Nodes whose GPUs other pods have, closed ones last: opening them is not enough. And those with GPUs free and too little of
    something else."""
    pod = waiting.pod
    taken = [place for place in _candidates(places) if place.taken and not place.short and place.node.ready]
    taken.sort(key=_is_closed)
    need = _gpus(pod)
    busy = [place for place in taken if any(name in need for name in place.taken)]
    if busy:
        name = next(name for name in busy[0].taken if name in need)
        evidence = [
            f"{few([place.node.name for place in alike], NAMED)}: {free} free, in use by "
            + few([user for place in alike for user in place.users], NAMED)
            for free, alike in _alike(busy, name)
        ]
        holders = tuple(user.rpartition(" (")[0] for place in busy for user in place.users)
        if nominated := (pod.get("status") or {}).get("nominatedNodeName"):
            evidence.append(f"the scheduler ends pods of lower priority on {nominated} for it")
        elif lower := _lower(waiting, {place.node.name for place in busy if not _is_closed(place)}):
            never = pod["spec"].get("preemptionPolicy") == "Never"
            does = "the scheduler may end for it"
            if never:
                does = "its preemptionPolicy keeps the scheduler from ending"
            evidence.append(f"{does}, of lower priority: {few(lower, NAMED)}")
        ends = "`kubectl delete pod -n {} {}`".format(*holders[0].split("/", 1)) if holders else ""
        starts = "When its node is open, it starts" if _is_closed(busy[0]) else "Nothing is broken: it starts"
        yield Problem(
            "in-use",
            f"no node has {need[name]} {name} free: other pods have them",
            cause="\n".join(evidence),
            fix=f"{starts} once enough of these pods have ended"
            + (f". {ends} ends one, and its work is lost." if ends else "."),
            holders=holders,
        )
    rest = [place for place in taken if place not in busy]
    if rest:
        lacking = {
            place.node.name: ", ".join(_free(pod, place, name) for name in place.taken) for place in rest
        }
        yield Problem(
            "other-resource",
            f"{several(len(rest), 'node')} with GPUs for it {'has' if len(rest) == 1 else 'have'} too little "
            f"{' and '.join(dict.fromkeys(name for place in rest for name in place.taken))} free",
            cause="\n".join(f"{node}: {text}" for node, text in lacking.items()),
            fix="Ask for less in the pod's requests, or move pods without GPUs to other nodes.",
        )


def _is_closed(place: _Place) -> bool:
    return bool(place.taints) or not place.node.schedulable


def _alike(busy: Sequence[_Place], name: str) -> Iterator[tuple[str, Sequence[_Place]]]:
    """`0 of 4` units free → the nodes with that: each node alone as long as these are few."""
    groups: dict[tuple[str, str], list[_Place]] = {}
    for place in busy:
        free = f"{place.free[name] // fit.MILLI} of {place.node.units[name]}"
        groups.setdefault((free, place.node.name if len(busy) <= SINGLE else ""), []).append(place)
    for (free, _), alike in groups.items():
        yield free, alike


def _lower(waiting: Waiting, nodes: Collection[str]) -> list[str]:
    """Pods with GPUs on these nodes, of a lower priority than the one that waits."""
    own = waiting.pod["spec"].get("priority") or 0
    return [
        pod_name(pod)
        for pod in waiting.pods
        if pod["spec"].get("nodeName") in nodes
        and not has_ended(pod)
        and (pod["spec"].get("priority") or 0) < own
        and drain.asks(pod)
    ]


def _free(pod: Object, place: _Place, name: str) -> str:
    free, room = place.free[name], fit.thousandths(place.item["status"]["allocatable"][name])
    asked = _human(name, fit.requests(pod)[name])
    return f"it asks for {asked} {name}, {_human(name, max(0, free))} of {_human(name, room)} free"


def _human(name: str, amount: int) -> str:
    if name in ("memory", "ephemeral-storage"):
        return f"{amount / fit.MILLI / 1024**3:.1f} GiB"
    return f"{amount / fit.MILLI:g}"


def _scheduler(pod: Object) -> Iterator[Problem]:
    """The scheduler's reasons that the objects do not show."""
    fixes: dict[tuple[str, str], list[str]] = {}
    for text in reasons(message(pod)):
        code, fix = next(
            ((code, fix) for pattern, code, fix in REASONS if re.search(pattern, text, re.IGNORECASE)),
            (UNKNOWN, ""),
        )
        if code:
            fixes.setdefault((code, fix), []).append(text)
    for (code, fix), texts in fixes.items():
        name = pod_name(pod).split("/")
        yield Problem(
            code,
            f"the scheduler: {'; '.join(texts)}",
            fix=fix or "`kubectl -n {} describe pod {}` has its events.".format(*name),
        )


def _retried(places: Sequence[_Place]) -> Iterator[Problem]:
    """Nodes that have room by now."""
    if open_places := [place.node.name for place in _candidates(places) if not place.taken]:
        yield Problem(
            "fits-now",
            f"{few(open_places, NAMED)} {'has' if len(open_places) == 1 else 'have'} room for it by now",
            # source: kubernetes/kubernetes, pkg/scheduler/backend/queue, DefaultPodMaxInUnschedulablePodsDuration
            fix="Nothing: the scheduler tries it again when something changes, at the latest after 5 minutes.",
        )
