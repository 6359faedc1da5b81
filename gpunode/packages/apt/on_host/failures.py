"""Why apt-get or dpkg failed, from its output."""

import re
from typing import Dict, List, Tuple

from gpunode.agent.failures import Failure
from gpunode.agent.record import Run
from gpunode.agent.system import Message, last, run, text_of

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
    """A package as apt-get takes it."""
    return "=".join(filter(None, (spec["name"], spec["version"])))


def update_problems(text: str) -> List[Tuple[str, str, str]]:
    """The errors of `apt-get update`: (code, URI, words), one for each repository."""
    found: Dict[str, Tuple[str, str, str]] = {}
    conflict = re.search(
        SAID + r"(Conflicting values set for option Signed-By regarding source (\S+).*)", text, re.M
    )
    if conflict:
        return [("conflicting-signed-by", conflict.group(2), conflict.group(1))]
    broken = re.search(SAID + r"((?:Malformed|Type '|Unable to parse|The list of sources).*)", text, re.M)
    if broken:
        return [("sources-broken", "", broken.group(1))]
    refused = r".*?(?:GPG error|OpenPGP signature verification failed): (\S+) [^:]*: (.*)"  # of gpgv, of sqv
    for uri, words in re.findall(SAID + refused, text, re.M):
        code = "repository-sha1" if "SHA1 is not considered secure" in words else "repository-unsigned"
        found.setdefault(site(uri), (code, site(uri), words))
    for uri, words in re.findall(
        SAID + r"Release file for (\S+) (is (?:expired|not valid yet).*)", text, re.M
    ):
        found.setdefault(site(uri), ("repository-expired", site(uri), words))
    for uri, words in re.findall(SAID + r"Failed to fetch (\S+)\s+(.*)", text, re.M):
        unsigned = re.search(r"signature|PUBKEY|signed|SHA1", words)
        code = "repository-unsigned" if unsigned else "repository-unreachable"
        code = "repository-damaged" if re.search(r"Hash Sum mismatch|unexpected size", words) else code
        found.setdefault(site(uri), (code, site(uri), words))
    for uri, words in re.findall(SAID + r"The repository '(\S+)[^']*' (.*)", text, re.M):
        code = "repository-unreachable" if "Release file" in words else "repository-unsigned"
        found.setdefault(site(uri), (code, site(uri), words))
    return list(found.values())


def site(uri: str) -> str:
    """The repository's URI, from the URI of a file in it."""
    return re.sub(r"/(dists/.*|\./.*|(In)?Release(\.gpg)?|Packages(\.\w+)?|by-hash/.*)?$", "", uri)


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
