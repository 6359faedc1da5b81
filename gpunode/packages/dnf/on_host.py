"""dnf 4, dnf 5 and yum 3 on the host: running one, one at a time, for as long as it prints something; locks; refresh, install and remove,
each after a dry run; and why one failed, from its output."""

import os
import re
import time
from fnmatch import fnmatchcase
from typing import Any, Callable, Dict, Iterable, Iterator, List, NamedTuple, Optional, Set, Tuple

from gpunode.agent.failures import Failure
from gpunode.agent.files import put
from gpunode.agent.package_manager import (
    PackageSystem,
    check_space,
    locked_failure,
    note_planned,
    posix_holder,
    refuse_unplanned,
    run_exclusively,
    wait_for_lock,
)
from gpunode.agent.record import Run
from gpunode.agent.system import Message, below, glob_of, have, last, line_of, run, text_of
from gpunode.packages.on_host import DAMAGED, is_named, read_rpms

# Nothing recommended (a display server), no clean-up of what others may use; a repository that does not answer is left
# out, as hosts have old ones.
YUM_OPTIONS = (
    "--setopt=exit_on_lock=1 --setopt=clean_requirements_on_remove=0 --setopt=*.skip_if_unavailable=1".split()
)


class Dialect(NamedTuple):
    """`declined`: how a dry run ends. `refresh`: the commands that reload repositories. `locklist`: of versionlock, and the
    file that may name another one; "": versions are locked by the command."""

    program: str
    options: List[str]
    pid_files: Tuple[str, ...]
    declined: str
    refresh: List[List[str]]
    locklist: Tuple[str, str]


DNF4 = Dialect(
    "dnf",
    [*YUM_OPTIONS, "--setopt=install_weak_deps=0", "--color=never"],
    ("/var/cache/dnf/metadata_lock.pid", "/var/cache/dnf/download_lock.pid", "/var/lib/dnf/rpmdb_lock.pid"),
    "Operation aborted",
    [["-y", "--refresh", "makecache"]],
    ("/etc/dnf/plugins/versionlock.list", "/etc/dnf/plugins/versionlock.conf"),
)
# dnf 5 has no --color. source: dnf5(8), dnf5-versionlock(8)
DNF5 = DNF4._replace(options=[*YUM_OPTIONS, "--setopt=install_weak_deps=0"], pid_files=(), locklist=("", ""))
# source: yum(8), yum-versionlock(1)
YUM = Dialect(
    "yum",
    [*YUM_OPTIONS, "--color=never"],
    ("/var/run/yum.pid",),
    "Exiting on user command",
    [["-y", "clean", "expire-cache"], ["-y", "makecache", "fast"]],
    ("/etc/yum/pluginconf.d/versionlock.list", "/etc/yum/pluginconf.d/versionlock.conf"),
)
RPM_LOCKS = ("/var/lib/rpm/.rpm.lock", "/usr/lib/sysimage/rpm/.rpm.lock")


def dialect() -> Dialect:
    """The host's; dnf 4 where it has none."""
    dnf = have("dnf")
    if dnf is not None:
        return DNF5 if os.path.basename(os.path.realpath(dnf)) == "dnf5" else DNF4
    return YUM if have("yum") else DNF4


def dnf(this: Run, *arguments: str) -> Tuple[int, str]:
    """Wait for its locks and run it: its status, and its output without passwords."""
    ours = dialect()
    wait_for_lock(this, ours.program, holder, "dnf-locked")
    status, text = run_exclusively(this, [ours.program, *ours.options, *arguments], heard=follow(this))
    words = (
        r"already locked by (\d+)|another copy is running as pid (\d+)|(?:obtain|create).* transaction lock"
    )
    # rpm reports that it cannot write its lock's file in the same words: "… lock on /x (No space left on device)"
    failed = re.search(r"transaction lock on .*\((?!Resource temporarily)", text)
    taken = re.search(words, text) if status and not failed else None
    if taken:
        raise locked_failure(ours.program, int(taken.group(1) or taken.group(2) or 0), "dnf-locked")
    return status, text


