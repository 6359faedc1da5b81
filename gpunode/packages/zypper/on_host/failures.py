"""Why zypper failed, from its exit code and its output."""

import re
from typing import List

from gpunode.agent.failures import Failure
from gpunode.agent.record import Run
from gpunode.agent.system import last
from gpunode.packages.on_host.rpm import DAMAGED

HINTS = {
    "zypper-locked": "Let the other package manager finish, then run again.",
    "zypper-failed": "Try `zypper refresh` and the installation by hand on the host, and fix the error.",
}
LOCKED, NO_REPOSITORIES, NOT_FOUND, SCRIPT_FAILED = 7, 6, 104, 107


def failure_of_zypper(this: Run, status: int, text: str, arguments: List[str]) -> Failure:
    """Why zypper failed, from its exit code and its output."""
    detail, words = last(text, 12) + this.warnings, words_of(text)
    text = re.sub(r"<[^>]*>", " ", text)
    if status == NO_REPOSITORIES:
        return Failure("no-repositories", "zypper has no enabled repository", detail)
    if status == SCRIPT_FAILED:
        return Failure("rpm-failed", "a package's script failed: " + words, detail)
    if status == NOT_FOUND:
        names = [name for name in arguments if name.partition("==")[0] in text] or [words]
        code = "version-missing" if any("==" in name for name in names) else "package-missing"
        return Failure(code, "no repository of this host has %s" % ", ".join(names), this.warnings)
    if re.search(r"No space left on device|needs \d+\w?B|Not enough (?:disk )?space", text):
        return Failure("disk-full", words, detail)
    if re.search(r"rpmdb|RPM database|Rpm database", text) and "corrupt" in text.lower():
        return Failure("rpmdb-broken", "rpm's database is damaged: " + words, detail)
    nothing = re.search(r"nothing provides '?(.+?)'? needed by (?:the to be installed )?(\S+)", text)
    if nothing:
        sentence = "no repository of this host has %s, which %s needs" % nothing.groups()
        return Failure("dependency-missing", sentence, detail)
    if re.search(r"is locked|conflicts with .* lock|\(un\)?lock", text):
        return Failure("version-locked", "a lock of the host is in the way: " + words, detail)
    if DAMAGED.search(text):
        sentence = "zypper fetched a file that is not the one its index names: "
        return Failure("repository-damaged", sentence + words, detail)
    if re.search(r"Signature verification failed|not signed|GPG check", text):
        return Failure("repository-unsigned", "zypper cannot check the signature: " + words, detail)
    if re.search(r"Problem: |conflicts with", text):
        return Failure("dependencies", "zypper cannot satisfy this: " + words, detail)
    if re.search(r"Download \(curl\) error|Can't provide file|Connection failed", text):
        return Failure("repository-unreachable", "zypper could not fetch a package: " + words, detail)
    return Failure("zypper-failed", "zypper failed with status %d: %s" % (status, words), detail)


def words_of(text: str) -> str:
    """zypper's own error or problem, else its last words."""
    found = re.findall(r'<message type="error">(.*?)</message>', text, re.S) or re.findall(
        r"(Problem: .*)", text
    )
    lines = found[:1] or last(re.sub(r"<[^>]*>", " ", text), 1) or ["no output"]
    return " ".join(lines[0].split())
