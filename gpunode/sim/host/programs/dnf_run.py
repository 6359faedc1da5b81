"""A transaction as dnf shows, confirms and runs it."""

from __future__ import annotations

import sys
import time
from argparse import Namespace
from collections.abc import Callable, Iterable, Sequence

from gpunode.sim.host import rpms
from gpunode.sim.host.machine import Now, PackageNow
from gpunode.sim.host.programs import systemd
from gpunode.sim.host.programs.transaction import Transaction
from gpunode.sim.host.rpms import Rpm
from gpunode.sim.host.state import State

Say = Callable[[str], None]

ADDED, REPLACED, REMOVED = ("Installing", "Installed", "Install"), "Cleanup", ("Erasing", "Removed", "Remove")
# Heading -> dnf's words during the transaction, after it and in its summary.
WORDS = {
    "Installing": ADDED,
    "Installing dependencies": ADDED,
    "Upgrading": ("Upgrading", "Upgraded", "Upgrade"),
    "Downgrading": ("Downgrading", "Downgraded", "Downgrade"),
    "Removing": REMOVED,
    "Removing dependent packages": REMOVED,
    "Removing unused dependencies": REMOVED,
}


def run(state: State, options: Namespace, work: Transaction, asked: Iterable[str] = ()) -> int:
    """Show, confirm and run a transaction; `asked` are the packages that the user named. Returns dnf's exit status."""
    say: Say = (lambda _: None) if options.quiet else print
    say("Dependencies resolved.")
    if not work.changes:
        say("Nothing to do.\nComplete!")
        return 0
    _show(work, say)
    if not _accepted(options):
        sys.stdout.flush()
        sys.stderr.write("Operation aborted.\n")
        return 1
    _carry_out(state, work, say)
    _keep(state, work, set(asked))
    for word in dict.fromkeys(after for _, after, _ in WORDS.values()):
        names = sorted(one.nevra for head, one in work.changes if WORDS[head][1] == word)
        if names:
            print("".join(f"{line}\n" for line in ("", f"{word}:", *(f"  {name}" for name in names))), end="")
    print()
    say("Complete!")
    return 0


def _accepted(options: Namespace) -> bool:
    if options.assumeyes or options.assumeno:
        return not options.assumeno
    print("Is this ok [y/N]: ", end="", flush=True)
    return sys.stdin.readline().strip().lower() in ("y", "yes")


def _show(work: Transaction, say: Say) -> None:
    rows = [("Package", "Arch", "Version", "Repository", "Size")]
    rows += [(one.name, one.arch, one.version, one.repo, size(one.kib)) for _, one in work.changes]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]

    def line(row: Sequence[str]) -> str:
        *cells, last = (f"{cell:{width}}" for cell, width in zip(row, widths, strict=True))
        return f" {'  '.join(cells)}  {last.strip():>{widths[-1]}}"

    rule = "=" * max(80, len(line(rows[0])))
    say(f"{rule}\n{line(rows[0])}\n{rule}")
    for head in WORDS:
        packages = work.under(head)
        if packages:
            say(f"{head}:")
        for one in packages:
            say(line((one.name, one.arch, one.version, one.repo, size(one.kib))))
    say(f"\nTransaction Summary\n{rule}")
    counts: dict[str, int] = {}
    for head, _ in work.changes:
        counts[WORDS[head][2]] = counts.get(WORDS[head][2], 0) + 1
    for word, count in counts.items():
        say(
            f"{word:{max(map(len, counts))}}  {count:{len(str(max(counts.values())))}} Package{'s' if count > 1 else ''}"
        )
    say("")
    total = size(sum(one.kib for _, one in work.changes))
    say(f"Freed space: {total}" if "Remove" in counts else f"Total download size: {total}")


def _carry_out(state: State, work: Transaction, say: Say) -> None:
    """Run the transaction package by package, at the machine's pace."""
    there = rpms.installed(state.machine(), state.now().packages)
    old = [there[one.name] for head, one in work.changes if WORDS[head] != REMOVED and one.name in there]
    steps = [(WORDS[head][0], one) for head, one in work.changes] + [(REPLACED, one) for one in reversed(old)]
    seen = sorted((one for _, one in steps), key=lambda one: one.name)
    if any(WORDS[head] != REMOVED for head, _ in work.changes):
        say("Downloading Packages:")
        for number, (_, one) in enumerate(work.changes, 1):
            epochless = f"{one.name}-{one.version.rpartition(':')[2]}.{one.arch}.rpm"
            say(f"({number}/{len(work.changes)}): {epochless:50} 9.9 MB/s | {size(one.kib)}B     00:00    ")
    say("Running transaction check\nTransaction check succeeded.")
    say("Running transaction test\nTransaction test succeeded.\nRunning transaction")
    say(f"  {'Preparing':17}: {'':55} 1/1 ")
    for number, (word, one) in enumerate(steps, 1):
        say(f"  {word:17}: {one.nevra:55} {number}/{len(steps)} ")
        sys.stdout.flush()
        time.sleep(state.machine().pace)
    for number, one in enumerate(seen, 1):
        say(f"  {'Verifying':17}: {one.nevra:55} {number}/{len(steps)} ")


def forget(state: State, names: Iterable[str]) -> None:
    """Remove packages from the state, and the driver's library with its package."""
    with state.change() as now:
        for name in names:
            del now.packages[name]
        _bring_library(now)
        systemd.follow(state, now)


def _keep(state: State, work: Transaction, asked: set[str]) -> None:
    with state.change() as now:
        for head, one in work.changes:
            before = now.packages.pop(one.name, None)
            if WORDS[head] != REMOVED:
                chosen = one.name in asked if before is None else before.asked
                now.packages[one.name] = PackageNow(one.version, origin=one.repo, asked=chosen)
        _bring_library(now)
        systemd.follow(state, now)


def _bring_library(now: Now) -> None:
    package = now.packages.get("libnvidia-ml")
    now.library = Rpm("libnvidia-ml", package.version).parts[1] if package else ""


def columns(rows: Sequence[Sequence[str]], among: Sequence[Sequence[str]] = ()) -> None:
    """Print rows with their cells below each other, and below those of the rows that they are `among`."""
    widths = [max(map(len, column)) for column in zip(*(among or rows), strict=True)]
    for row in rows:
        print("  ".join(f"{cell:{width}}" for cell, width in zip(row, widths, strict=True)).rstrip())


def size(kib: int) -> str:
    """A size in dnf's format: 40 k, 5.8 M."""
    if kib <= 999:
        return f"{kib} k"
    mib = kib / 1024
    return f"{mib:.1f} M" if mib < 9.95 else f"{mib:.0f} M"
