"""Accepts nodes: pods measure the free GPUs, the judge compares them, and the record is kept here and on the node."""

import io
import json
import os
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import MappingProxyType

from gpunode.acceptance.judge import compare_fleet, find_model, judge
from gpunode.acceptance.record import Acceptance, join_documents
from gpunode.acceptance.stamp import Stamp, read_stamp
from gpunode.cluster.api import Api
from gpunode.cluster.api.watch import OnProgress
from gpunode.contract.condition import ACCEPTED
from gpunode.contract.measurements import Measurements, UnknownVersion, from_json, loads
from gpunode.contract.status import CORDONED, Status
from gpunode.engine import nodes
from gpunode.engine.accepted import CODE, folder, newest, path_of
from gpunode.engine.fleet import Visit
from gpunode.engine.member import Member, Members
from gpunode.engine.reporter import (
    Celsius,
    Codes,
    Figure,
    ForPrograms,
    Model,
    Moment,
    Names,
    Reasons,
    Reporter,
)
from gpunode.engine.session import Session
from gpunode.errors import ClusterError, Problem
from gpunode.host import wire
from gpunode.links.capacity import slices
from gpunode.links.node import Node
from gpunode.links.plugin import daemonset, published
from gpunode.links.plugin.usage import read_usage
from gpunode.links.pod import vectoradd
from gpunode.links.pod.requests import published_target, target
from gpunode.links.pod.vectoradd import NodeResult
from gpunode.model import Event, ExpectedGpus, Inventory, OnEvent, Outcome
from gpunode.planning.mig import matches
from gpunode.wording import advise, few, several

PROGRAM = ("-m", "gpunode.accept", "--json", "--level")
SECONDS = {"quick": 240.0, "standard": 900.0}  # for pods to start and to measure up to 16 GPUs
MODULES = ("__init__.py", "contract/*.py", "accept/*.py", "deviceplugin/**/*.py")
NAMED = 5
MISSING = "No module named gpunode.accept"  # Python's words
FIGURES = {  # column -> figure
    "memory": "memory_gbps",
    "compute": "compute_tflops",
    "to_gpu": "to_device_gbps",
    "from_gpu": "from_device_gbps",
    "power": "power_w",
}
GPU_COLUMNS = ("node", "index", "uuid", "gpu", "result", *FIGURES, "temp", "problems", "remarks", "compared_with", "not_measured")  # fmt: skip
HOST_COLUMNS = ("host", "node", "result", "level", "until", "record", "why", "not_measured")


@dataclass(frozen=True, slots=True)
class Taken:
    """What was measured on a host. `why`: what was not; "" where all was, and where all GPUs are in use by `users`. `image`: of the
    program, "" where it ran on the host itself. `missing`: GPUs that are not there or that pods cannot get. `cordoned`: GPUs that an
    operator has taken out, which pods are not to get."""

    document: Measurements | None = None
    why: str = ""
    users: tuple[str, ...] = ()
    image: str = ""
    missing: str = ""
    cordoned: int = 0


def accept(
    api: Api,
    inventory: Inventory,
    members: Sequence[Member],
    level: str,
    reporter: Reporter,
    notify: OnProgress,
    *,
    holder: str = "",
) -> dict[str, Acceptance]:
    """Measure and judge the free GPUs of these members' nodes, report them, and keep the records; host -> acceptance. `holder`: of the
    cluster's lease."""
    placed = [member for member in members if member.node]
    config = inventory.cluster.plugin_config
    by_dra = [member.host.name for member in placed if member.host.allocation == "dra"]
    published = slices.read(api) if by_dra and not slices.unserved(api) else {}
    targets = [
        published_target(member.node.name, published.get(member.node.name, ()))
        if member.host.name in by_dra
        else target(config, member.node.name, member.gpus, member.labels)
        for member in placed
        if member.node
    ]
    if not targets:
        return {}
    results = vectoradd.run(
        api,
        targets,
        nodes.pod_run(api, inventory, SECONDS[level], notify, holder=holder),
        args=(*PROGRAM, level),
        alone=True,
    )
    reference, states = nodes.image_of(inventory).reference, _read_states(api, inventory, placed)
    taken = {
        member.host.name: _read(each, reference, member.node, states.get(member.node.name))
        for member, each in zip(placed, results, strict=True)
        if member.node
    }
    indexes = _read_indexes(api, inventory.cluster.namespace, placed)
    return _conclude(api, folder(inventory), placed, taken, level, reporter, indexes)


