"""The protocol between gpunode and the agent: the command, its input, its output, and the errors of a missing answer.

In: sudo's password line where it asks for one; then, once the bootstrap is ready, `gpunode-agent 1 LENGTH LENGTH`,
the agent's source (zlib), the job (JSON), image archives.
Out: anything that the host's shell prints, the bootstrap's line, then one JSON object a line between two marker lines.
"""

from __future__ import annotations

import functools
import hashlib
import json
import re
import secrets
import threading
import zlib
from collections.abc import Callable, Generator, Iterable, Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from gpunode import streams
from gpunode.agent import bundle
from gpunode.errors import AgentFailed, AgentUnusable, HostError, PasswordRefused, SudoRefused
from gpunode.model import Change, LoadImage, Packages, RemoveFile, Watch, WriteFile
from gpunode.password import PROMPT

# One line without quotes, backslashes or exclamation marks, so that every login shell passes it on unchanged.
# It prints READY when sudo has its password: from then on this program reads the input.
BOOTSTRAP = (
    "import sys;from importlib.util import find_spec as s;"
    "m=[n for n in (#json#,#zlib#,#fcntl#,#subprocess#,#concurrent#,#typing#)"
    "if s(n) is None]or[#3.6#]*(sys.version_info<(3,6));"
    "m and sys.exit(print(#@gpunode-unusable#,sys.version.split()[0],*m)or 3);"
    "print(chr(10)+#@gpunode-ready#,flush=True);import zlib;f=sys.stdin.buffer;"
    "h=next((l.split()for l in iter(f.readline,b##)if l.startswith(b#gpunode-agent 1 #)),0)or sys.exit(4);"
    "p=zlib.decompress(f.read(int(h[2])));j=f.read(int(h[3]));"
    "g=dict(__name__=#agent#);exec(compile(p,#agent.py#,#exec#),g);g[#main#](p,j)"
).replace("#", '"')

# Root's python is not taken from a PATH that the user, or an attacker in the user's account, has set. The order is that
# of every distribution's own PATH; the last ones are patterns. Of RHEL 8, whose python3 is optional; of backports.
PYTHONS = (
    "/usr/local/bin/python3",
    "/usr/bin/python3",
    "/usr/libexec/platform-python",
    "/usr/local/bin/python3.[0-9]",
    "/usr/local/bin/python3.[0-9][0-9]",
    "/usr/bin/python3.[0-9]",
    "/usr/bin/python3.[0-9][0-9]",
)
ROOT_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"

ANSWER_BYTES = 64 << 20
READY = b"@gpunode-ready"
_NO_PYTHON = "@gpunode-no-python3"
_NOT_THERE = "@gpunode-python-not-there"
_UNUSABLE = "@gpunode-unusable"
_NO_SUDO = "@gpunode-no-sudo"


def command(sudo: bool, password: bool, python: str = "") -> str:
    """The command to execute on the host. `password`: sudo may ask for one with PROMPT and reads it from stdin.

    It runs `python`, else the first of PYTHONS that is new enough, else the first, which then says why it cannot.
    """
    run, found = '"$p" -I -S -c "$1"', '{ [ -n "$p" ] || p=$(command -v python3)'
    own = f"{found} || {{ echo {_NO_PYTHON}; exit 1; }}; exec {run}; }}"
    start = own
    if sudo:
        ask = f'-S -p "{PROMPT}"' if password else "-n"
        start = (
            f'[ "$(id -u)" = 0 ] && {own}; '
            f"s=$(command -v sudo) || {{ echo {_NO_SUDO}; exit 1; }}; "
            f'[ -n "$p" ] || {{ echo {_NO_PYTHON} $(command -v python3); exit 1; }}; '
            f'PATH={ROOT_PATH}; export PATH; exec "$s" {ask} -- {run}'
        )
    new = '"$p" -I -S -c "import sys;sys.exit(sys.version_info<(3,6))" && break'
    look = f'for p in {" ".join(PYTHONS)}; do [ -x "$p" ] && {{ o=${{o:-$p}}; {new}; }}; p=; done 2>/dev/null; p=${{p:-$o}}'
    if python:
        look = f"p={python}; [ -x $p ] || {{ echo {_NOT_THERE} $p; exit 1; }}"
    script = f"LC_ALL=C; export LC_ALL; o=; {look}; {start}"
    return f"exec /bin/sh -c '{script}' gpunode '{BOOTSTRAP}'"


@functools.cache
def _program() -> bytes:
    return zlib.compress(bundle.program().encode(), 9)


def encode(job: Mapping[str, Any]) -> bytes:
    """The command's standard input; the job's image archives follow it, in their order."""
    program, body = _program(), json.dumps(job, separators=(",", ":")).encode()
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
                raise streams.Flood(f"more than {ANSWER_BYTES >> 20} MiB")
            heard()
            if message["type"] != "alive":  # `heard` was its only purpose
                yield message
            continue
        noisy += len(line)
        if noisy > streams.NOISE_BYTES:
            raise streams.Flood(f"more than {streams.NOISE_BYTES >> 20} MiB of other output")
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
    return message if "type" in message else None