def holder() -> Optional[int]:
    """The process that holds a lock of dnf's, whose files hold its pid, or of rpm's."""
    for path in dialect().pid_files:
        pid = line_of(path)
        if pid.isdigit() and os.path.isdir(below("/proc/" + pid)):
            return int(pid)
    return next((pid for pid in map(posix_holder, RPM_LOCKS) if pid), None)


def follow(this: Run) -> Callable[[str], None]:
    """Turns dnf's lines (`Installing : NEVRA  3/12`) into at most two progress messages a second."""
    sent = [0.0]

    def heard(text: str) -> None:
        steps = re.findall(r"^  ([A-Z][a-z ]+?) +: +(\S+) +(\d+)/(\d+) *$", text, re.M)
        if steps and time.monotonic() - sent[0] > 0.5:
            sent[0] = time.monotonic()
            word, package, number, count = steps[-1]
            this.progress("%s %s" % (word, package), round(100.0 * int(number) / int(count), 1))

    return heard


TOML_LOCKS = "/etc/dnf/versionlock.toml"
ENTRY = re.compile(r"([^*?\[!#]+)-(\d+:[^*?\[]+)\.\*")  # as `dnf versionlock add` writes it


def read(patterns: Iterable[str], _broken: bool = False) -> Dict[str, Dict[str, Any]]:
    """The matching packages; rpm has none that are half installed."""
    locks = [*locked_packages(text_of(locklist()) or ""), *toml_locks()]
    return read_rpms(patterns, lambda name, version, arch: is_locked(locks, name, version, arch))


def toml_locks() -> List[str]:
    """The entries `NAME-EPOCH:VERSION-RELEASE` of dnf 5's list, which its own command writes."""
    locks = []
    for block in (text_of(TOML_LOCKS) or "").split("[[packages]]")[1:]:
        name = re.search(r'^name\s*=\s*"([^"]+)"', block, re.M)
        evr = re.search(r'^key\s*=\s*"evr"\s*\ncomparator\s*=\s*"="\s*\nvalue\s*=\s*"([^"]+)"', block, re.M)
        if name and evr:
            locks.append("%s-%s" % (name.group(1), with_epoch(evr.group(1))))
    return locks


def locklist() -> str:
    usual, names_it = dialect().locklist
    named = re.search(r"^\s*locklist\s*=\s*(/\S+)", text_of(names_it) or "", re.M)
    return named.group(1) if named else usual


def locked_packages(text: str) -> Iterator[str]:
    for line in text.splitlines():
        entry = line.strip()
        if entry and not entry.startswith(("#", "!")):
            yield as_dnf_has_it(entry)


def lock_of(name: str, version: str) -> str:
    """A line of versionlock's list: `NAME-EPOCH:VERSION.*`, by yum `EPOCH:NAME-VERSION.*`."""
    epoch, _, rest = version.partition(":")
    return "%s:%s-%s.*" % (epoch, name, rest) if dialect() is YUM else "%s-%s.*" % (name, version)


def as_dnf_has_it(lock: str) -> str:
    """A lock in dnf's order, whoever wrote it."""
    of_yum = re.match(r"(\d+):(.+)-([^-]+-[^-]+)$", lock)
    return "%s-%s:%s" % (of_yum.group(2), of_yum.group(1), of_yum.group(3)) if of_yum else lock


def is_locked(locks: List[str], name: str, version: str, arch: str) -> bool:
    """Whether one of the locks names this version: the plugin reads both spellings of a missing epoch."""
    epoch, _, plain = version.rpartition(":")
    shapes = [name + "-" + (epoch or "0") + ":" + plain] + [name + "-" + plain] * (epoch in ("", "0"))
    names = shapes + [shape + "." + arch for shape in shapes]
    return any(fnmatchcase(shape, lock) for lock in locks for shape in names)


