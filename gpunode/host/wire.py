"""The protocol between gpunode and the agent: what its command (`bootstrap`) reads and writes.

In: sudo's password line where it asks for one; then, once the bootstrap is ready, `gpunode-agent 1 LENGTH LENGTH`,
the agent's source (zlib), the job (JSON), image archives.
Out: anything that the host's shell prints, the bootstrap's line, then one JSON object a line between two marker lines.
"""

import base64
import hashlib
import json
import re
import secrets
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpunode.agent.redaction import redact
from gpunode.errors import Flood
from gpunode.host import answers, bootstrap
from gpunode.host.answers import parse_facts
from gpunode.local import streams
from gpunode.model import Change, Entry, InstallDriver, LoadImage, Packages, RemoveFile, Watch, WriteFile
from gpunode.once import Once

ANSWER_BYTES = 64 << 20
READY = b"@gpunode-ready"


@Once
def _program() -> bytes:
    """The agent, compressed once a run for all hosts."""
    return zlib.compress(bootstrap.program().encode(), 6)


def encode(job: Mapping[str, Any]) -> bytes:
    """The command's standard input; the job's image archives follow it, in their order."""
    program = _program()
    body = json.dumps(job, separators=(",", ":")).encode()
    return b"gpunode-agent 1 %d %d\n" % (len(program), len(body)) + program + body


def decode(
    lines: Iterable[bytes],
    nonce: str,
    noise: list[bytes],
    heard: Callable[[], None] = lambda: None,
    ready: Callable[[], None] = lambda: None,
) -> Generator[dict[str, Any], None, bool]:
    """The agent's messages from the command's output, as they come; returns True if the answer is complete.

    Everything else goes to `noise`, as does a message that a lost connection cut short. `heard` is called for each line
    of the answer, `ready` when the bootstrap reads its input. Raises Flood for more than any answer needs.
    """
    begin, end = f"@gpunode-begin {nonce}".encode(), f"@gpunode-end {nonce}".encode()
    begun = complete = False
    answered = noisy = 0
    for line in lines:
        if begun and not complete and line.endswith(b"\n") and (message := _message(line)):
            answered += len(line)
            if answered > ANSWER_BYTES:
                raise Flood(f"more than {ANSWER_BYTES >> 20} MiB")
            heard()
            if message["type"] != "alive":  # `heard` was its only purpose
                yield message
            continue
        noisy += len(line)
        if noisy > streams.NOISE_BYTES:
            raise Flood(f"more than {streams.NOISE_BYTES >> 20} MiB of other output")
        word = line.strip()
        if word == begin:
            begun = True
            heard()
        elif word == end:
            complete = begun
        elif word == READY and not begun:
            ready()
        elif word:
            noise.append(line)
    return complete


def _message(line: bytes) -> dict[str, Any] | None:
    if not line.startswith(b"{"):
        return None
    try:
        message: dict[str, Any] = json.loads(line)
    except (ValueError, RecursionError):  # another program printed it
        return None
    return message if isinstance(message.get("type"), str) else None


# What gpunode reads of messages, by their type.
MEMBERS: Mapping[str, Mapping[str, Any]] = {
    "facts": {"facts": Mapping[str, Any]},
    "journal": {"entries": tuple[Entry, ...]},
    "start": {"n": int},
    "progress": {"text": str, "percent": float | None},
    "confirm": {"n": int, "unit": str},
    "done": {"n": int, "seconds": float},
    "failed": {
        "n": int | None,
        "code": str,
        "error": str,
        "detail": tuple[str, ...],
        "restored": tuple[str, ...],
    },
    "locked": {"by": str, "since": float},
    "aborting": {"by": str, "since": float, "doing": str},
    "container": {
        "tool": str | None,
        "image": str | None,
        "tools": tuple[str, ...] | None,
        "status": int,
        "words": tuple[str, ...],
        "uuids": tuple[str, ...],
        "devices": tuple[str, ...],
        "mounts": tuple[str, ...],
    },
    "measurements": {"output": str, "error": str},
}


def read(message: Mapping[str, Any]) -> dict[str, Any]:
    """The message with its members as they are declared, and Facts for its facts. Raises UnexpectedAnswer."""
    kind = message["type"]
    members = MEMBERS.get(kind, {})
    values = {
        name: answers.read(member, message.get(name), f"{kind}.{name}") for name, member in members.items()
    }
    if kind == "facts":
        values["facts"] = parse_facts(values["facts"])
    return {**message, **values}


