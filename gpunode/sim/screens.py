"""What the show prints of a command's output: one screen a step. Pure; `--verbose` shows all of it."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from typing import TypeAlias

Lines: TypeAlias = Sequence[str]
Screen: TypeAlias = Callable[[Lines], Lines]

LINES = 16
# A line of a diff, as `plan` indents it, and the line that begins a merge's.
DIFF = re.compile(r" {10,}[-+ @]")
MERGE = re.compile(r" {10,}@@ ")
ITEM = re.compile(r" {3}\w* *[-+~!] ")
HOST, LINK = re.compile(r" [^ ✓✗·]"), re.compile(r"   [✓✗·] ")


def plan(lines: Lines) -> Lines:
    """Every change with its reason, and what merges change in the user's files; not the text of new files."""
    kept: list[str] = []
    merge = reason = False
    for line in lines:
        if ITEM.match(line):
            merge, reason = False, True
        elif MERGE.match(line):
            merge = True
        elif line.startswith(" " * 10) and not merge:
            if not reason:
                continue
            reason = False
        kept.append(line)
    return kept


def results(lines: Lines) -> Lines:
    """Refusals and failures, the hosts' results, and how many GPUs passed."""
    tables = [number for number, line in enumerate(lines) if line.startswith(("NODE ", "HOST "))]
    if not tables:
        return shorten(lines)
    bad = [line for line in lines[: tables[0]] if "✗" in line]
    passed = sum("  passed  " in line for line in lines)
    counted = f"{passed} GPU{'' if passed == 1 else 's'} finished a CUDA pod"
    return [*shorten(bad), *shorten(lines[tables[-1] :]), counted]


def chains(lines: Lines) -> Lines:
    """The first host's chain, and of each other whole one how many links are right."""
    kept: list[str] = []
    chain: list[str] = []
    shown = False

    def close() -> None:
        nonlocal shown, chain
        if chain and shown and all("✓" in line for line in chain[1:]):
            kept.append(f"{chain[0]}: {len(chain) - 1} links, all ✓")
        else:
            kept.extend(chain)
        shown, chain = shown or bool(chain), []

    for line in lines:
        if chain and LINK.match(line):
            chain.append(line)
            continue
        close()
        if HOST.match(line) and " " not in line.strip():
            chain = [line]
        else:
            kept.append(line)
    close()
    return kept


def shorten(lines: Lines) -> Lines:
    """At most LINES lines; the last one counts the rest."""
    if len(lines) <= LINES:
        return lines
    return [*lines[: LINES - 1], f"… and {len(lines) - LINES + 1} lines more"]


def ends(lines: Lines) -> Lines:
    """Of a command's progress, where no terminal shows it live: how many hosts ended how, and where the time went."""
    return [line for line in lines if re.match(r" (\d+ (of \d+ )?hosts? |time went to )", line)]
