"""`gpunode support-bundle`: what somebody needs who is to help, as one archive, without secrets."""

import io
import json
import os
import platform
import sys
import tarfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any, TextIO

from gpunode import __version__
from gpunode.agent.redaction import redact, redact_values
from gpunode.cluster.api import Api
from gpunode.commands.plan import show_plan
from gpunode.commands.provision import ProvisionOptions
from gpunode.commands.verify import verify
from gpunode.contract.times import utc
from gpunode.engine import converge, history, nodes
from gpunode.engine.member import Members
from gpunode.engine.reporter import Reporter
from gpunode.engine.session import Session
from gpunode.errors import GpunodeError, UsageError
from gpunode.links.plugin import daemonset, published
from gpunode.model import Event
from gpunode.wording import ISSUES

RECORDS = 5  # the last runs
LOG = 2000  # the last lines of each pod of the plugin
KEPT = "Passwords, tokens and keys are replaced by their size. Names, addresses and settings are in it: read it before you pass it on."


@dataclass(frozen=True, slots=True)
class Part:
    """A file of the archive, and what it is. `missing`: it only says why there is nothing."""

    name: str
    what: str
    text: str
    missing: bool = False


def write_bundle(session: Session, path: Path, lines_to: Callable[[TextIO], Reporter]) -> int:
    """Write the archive, name its files, and return the exit code. What cannot be collected says why in its place. `lines_to`: a
    report of JSON lines. Raises UsageError where the file is there."""
    reporter = session.reporter
    try:
        descriptor = os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600)
    except OSError as error:
        raise UsageError(
            f"--output {path}: {error.strerror}", hint="Name a file that is not there yet."
        ) from error
    try:
        with os.fdopen(descriptor, "wb") as file:
            parts = [replace(part, text=redact(part.text)) for part in _collect(session, lines_to)]
            contents = "".join(f"{part.name}  {part.what}\n" for part in parts)
            head = f"Written by `gpunode support-bundle`, gpunode {__version__}.\n{KEPT}\n\n{contents}"
            _pack(file, path, [Part("README.txt", "this list", head), *parts])
    except BaseException:
        path.unlink(missing_ok=True)
        raise
    rows = [(part.name, len(part.text.encode()), part.what) for part in parts]
    reporter.rows("content", ("file", "bytes", "what"), rows)
    missing = [part.name for part in parts if part.missing]
    left = f" Not collected, each with the reason: {', '.join(missing)}." if missing else ""
    text = f"{path}: {len(rows)} files.{left} {KEPT} Attach it to your question: {ISSUES}"
    reporter.total(text, {"bundle": str(path)})
    return 0


def _pack(file: Any, path: Path, parts: Sequence[Part]) -> None:
    folder = path.name.removesuffix(".tar.gz")
    with tarfile.open(fileobj=file, mode="w:gz") as archive:
        for part in parts:
            data = part.text.encode()
            member = tarfile.TarInfo(f"{folder}/{part.name}")
            member.size, member.mtime, member.mode = len(data), int(time.time()), 0o600
            archive.addfile(member, io.BytesIO(data))