def change_locks(run_name: str, names: List[str], add: bool) -> Optional[str]:
    """Remove versionlock's own entries of these packages, and add those of their installed versions.

    The parts of a driver, which all have its epoch and version (releases may differ), go with it: with one of them free, `dnf upgrade` would
    fail. Other lines stay: entries with wildcards in the version are a user's. Returns the list as it was, None without one.
    """
    before = text_of(locklist())
    entries = [(line, ENTRY.fullmatch(as_dnf_has_it(line.strip()))) for line in (before or "").splitlines()]
    versions = {upstream(entry.group(2)) for _, entry in entries if entry and entry.group(1) in names}
    lines = [
        line
        for line, entry in entries
        if not entry or not goes_with(entry.group(1), entry.group(2), names, versions)
    ]
    if add:
        installed = {name: with_epoch(package["version"]) for name, package in read(["*"]).items()}
        versions = {upstream(installed[name]) for name in names if name in installed}
        lines += [lock_of(n, v) for n, v in sorted(installed.items()) if goes_with(n, v, names, versions)]
    write_locks(run_name, "".join(line + "\n" for line in lines), before)
    return before


def goes_with(name: str, version: str, names: List[str], versions: Set[str]) -> bool:
    """Whether a package is one of these, or a part of one: they have these versions."""
    return name in names or (upstream(version) in versions and not version.startswith("0:"))


def upstream(version: str) -> str:
    return version.rpartition("-")[0]


def with_epoch(version: str) -> str:
    return version if ":" in version else "0:" + version


def write_locks(run_name: str, text: Optional[str], before: Optional[str]) -> None:
    """Write the list, where it is not so already."""
    if text is None or text == (before or ""):
        return
    folder = os.path.dirname(below(locklist()))
    if not os.path.isdir(folder):
        os.makedirs(folder)
    put(locklist(), text.encode(), 0o644, None, run_name)


HINTS = {
    "dnf-locked": "Let the other package manager finish, then run again.",
    "modules-filtered": "`dnf module list nvidia-driver` on the host shows the streams; a mirror must have NVIDIA's module "
    "metadata and all of the branch.",
    "dnf-failed": "Try `dnf makecache` and the installation by hand on the host, and fix the error.",
}


def argument(spec: Message) -> str:
    """A package as dnf takes it: `nvidia-driver-cuda-3:580.*`."""
    return "-".join(filter(None, (spec["name"], spec["version"])))


def failure_of_dnf(this: Run, text: str, specs: List[Message]) -> Failure:
    detail = last(text, 12) + this.warnings
    if re.search(r"No space left on device|more space needed on|needs \d+\w?B (?:more space )?on the ", text):
        space = re.search(r"^.*(?:No space left|more space needed|needs \d+\w?B).*", text, re.M)
        return Failure("disk-full", space.group(0).strip() if space else "the disk is full", detail)
    if re.search(r"rpmdb open failed|DB_RUNRECOVERY|disk image is malformed|^error: rpmdb", text, re.M):
        return Failure("rpmdb-broken", "rpm's database is damaged: " + error_of(text), detail)
    hidden = re.findall(r"filtered out by modular filtering for argument: (\S+)", text)
    if hidden:
        sentence = "module filtering hides %s: the enabled stream does not have it" % ", ".join(hidden)
        return Failure("modules-filtered", sentence, detail)
    hidden = re.findall(r"filtered out by exclude filtering for argument: (\S+)", text)
    hidden += re.findall(r"package (\S+) is filtered out by exclude filtering", text)
    if hidden:
        sentence = "a version lock or an exclude of the host hides " + ", ".join(dict.fromkeys(hidden))
        return Failure("version-locked", sentence, detail)
    if "There are no enabled repo" in text:
        return no_repositories(text)
    missing = re.findall(r"^No match for argument: (\S+)", text, re.M)
    if missing:
        return missing_failure(this, missing, specs)
    if re.search(
        r"GPG check FAILED|GPG signature|NOKEY|GPG key retrieval failed|Couldn't read a file:// file", text
    ):
        cause = re.findall(
            r"^(?:Public key for|Package \S+ is not signed|Curl error|GPG key retrieval failed).*", text, re.M
        )
        error = cause[-1] if cause else error_of(text)
        return Failure(
            "repository-unsigned", "%s cannot check the signature: %s" % (dialect().program, error), detail
        )
    keyless = re.search(r"do not have any GPG public keys installed(?s:.*?)Problem repository: (.*)", text)
    if keyless:
        sentence = "dnf has no key to check the repository %s with: set its `gpgkey`" % keyless.group(1)
        return Failure("repository-unsigned", sentence, this.warnings)
    repository = re.search(r"Failed to download metadata for repo '([^']*)'", text)
    if repository:
        return unavailable_failure(repository.group(1), text)
    fetch = re.search(r"^(?:Error: )?Error downloading packages:\n *(.*)", text, re.M)
    damaged = re.search(r"^.*(?:%s).*" % DAMAGED.pattern, text, re.M)
    if damaged:
        prefix = fetch.group(1).partition(": ")[0] + ": " if fetch else ""
        sentence = "%s fetched a file that does not match its index: %s%s"
        values = (dialect().program, prefix, damaged.group(0).strip())
        return Failure("repository-damaged", sentence % values, detail)
    if fetch:
        return Failure("repository-unreachable", "dnf could not fetch a package: " + fetch.group(1), detail)
    nothing = re.findall(r"nothing provides (.+?) needed by (\S+)", text)
    if nothing:
        sentence = "no repository of this host has %s, which %s needs" % nothing[0]
        return Failure("dependency-missing", sentence, detail)
    of_yum = re.search(r"^Error: Package: (\S+) .*\n +Requires: (.+)", text, re.M)
    if of_yum:
        sentence = "no repository of this host has %s, which %s needs" % (of_yum.group(2), of_yum.group(1))
        return Failure("dependency-missing", sentence, detail)
    problem = re.search(r"^ Problem[^:]*: (.*)", text, re.M)
    if problem:
        return Failure("dependencies", "dnf cannot satisfy this: " + problem.group(1), detail)
    conflict = re.search(r"^ *(file \S+ (?:from install of|conflicts between) .*)", text, re.M)
    if conflict:
        return Failure("file-conflict", conflict.group(1), detail)
    what = " ".join(argument(spec) for spec in specs)
    return Failure(
        "dnf-failed", ("dnf failed (%s): " % what if what else "dnf failed: ") + error_of(text), detail
    )


