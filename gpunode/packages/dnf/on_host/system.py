"""dnf and yum: refresh; install and remove, each after a dry run; hold."""

import re
from fnmatch import fnmatchcase
from typing import Any, Dict, Iterator, List, NamedTuple, Tuple

from gpunode.agent.failures import Failure
from gpunode.agent.package_manager import PackageSystem, room
from gpunode.agent.record import Run
from gpunode.agent.system import Message, glob_of, last, text_of
from gpunode.packages.dnf.on_host.failures import (
    absent,
    argument,
    failure_of_dnf,
    no_repositories,
    unavailable,
    words_of,
)
from gpunode.packages.dnf.on_host.locks import change_locks, locked, locklist, read, toml_locks, write_locks
from gpunode.packages.dnf.on_host.program import DNF5, YUM, dialect, dnf
from gpunode.packages.on_host.rpm import DAMAGED

KERNEL = re.compile(r"kernel(-\w+)*-core$|kernel(-uek)?$|kernel\d[\d.]*$")
SIZES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


class Row(NamedTuple):
    """A package of a transaction, below one of dnf's headings: Installing, Upgrading, Removing …, replacing."""

    heading: str
    name: str
    version: str


OWN = "gpunode-"  # how the names of gpunode's repositories begin


def refresh(this: Run) -> None:
    """`dnf makecache`, which also imports keys. A repository that is not gpunode's only causes warnings."""
    ours, status, text = dialect(), 0, ""
    for command in ours.refresh:
        status, text = dnf(this, *command)
    if ours is YUM:
        missed_by_yum(this, text)
    if "There are no enabled repo" in text:
        raise no_repositories(text)
    for name in re.findall(r"^Warning: failed loading '(\S+?)'", text, re.M):
        if OWN in name:
            raise Failure("sources-broken", "dnf cannot read %s" % name, last(text, 12))
    for names in re.findall(r"^Ignoring repositories: (.*)", text, re.M):
        for name in names.split(", "):
            failure = unavailable(name, text)
            if name.startswith(OWN):
                raise failure
            this.warnings.append(failure.error)
            this.progress(failure.error)
    if status:
        raise Failure(
            "dnf-failed", "%s makecache failed: %s" % (ours.program, words_of(text)), last(text, 12)
        )


def missed_by_yum(this: Run, text: str) -> None:
    """What yum could not read: it names files, and goes on. Those of gpunode's repositories stop it."""
    own = []
    for path in glob_of("/etc/yum.repos.d/%s*.repo" % OWN):
        own += re.findall(r"^baseurl\s*=\s*(\S+)", text_of(path) or "", re.M)
    for uri, words in dict(re.findall(r"^(\w+://\S+): (.*(?:Errno|signature).*)", text, re.M)).items():
        code = "repository-unsigned" if "signature" in words else "repository-unreachable"
        code = "repository-damaged" if DAMAGED.search(words) else code
        sentence = "yum could not read %s: %s" % (uri, words)
        failure = Failure(code, sentence, last(text, 12))
        if any(uri.startswith(mine) for mine in own):
            raise failure
        this.warnings.append(sentence)
        this.progress(sentence)


def make(this: Run, specs: List[Message], remove: List[str], _purge: bool) -> None:
    """Remove, then install, each after a dry run. What a user has locked stays as it is."""
    names = [spec["name"] for spec in specs]
    by_command = dialect() is DNF5
    lifted = lift(this, [*names, *remove]) if by_command else []
    locks = (
        change_locks(this.name, [*names, *remove], add=False)
        if (names or remove) and not by_command
        else None
    )
    try:
        if remove:
            transact(this, "remove", remove, specs, remove)
        if specs:
            transact(this, "install", [argument(spec) for spec in specs], specs, remove)
        if dialect() is YUM:
            go_back(this, specs)
    except BaseException:
        write_locks(this.name, locks, None)
        version_lock(this, "add", lifted)
        raise


def go_back(this: Run, specs: List[Message]) -> None:
    """yum installs no version earlier than the one that is there; it has another command for that."""
    there = read([spec["name"] for spec in specs])
    later = [spec for spec in specs if spec["downgrade"] and not is_there(there, spec)]
    if later:
        transact(this, "downgrade", [argument(spec) for spec in later], later, [])


def is_there(there: Dict[str, Dict[str, Any]], spec: Message) -> bool:
    """Whether a package is installed in the version of a spec."""
    found = there.get(spec["name"])
    wanted = spec["version"].rpartition(":")[2]
    return found is None or not wanted or fnmatchcase(found["version"].rpartition(":")[2], wanted)


def lift(this: Run, names: List[str]) -> List[str]:
    """Remove dnf 5's locks of these packages; returns those that were there."""
    entries = toml_locks()
    there = [name for name in names if any(re.match(re.escape(name) + r"-\d+:", entry) for entry in entries)]
    version_lock(this, "delete", there)
    return there


def version_lock(this: Run, verb: str, names: List[str]) -> None:
    """dnf 5 has its list in TOML, and a command for it."""
    if names:
        status, text = dnf(this, "versionlock", verb, *names)
        if status:
            raise Failure("dnf-failed", "dnf versionlock %s: %s" % (verb, words_of(text)), last(text, 5))


