"""apt-get and dpkg: what is installed; refresh, install and remove, hold; and why one of these failed, from its output."""

import glob
import os
import re
import threading
import time
from typing import Any, BinaryIO, Dict, Iterator, List, Tuple

from gpunode.agent.failures import Failure
from gpunode.agent.machine import read_arch
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
from gpunode.agent.system import Message, below, last, run, text_of, unrooted
from gpunode.packages.on_host import dpkg_rows, installed_debs

APT = (
    "-q -y -o DPkg::Lock::Timeout=60 -o Dpkg::Use-Pty=0 -o APT::Color=0"
    " -o Dpkg::Options::=--force-confdef -o Dpkg::Options::=--force-confold"
).split()
APT_LOCKS = (
    "/var/lib/dpkg/lock-frontend",
    "/var/lib/dpkg/lock",
    "/var/lib/apt/lists/lock",
    "/var/cache/apt/archives/lock",
)


def read(patterns: List[str], broken: bool = False) -> Dict[str, Dict[str, Any]]:
    """The matching packages that are fully installed; with `broken` also those half installed."""
    return installed_debs(dpkg_rows(patterns), read_arch(), broken)


def refresh(this: Run) -> None:
    """`apt-get update`. A repository that is not gpunode's only causes warnings: hosts have old ones."""
    patience = ("-o", "Acquire::http::Timeout=20", "-o", "Acquire::https::Timeout=20")
    status, text = apt_get(this, *patience, "update")
    own = own_repositories()
    problems = update_problems(text)
    for code, uri, message in problems:
        if code == "conflicting-signed-by":
            raise Failure(
                code, "apt has %s in two lists with different keys" % uri, [message, *lists_with(uri)]
            )
        if code == "sources-broken":
            raise Failure(code, "apt cannot read its list of sources: " + message)
        sentence = {
            "repository-unreachable": "apt could not fetch from %s: %s",
            "repository-unsigned": "apt does not trust the signature of %s: %s",
            "repository-sha1": "apt refuses the signature of %s: %s",
            "repository-damaged": "apt got a file of %s that does not match its index: %s",
            "repository-expired": "the index of %s %s",
        }[code] % (uri, message)
        if any((uri + "/").startswith(mine + "/") for mine in own):
            raise Failure(code, sentence, last(text, 12))
        this.warnings.append(sentence)
        this.progress(sentence)
    if status and not problems:
        raise Failure(
            "apt-failed", "apt-get update failed: " + (last(text, 1) or ["no output"])[-1], last(text, 12)
        )


def own_repositories() -> List[str]:
    uris = []
    for path in glob.glob(below("/etc/apt/sources.list.d/gpunode-*")):
        uris += re.findall(r"\w+://[^\s\"']+", text_of(unrooted(path)) or "")
    return [uri.rstrip("/") for uri in uris]


def lists_with(uri: str) -> List[str]:
    files = glob.glob(below("/etc/apt/sources.list")) + sorted(glob.glob(below("/etc/apt/sources.list.d/*")))
    names = [unrooted(path) for path in files]
    return [name for name in names if uri.rstrip("/") in (text_of(name) or "")]


def make(this: Run, specs: List[Message], remove: List[str], purge: bool) -> None:
    """Install and remove in one transaction, after a dry run."""
    finish_interrupted(this)
    arguments = [argument(spec) for spec in specs] + [name + "-" for name in remove]
    dry_run(this, arguments, specs, remove)
    allow = ["--allow-downgrades", "--allow-change-held-packages"] + ["--purge"] * purge
    status, text = apt_get(this, "install", *allow, *arguments)
    if status:
        raise install_failure(this, text, specs)


def hold(this: Run, names: List[str], verb: str = "hold") -> None:
    wait_for_apt(this)
    answer = run("apt-mark", verb, *names, timeout=180)
    if answer.status:
        refuse_locked(answer.message)
        sentence = "apt-mark %s: %s" % (verb, last(answer.message, 1)[0])
        raise Failure("apt-failed", sentence, last(answer.message, 5))


def release(this: Run, names: List[str]) -> None:
    hold(this, names, "unhold")


def offers(name: str, version: str) -> bool:
    return version in known_versions(name)


def known_versions(name: str) -> List[str]:
    return re.findall(r"\|\s*(\S+)\s*\|", run("apt-cache", "madison", name).out)


def finish_interrupted(this: Run) -> None:
    """Configure what a killed dpkg left half done; apt installs nothing before that."""
    if not glob.glob(below("/var/lib/dpkg/updates/[0-9]*")):
        return
    wait_for_apt(this)
    this.progress("dpkg was interrupted earlier; finishing its work")
    status, text = run_exclusively(this, ["dpkg", "--force-confdef", "--force-confold", "--configure", "-a"])
    if status:
        refuse_locked(text)
        raise dpkg_failure(text)