def missing_failure(this: Run, missing: List[str], specs: List[Message]) -> Failure:
    """The failure for packages, or versions of them, that no repository has."""
    if any(re.match(r"kernel\S*-devel-\d", name) for name in missing):
        sentence = "no repository of this host has the headers of its running kernel: " + ", ".join(missing)
        return Failure("headers-missing", sentence, this.warnings)
    for spec in specs:
        if argument(spec) in missing and spec["version"]:
            shown = ["available"] if dialect().program == "yum" else ["--available"]
            ask = [dialect().program, "-q", "-C", "list", "--showduplicates", *shown, spec["name"]]
            listed = run(*ask, timeout=60).out
            versions = re.findall(r"^%s\.\S+ +(\S+) " % re.escape(spec["name"]), listed, re.M)
            if versions:
                others = ", ".join(list(dict.fromkeys(reversed(versions)))[:8])
                sentence = "no repository has %s %s; available: %s" % (spec["name"], spec["version"], others)
                return Failure("version-missing", sentence, this.warnings)
    sentence = "no repository of this host has the package %s" % ", ".join(dict.fromkeys(missing))
    return Failure("package-missing", sentence, this.warnings)


def no_repositories(text: str) -> Failure:
    return Failure("no-repositories", "%s has no enabled repository" % dialect().program, last(text, 5))


def unavailable_failure(name: str, text: str) -> Failure:
    """Why dnf reads nothing of a repository."""
    match = re.search(
        r"^Error: Failed to download metadata for repo '%s': (.*)" % re.escape(name), text, re.M
    )
    error = match.group(1) if match else "no reason given"
    if re.search(r"GPG|signature", error):
        sentence = "dnf does not trust the signature of the repository %s: %s" % (name, error)
        return Failure("repository-unsigned", sentence, last(text, 12))
    block = re.search(
        r"^Errors during downloading metadata for repository '%s':\n((?: +- .*\n?)+)" % re.escape(name),
        text,
        re.M,
    )
    if block:
        error = last(block.group(1), 1)[0].strip(" -")
    code = "repository-damaged" if DAMAGED.search(error) else "repository-unreachable"
    return Failure(code, "dnf could not read the repository %s: %s" % (name, error), last(text, 12))