def transact(this: Run, verb: str, arguments: List[str], specs: List[Message], remove: List[str]) -> None:
    """Raises Failure if dnf would remove or downgrade what the plan does not name, install a kernel, or fill the disk."""
    status, text = dnf(this, verb, "--assumeno", *arguments)
    missing = re.findall(r"^No package (\S+) available", text, re.M)  # yum goes on without it
    kept = [spec["name"] for spec in specs if argument(spec) in missing and is_kept(spec["name"])]
    if kept and "due to versionlock" in text:
        raise Failure("version-locked", "a version lock of the host hides " + ", ".join(kept), last(text, 12))
    if missing:
        raise absent(this, missing, specs)
    if not status:
        return  # nothing to do
    if dialect().declined not in text:
        raise failure_of_dnf(this, text, specs)
    rows = list(table(text))
    gone = [row.name for row in rows if row.heading.startswith(("Removing", "replacing"))]
    back = [row for row in rows if row.heading == "Downgrading"]
    for code, extra in (
        ("remove", [name for name in gone if name not in remove]),
        ("downgrade", [row.name for row in back if not any(is_wished(row, spec) for spec in specs)]),
    ):
        if extra:
            sentence = "%s would also %s %s, which was not planned" % (
                dialect().program,
                code,
                " ".join(extra),
            )
            raise Failure("would-" + code, sentence, last(text, 12))
    kernels = [
        row
        for row in rows
        if row.heading.startswith(("Installing", "Upgrading", "Updating")) and KERNEL.match(row.name)
    ]
    if kernels:
        new = "%s %s" % (kernels[0].name, kernels[0].version)
        sentence = "%s would also install a kernel, %s, which the next boot would take" % (
            dialect().program,
            new,
        )
        raise Failure("would-install-kernel", sentence, last(text, 12))
    room(needs(text))
    status, text = dnf(this, verb, "-y", *arguments)
    if status:
        raise failure_of_dnf(this, text, specs)
    check_scripts(this, text, specs)


def is_kept(name: str) -> bool:
    """Whether the host's list of locks has another version of a package."""
    entries = locked(text_of(locklist()) or "")
    return any(re.match(re.escape(name) + r"-\d", entry) for entry in entries)


def is_wished(row: Row, spec: Message) -> bool:
    """Whether a downgrade is the spec's: of it, or of a part of the same version."""
    version = row.version.rpartition(":")[2]
    fits = not spec["version"] or fnmatchcase(version, spec["version"].rpartition(":")[2])
    return bool(spec["downgrade"]) and fits


def table(text: str) -> Iterator[Row]:
    """The packages of the transaction that dnf shows. It wraps rows that are too long."""
    heading = ""
    words: List[str] = []
    for line in [*text.splitlines(), ""]:
        begins = re.match(
            r"((?:Installing|Upgrading|Updating|Downgrading|Reinstalling|Removing)[\w ]*):$", line
        )
        of_dnf5 = re.match(r" +replacing +(\S+) +\S+ +(\S+) +\S+ +\S+", line)
        if of_dnf5:  # by another package, or by a new version
            if words and of_dnf5.group(1) != words[0]:
                yield Row("replacing", *of_dnf5.groups())
            continue
        if line.startswith("  ") and words and not line.startswith("     replacing "):
            words += line.split()
            continue
        if heading and len(words) > 2:
            yield Row(heading, words[0], words[2])
        words = []
        if begins:
            heading = begins.group(1)
        elif line.startswith("     replacing "):
            name, version = line.split()[1:3]
            yield Row("replacing", name.rpartition(".")[0], version)
        elif line.startswith(" ") and heading:
            words = line.split()
        else:
            heading = ""


def needs(text: str) -> Iterator[Tuple[str, float]]:
    """The folders in which dnf needs space, and how much in bytes."""
    for path, name in (("/var/cache/dnf", "Total download size"), ("/usr", "Installed size")):
        needed = re.search(r"^%s: ([\d.]+) ?([kMG]?)" % name, text, re.M)
        if needed:
            yield path, float(needed.group(1)) * SIZES[needed.group(2)]
    # dnf 5, which says `will be freed` of a removal
    for path, words in (
        ("/var/cache/libdnf5", r"Need to download %s"),
        ("/usr", r"After this operation, %s extra"),
    ):
        needed = re.search(words % r"([\d.]+) ([KMG]?)i?B", text)
        if needed:
            yield path, float(needed.group(1)) * SIZES[needed.group(2).replace("K", "k")]


def check_scripts(this: Run, text: str, specs: List[Message]) -> None:
    """Raises Failure if a module could not be built, or a script of a requested package failed: dnf goes on then."""
    headers = re.search(r"kernel headers for kernel (\S+) cannot be found", text)
    if headers:
        sentence = "dkms found no headers of the kernel %s to build its module with" % headers.group(1)
        raise Failure("headers-missing", sentence, last(text[: headers.start()], 6))
    log = re.search(r"[Cc]onsult (\S+make\.log)", text)
    failed = list(re.finditer(r"(?:Error in \w+ scriptlet in rpm package |warning: %\w+\()([^\s)]+)", text))
    names = [spec["name"] for spec in specs]
    own = [
        one for one in failed if any(re.match(re.escape(name) + r"(-\d|$)", one.group(1)) for name in names)
    ]
    if log or own:
        detail = last((text_of(log.group(1)) or "") if log else text[: own[0].start()], 12)
        who = "a script of %s" % own[0].group(1) if own else "the build of the module"
        raise Failure("rpm-failed", "%s failed: %s" % (who, (detail or ["no output"])[-1].strip()), detail)
    this.warnings += [
        "a script of %s failed" % name for name in dict.fromkeys(one.group(1) for one in failed)
    ]


def hold(this: Run, names: List[str]) -> None:
    """Lock the installed versions."""
    if dialect() is DNF5:
        there = read(names)
        free = [name for name in names if not there.get(name, {}).get("held")]
        lift(this, free)  # entries of other versions
        version_lock(this, "add", free)
    else:
        change_locks(this.name, names, add=True)


SYSTEM = PackageSystem(read, refresh, make, hold)
