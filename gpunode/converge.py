"""One host's story: probe → decide → plan → apply → probe again.

A round is one exec: the answer to an apply holds a fresh probe. What is known only after an act (a driver after
a reboot) is planned in the next round, and shown and accepted like the first.
"""

from __future__ import annotations

import getpass
import secrets
import socket
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from gpunode import desired, diff, facts, pipeline, reach, wire
from gpunode.errors import AgentFailed, ConnectionLost, HostError, PasswordRefused, Refused, Unreachable
from gpunode.model import Change, Event, Facts, Host, LoadImage, Outcome, PluginImage, Reboot
from gpunode.password import Password

ROUNDS = 3
REBOOT_SECONDS = 900.0
RECONNECT_SECONDS = 60.0

# What to do next, by the agent's failure codes.
HINTS = {
    "apt-locked": "Let the other package manager finish, then run again.",
    "repository-unreachable": "Check `repositories` in the inventory and the host's network or proxy; then run again.",
    "repository-unsigned": "Check `repositories.*.key` in the inventory: it must be the key that signs it.",
    "repository-expired": "The mirror is stale, or the host's clock is wrong.",
    "conflicting-signed-by": "Remove the other list file of that repository, then run again.",
    "sources-broken": "Mend the list file that apt complains about, then run again.",
    "package-missing": "Check `repositories` in the inventory: they do not hold this package.",
    "version-missing": "Choose one of the versions that are there, or leave the version open.",
    "dependencies": "Something installed stands against it; see `apt-get install` of these packages on the host.",
    "would-remove": "gpunode removes nothing that was not in the plan: remove it by hand if it may go.",
    "would-downgrade": "Ask for that version in the inventory (`driver`, `toolkit`) if it is wanted.",
    "apt-failed": "Try `apt-get update` and the installation by hand on the host; mend what it complains about.",
    "dpkg-failed": "Mend what the package's script complains about, `dpkg --configure -a` on the host, then run again.",
    "headers-missing": "Install the running kernel's headers, or boot a kernel that has them.",
    "disk-full": "Make room on that file system, then run again.",
    "read-only": "The file system is mounted read-only, often after an I/O error: see `dmesg` on the host.",
    "os-error": "Mend what the host's system complains about (and `sudo: true` if it is a permission), then run again.",
    "changed-underneath": "Somebody changed it after the plan was made: run again to plan on what is there now.",
    "check-failed": "The file was left as it was; mend what its program complains about.",
    "unit-failed": "Mend what its words complain about (`journalctl -u` on the host has more), then run again.",
    "module-in-use": "Stop what uses the GPUs (drain the node), then run again.",
    "module-failed": "`dmesg | grep NVRM` on the host says more.",
    "image-failed": "Mend what the runtime complains about, or check that the archive holds the image it is to hold.",
    "payload-damaged": "Run again; if it happens again, the archive changes while it is sent.",
    "reboot-failed": "Reboot it by hand, or mend what `systemctl reboot` complains about; then run again.",
    "packages-hang": "Find out what it waits for (`dpkg --audit`, `journalctl` on the host), then run again: what dpkg "
    "left half done is finished first.",
    "aborted": "Run again: it plans from what is there now.",
    "interrupted": "Run again: it plans from what is there now.",
    "internal": "Please report it with these lines; the changes before it stay made.",
    "unsupported-package-manager": "gpunode installs packages with apt so far; install them by hand, with `driver: none`.",
}

Tell = Callable[[Event], None]
Dial = Callable[[Host], reach.Connection]