def _collect(session: Session, lines_to: Callable[[TextIO], Reporter]) -> Iterator[Part]:
    inventory, members = session.inventory, list[Members]()

    def record_lines(act: Callable[[Session], object]) -> str:
        out = io.StringIO()
        act(replace(session, reporter=lines_to(out)))
        return out.getvalue()

    def probe(quiet: Session) -> None:
        members.append(quiet.for_each_host(converge.probe_and_plan, plans=False))

    yield Part("versions.json", "gpunode, and the machine that it runs on", _json(_versions()))
    works: Sequence[tuple[str, str, Callable[[Session], object]]] = (
        (
            "verify.jsonl",
            "what `gpunode verify --no-run --json` prints",
            lambda quiet: verify(quiet, run=False),
        ),
        (
            "plan.jsonl",
            "what `gpunode plan --json` prints",
            lambda quiet: show_plan(quiet, ProvisionOptions(), diff=None, waits=False),
        ),
        ("probe.jsonl", "how the hosts were reached", probe),
    )
    for name, what, act in works:
        session.reporter.event(Event("stage", None, what))
        yield _part(name, what, partial(record_lines, act))
    for member in members[0] if members else ():
        if member.facts:
            name = f"hosts/{member.host.name}.json"
            yield Part(name, "what a probe read there, files included", _json(asdict(member.facts)))
    if inventory.cluster.plugin is not None:
        session.reporter.event(Event("stage", None, "read the cluster"))
        try:
            api = nodes.connect(inventory)
            whole = len(session.hosts) == len(inventory.hosts)
            yield from _cluster_parts(
                api, inventory.cluster.namespace, members[0] if members else (), whole=whole
            )
        except GpunodeError as error:
            yield Part("cluster/not-collected.txt", "why the cluster could not be read", f"{error}\n", True)
    source = Path(inventory.path)
    if source.is_file():
        yield _part("inventory.yaml", "the inventory", source.read_text)
        named = {host.name for host in session.hosts} if len(session.hosts) < len(inventory.hosts) else None
        for path in history.recent(source, RECORDS, hosts=named):
            yield _part(f"runs/{path.name}", "the record of a run", path.read_text)


def _cluster_parts(api: Api, namespace: str, members: Members, *, whole: bool) -> Iterator[Part]:
    """`whole`: these are all hosts of the inventory; else logs are of the plugin's pods on their nodes alone."""
    placed = nodes.locate(api, members, seconds=0, notify=lambda _: None)
    names = [member.node.name for member in placed if member.node]
    for name in names:
        yield _part(f"cluster/nodes/{name}.json", "the node", partial(_read_node, api, name))
    pods = api.find("Pod", namespace, labels=daemonset.SELECTOR)[0]
    states = {pod["metadata"]["name"]: pod.get("status") for pod in pods}
    yield Part("cluster/plugin-pods.json", "states of the device plugin's pods", _json(states))
    for pod in pods if whole else [pod for pod in pods if pod["spec"].get("nodeName") in names]:
        name = pod["metadata"]["name"]
        what = f"the plugin's log, its last {LOG} lines; its status is in it"
        log = partial(api.log, namespace, name, published.CONTAINER, lines=LOG)
        yield _part(f"cluster/logs/{name}.log", what, log)
    yield _part(
        "cluster/events.json",
        "events of the nodes and of the plugin's namespace",
        lambda: _json(_events(api, namespace, names)),
    )


def _events(api: Api, namespace: str, names: Sequence[str]) -> list[Mapping[str, object]]:
    every = [
        *api.find("Event", namespace)[0],
        *(api.find("Event", "default")[0] if namespace != "default" else ()),
    ]
    keys = ("type", "reason", "message", "count", "firstTimestamp", "lastTimestamp", "eventTime", "source")
    return [
        {"about": event["involvedObject"], **{key: event[key] for key in keys if event.get(key) is not None}}
        for event in every
        if event["metadata"].get("namespace") == namespace or event["involvedObject"].get("name") in names
    ]


def _read_node(api: Api, name: str) -> str:
    """The node without what the API server keeps for itself."""
    node = api.get("Node", name) or {}
    metadata = {key: value for key, value in node.get("metadata", {}).items() if key != "managedFields"}
    return _json({**node, "metadata": metadata})


def _part(name: str, what: str, read: Callable[[], str]) -> Part:
    try:
        return Part(name, what, read())
    except (GpunodeError, OSError, ValueError) as error:
        return Part(name, f"{what}: not collected", f"not collected: {error}\n", True)


def _versions() -> Mapping[str, object]:
    return {
        "gpunode": __version__,
        "python": sys.version.split()[0],
        "system": platform.platform(),
        "written": utc(),
    }


def _json(value: object) -> str:
    return json.dumps(redact_values(value), indent=1, default=str, ensure_ascii=False) + "\n"
