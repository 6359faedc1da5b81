"""apt-get install: the dry run before it, and its failures."""

import glob
import re
from typing import Iterator, List, Tuple

from gpunode.agent.failures import Failure
from gpunode.agent.package_manager import attend, room
from gpunode.agent.record import Run
from gpunode.agent.system import Message, below, last, run, text_of
from gpunode.packages.on_host.apt import SAID, apt_get, wait_for_apt


def finish_interrupted(this: Run) -> None:
    """Configure what a killed dpkg left half done; apt installs nothing before that."""
    if not glob.glob(below("/var/lib/dpkg/updates/[0-9]*")):
        return
    wait_for_apt(this)
    this.progress("dpkg was interrupted earlier; finishing its work")
    status, text = attend(this, ["dpkg", "--force-confdef", "--force-confold", "--configure", "-a"])
    if status:
        raise dpkg_failure(text)


def argument(spec: Message) -> str:
    """A package as apt-get takes it."""
    return "=".join(filter(None, (spec["name"], spec["version"])))


def dry_run(this: Run, wanted: List[str], specs: List[Message], remove: List[str]) -> None:
    """Raises Failure if apt would remove or downgrade packages that the plan does not name, or fill the disk."""
    allow = ("--allow-downgrades", "--allow-change-held-packages")
    status, text = apt_get(this, "install", "--print-uris", *allow, *wanted)
    if status:
        raise install_failure(this, text, specs)
    downgrade = [spec["name"] for spec in specs if spec["downgrade"]]
    for code, heading, agreed in (("remove", "REMOVED", remove), ("downgrade", "DOWNGRADED", downgrade)):
        extra = [name for name in listed(text, heading) if name not in agreed]
        if extra:
            sentence = "apt would also %s %s, which was not planned" % (code, " ".join(extra))
            raise Failure("would-" + code, sentence, last(text, 12))
    room(needs(text))


def listed(text: str, heading: str) -> List[str]:
    block = re.search(r"^The following packages will be %s:\n((?:  .*\n?)*)" % heading, text, re.M)
    return [name.rstrip("*") for name in block.group(1).split()] if block else []


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


def install_failure(this: Run, text: str, specs: List[Message]) -> Failure:
    """Why apt-get install failed, from its output."""
    detail = last(text, 12) + this.warnings
    if re.search(r"No space left on device|don't have enough free space", text):
        return Failure("disk-full", "the disk is full", detail)
    version = re.search(SAID + r"Version '(\S+)' for '(\S+)' was not found", text, re.M)
    if version:
        there = re.findall(r"\|\s*(\S+)\s*\|", run("apt-cache", "madison", version.group(2)).out)
        others = "available: " + ", ".join(list(dict.fromkeys(there))[:8] or ["no version"])
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
    words = re.findall(SAID + "(.*)", text, re.M) or last(text, 1) or ["no output"]
    return Failure(
        "apt-failed", "apt-get install %s failed: %s" % (" ".join(map(argument, specs)), words[-1]), detail
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