def explain(host: str, noise: Sequence[bytes], stderr: str, status: int | None) -> HostError:
    """Why the agent's answer is incomplete, from the other output."""
    printed = [line.decode(errors="replace").strip() for line in noise]
    for line in printed:
        if line.startswith(_NO_PYTHON) and line != _NO_PYTHON:
            return AgentUnusable(
                host,
                f"its only python3 is {line.split(maxsplit=1)[1]}, which gpunode does not run as root unasked",
                hint="Install the distribution's python3, set `python:` to that one in the inventory, or log in as root.",
            )
        if line.startswith(_NOT_THERE):
            return AgentUnusable(
                host,
                f"it has no {line.split(maxsplit=1)[1]}, which `python:` in the inventory names",
                hint="Correct the path, or take it out: gpunode then looks for Python itself.",
            )
        if line.startswith(_NO_PYTHON):
            return AgentUnusable(
                host,
                "it has no python3",
                hint="Install it: `apt install python3`, `dnf install python3` or `yum install python3`.",
            )
        if line.startswith(_NO_SUDO):
            return SudoRefused(
                host, "it has no sudo", hint="Log in as root, install sudo, or set `sudo: false`."
            )
        if line.startswith(_UNUSABLE):
            version, *missing = line.split()[1:]
            if missing == ["3.6"]:
                return AgentUnusable(
                    host, f"its python3 is {version}; 3.6 or newer is needed", hint="Install a newer python3."
                )
            return AgentUnusable(
                host,
                f"its python3 ({version}) has no module{'s' if len(missing) > 1 else ''} {', '.join(missing)}",
                hint="Install all of it: `apt install python3` (python3-minimal is not enough).",
            )
    refused = _sudo(host, stderr)
    if refused:
        return refused
    words = "\n".join(line for line in [*printed, *stderr.splitlines()] if line.strip())[-800:]
    ended = "lost its connection" if status is None else f"ended with exit status {status}"
    return AgentFailed(
        host, f"the agent {ended} before its answer was complete; output:\n{words or '(none)'}"
    )


def _sudo(host: str, stderr: str) -> SudoRefused | None:
    """sudo's refusal, by its English messages (the command sets LC_ALL=C)."""
    needs = r"a password is required|a terminal is required|no tty present|must have a tty"
    if re.search(r"incorrect password|Sorry, try again|no password was provided", stderr):
        return PasswordRefused(
            host, "sudo does not accept the password", hint="Run again with the right password."
        )
    if re.search(needs, stderr):
        return SudoRefused(
            host,
            "sudo needs a password (or a terminal)",
            hint="Run again with -K to enter the password, or allow this user NOPASSWD in sudoers.",
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
    """Read all facts; answered by one `facts` message."""
    return {"op": "probe", "nonce": secrets.token_hex(8), "watch": asdict(watch)}


def apply_job(
    run: str, by: str, changes: Sequence[Change], watch: Watch | None, confirm: float = 0.0
) -> dict[str, Any]:
    """Make the changes in order, then probe. Reads the archives of LoadImage changes for their digests.

    `confirm`: seconds that a guarded restart waits for its confirmation from outside; 0: it needs none.
    """
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
        "confirm": confirm,
    }


def follow_job(run: str, confirms: int | None = None) -> dict[str, Any]:
    """Send the messages of a running or ended apply, from its first to its last.

    `confirms`: the index of a restart after which the connection was opened that this job is sent over.
    """
    return {"op": "follow", "nonce": secrets.token_hex(8), "run": run, "confirms": confirms}


def confirm_job(runs: Sequence[str]) -> dict[str, Any]:
    """Confirm the restarts that these runs, which have ended, kept unconfirmed."""
    return {"op": "confirm", "nonce": secrets.token_hex(8), "runs": list(runs)}


def abort_job() -> dict[str, Any]:
    """End the running apply, if there is one."""
    return {"op": "abort", "nonce": secrets.token_hex(8)}


def encode_change(change: Change) -> dict[str, Any]:
    """A change for the agent: without texts for people, and with digests instead of old contents."""
    entry = asdict(change)
    entry["kind"] = re.sub(r"(?<!^)(?=[A-Z])", "_", type(change).__name__).lower()
    for name in ("why", "fault", "note", "archive", "before"):
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
    with _READING:  # the cache alone would let several threads read it at the same time
        return {"size": status.st_size, "sha256": _digest(archive, status.st_size, status.st_mtime_ns)}


_READING = threading.Lock()


@functools.lru_cache(maxsize=8)
def _digest(archive: str, _size: int, _mtime: int) -> str:
    """The archive's SHA-256, read once a run for all hosts."""
    digest = hashlib.sha256()
    with Path(archive).open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()
