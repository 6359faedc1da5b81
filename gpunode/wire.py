"""How the controller and the agent talk: the command, what goes in, what comes out, and what silence means.

In: `[sudo's password line] gpunode-agent 1 LENGTH LENGTH`, the agent's source (zlib), the job (JSON), image archives.
Out: anything the host's shell likes to say, then one JSON object a line between two marker lines.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import secrets
import zlib
from collections.abc import Generator, Iterable, Mapping, Sequence
from dataclasses import asdict
from importlib import resources
from pathlib import Path
from typing import Any

from gpunode.errors import AgentFailed, AgentUnusable, HostError, SudoRefused
from gpunode.model import Change, LoadImage, RemoveFile, Watch, WriteFile

# One line without quotes, backslashes or exclamation marks, so that every login shell passes it on as it is.
# Lines before the header are skipped: a sudo that did not ask leaves the password there.
BOOTSTRAP = (
    "import sys;from importlib.util import find_spec as s;"
    "m=[n for n in (#json#,#zlib#,#fcntl#,#subprocess#,#concurrent#,#typing#)"
    "if s(n) is None]or[#3.6#]*(sys.version_info<(3,6));"
    "m and sys.exit(print(#@gpunode-unusable#,sys.version.split()[0],*m)or 3);"
    "import zlib;f=sys.stdin.buffer;"
    "h=next((l.split()for l in iter(f.readline,b##)if l.startswith(b#gpunode-agent 1 #)),0)or sys.exit(4);"
    "p=zlib.decompress(f.read(int(h[2])));j=f.read(int(h[3]));"
    "g=dict(__name__=#agent#);exec(compile(p,#agent.py#,#exec#),g);g[#main#](p,j)"
).replace("#", '"')

_NO_PYTHON = "@gpunode-no-python3"
_UNUSABLE = "@gpunode-unusable"
_NO_SUDO = "@gpunode-no-sudo"


def command(sudo: bool, password: bool) -> str:
    """What to execute on the host. `password`: sudo's password is the first line of standard input."""
    start = 'exec "$p" -I -S -c "$1"'
    if sudo:
        ask = '-S -p ""' if password else "-n"
        start = (
            f'[ "$(id -u)" = 0 ] && {start}; '
            f"command -v sudo >/dev/null || {{ echo {_NO_SUDO}; exit 1; }}; "
            f'exec sudo {ask} -- "$p" -I -S -c "$1"'
        )
    script = (
        "LC_ALL=C; export LC_ALL; "
        "p=$(command -v python3 || command -v /usr/libexec/platform-python) || "
        f"{{ echo {_NO_PYTHON}; exit 1; }}; {start}"
    )
    return f"exec /bin/sh -c '{script}' gpunode '{BOOTSTRAP}'"


@functools.cache
def _program() -> bytes:
    return zlib.compress(resources.files("gpunode").joinpath("agent.py").read_bytes(), 9)


def encode(job: Mapping[str, Any], password: str | None = None) -> bytes:
    """What goes to the command's standard input; the job's image archives follow it, in their order."""
    program, body = _program(), json.dumps(job, separators=(",", ":")).encode()
    first = b"" if password is None else password.encode() + b"\n"
    return first + b"gpunode-agent 1 %d %d\n" % (len(program), len(body)) + program + body


def decode(lines: Iterable[bytes], nonce: str, noise: list[bytes]) -> Generator[dict[str, Any], None, bool]:
    """The agent's messages out of the command's output, as they come; True when they came to their end.

    Everything else that was said goes to `noise`, and so does a message that a lost connection cut short.
    """
    begin, end = f"@gpunode-begin {nonce}".encode(), f"@gpunode-end {nonce}".encode()
    begun = complete = False
    for line in lines:
        word = line.strip()
        if word == begin:
            begun = True
        elif word == end:
            complete = begun
        elif begun and not complete and word.startswith(b"{") and line.endswith(b"\n"):
            message = json.loads(word)
            if message["type"] != "alive":  # it has done its work by having come
                yield message
        elif word:
            noise.append(line)
    return complete