def error_of(text: str) -> str:
    """dnf's own error, else its last line."""
    errors = re.findall(r"^Error: *(\S.*)", text, re.M) or last(text, 1) or ["no output"]
    return str(errors[-1])


KERNEL = re.compile(r"kernel(-\w+)*-core$|kernel(-uek)?$|kernel\d[\d.]*$")
SIZES = {"": 1.0, "k": 1e3, "M": 1e6, "G": 1e9}


class Row(NamedTuple):
    """A package of a transaction, below one of dnf's headings: Installing, Upgrading, Removing …, replacing."""

    heading: str
    name: str
    arch: str
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
            failure = unavailable_failure(name, text)
            if name.startswith(OWN):
                raise failure
            this.warnings.append(failure.error)
            this.progress(failure.error)
    if status:
        raise Failure(
            "dnf-failed", "%s makecache failed: %s" % (ours.program, error_of(text)), last(text, 12)
        )


def missed_by_yum(this: Run, text: str) -> None:
    """What yum could not read: it names files, and goes on. Those of gpunode's repositories stop it."""
    own = []
    for path in glob_of("/etc/yum.repos.d/%s*.repo" % OWN):
        own += re.findall(r"^baseurl\s*=\s*(\S+)", text_of(path) or "", re.M)
    for uri, error in dict(re.findall(r"^(\w+://\S+): (.*(?:Errno|signature).*)", text, re.M)).items():
        code = "repository-unsigned" if "signature" in error else "repository-unreachable"
        code = "repository-damaged" if DAMAGED.search(error) else code
        sentence = "yum could not read %s: %s" % (uri, error)
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
    locks = None
    if (names or remove) and not by_command:
        locks = change_locks(this.name, [*names, *remove], add=False)
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
    installed = read([spec["name"] for spec in specs])
    later = [spec for spec in specs if spec["downgrade"] and not is_installed(installed, spec)]
    if later:
        transact(this, "downgrade", [argument(spec) for spec in later], later, [])


def is_installed(installed: Dict[str, Dict[str, Any]], spec: Message) -> bool:
    package = installed.get(spec["name"])
    version = spec["version"].rpartition(":")[2]
    return package is None or not version or fnmatchcase(package["version"].rpartition(":")[2], version)


def lift(this: Run, names: List[str]) -> List[str]:
    """Remove dnf 5's locks of these packages; returns those that were there."""
    entries = toml_locks()
    held = [name for name in names if any(re.match(re.escape(name) + r"-\d+:", entry) for entry in entries)]
    version_lock(this, "delete", held)
    return held


def version_lock(this: Run, verb: str, names: List[str]) -> None:
    """dnf 5 has its list in TOML, and a command for it."""
    if names:
        status, text = dnf(this, "versionlock", verb, *names)
        if status:
            raise Failure("dnf-failed", "dnf versionlock %s: %s" % (verb, error_of(text)), last(text, 5))


def transact(this: Run, verb: str, arguments: List[str], specs: List[Message], remove: List[str]) -> None:
    """Raises Failure if dnf would remove or downgrade what the plan does not name, install a kernel, or fill the disk."""
    status, text = dnf(this, verb, "--assumeno", *arguments)
    missing = re.findall(r"^No package (\S+) available", text, re.M)  # yum goes on without it
    kept = [spec["name"] for spec in specs if argument(spec) in missing and is_kept(spec["name"])]
    if kept and "due to versionlock" in text:
        raise Failure("version-locked", "a version lock of the host hides " + ", ".join(kept), last(text, 12))
    if missing:
        raise missing_failure(this, missing, specs)
    if not status:
        return  # nothing to do
    if dialect().declined not in text:
        raise failure_of_dnf(this, text, specs)
    rows = list(table(text))
    gone = [row for row in rows if row.heading.startswith(("Removing", "replacing"))]
    downgrades = [row for row in rows if row.heading == "Downgrading"]
    come = [row for row in rows if row.heading.startswith(("Installing", "Upgrading", "Updating"))]
    refuse_unplanned(
        dialect().program,
        text,
        [row.name for row in gone if not is_named(row.name, row.arch, row.version, remove)],
        [row.name for row in downgrades if not any(is_planned(row, spec) for spec in specs)],
        next(("%s %s" % (row.name, row.version) for row in come if KERNEL.match(row.name)), ""),
    )
    check_space(needs(text))
    note_planned(this, [row.name for row in rows])
    status, text = dnf(this, verb, "-y", *arguments)
    if status:
        raise failure_of_dnf(this, text, specs)
    check_scripts(this, text, specs)