def accept_on_hosts(session: Session, level: str) -> dict[str, Acceptance]:
    """The same for hosts without Kubernetes: the program travels with the job and runs as root, with the host's Python."""
    program, taken = _bundle(), dict[str, Taken]()

    def task(visit: Visit, emit: OnEvent) -> Outcome:
        emit(Event("stage", visit.host.name, "measure the GPUs"))
        for message in visit.ask(wire.measure_job(program, level, SECONDS[level])):
            if message["type"] == "measurements":
                taken[visit.host.name] = _parse(message["output"].splitlines(), message["error"])
        return Outcome(visit.host.name, "right")

    members = session.for_each_host(task, plans=False)
    for member in members:
        problem = member.outcome.problem if member.outcome else None
        taken.setdefault(member.host.name, Taken(why=problem.what if problem else "the host did not answer"))
    return _conclude(None, folder(session.inventory), members, taken, level, session.reporter)


def _conclude(
    api: Api | None,
    records: Path,
    members: Sequence[Member],
    taken: Mapping[str, Taken],
    level: str,
    reporter: Reporter,
    indexes: Mapping[str, str] = MappingProxyType({}),
) -> dict[str, Acceptance]:
    """Judge what was taken, keep the records, report. `indexes`: of GPUs, by UUID."""
    now = time.time()
    fleet = compare_fleet(
        [*(each.document for each in taken.values() if each.document), *_earlier(records, taken, now)]
    )
    accepted: dict[str, Acceptance] = {}
    kept: dict[str, tuple[Stamp | None, str]] = {}
    for member in members:
        host, each = member.host.name, taken[member.host.name]
        judgements = judge(each.document, fleet) if each.document else ()
        missing = each.missing or _count(member.host.gpus, each)
        accepted[host] = Acceptance(
            host, each.document, judgements, now, each.image, each.users, each.why, missing
        )
        kept[host] = _keep(api, records, member, accepted[host], reporter)
    _report(members, accepted, kept, level, reporter, indexes)
    if any(path for _, path in kept.values()):
        reporter.note(f"The figures are recorded in {records}.")
    return accepted


def _count(expected: ExpectedGpus | None, taken: Taken) -> str:
    """Which of the expected GPUs were not there; "" where that is not known: pods have some, or they are cut by MIG."""
    if expected is None or taken.document is None or taken.users:
        return ""
    gpus = taken.document.gpus
    count = expected.count - taken.cordoned
    fitting = [gpu for gpu in gpus if matches(expected.model, gpu.name)]
    others = len(gpus) - len(fitting)
    if (len(fitting) >= count and not others) or any(gpu.shape == "mig" for gpu in gpus):
        return ""
    named = several(count, f"{expected.model} GPU".lstrip())
    return f"{len(fitting)} of {named} are there{f', {others} of another model' if others else ''}"


def _read_states(api: Api, inventory: Inventory, members: Sequence[Member]) -> dict[str, Status | Problem]:
    """What the plugin says of the nodes that do not offer all of their GPUs, by node."""
    short = [
        member.node for member in members if member.node and member.node.capacity > member.node.allocatable
    ]
    if not short:
        return {}
    namespace = inventory.cluster.namespace
    pods = daemonset.by_node(api.find("Pod", namespace, labels=daemonset.SELECTOR)[0])
    return {node.name: published.read(api, node, pods[node.name]) for node in short if node.name in pods}


def _read_indexes(api: Api, namespace: str, members: Sequence[Member]) -> dict[str, str]:
    """UUID → index of the GPUs on their nodes, as the plugin has them: a pod sees others. Without those that it does not report."""
    with suppress(ClusterError):
        pods = api.find("Pod", namespace, labels=daemonset.SELECTOR)[0]
        names = [member.node.name for member in members if member.node]
        usages = read_usage(api, namespace, api.find("Node")[0], pods, names)
        return {gpu.uuid: gpu.index for usage in usages for gpu in usage.gpus}
    return {}


def _earlier(records: Path, taken: Mapping[str, Taken], now: float) -> Iterator[Measurements]:
    """What records that still count have of other hosts: a batch of a run is a small fleet."""
    for path in sorted(records.glob("*.json")):
        with suppress(OSError, ValueError, AttributeError):
            text = path.read_text(encoding="utf-8")
            stamp, record = read_stamp(text), json.loads(text)
            if stamp and now < stamp.until and record.get("host") not in taken:
                yield from_json(record.get("measurements"))


