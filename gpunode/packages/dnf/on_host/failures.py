"""Why dnf or yum failed, from its output."""

import re
from typing import List

from gpunode.agent.failures import Failure
from gpunode.agent.record import Run
from gpunode.agent.system import Message, last, run
from gpunode.packages.dnf.on_host.program import dialect
from gpunode.packages.on_host.rpm import DAMAGED

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
    """Why dnf failed, from its output."""
    detail = last(text, 12) + this.warnings
    if re.search(r"No space left on device|more space needed on|needs \d+\w?B (?:more space )?on the ", text):
        space = re.search(r"^.*(?:No space left|more space needed|needs \d+\w?B).*", text, re.M)
        return Failure("disk-full", space.group(0).strip() if space else "the disk is full", detail)
    if re.search(r"rpmdb open failed|DB_RUNRECOVERY|disk image is malformed|^error: rpmdb", text, re.M):
        return Failure("rpmdb-broken", "rpm's database is damaged: " + words_of(text), detail)
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
        return absent(this, missing, specs)
    if re.search(
        r"GPG check FAILED|GPG signature|NOKEY|GPG key retrieval failed|Couldn't read a file:// file", text
    ):
        cause = re.findall(
            r"^(?:Public key for|Package \S+ is not signed|Curl error|GPG key retrieval failed).*", text, re.M
        )
        words = cause[-1] if cause else words_of(text)
        return Failure(
            "repository-unsigned", "%s cannot check the signature: %s" % (dialect().program, words), detail
        )
    keyless = re.search(r"do not have any GPG public keys installed(?s:.*?)Problem repository: (.*)", text)
    if keyless:
        sentence = "dnf has no key to check the repository %s with: set its `gpgkey`" % keyless.group(1)
        return Failure("repository-unsigned", sentence, this.warnings)
    repository = re.search(r"Failed to download metadata for repo '([^']*)'", text)
    if repository:
        return unavailable(repository.group(1), text)
    fetch = re.search(r"^(?:Error: )?Error downloading packages:\n *(.*)", text, re.M)
    damaged = re.search(r"^.*(?:%s).*" % DAMAGED.pattern, text, re.M)
    if damaged:
        words = fetch.group(1).partition(": ")[0] + ": " if fetch else ""
        sentence = "%s fetched a file that is not the one its index names: %s%s"
        found = (dialect().program, words, damaged.group(0).strip())
        return Failure("repository-damaged", sentence % found, detail)
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
        "dnf-failed", ("dnf failed (%s): " % what if what else "dnf failed: ") + words_of(text), detail
    )


def absent(this: Run, missing: List[str], specs: List[Message]) -> Failure:
    """The failure for packages, or versions of them, that no repository has."""
    if any(re.match(r"kernel\S*-devel-\d", name) for name in missing):
        sentence = "no repository of this host has the headers of its running kernel: " + ", ".join(missing)
        return Failure("headers-missing", sentence, this.warnings)
    for spec in specs:
        if argument(spec) in missing and spec["version"]:
            shown = ["available"] if dialect().program == "yum" else ["--available"]
            ask = [dialect().program, "-q", "-C", "list", "--showduplicates", *shown, spec["name"]]
            listed = run(*ask, timeout=60).out
            there = re.findall(r"^%s\.\S+ +(\S+) " % re.escape(spec["name"]), listed, re.M)
            if there:
                others = ", ".join(list(dict.fromkeys(reversed(there)))[:8])
                sentence = "no repository has %s %s; available: %s" % (spec["name"], spec["version"], others)
                return Failure("version-missing", sentence, this.warnings)
    sentence = "no repository of this host has the package %s" % ", ".join(dict.fromkeys(missing))
    return Failure("package-missing", sentence, this.warnings)


def no_repositories(text: str) -> Failure:
    return Failure("no-repositories", "%s has no enabled repository" % dialect().program, last(text, 5))


def unavailable(name: str, text: str) -> Failure:
    """Why dnf reads nothing of a repository."""
    found = re.search(
        r"^Error: Failed to download metadata for repo '%s': (.*)" % re.escape(name), text, re.M
    )
    words = found.group(1) if found else "no reason given"
    if re.search(r"GPG|signature", words):
        sentence = "dnf does not trust the signature of the repository %s: %s" % (name, words)
        return Failure("repository-unsigned", sentence, last(text, 12))
    block = re.search(
        r"^Errors during downloading metadata for repository '%s':\n((?: +- .*\n?)+)" % re.escape(name),
        text,
        re.M,
    )
    if block:
        words = last(block.group(1), 1)[0].strip(" -")
    code = "repository-damaged" if DAMAGED.search(words) else "repository-unreachable"
    return Failure(code, "dnf could not read the repository %s: %s" % (name, words), last(text, 12))


def words_of(text: str) -> str:
    """dnf's own error, else its last line."""
    errors = re.findall(r"^Error: *(\S.*)", text, re.M) or last(text, 1) or ["no output"]
    return str(errors[-1])