# --- Jobs --------------------------------------------------------------------------------------------


def _job(op: str, **members: Any) -> dict[str, Any]:
    return {"op": op, "nonce": secrets.token_hex(8), **members}


def probe_job(watch: Watch) -> dict[str, Any]:
    """Read all facts; answered by one `facts` message."""
    return _job("probe", watch=asdict(watch))


def journal_job(run: str) -> dict[str, Any]:
    """Read the journals of all applies, with originals of this run of an operator's record ("": of all); answered by one `journal`
    message."""
    return _job("journal", run=run)


def apply_job(
    run: str,
    by: str,
    changes: Sequence[Change],
    watch: Watch | None,
    confirm: float = 0.0,
    record: str = "",
    known: Sequence[str] | None = None,
    undoes: str = "",
) -> dict[str, Any]:
    """Make the changes in order, then probe. Reads their archives for their digests. `record`: the run of the operator's record, and
    `undoes`: the one that it undoes, for the host's journal. `known`: the applies whose journals the plan rests on; one of another run since then refuses the job.

    `confirm`: seconds that a guarded restart waits for its confirmation from outside; 0: it needs none.
    """
    payloads: list[dict[str, Any]] = []
    encoded = []
    for change in changes:
        entry = encode_change(change)
        if (archive := _archive(change)) is not None:
            entry["payload"] = len(payloads)
            payloads.append(_payload(archive))
        encoded.append(entry)
    then = asdict(watch) if watch else None
    return _job(
        "apply",
        run=run,
        by=by,
        changes=encoded,
        then=then,
        payloads=payloads,
        confirm=confirm,
        record=record,
        known=known,
        undoes=undoes,
        why=[redact(change.why) for change in changes],
    )


def archives(changes: Sequence[Change]) -> list[str]:
    """The files of this machine that follow the job of these changes, in order."""
    return [archive for change in changes if (archive := _archive(change)) is not None]


def _archive(change: Change) -> str | None:
    return change.archive if isinstance(change, (LoadImage, InstallDriver)) else None


def follow_job(run: str, confirms: int | None = None) -> dict[str, Any]:
    """Send the messages of a running or ended apply, from its first to its last.

    `confirms`: the index of a restart after which the connection was opened that this job is sent over.
    """
    return _job("follow", run=run, confirms=confirms)


def confirm_job(runs: Sequence[str]) -> dict[str, Any]:
    """Confirm the restarts that these runs, which have ended, kept unconfirmed."""
    return _job("confirm", runs=list(runs))


def container_job(runtime: str, image: str) -> dict[str, Any]:
    """Run a GPU container below Kubernetes; answered by one `container` message. `image`: the device plugin's, which is preferred."""
    return _job("container", runtime=runtime, image=image)


def measure_job(program: bytes, level: str, seconds: float) -> dict[str, Any]:
    """Run gpunode.accept, which is in this zip, for `seconds` at most; answered by one `measurements` message."""
    return _job("measure", program=base64.b64encode(program).decode(), level=level, seconds=seconds)


def abort_job() -> dict[str, Any]:
    """End the running apply, if there is one."""
    return _job("abort")


def encode_change(change: Change) -> dict[str, Any]:
    """A change for the agent: without texts for people, and with digests instead of old contents."""
    entry = asdict(change)
    entry["kind"] = re.sub(r"(?<!^)(?=[A-Z])", "_", type(change).__name__).lower()
    for name in ("why", "fault", "note", "loses", "archive", "before"):
        entry.pop(name, None)
    if isinstance(change, Packages):
        for spec in entry["install"]:
            del spec["origin"]
    if isinstance(change, (WriteFile, RemoveFile)):
        before = change.before
        entry["before_sha256"] = None if before is None else hashlib.sha256(before.encode()).hexdigest()
    return entry


def _payload(archive: str) -> dict[str, Any]:
    status = Path(archive).stat()
    return {"size": status.st_size, "sha256": _digest(archive, status.st_size, status.st_mtime_ns)}


@Once
def _digest(archive: str, _size: int, _mtime: int) -> str:
    """The archive's SHA-256, read once a run for all hosts."""
    digest = hashlib.sha256()
    with Path(archive).open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