def _bundle() -> bytes:
    """The program as a zip: what it needs of this package, and nothing else."""
    import zipfile

    root, packed = Path(__file__).parent.parent, io.BytesIO()
    with zipfile.ZipFile(packed, "w", zipfile.ZIP_DEFLATED) as archive:
        for pattern in MODULES:
            for path in sorted(root.glob(pattern)):
                archive.write(path, Path("gpunode", path.relative_to(root)))
    return packed.getvalue()


def _parse(output: Sequence[str], error: str) -> Taken:
    """The document in the last line that has one, or why there is none."""
    line = next((line for line in reversed(output) if line.startswith("{")), "")
    try:
        return Taken(loads(line))
    except UnknownVersion as unknown:
        return Taken(why=f"{unknown}; update the plugin's image")
    except ValueError as wrong:
        older = (
            "; the plugin's image is older than `gpunode accept`: make it again" if MISSING in error else ""
        )
        return Taken(why=f"{error}{older}" if error else f"its answer cannot be read: {wrong}")


def _read(result: NodeResult, reference: str, node: Node, state: Status | Problem | None) -> Taken:
    """What a node's pods measured. `reference`: of their image, where its digest is not known. `state`: what the plugin says of GPUs
    that the node does not offer."""
    pods = {ran.pod: (ran, _parse(ran.log, ran.why)) for ran in result.results}
    reasons = [f"{pod}: {parsed.why}" for pod, (_, parsed) in pods.items() if parsed.why]
    if not pods and not result.busy:
        reasons.append(result.why or "no GPU is free")
    document = join_documents([parsed.document for _, parsed in pods.values() if parsed.document])
    if document and result.divided:  # others may use the same GPU meanwhile
        document = replace(document, gpus=tuple(replace(gpu, shape="shared") for gpu in document.gpus))
    image = next((ran.image for ran in result.results if ran.image), reference)
    missing = f"no pod saw {few(result.uncovered, 3)}" if result.uncovered and not result.users else ""
    cordoned = [lost for lost in state.lost if lost.code == CORDONED] if isinstance(state, Status) else []
    intended = state is not None and published.only_cordoned(state)
    # The host's GPUs are not known
    if not (result.expected or intended) and node.capacity > node.allocatable:
        missing = f"{node.capacity - node.allocatable} of {several(node.capacity, 'GPU')} cannot be allocated"
    return Taken(document, few(reasons, 2), result.users, image, missing, len(cordoned))


def _keep(
    api: Api | None, records: Path, member: Member, acceptance: Acceptance, reporter: Reporter
) -> tuple[Stamp | None, str]:
    """Write the record on this machine, and its stamp on the node; the stamp, and the file or "". A host without figures keeps
    what it had, and one with a standard acceptance that still holds keeps that where a quick run passes."""
    if acceptance.document is None or acceptance.verdict == "skipped":
        return None, ""
    stamp = acceptance.stamp(member.host.accept_valid, required=member.host.accept_required)
    uuids = (*stamp.uuids, *stamp.failed)
    earlier = newest(records, member.host.name, member.node, uuids, stamp.at)
    if earlier and not stamp.replaces(earlier):
        reporter.note(f"{member.host.name}: its {earlier.level} acceptance still holds, and is kept.")
        return earlier, ""
    stamp = stamp.with_earlier(earlier)
    path = path_of(records, member.host.name, member.node)
    new, written = path.with_name(f".{path.name}"), str(path)
    try:
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        with os.fdopen(os.open(new, os.O_CREAT | os.O_TRUNC | os.O_WRONLY, 0o600), "w") as file:
            json.dump(acceptance.as_json(member.node.name if member.node else "", stamp), file)
        new.replace(path)
    except OSError as error:
        reporter.problem(Problem("", f"{path}: the record cannot be written: {error.strerror}"))
        written = ""
    if api is None or member.node is None:
        return stamp, written
    try:
        api.merge("Node", member.node.name, {"metadata": {"annotations": {ACCEPTED: stamp.text()}}})
    except ClusterError as error:
        what = f"the acceptance could not be noted on node {member.node.name}: {error.message}"
        reporter.problem(Problem("", what, fix=error.hint), member.host.name)
    return stamp, written


