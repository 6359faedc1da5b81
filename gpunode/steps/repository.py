"""Package sources and the keys that sign them; lists that contradict them."""

from __future__ import annotations

from collections.abc import Iterator

from gpunode import apt, compat
from gpunode.model import Change, Desired, Facts, Packages, RemoveFile, Source, WriteFile
from gpunode.render import Unfit, template
from gpunode.steps import driver, files, toolkit

FILES = (*apt.FILES, "/usr/share/keyrings/gpunode-*.asc")
UNITS = ()
PACKAGES = ()


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Sources known and read anew when something is to be installed."""
    changes = [change for source in desired.sources for change in _source(facts, source)]
    changes += _contradictions(facts, desired)
    if changes or driver.missing(facts, desired) or toolkit.missing(facts, desired):
        changes.append(Packages("apt must know what its sources hold now", refresh=True))
    return tuple(changes)


def _keyring(source: Source) -> str:
    return f"/usr/share/keyrings/{source.name}.asc"


def _list(source: Source) -> str:
    return f"/etc/apt/sources.list.d/{source.name}.sources"


def _source(facts: Facts, source: Source) -> Iterator[Change]:
    key = source.key if source.key.endswith("\n") else f"{source.key}\n"
    yield from files.write(
        facts,
        _keyring(source),
        template("usr/share/keyrings/gpunode.asc", key=key),
        f"the key that signs {source.uri}; apt takes it for this source only",
    )
    yield from files.write(
        facts,
        _list(source),
        template("etc/apt/sources.list.d/gpunode.sources", uri=source.uri, keyring=_keyring(source)),
        f"where {source.name.removeprefix('gpunode-')} packages come from",
    )


def _contradictions(facts: Facts, desired: Desired) -> Iterator[Change]:
    """Other files' entries for the same place with another key, which stop apt, and entries of dead places."""
    if desired.driver is None and not desired.toolkit:
        return
    own = {_list(source) for source in desired.sources}
    entries = [entry for entry in apt.entries(facts) if entry.path not in own]
    wrong = {entry: reason for entry in entries if (reason := _reason(entry, desired)) is not None}
    for path in dict.fromkeys(entry.path for entry in wrong):
        here = [entry for entry in entries if entry.path == path]
        reason = next(wrong[entry] for entry in here if entry in wrong)
        before = files.text(facts, path) or ""
        if all(entry in wrong for entry in here):
            yield RemoveFile(path, before, reason)
        elif path.endswith(".sources"):
            raise Unfit(
                f"{path}: {reason}, and the file holds other sources too",
                hint="Take that source out of the file by hand, then run again.",
            )
        else:
            lines = before.splitlines(keepends=True)
            for entry in here:
                if entry in wrong and entry.line is not None:
                    lines[entry.line] = f"# {lines[entry.line]}"
            yield WriteFile(path, "".join(lines), reason, before=before)


def _reason(entry: apt.Entry, desired: Desired) -> str | None:
    if compat.is_dead(entry.uri):
        return f"{entry.uri} gets no packages any more and can stop apt"
    for source in desired.sources:
        same = apt.same_uri(entry.uri, source.uri) and entry.suite in ("/", "./")
        if same and entry.signed_by != _keyring(source):
            return f"it names {entry.uri} too, with another key: apt stops at such a conflict"
    return None
