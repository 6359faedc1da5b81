"""What apt needs: NVIDIA's sources in its lists with their keys, no conflicting ones, and to stay on a driver branch, by NVIDIA's
pin package where there is one, else by a preferences file."""

import re
import time
from collections.abc import Iterable, Iterator

from gpunode.errors import CannotPlan
from gpunode.model import Change, Desired, DriverSpec, Facts, Source, Watch
from gpunode.packages import releases, repositories
from gpunode.packages.apt import lists, on_host
from gpunode.packages.names import PackageNames, PackageSystem
from gpunode.packages.signing import check_expiry, check_key, expiry_notes, key_text
from gpunode.planning import files, versions
from gpunode.planning.templates import template

DRIVER = "/etc/apt/sources.list.d/gpunode-driver.sources"
KEYRINGS = "/usr/share/keyrings/gpunode-*.asc"
POLICY = "/etc/crypto-policies/back-ends/apt-sequoia.config"  # in place of apt's own, /usr/share/apt/default-sequoia.config
PREFERENCE = "/etc/apt/preferences.d/gpunode-driver.pref"
NAMES = PackageNames("apt")
WATCH = Watch(
    files=(*lists.FILES, KEYRINGS, POLICY, PREFERENCE),
    packages=(
        "cuda-drivers*",
        "*nvidia*",
        "libcuda1*",
        "libcudadebugger1",
        "libnvcuvid*",
        "libnvsdm*",
        "linux-headers-*",
        "dkms",
    ),
)


def offers(facts: Facts, purpose: repositories.Purpose) -> bool:
    """Whether one of the host's sources of binary packages is NVIDIA's for this, and apt reads it."""
    offering = [e for e in lists.entries(facts) if e.binary and repositories.offers("apt", purpose, e.uri)]
    return any(e.unsigned or _allows_sha1(facts) or not _weakness(facts, e.uri) for e in offering)


def notes(facts: Facts, sources: Iterable[Source]) -> tuple[str, ...]:
    """Warnings about expired keys, and about NVIDIA's sources that apt accepts unsigned or with a weak signature."""
    return (*expiry_notes(facts, sources), *_source_notes(facts))


def _source_notes(facts: Facts) -> Iterator[str]:
    entries = [e for e in lists.entries(facts) if e.binary and repositories.offers_any("apt", e.uri)]
    places = dict.fromkeys((e.path, lists.without_login(e.uri), e.unsigned) for e in entries)
    for path, uri, unsigned in places:
        why = _weakness(facts, uri)
        fix = "Remove `trusted`, and name the source's key with `signed-by`."
        if why:
            fix = f"{why} Remove that source: NVIDIA's for this system is {repositories.repository_uri('driver', facts.os)}."
        if unsigned:
            yield f"{path} has `trusted=yes` for {uri}: apt installs from there without a signature. {fix}"
        elif why and _allows_sha1(facts):
            yield f"{POLICY} allows SHA-1 for all of apt's sources, so that {path} is read. {fix} Then remove that file."
        elif why:
            yield f"{path}: {fix} `trusted=yes`, or a policy that allows SHA-1 for longer, gives up the check."


def _allows_sha1(facts: Facts) -> bool:
    policy = facts.files.get(POLICY)
    pattern = r"^[ \t]*sha1(?:\.second_preimage_resistance)?\s*=\s*[\"']?(always\b|\d{4}-\d\d-\d\d)"
    dates = re.findall(pattern, policy.content or "" if policy else "", re.MULTILINE)
    today = time.strftime("%Y-%m-%d", time.gmtime(facts.time))
    return any(until > today for until in dates)  # "always" is after every day


def _weakness(facts: Facts, uri: str) -> str:
    """Why the host's apt refuses the signature of NVIDIA's repository there, as a sentence; "" where it does not."""
    directory = repositories.refused_directory(facts.os, lists.without_login(uri))
    why = f"apt of {facts.os.pretty} refuses {directory}'s signature since 2026-02-01: the binding signature of its key is SHA-1."
    return why if directory else ""