def is_kept(name: str) -> bool:
    """Whether the host's list of locks has another version of a package."""
    entries = locked_packages(text_of(locklist()) or "")
    return any(re.match(re.escape(name) + r"-\d", entry) for entry in entries)


def is_planned(row: Row, spec: Message) -> bool:
    """Whether a downgrade is the spec's: of it, or of a part of the same version."""
    version = row.version.rpartition(":")[2]
    fits = not spec["version"] or fnmatchcase(version, spec["version"].rpartition(":")[2])
    return bool(spec["downgrade"]) and fits


def table(text: str) -> Iterator[Row]:
    """The packages of the transaction that dnf shows. It wraps rows that are too long."""
    heading = ""
    cells: List[str] = []
    for line in [*text.splitlines(), ""]:
        begins = re.match(
            r"((?:Installing|Upgrading|Updating|Downgrading|Reinstalling|Removing)[\w ]*):$", line
        )
        of_dnf5 = re.match(r" +replacing +(\S+) +(\S+) +(\S+) +\S+ +\S+", line)
        if of_dnf5:  # by another package, or by a new version
            if cells and of_dnf5.group(1) != cells[0]:
                yield Row("replacing", *of_dnf5.groups())
            continue
        if line.startswith("  ") and cells and not line.startswith("     replacing "):
            cells += line.split()
            continue
        if heading and len(cells) > 2:
            yield Row(heading, *cells[:3])
        cells = []
        if begins:
            heading = begins.group(1)
        elif line.startswith("     replacing "):
            name, version = line.split()[1:3]
            yield Row("replacing", *name.rpartition(".")[::2], version)
        elif line.startswith(" ") and heading:
            cells = line.split()
        else:
            heading = ""


def needs(text: str) -> Iterator[Tuple[str, float]]:
    """The folders in which dnf needs space, and how much in bytes."""
    for path, name in (("/var/cache/dnf", "Total download size"), ("/usr", "Installed size")):
        needed = re.search(r"^%s: ([\d.]+) ?([kMG]?)" % name, text, re.M)
        if needed:
            yield path, float(needed.group(1)) * SIZES[needed.group(2)]
    # dnf 5, which says `will be freed` of a removal
    for path, label in (
        ("/var/cache/libdnf5", r"Need to download %s"),
        ("/usr", r"After this operation, %s extra"),
    ):
        needed = re.search(label % r"([\d.]+) ([KMG]?)i?B", text)
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
        match
        for match in failed
        if any(re.match(re.escape(name) + r"(-\d|$)", match.group(1)) for name in names)
    ]
    if log or own:
        detail = last((text_of(log.group(1)) or "") if log else text[: own[0].start()], 12)
        who = "a script of %s" % own[0].group(1) if own else "the build of the module"
        raise Failure("rpm-failed", "%s failed: %s" % (who, (detail or ["no output"])[-1].strip()), detail)
    this.warnings += [
        "a script of %s failed" % name for name in dict.fromkeys(match.group(1) for match in failed)
    ]


def hold(this: Run, names: List[str]) -> None:
    if dialect() is DNF5:
        installed = read(names)
        free = [name for name in names if not installed.get(name, {}).get("held")]
        lift(this, free)  # entries of other versions
        version_lock(this, "add", free)
    else:
        change_locks(this.name, names, add=True)


def release(this: Run, names: List[str]) -> None:
    if dialect() is DNF5:
        lift(this, names)
    else:
        change_locks(this.name, names, add=False)


SYSTEM = PackageSystem(read, refresh, make, hold, release)
