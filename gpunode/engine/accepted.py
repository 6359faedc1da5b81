"""What the records of acceptances say of hosts as they are now. `verify` and `provision` read them; `engine/acceptance` writes them."""

from collections.abc import Collection, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path

from gpunode.acceptance.stamp import Stamp, read_stamp
from gpunode.contract.condition import NOT_ACCEPTED as CODE
from gpunode.engine.member import Member
from gpunode.links.node import Node
from gpunode.local.files import state_folder
from gpunode.model import Inventory, Verdict
from gpunode.wording import advise, lines

REQUIRED = "standard"  # the level of an acceptance that the inventory requires


def judge_record(
    records: Path, member: Member, verdicts: Sequence[Verdict], uuids: Sequence[str], now: float
) -> tuple[Verdict, ...]:
    """A host's verdicts, the last with what its record says: until when it counts, or why it does not. Without one that counts a
    host is broken where the inventory requires it. `uuids`: of the GPUs and MIG devices that pods see."""
    stamp = newest(records, member.host.name, member.node, uuids, now)
    silent = stamp is None and not member.host.accept_required
    if silent or not verdicts or any(verdict.status == "broken" for verdict in verdicts):
        return tuple(verdicts)
    *before, last = verdicts
    if last.status != "ok":
        return tuple(verdicts)
    void = _why_void(stamp, member, uuids, now)
    text = f"{last.text}; {stamp.describe(now)}" if stamp else last.text
    if not void:
        return (*before, replace(last, text=text))
    fix = advise(f"`gpunode accept` measures it{' again' if stamp else ''}.")
    plain = stamp is None or stamp.verdict == "failed"
    cause = lines((last.cause, void if plain else f"the acceptance does not count: {void}"))
    if not member.host.accept_required:
        return (*before, replace(last, text=text).with_cause(cause, fix))
    broken = Verdict.broken("pod", "the host is not accepted, as the inventory requires", cause, fix, CODE)
    return (*before, *((last,) if last.layer != "pod" else ()), broken)


def is_due(records: Path, member: Member, uuids: Sequence[str], now: float) -> bool:
    """True if the inventory requires an acceptance, and none counts."""
    if not member.host.accept_required:
        return False
    return bool(_why_void(newest(records, member.host.name, member.node, uuids, now), member, uuids, now))


def closes_again(records: Path, member: Member, now: float) -> bool:
    """True if the inventory wants the node tainted until its proof and requires an acceptance, and the newest is over
    or dated ahead. False for a host without any."""
    host = member.host
    if member.node is None or not (host.taint_until_verified and host.accept_required):
        return False
    stamp = newest(records, host.name, member.node, (), now)
    return stamp is not None and (now >= stamp.until or stamp.is_ahead(now))


def _why_void(stamp: Stamp | None, member: Member, uuids: Sequence[str], now: float) -> str:
    """Why the stamp does not count for this host as it is now; "" where it does."""
    if stamp is None:
        return "it was never accepted"
    if member.host.accept_required and not stamp.meets(REQUIRED):
        return f"it was {stamp.level}, and the inventory asks for {REQUIRED}"
    module = member.facts.modules.get("nvidia") if member.facts else None
    kernel = member.facts.kernel if member.facts else ""
    return stamp.why_void(now=now, driver=(module and module.version) or "", kernel=kernel, uuids=uuids)


def newest(records: Path, host: str, node: Node | None, uuids: Collection[str], now: float) -> Stamp | None:
    """The stamp that counts of the node's annotation and this machine's records: the newest, but for shorter runs. Of one `--on-host`,
    where the host is a node: if it has one of these UUIDs, as another cluster may have a host of the name. One that is dated ahead
    counts only where there is no other."""
    stamps = [read_stamp(node.accepted), _read(path_of(records, host, node))] if node else []
    on_host = _read(path_of(records, host, None))
    if node is None or (on_host and not {*on_host.uuids, *on_host.failed}.isdisjoint(uuids)):
        stamps.append(on_host)
    last: Stamp | None = None
    for stamp in sorted(filter(None, stamps), key=lambda stamp: (not stamp.is_ahead(now), stamp.at)):
        if last is None or last.is_ahead(now) or stamp.replaces(last):
            last = stamp
    return last


def _read(path: Path) -> Stamp | None:
    with suppress(OSError):
        return read_stamp(path.read_text(encoding="utf-8"))
    return None


def path_of(records: Path, host: str, node: Node | None) -> Path:
    """The record's file in this folder. Hosts of two clusters may have one name, so it has the beginning of the node's UID."""
    return records / (f"{host}-{node.uid[:8]}.json" if node else f"{host}.json")


def folder(inventory: Inventory) -> Path:
    """The folder with this user's records of the inventory."""
    return state_folder(Path(inventory.path)) / "accepted"
