"""Running zypper: the dry run, whose plan is XML, before what it does; its exit codes; locks by name.

source: zypper(8), exit codes; `install-summary` in recorded outputs of `--xmlout`. No real zypper has run this yet.
"""

import os
import re
from typing import Any, Dict, Iterable, Iterator, List, NamedTuple, Optional, Tuple
from xml.etree import ElementTree

from gpunode.agent.failures import Failure
from gpunode.agent.package_manager import (
    PackageSystem,
    check_space,
    locked_failure,
    note_planned,
    refuse_unplanned,
    run_exclusively,
    wait_for_lock,
)
from gpunode.agent.record import Run
from gpunode.agent.system import Message, below, glob_of, last, line_of, run, text_of
from gpunode.packages.on_host import DAMAGED, is_named, read_rpms

# Nothing recommended, nothing asked. In --xmlout all words are in elements.
ZYPPER = ["zypper", "--non-interactive", "--xmlout"]
INSTALL = ["--auto-agree-with-licenses", "--no-recommends", "--oldpackage", "--details"]
PID_FILES = ("/run/zypp.pid", "/var/run/zypp.pid")
DONE = (0, 100, 101, 102, 103, 106)  # those above 100 are for information; 106: a repository was left out
ZYPP_LOCKS = "/etc/zypp/locks"
KERNEL = re.compile(r"kernel-(default|azure|64kb|rt)(-base)?$")


def read(patterns: Iterable[str], _broken: bool = False) -> Dict[str, Dict[str, Any]]:
    """The matching packages; rpm has none that are half installed. Locks are by name."""
    names = zypp_locks()
    return read_rpms(patterns, lambda name, _version, _arch: name in names)


def zypp_locks() -> List[str]:
    return re.findall(r"^solvable_name:\s*(\S+)", text_of(ZYPP_LOCKS) or "", re.M)


class Row(NamedTuple):
    """A package of a transaction. `act`: install, upgrade, downgrade, remove, reinstall …"""

    act: str
    name: str
    arch: str
    version: str


def zypper(this: Run, *arguments: str) -> Tuple[int, str]:
    """Wait for zypper's lock and run it: its status, and its output without passwords."""
    wait_for_lock(this, "zypper", holder)
    status, text = run_exclusively(this, [*ZYPPER, *arguments])
    if status == LOCKED:
        taken = re.search(r"pid (\d+)", text)
        raise locked_failure("zypper", int(taken.group(1)) if taken else None)
    return status, text


def holder() -> Optional[int]:
    """The process that uses libzypp, whose file holds its pid."""
    for path in PID_FILES:
        pid = line_of(path)
        if pid.isdigit() and os.path.isdir(below("/proc/" + pid)):
            return int(pid)
    return None


def refresh(this: Run) -> None:
    """Import the keys of gpunode's repositories, and read what all hold. One that is not gpunode's only causes warnings."""
    own = glob_of("/etc/zypp/repos.d/gpunode-*.repo")
    for path in own:
        key = re.search(r"^gpgkey=file://(\S+)", text_of(path) or "", re.M)
        if key:
            answer = run("rpm", "--import", below(key.group(1)), timeout=60)
            if answer.status:
                sentence = "rpm does not take the key %s: %s" % (key.group(1), last(answer.message, 1)[0])
                raise Failure("repository-unsigned", sentence)
    for path in own:
        name = path.rpartition("/")[2][: -len(".repo")]
        status, text = zypper(this, "refresh", name)
        if status:
            error = error_of(text)
            unsigned = re.search(r"signature|not trusted|GPG", error, re.I)
            code = "repository-unsigned" if unsigned else "repository-unreachable"
            code = "repository-damaged" if DAMAGED.search(text) else code
            raise Failure(code, "zypper could not read the repository %s: %s" % (name, error), last(text, 12))
    status, text = zypper(this, "refresh")
    if status == NO_REPOSITORIES:
        raise Failure("no-repositories", "zypper has no enabled repository", last(text, 5))
    if status:
        sentence = "zypper left a repository out: " + error_of(text)
        this.warnings.append(sentence)
        this.progress(sentence)


def make(this: Run, specs: List[Message], remove: List[str], _purge: bool) -> None:
    """Remove, then install, each after a dry run. gpunode's holds of what changes are lifted before, and set again on failure."""
    names = [spec["name"] for spec in specs]
    held = [name for name in zypp_locks() if name in [*names, *remove]]
    lock(this, "removelock", held)
    try:
        if remove:
            transact(this, "remove", remove, specs, remove)
        if specs:
            transact(this, "install", [argument(spec) for spec in specs], specs, remove)
    except BaseException:
        lock(this, "addlock", held)
        raise


def argument(spec: Message) -> str:
    """A package as zypper takes it; a version `=NAME` is the one that the package NAME has."""
    version = spec["version"]
    if version.startswith("="):
        model = read([version[1:]]).get(version[1:])
        if model is None:
            sentence = "%s is not installed, whose version %s must have" % (version[1:], spec["name"])
            raise Failure("version-missing", sentence)
        version = model["version"].rpartition(":")[2].rpartition("-")[0].partition("_")[0]
    version = version[:-2] if version.endswith("-*") else version
    return "==".join(filter(None, (spec["name"], version)))