def explain(host: str, noise: Sequence[bytes], stderr: str, status: int | None) -> HostError:
    """Why the agent did not give a whole answer, from what was said instead."""
    said = [line.decode(errors="replace").strip() for line in noise]
    for line in said:
        if line.startswith(_NO_PYTHON):
            return AgentUnusable(
                host,
                "there is no python3 on it",
                hint="Install it: `apt install python3` or `dnf install python3`.",
            )
        if line.startswith(_NO_SUDO):
            return SudoRefused(
                host, "there is no sudo on it", hint="Log in as root, or install sudo; or say `sudo: false`."
            )
        if line.startswith(_UNUSABLE):
            version, *missing = line.split()[1:]
            if missing == ["3.6"]:
                return AgentUnusable(
                    host, f"its python3 is {version}, 3.6 or newer is needed", hint="Install a newer python3."
                )
            return AgentUnusable(
                host,
                f"its python3 ({version}) lacks the module{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
                hint="Install the whole of it: `apt install python3` (python3-minimal is not enough).",
            )
    refused = _sudo(host, stderr)
    if refused:
        return refused
    words = "\n".join(line for line in [*said, *stderr.splitlines()] if line.strip())[-800:]
    ended = "lost its connection" if status is None else f"ended with exit status {status}"
    return AgentFailed(
        host, f"the agent {ended} and gave no whole answer; what was said:\n{words or '(nothing)'}"
    )


def _sudo(host: str, stderr: str) -> SudoRefused | None:
    """sudo's refusal, in its own English words (the command sets LC_ALL=C)."""
    needs = r"a password is required|a terminal is required|no tty present|must have a tty"
    if re.search(r"incorrect password|Sorry, try again|no password was provided", stderr):
        return SudoRefused(host, "sudo does not accept the password", hint="Run it again with the right one.")
    if re.search(needs, stderr):
        return SudoRefused(
            host,
            "sudo wants a password (or a terminal)",
            hint="Run it with -K to be asked for it, or allow this user NOPASSWD in sudoers.",
        )
    if re.search(r"not in the sudoers file|is not allowed to (execute|run)|may not run sudo", stderr):
        return SudoRefused(
            host,
            "sudo does not let this user become root",
            hint="Allow it in sudoers, or connect as another user.",
        )
    own = [
        line for line in stderr.splitlines() if line.startswith("sudo: ") and "unable to resolve" not in line
    ]
    return SudoRefused(host, own[-1]) if own else None


# --- Jobs --------------------------------------------------------------------------------------------


def probe_job(watch: Watch) -> dict[str, Any]:
    """Look at everything, answered by one `facts` message."""
    return {"op": "probe", "nonce": secrets.token_hex(8), "watch": asdict(watch)}


def apply_job(run: str, by: str, changes: Sequence[Change], watch: Watch | None) -> dict[str, Any]:
    """Make the changes in order, then look. Reads the archives of LoadImage changes, to name their digests."""
    payloads: list[dict[str, Any]] = []
    encoded = []
    for change in changes:
        entry = encode_change(change)
        if isinstance(change, LoadImage):
            entry["payload"] = len(payloads)
            payloads.append(_payload(change.archive))
        encoded.append(entry)
    return {
        "op": "apply",
        "nonce": secrets.token_hex(8),
        "run": run,
        "by": by,
        "changes": encoded,
        "then": asdict(watch) if watch else None,
        "payloads": payloads,
    }


def follow_job(run: str) -> dict[str, Any]:
    """The messages of an apply that is under way, or has ended, from its first to its last."""
    return {"op": "follow", "nonce": secrets.token_hex(8), "run": run}


def abort_job() -> dict[str, Any]:
    """End the apply under way, if there is one."""
    return {"op": "abort", "nonce": secrets.token_hex(8)}


def encode_change(change: Change) -> dict[str, Any]:
    """A change as the agent takes it: without the texts for people, files as digests of what they were."""
    entry = asdict(change)
    entry["kind"] = re.sub(r"(?<!^)(?=[A-Z])", "_", type(change).__name__).lower()
    for name in ("why", "note", "archive", "before"):
        entry.pop(name, None)
    if isinstance(change, (WriteFile, RemoveFile)):
        before = change.before
        entry["before_sha256"] = None if before is None else hashlib.sha256(before.encode()).hexdigest()
    return entry


def _payload(archive: str) -> dict[str, Any]:
    status = Path(archive).stat()
    return {"size": status.st_size, "sha256": _digest(archive, status.st_size, status.st_mtime_ns)}


@functools.lru_cache(maxsize=8)
def _digest(archive: str, _size: int, _mtime: int) -> str:
    """Read once a run, however many hosts get it."""
    digest = hashlib.sha256()
    with Path(archive).open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