def dry_run(this: Run, arguments: List[str], specs: List[Message], remove: List[str]) -> None:
    """Raises Failure if apt would remove or downgrade packages that the plan does not name, or fill the disk."""
    allow = ("--allow-downgrades", "--allow-change-held-packages")
    status, text = apt_get(this, "install", "--print-uris", *allow, *arguments)
    if status:
        raise install_failure(this, text, specs)
    downgrade = [spec["name"] for spec in specs if spec["downgrade"]]
    gone = [name for name in listed_packages(text, "REMOVED") if name not in remove]
    downgrades = [name for name in listed_packages(text, "DOWNGRADED") if name not in downgrade]
    refuse_unplanned("apt", text, gone, downgrades)
    check_space(needs(text))
    note_planned(this, listed_packages(text, r"\w+"))


def listed_packages(text: str, heading: str) -> List[str]:
    blocks = re.findall(r"^The following (?:\w+ )?packages will be %s:\n((?:  .*\n?)*)" % heading, text, re.M)
    return [name.rstrip("*") for block in blocks for name in block.split()]


def needs(text: str) -> Iterator[Tuple[str, float]]:
    """The folders in which apt needs space, and how much in bytes."""
    for path, pattern in (
        ("/var/cache/apt/archives", r"^Need to get ([\d.,]+ \w*B)"),
        ("/usr", r"^After this operation, ([\d.,]+ \w*B) of additional"),
    ):
        needed = re.search(pattern, text, re.M)
        if needed is not None:
            number, unit = needed.group(1).replace(",", "").split()
            yield path, float(number) * {"B": 1, "kB": 1e3, "MB": 1e6, "GB": 1e9}[unit]


def apt_get(this: Run, *arguments: str) -> Tuple[int, str]:
    """Wait for apt's locks and run apt-get: its status, and its output without passwords."""
    wait_for_apt(this)
    read_end, write_end = os.pipe()
    reader = threading.Thread(target=follow_apt, args=(this, os.fdopen(read_end, "rb")))
    reader.daemon = True
    reader.start()
    try:
        status, text = run_exclusively(
            this, ["apt-get", *APT, "-o", "APT::Status-Fd=%d" % write_end, *arguments], (write_end,)
        )
    finally:
        os.close(write_end)
    reader.join(1)
    if status:
        refuse_locked(text)
    return status, text


def refuse_locked(text: str) -> None:
    """Raises Failure if another process took a lock of apt's or dpkg's after `wait_for_apt`.

    "Unable to acquire the dpkg frontend lock" alone is no such: so ends a full disk, too."""
    if re.search(r"Could not get lock|dpkg .*(is|was) locked by another process", text):
        held = re.search(r"(?:held by process|with pid) (\d+)", text)
        raise locked_failure("apt", int(held.group(1)) if held else None)


def follow_apt(this: Run, stream: BinaryIO) -> None:
    """Turn apt's status lines (`pmstatus:PACKAGE:PERCENT:WORDS`) into at most two progress messages a second."""
    sent, last = 0.0, ("", "")
    for line in stream:
        this.last_output = time.monotonic()
        # A package's name may hold a colon, before its architecture.
        match = re.match(r"[dp][lm]status:.*?:([\d.]+):(.*)", line.decode("utf-8", "replace"))
        if match and match.groups() != last and time.monotonic() - sent > 0.5:
            sent, last = time.monotonic(), (match.group(1), match.group(2))
            this.progress(match.group(2), round(float(match.group(1)), 1))


def wait_for_apt(this: Run) -> None:
    wait_for_lock(this, "apt", lambda: next((pid for pid in map(posix_holder, APT_LOCKS) if pid), None))


SYSTEM = PackageSystem(read, refresh, make, hold, release, offers)


HINTS = {
    "apt-locked": "Let the other package manager finish, then run again.",
    "repository-sha1": "Name the repository of the host's own release, or have the owner of its key sign it again with SHA-256.",
    "repository-expired": "The mirror is stale, or the host's clock is wrong.",
    "conflicting-signed-by": "Remove the other list file of that repository, then run again.",
    "apt-failed": "Try `apt-get update` and the installation by hand on the host, and fix the error.",
    "dpkg-failed": "Fix the error of the package's script, run `dpkg --configure -a` on the host, then run again.",
}
SAID = r"^(?:E|W|Error|Warning): "


def argument(spec: Message) -> str:
    return "=".join(filter(None, (spec["name"], spec["version"])))