class Visit:
    """A host during a run: its one connection, opened when first needed and kept until closed."""

    def __init__(
        self, host: Host, dial: Dial, image: PluginImage | None, password: Password | None = None
    ) -> None:
        self.host = host
        self.image = image
        self.watch = pipeline.watch(image)
        self._dial = dial
        self._password = password
        self._connection: reach.Connection | None = None

    def ask(self, job: Mapping[str, Any], archives: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
        """Run one job with the agent; yields its messages."""
        if self._connection is None:
            self._connection = self._dial(self.host)
        try:
            yield from reach.talk(
                self.host,
                self._connection,
                job,
                archives=archives,
                password=self._password,
            )
        except Unreachable:
            self.close()
            raise

    def close(self) -> None:
        """Close the connection; the next `ask` opens a new one."""
        if self._connection is not None:
            self._connection.close()
            self._connection = None


def look(visit: Visit, tell: Tell) -> Outcome:
    """Probe the host and plan. Refusals are outcomes that keep the facts."""
    tell(Event("stage", visit.host.name, "probe"))
    return planned(visit.host, _probe(visit), visit.image)


def follow(visit: Visit, outcome: Outcome, tell: Tell) -> Outcome:
    """When an earlier apply is still under way on the host, wait for its end and look again."""
    run = outcome.facts.running if outcome.facts else None
    if run is None:
        return outcome
    tell(Event("stage", visit.host.name, f"follow the apply that {run.by} started", {"run": run.id}))
    for message in _messages(visit, wire.follow_job(run.id), run.id, tell):
        if message["type"] == "progress":
            tell(Event("progress", visit.host.name, message["text"]))
    return look(visit, tell)


def apply(visit: Visit, outcome: Outcome, tell: Tell) -> Outcome:
    """Apply `outcome.plan` and plan again from what is then there.

    The outcome is `changed`, with the plan that is left (empty when the host is right), or `failed`. A connection
    that is lost meanwhile is made again and the apply, which goes on on the host, is followed to its end.
    """
    host, plan = visit.host, outcome.plan
    if not plan or outcome.facts is None:
        return outcome
    run = f"{time.strftime('%Y%m%dT%H%M%S')}-{secrets.token_hex(3)}"
    job = wire.apply_job(run, f"{getpass.getuser()}@{socket.gethostname()}", plan.changes, visit.watch)
    archives = [change.archive for change in plan.changes if isinstance(change, LoadImage)]
    seen: Facts | None = None
    error: HostError | None = None
    applied: list[Change] = []
    for message in _messages(visit, job, run, tell, archives):
        kind = message["type"]
        if kind == "start":
            n = message["n"]
            tell(
                Event("change", host.name, diff.headline(plan.changes[n]), {"n": n, "of": len(plan.changes)})
            )
        elif kind == "progress":
            tell(Event("progress", host.name, message["text"], {"percent": message.get("percent")}))
        elif kind == "done":
            applied.append(plan.changes[message["n"]])
        elif kind == "failed":
            error = _failure(host, plan.changes[message["n"]], message)
        elif kind == "locked":
            raise Refused(
                host.name,
                f"{message['by']} has been changing this host since {_clock(message['since'])}",
                hint="Wait for that run to end; `gpunode provision` then plans afresh. `gpunode abort` ends it.",
            )
        elif kind == "unknown":
            raise ConnectionLost(
                host.name,
                "the connection was lost before the work had begun: nothing was changed",
                hint="Run it again.",
            )
        elif kind == "facts":
            seen = facts.parse(message["facts"])
    if error is None and any(isinstance(change, Reboot) for change in applied):
        reboot = next(change for change in applied if isinstance(change, Reboot))
        seen, refused = _reboot(visit, run, outcome.facts.boot_id, tell)
        if refused is not None:
            applied.remove(reboot)
            error = _failure(host, reboot, refused)
    after = planned(visit.host, seen or _probe(visit), visit.image)
    after = replace(after, applied=(*outcome.applied, *applied))
    if error is not None:
        return replace(after, status="failed", error=error.message, hint=error.hint)
    return replace(after, status="changed") if after.status in ("right", "planned") else after


@dataclass(frozen=True, slots=True)
class Ended:
    """The apply that an abort ended, with what it was doing; empty where none ran. `results`: files put back, and why not."""

    by: str = ""
    since: str = ""
    doing: str = ""
    results: tuple[str, ...] = ()


def abort(visit: Visit, tell: Tell) -> Ended:
    """End the apply under way on the host. It puts back files whose restart it has not seen to be good."""
    tell(Event("stage", visit.host.name, "abort"))
    ended = Ended()
    for message in visit.ask(wire.abort_job()):
        if message["type"] == "aborting":
            ended = Ended(message["by"], _clock(message["since"]), message["doing"])
            tell(Event("stage", visit.host.name, f"ending the apply of {ended.by}: {ended.doing}"))
        elif message["type"] == "failed":
            back = [f"put back {path}" for path in message["restored"]]
            ended = replace(ended, results=(*ended.results, *back, *message["detail"]))
        elif message["type"] == "progress":
            ended = replace(ended, results=(*ended.results, message["text"]))
    return ended


def _failure(host: Host, change: Change, message: Mapping[str, Any]) -> HostError:
    lines = [
        f"{diff.headline(change)}: {message['error']}",
        *(f"  {line}" for line in message.get("detail", ())),
    ]
    if message.get("restored"):
        lines.append(f"Put back as it was: {', '.join(message['restored'])}")
    return AgentFailed(host.name, "\n".join(lines), hint=HINTS.get(message.get("code", ""), ""))


def _messages(
    visit: Visit, job: Mapping[str, Any], run: str, tell: Tell, archives: Sequence[str] = ()
) -> Iterator[dict[str, Any]]:
    """The messages of an apply to its end, through connections that break."""
    count = 0
    deadline = None
    while True:
        skip = count  # an apply that is followed tells its story from the start
        try:
            for message in visit.ask(job, archives):
                if skip:
                    skip -= 1
                    continue
                count += 1
                deadline = None
                yield message
            return
        except Unreachable as error:
            deadline = deadline or time.monotonic() + RECONNECT_SECONDS
            if time.monotonic() > deadline:
                raise ConnectionLost(
                    visit.host.name,
                    f"the connection was lost while changing the host: {error.message}",
                    hint="The work goes on there; `gpunode provision` follows it when the host answers again.",
                ) from error
            if isinstance(error, ConnectionLost):
                tell(Event("stage", visit.host.name, "connection lost, the work goes on; connecting again"))
            time.sleep(1)
            job, archives = wire.follow_job(run), ()


def _reboot(visit: Visit, run: str, boot_id: str, tell: Tell) -> tuple[Facts, Mapping[str, Any] | None]:
    """Wait until the host is back with another boot id; with the failure's message where it refused to go."""
    visit.close()
    deadline = time.monotonic() + REBOOT_SECONDS
    tell(Event("stage", visit.host.name, "reboot"))
    while time.monotonic() < deadline:
        time.sleep(2)
        try:
            seen = _probe(visit)
            # What became of the reboot is known after the apply's end has been told: its record says it.
            story = [] if seen.boot_id != boot_id else list(visit.ask(wire.follow_job(run)))
        except PasswordRefused:
            raise
        except HostError:
            continue
        refused = next((message for message in story if message.get("code") == "reboot-failed"), None)
        if seen.boot_id != boot_id or refused is not None:
            return seen, refused
    raise Unreachable(
        visit.host.name,
        f"it did not come back within {REBOOT_SECONDS / 60:.0f} minutes of its reboot",
        hint="Look at its console; then run `gpunode provision` again.",
    )


def _clock(since: float) -> str:
    return time.strftime("%Y-%m-%d %H:%M:%S", time.localtime(since))


def _probe(visit: Visit) -> Facts:
    seen: Facts | None = None
    for message in visit.ask(wire.probe_job(visit.watch)):
        if message["type"] == "facts":
            seen = facts.parse(message["facts"])
    if seen is None:
        raise AgentFailed(visit.host.name, "the agent's answer holds no facts")
    return seen


def planned(host: Host, seen: Facts, image: PluginImage | None) -> Outcome:
    """What is to change on a host that is seen like this, or why nothing may be."""
    try:
        wish = desired.decide(host, seen, image)
        plan = pipeline.plan(host, seen, wish)
    except Refused as refused:
        return Outcome(
            host.name, "refused", seen, error=refused.message, hint=refused.hint, layer=refused.layer
        )
    return Outcome(host.name, "planned" if plan else "right", seen, wish, plan)