def _report(
    members: Sequence[Member],
    accepted: Mapping[str, Acceptance],
    kept: Mapping[str, tuple[Stamp | None, str]],
    level: str,
    reporter: Reporter,
    indexes: Mapping[str, str],
) -> None:
    """A row per GPU, a row per host, and the problems with their fixes."""
    rows: list[tuple[object, ...]] = []
    hosts: list[tuple[object, ...]] = []
    for member in members:
        acceptance, node = accepted[member.host.name], member.node.name if member.node else ""
        for judgement in acceptance.judgements:
            gpu, codes = judgement.gpu, Codes(problem.code for problem in judgement.problems)
            values = [getattr(gpu.measured, name) for name in FIGURES.values()]
            figures = [None if value is None else Figure(value) for value in values]
            degrees = gpu.measured.temperature_c
            temp = None if degrees is None else Celsius(degrees)
            remarks, basis = Names(judgement.remarks), ForPrograms(judgement.basis)
            index = indexes.get(gpu.uuid)
            uuid = gpu.uuid if index is None else ForPrograms(gpu.uuid)
            rows.append((node, index, uuid, Model(gpu.name), judgement.result, *figures, temp, codes, remarks, basis, Reasons(gpu.not_measured)))  # fmt: skip
        stamp, path = kept[member.host.name]
        until = Moment(json.loads(stamp.text())["until"] if stamp and stamp.verdict != "failed" else "")
        users = f"in use by {', '.join(acceptance.users)}" if acceptance.users else ""
        why = "; ".join(filter(None, (acceptance.why, acceptance.missing, users)))
        tools = Reasons(acceptance.document.not_measured_tools if acceptance.document else {})
        hosts.append((member.host.name, node, acceptance.verdict, ForPrograms(level), until, ForPrograms(path), why, tools))  # fmt: skip
    reporter.rows("acceptance", GPU_COLUMNS, rows)
    documents = [each.document for each in accepted.values() if each.document]
    _note_silent(
        [gpu.not_measured for each in documents for gpu in each.gpus],
        "could not be measured",
        "GPU",
        reporter,
    )
    _note_silent([each.not_measured_tools for each in documents], "did not run", "host", reporter)
    whole = {gpu.name for each in documents for gpu in each.gpus if gpu.shape == "whole" and not gpu.error}
    unproven = sorted(name for name in whole if (model := find_model(name)) and not model.measured)
    if unproven:
        reporter.note(
            f"Unproven on hardware: the thresholds of {few(unproven, NAMED)}. They are by datasheets; gpunode has measured no such GPU."
        )
    for host, each in accepted.items():
        for name, tool in each.document.tools.items() if each.document else ():
            numbers = few([f"{figure} {value:g}" for figure, value in tool.figures.items()], NAMED)
            end = "passed" if tool.passed else "failed"
            worst = f"; {few(tool.problems, 2)}" if tool.passed and tool.problems else ""
            text = f"{host}: {name} {end} in {tool.seconds:.0f} s{f': {numbers}' if numbers else ''}{worst}"
            reporter.note(f"{text.removesuffix('.')}.")
    for member in members:
        for problem in accepted[member.host.name].problems:
            about = " ".join(filter(None, (member.host.name, problem.subject)))
            reporter.problem(replace(problem, subject=about), member.host.name)
    reporter.rows("accepted", HOST_COLUMNS, hosts)


def _note_silent(reasons: Sequence[Mapping[str, str]], what: str, noun: str, reporter: Reporter) -> None:
    """Note what has no figures, names with the same reason together."""
    groups = Counter(
        (why, tuple(name for name, other in each.items() if other == why))
        for each in reasons
        for why in dict.fromkeys(each.values())
    )
    for (why, names), count in groups.items():
        *first, last = names
        named = f"{', '.join(first)} and {last}" if first else last
        reporter.note(f"{named} {what} on {several(count, noun)}: {why}.")


def exclude_failed(members: Members, accepted: Mapping[str, Acceptance]) -> Members:
    """The members; excluded if their acceptance failed. GPUs in use fail nothing."""

    def exclude(member: Member) -> Member:
        acceptance = accepted.get(member.host.name)
        if acceptance is None or acceptance.verdict != "failed":
            return member
        problems = acceptance.problems
        codes = few(list(dict.fromkeys(problem.code for problem in problems)), NAMED)
        fix = advise("`gpunode accept` measures again.")
        return member.exclude(Problem(CODE, f"not accepted: {codes}", "pod", fix=fix))

    return tuple(map(exclude, members))