def update_problems(text: str) -> List[Tuple[str, str, str]]:
    """The errors of `apt-get update`: (code, URI, words), one for each repository."""
    problems: Dict[str, Tuple[str, str, str]] = {}
    conflict = re.search(
        SAID + r"(Conflicting values set for option Signed-By regarding source (\S+).*)", text, re.M
    )
    if conflict:
        return [("conflicting-signed-by", conflict.group(2), conflict.group(1))]
    broken = re.search(SAID + r"((?:Malformed|Type '|Unable to parse|The list of sources).*)", text, re.M)
    if broken:
        return [("sources-broken", "", broken.group(1))]
    refused = r".*?(?:GPG error|OpenPGP signature verification failed): (\S+) [^:]*: (.*)"  # of gpgv, of sqv
    for uri, message in re.findall(SAID + refused, text, re.M):
        code = "repository-sha1" if "SHA1 is not considered secure" in message else "repository-unsigned"
        problems.setdefault(site(uri), (code, site(uri), message))
    for uri, message in re.findall(
        SAID + r"Release file for (\S+) (is (?:expired|not valid yet).*)", text, re.M
    ):
        problems.setdefault(site(uri), ("repository-expired", site(uri), message))
    for uri, message in re.findall(SAID + r"Failed to fetch (\S+)\s+(.*)", text, re.M):
        unsigned = re.search(r"signature|PUBKEY|signed|SHA1", message)
        code = "repository-unsigned" if unsigned else "repository-unreachable"
        code = "repository-damaged" if re.search(r"Hash Sum mismatch|unexpected size", message) else code
        problems.setdefault(site(uri), (code, site(uri), message))
    for uri, message in re.findall(SAID + r"The repository '(\S+)[^']*' (.*)", text, re.M):
        code = "repository-unreachable" if "Release file" in message else "repository-unsigned"
        problems.setdefault(site(uri), (code, site(uri), message))
    return list(problems.values())


def site(uri: str) -> str:
    """The repository's URI, from the URI of a file in it."""
    return re.sub(r"/(dists/.*|\./.*|(In)?Release(\.gpg)?|Packages(\.\w+)?|by-hash/.*)?$", "", uri)


def install_failure(this: Run, text: str, specs: List[Message]) -> Failure:
    detail = last(text, 12) + this.warnings
    if re.search(r"No space left on device|don't have enough free space", text):
        return Failure("disk-full", "the disk is full", detail)
    version = re.search(SAID + r"Version '(\S+)' for '(\S+)' was not found", text, re.M)
    if version:
        versions = known_versions(version.group(2))
        others = "available: " + ", ".join(list(dict.fromkeys(versions))[:8] or ["no version"])
        sentence = "no repository has %s %s; %s" % (version.group(2), version.group(1), others)
        return Failure("version-missing", sentence, this.warnings)
    missing = re.findall(SAID + r"Unable to locate package (\S+)", text, re.M)
    missing += re.findall(SAID + r"Package '(\S+)' has no installation candidate", text, re.M)
    if missing:
        sentence = "no repository of this host has the package %s" % ", ".join(dict.fromkeys(missing))
        return Failure("package-missing", sentence, this.warnings)
    if "cannot be authenticated" in text:
        return Failure(
            "repository-unsigned", "apt cannot check the signature of what it would install", detail
        )
    fetch = re.search(SAID + r"Failed to fetch (\S+)\s+(.*)", text, re.M)
    if fetch:
        damaged = re.search(r"Hash Sum mismatch|unexpected size", fetch.group(2))
        code = "repository-damaged" if damaged else "repository-unreachable"
        return Failure(code, "apt could not fetch %s: %s" % fetch.groups(), detail)
    unmet = re.search(r"^The following packages have unmet dependencies:\n((?: .*\n?)+)", text, re.M)
    if unmet:
        lines = last(unmet.group(1), 12)
        return Failure(
            "dependencies", "apt cannot satisfy %s" % " ".join(lines[0].split()), lines + this.warnings
        )
    if re.search(r"dpkg: error|Sub-process \S*dpkg", text):
        return dpkg_failure(text)
    errors = re.findall(SAID + "(.*)", text, re.M) or last(text, 1) or ["no output"]
    return Failure(
        "apt-failed", "apt-get install %s failed: %s" % (" ".join(map(argument, specs)), errors[-1]), detail
    )


def dpkg_failure(text: str) -> Failure:
    """Which package's own script failed, with its last output."""
    block = re.search(r"^Errors were encountered while processing:\n((?: .*\n?)+)", text, re.M)
    names = (
        block.group(1).split() if block else re.findall(r"^dpkg: error processing package (\S+)", text, re.M)
    )
    first = re.search(r"^dpkg: error processing ", text, re.M)
    before = last(text[: first.start()] if first else text, 12)
    log = re.search(r"[Cc]onsult (\S+make\.log)", text)
    if log:
        before += last(text_of(log.group(1)) or "", 12)
    who = " ".join(dict.fromkeys(names)) or "a package"
    headers = re.search(r"kernel headers for kernel (\S+) cannot be found", text)
    if headers:
        sentence = "%s found no headers of the kernel %s to build its module with" % (who, headers.group(1))
        return Failure("headers-missing", sentence, before)
    cause = before[-1].strip() if before else "no output"
    return Failure("dpkg-failed", "%s could not be configured: %s" % (who, cause), before)