def transact(this: Run, verb: str, arguments: List[str], specs: List[Message], remove: List[str]) -> None:
    """Raises Failure if zypper would remove or downgrade what the plan does not name, install a kernel, or fill the disk."""
    options = INSTALL if verb == "install" else ["--details"]
    status, text = zypper(this, verb, "--dry-run", *options, *arguments)
    if status not in DONE:
        raise failure_of_zypper(this, status, text, arguments)
    summary = summary_of(text)
    if summary is None:
        return  # nothing to do
    rows = list(table(summary))
    names = [spec["name"] for spec in specs]
    come = [row for row in rows if row.act in ("install", "upgrade")]
    refuse_unplanned(
        "zypper",
        text,
        [
            row.name
            for row in rows
            if row.act == "remove" and not is_named(row.name, row.arch, row.version, remove)
        ],
        [row.name for row in rows if row.act == "downgrade" and row.name not in names],
        next(("%s %s" % (row.name, row.version) for row in come if KERNEL.match(row.name)), ""),
    )
    needed = (summary.get("download-size") or "0", summary.get("space-usage-diff") or "0")
    note_planned(this, [row.name for row in rows])
    check_space([("/var/cache/zypp", float(needed[0])), ("/usr", max(0.0, float(needed[1])))])
    status, text = zypper(this, verb, *options, *arguments)
    if status not in DONE:
        raise failure_of_zypper(this, status, text, arguments)


def summary_of(text: str) -> Optional[ElementTree.Element]:
    """What zypper would do; None where that is nothing."""
    match = re.search(r"<install-summary[^>]*/>|<install-summary.*?</install-summary>", text, re.S)
    return ElementTree.fromstring(match.group(0)) if match else None


def table(summary: ElementTree.Element) -> Iterator[Row]:
    for group in summary:
        for solvable in group.iter("solvable"):
            if (solvable.get("type") or solvable.get("kind")) == "package":
                cells = [solvable.get(field) or "" for field in ("name", "arch", "edition")]
                yield Row(group.tag[len("to-") :], *cells)


def hold(this: Run, names: List[str]) -> None:
    locks = zypp_locks()
    lock(this, "addlock", [name for name in names if name not in locks])


def release(this: Run, names: List[str]) -> None:
    lock(this, "removelock", names)


def lock(this: Run, verb: str, names: List[str]) -> None:
    if not names:
        return
    status, text = zypper(this, verb, *names)
    if status:
        raise Failure("zypper-failed", "zypper %s: %s" % (verb, error_of(text)), last(text, 5))


SYSTEM = PackageSystem(read, refresh, make, hold, release)


HINTS = {
    "zypper-locked": "Let the other package manager finish, then run again.",
    "zypper-failed": "Try `zypper refresh` and the installation by hand on the host, and fix the error.",
}
LOCKED, NO_REPOSITORIES, NOT_FOUND, SCRIPT_FAILED = 7, 6, 104, 107


def failure_of_zypper(this: Run, status: int, text: str, arguments: List[str]) -> Failure:
    detail, error = last(text, 12) + this.warnings, error_of(text)
    text = re.sub(r"<[^>]*>", " ", text)
    if status == NO_REPOSITORIES:
        return Failure("no-repositories", "zypper has no enabled repository", detail)
    if status == SCRIPT_FAILED:
        return Failure("rpm-failed", "a package's script failed: " + error, detail)
    if status == NOT_FOUND:
        names = [name for name in arguments if name.partition("==")[0] in text] or [error]
        code = "version-missing" if any("==" in name for name in names) else "package-missing"
        return Failure(code, "no repository of this host has %s" % ", ".join(names), this.warnings)
    if re.search(r"No space left on device|needs \d+\w?B|Not enough (?:disk )?space", text):
        return Failure("disk-full", error, detail)
    if re.search(r"rpmdb|RPM database|Rpm database", text) and "corrupt" in text.lower():
        return Failure("rpmdb-broken", "rpm's database is damaged: " + error, detail)
    nothing = re.search(r"nothing provides '?(.+?)'? needed by (?:the to be installed )?(\S+)", text)
    if nothing:
        sentence = "no repository of this host has %s, which %s needs" % nothing.groups()
        return Failure("dependency-missing", sentence, detail)
    if re.search(r"is locked|conflicts with .* lock|\(un\)?lock", text):
        return Failure("version-locked", "a lock of the host is in the way: " + error, detail)
    if DAMAGED.search(text):
        sentence = "zypper fetched a file that does not match its index: "
        return Failure("repository-damaged", sentence + error, detail)
    if re.search(r"Signature verification failed|not signed|GPG check", text):
        return Failure("repository-unsigned", "zypper cannot check the signature: " + error, detail)
    if re.search(r"Problem: |conflicts with", text):
        return Failure("dependencies", "zypper cannot satisfy this: " + error, detail)
    if re.search(r"Download \(curl\) error|Can't provide file|Connection failed", text):
        return Failure("repository-unreachable", "zypper could not fetch a package: " + error, detail)
    return Failure("zypper-failed", "zypper failed with status %d: %s" % (status, error), detail)


def error_of(text: str) -> str:
    """zypper's own error or problem, else its last words."""
    messages = re.findall(r'<message type="error">(.*?)</message>', text, re.S) or re.findall(
        r"(Problem: .*)", text
    )
    lines = messages[:1] or last(re.sub(r"<[^>]*>", " ", text), 1) or ["no output"]
    return " ".join(lines[0].split())
