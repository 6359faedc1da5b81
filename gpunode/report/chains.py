"""The chains of hosts, link by link, and the answers of `why`, as lines of styled text. Pure."""

import re
from collections.abc import Iterator, Sequence
from typing import Any

from gpunode.model import Verdict
from gpunode.report.plain import CHANGE, Part, indent, lines, plain
from gpunode.wording import few

STATUS_SIGNS = {"ok": ("✓", "green"), "broken": ("✗", "red"), "unknown": ("·", "dim")}
REMARK = ("!", "yellow")  # a link that holds, with a remark
REASONS, LINES = 3, 12  # of an answer
WHOLE = 8  # lines of evidence that are all shown
FIX = " " * 8  # before the lines of a fix
LONG = 100  # characters of a link
UUID = re.compile(r"\b((?:GPU|MIG)-[0-9a-f]{8})-[0-9a-f]{4}-[0-9a-f-]{22,}")


def answer(rows: Sequence[Sequence[Any]]) -> Iterator[Part]:
    """The answer of `why`, on top of its reasons."""
    for _, _, text in rows:
        yield f" {plain(text)}\n", "bold"


def reasons(rows: Sequence[Sequence[Any]]) -> Iterator[Part]:
    """The reasons below an answer, which names the first; at most LINES lines."""
    shown = rows[:REASONS]
    fixes = sum(max(1, len(fix.splitlines())) for *_, fix in shown)
    most = max(1, (LINES - 2 * len(shown) - fixes) // len(shown))
    fixed = set[str]()
    for number, (_, what, evidence, fix) in enumerate(shown):
        if number:
            yield f" Also: {plain(what)}\n", "bold"
        kept = evidence if len(evidence) <= max(most, WHOLE) else evidence[: most - 1]
        yield from (f"   {plain(line)}\n" for line in kept)
        if len(kept) < len(evidence):
            yield f"   and {len(evidence) - len(kept)} more\n", "dim"
        if fix and fix not in fixed:
            fixed.add(fix)
            yield "   Fix: ", "green"
            first, *more = indent(fix, FIX)
            yield f"{first.removeprefix(FIX).removeprefix('Fix ')}\n"
            yield from (f"{line}\n" for line in more)
    if len(rows) > len(shown):
        yield f" Also, with --json: {plain(few([row[1] for row in rows[REASONS:]], REASONS))}\n", "dim"


def chain(host: str, links: Sequence[Verdict]) -> Iterator[Part]:
    """The chain, link by link; links after a broken one by name only."""
    yield from (" ", (host, "bold"), "\n")
    for link in links:
        if link.status == "unknown" and not link.text:
            continue
        remark = link.status == "ok" and link.problem is not None and not link.is_pending
        sign = REMARK if remark else CHANGE if link.is_pending else STATUS_SIGNS[link.status]
        text = UUID.sub(r"\1…", link.text) if len(link.text) > LONG else link.text
        yield from ("   ", sign, f" {link.layer:<9} {text}\n")
        for word, text in zip(
            ("note", "advice") if remark else ("cause", "fix"), (link.cause, link.fix), strict=True
        ):
            margin = " " * 17
            first, *rest = [*indent(text, margin)] or [margin]
            if text:
                yield from ("       ", (f"{word:<9}", "dim"), f" {first.removeprefix(margin)}\n")
            yield from (f"{line}\n" for line in rest)
    unknown = [link.layer for link in links if link.status == "unknown" and not link.text]
    if unknown:
        broken = any(link.status == "broken" for link in links)
        why = ", because an earlier link is broken" if broken else ""
        yield f"   · {', '.join(unknown)}: not checked{why}\n", "dim"


def whole_chain(host: str, links: Sequence[Verdict]) -> Iterator[Part]:
    """A chain that holds, in one line."""
    kept = f" {len(links)} links OK, {links[0].layer} to {links[-1].layer}" if links else ""
    yield from (" ", (host, "bold"), "  ", STATUS_SIGNS["ok"], f"{kept}\n")
    for link in links:
        if link.problem:
            yield from (
                "   ",
                CHANGE if link.is_pending else REMARK,
                f" {link.layer}: {'. '.join(lines(link.cause)[:1] + lines(link.fix))}\n",
            )