def plan_sources(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Add the desired sources with their keys, and remove conflicting ones."""
    # Conflicts are removed first: a run that ends in between leaves apt without a source, but working.
    changes = list(_conflicts(facts, desired))
    for source in desired.sources:
        here = tuple(_source(facts, source))
        check_expiry(facts, desired, source, here)
        changes += here
    return tuple(changes)


def _keyring(source: Source) -> str:
    return f"/usr/share/keyrings/{source.name}.asc"


def _list(source: Source) -> str:
    return f"/etc/apt/sources.list.d/{source.name}.sources"


def _source(facts: Facts, source: Source) -> Iterator[Change]:
    release = releases.release(facts.os)
    if release is not None and not release.armoured:
        raise CannotPlan(
            f"{facts.os.pretty}: its apt reads no armoured key for a single source, so gpunode adds none",
            hint=f"Add {source.uri} with its key on the host (`apt-key add`), and take it out of `repositories` for this host.",
        )
    if (why := _weakness(facts, source.uri)) and not _allows_sha1(facts):
        raise CannotPlan(
            f"`repositories.{source.name.removeprefix('gpunode-')}.uri` is {source.uri}: {why.rstrip('.')}",
            hint=f"Name {repositories.repository_uri('driver', facts.os)}, with its key (`gpunode keys`), or leave `repositories` out.",
        )
    check_key(facts, source)
    yield from files.write(
        facts,
        _keyring(source),
        template("usr/share/keyrings/gpunode.asc", key=key_text(source)),
        f"the key that signs {source.uri}; apt takes it for this source only",
    )
    yield from files.write(
        facts,
        _list(source),
        template("etc/apt/sources.list.d/gpunode.sources", uri=source.uri, keyring=_keyring(source)),
        f"where {source.name.removeprefix('gpunode-')} packages come from",
    )


def _conflicts(facts: Facts, desired: Desired) -> Iterator[Change]:
    """Other files' entries with the same address and another key, which stop apt, and entries of dead repositories."""
    if desired.driver is None and not desired.toolkit:
        return
    own = {_list(source) for source in desired.sources}
    entries = [entry for entry in lists.entries(facts) if entry.path not in own]
    arch = facts.os.arch
    wrong = {entry: reason for entry in entries if (reason := _reason(entry, desired, arch)) is not None}
    for path in dict.fromkeys(entry.path for entry in wrong):
        here = [entry for entry in entries if entry.path == path]
        bad = [entry for entry in here if entry in wrong]
        before = files.text(facts, path) or ""
        if len(bad) == len(here) and path != lists.FILES[0]:
            yield files.remove(path, before, wrong[bad[0]])
            continue
        after = _without_entries(before, here, bad)
        left = [(entry.uri, entry.suite, entry.signed_by) for entry in lists.read(path, after)]
        if left != [(entry.uri, entry.suite, entry.signed_by) for entry in here if entry not in bad]:
            raise CannotPlan(
                f"{path}: {wrong[bad[0]]}, and the file holds other sources too",
                hint="Take that source out of the file by hand, then run again.",
            )
        yield from files.write(facts, path, after, wrong[bad[0]])


def _without_entries(text: str, here: list[lists.Entry], bad: list[lists.Entry]) -> str:
    """A list without the bad entries: lines become comments; stanzas are disabled or lose a URI."""
    lines = text.split("\n")
    for start, stop in dict.fromkeys((entry.start, entry.stop) for entry in reversed(bad)):
        stanza = [entry for entry in here if entry.start == start]
        if not stanza[0].path.endswith(".sources"):
            lines[start] = f"# {lines[start]}"
        elif all(entry in bad for entry in stanza):
            end = "\r" if lines[start].endswith("\r") else ""
            kept = [line for line in lines[start:stop] if not line.lower().startswith("enabled:")]
            lines[start:stop] = [f"Enabled: no{end}", *kept]
        else:
            for uri in {entry.uri for entry in stanza if entry in bad}:
                lines[start:stop] = _without_uri(lines[start:stop], uri)
    return "\n".join(lines)


def _without_uri(stanza: list[str], uri: str) -> list[str]:
    lines, field = [], ""
    for line in stanza:
        field = field if line[:1] in (" ", "\t", "#") else line.partition(":")[0].strip().lower()
        here = field == "uris" and not line.startswith("#")
        less = re.sub(rf"(?<=[\s:]){re.escape(uri)}(?=\s|$)[ \t]*", "", line) if here else line
        if less.strip() or less == line:
            lines.append(less)
    return lines


def _reason(entry: lists.Entry, desired: Desired, arch: str) -> str | None:
    uri = lists.without_login(entry.uri)
    if desired.driver and desired.driver.archive and entry.path == DRIVER:
        return "the driver comes from the distribution's own archive"
    if repositories.is_dead("apt", entry.uri):
        return f"{uri} no longer gets packages, and can stop apt"
    place = lists.place(entry.uri, arch, entry.suite)
    for source in desired.sources:
        own = lists.place(source.uri, arch)
        key = entry.signed_by == _keyring(source)
        if not place or lists.plain(place) != lists.plain(own) or (place != own and entry.signed_by):
            continue
        if uri != entry.uri and lists.without_login(source.uri) == source.uri:
            raise CannotPlan(
                f"{entry.path} has a login in its address of {uri}, and `repositories` names that place without one",
                hint="Move the login to a file in /etc/apt/auth.conf.d on the host, then take that source out of the list.",
            )
        if place == own and entry.signed_by and not key:
            return f"it names {uri} too, with another key: apt stops at such a conflict"
        if not key:
            return f"it names {uri} too, without its key: apt stops at such a conflict, or trusts neither"
        if entry.trusted or uri.partition(":")[0] != source.uri.partition(":")[0]:
            return f"it names {uri} too, in another way: apt would take that one, or stop"
    return None


def driver_sources(facts: Facts) -> tuple[str, ...]:
    """The files but gpunode's own with NVIDIA's repository of drivers."""
    entries = [entry for entry in lists.entries(facts) if entry.path != DRIVER and entry.binary]
    return tuple(entry.path for entry in entries if repositories.offers("apt", "driver", entry.uri))


def keeps_branch(facts: Facts) -> bool:
    return bool(NAMES.pins(facts.packages)) or files.exists(facts, PREFERENCE)


def plan_branch(facts: Facts, driver: DriverSpec) -> tuple[Change, ...]:
    """The desired pin package and no other; without one, the file."""
    why = f"keeps apt on driver branch {driver.branch}"
    changes: list[Change] = []
    absent = tuple(spec for spec in driver.pin if spec.name not in facts.packages)
    names = [spec.name for spec in driver.pin]
    others = tuple(sorted(name for name in NAMES.pins(facts.packages) if name not in names))
    if absent or others:
        # A pin is its file in preferences.d: as a configuration file it would outlive a mere removal, and still pin.
        purge = bool(others)
        changes.append(versions.change_packages(facts, why, install=absent, remove=others, purge=purge))
    before = files.text(facts, PREFERENCE)
    if not driver.pin:
        version, patterns = NAMES.any_of(driver.branch), NAMES.driver_patterns
        changes += files.write_own(
            facts, PREFERENCE, why, packages=patterns, version=version, archive=driver.archive
        )
    elif before is not None:
        changes.append(files.remove(PREFERENCE, before, f"{', '.join(names)} says it now"))
    return tuple(changes)


SYSTEM = PackageSystem(
    NAMES,
    WATCH,
    rpm=False,
    purge="apt-get purge",
    reinstall="apt install --reinstall",
    hints=on_host.HINTS,
    place=lists.place,
    offers=offers,
    driver_sources=driver_sources,
    plan_sources=plan_sources,
    keeps_branch=keeps_branch,
    plan_branch=plan_branch,
    notes=notes,
)
