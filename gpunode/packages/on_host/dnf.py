"""Runs dnf or yum, one at a time, for as long as it prints something; refreshes its repositories."""

import os
import re
import time
from typing import Callable, Optional, Tuple

from gpunode.agent.failures import Failure
from gpunode.agent.package_manager import attend, lock_free, posix_holder
from gpunode.agent.processes import command_of
from gpunode.agent.record import Run
from gpunode.agent.system import below, glob_of, last, line_of, text_of
from gpunode.packages.on_host.dialects import YUM, dialect, spoken

RPM_LOCKS = ("/var/lib/rpm/.rpm.lock", "/usr/lib/sysimage/rpm/.rpm.lock")
# Files that are not those that an index names, as dnf, yum and zypper have it.
DAMAGED = re.compile(
    r"checksum doesn't match|incorrect checksum|does not match (?:checksum|intended download)|[Dd]igest verification failed"
)
OWN = "gpunode-"  # how the names of gpunode's repositories begin


def dnf(this: Run, *arguments: str) -> Tuple[int, str]:
    """Wait for its locks and run it: its status, and its output without passwords."""
    ours = dialect()
    pid = lock_free(this, ours.program, holder)
    if pid is not None:
        raise dnf_locked(pid)
    status, text = attend(this, [ours.program, *ours.options, *arguments], heard=follow(this))
    taken = (
        re.search(r"already locked by (\d+)|another copy is running as pid (\d+)", text) if status else None
    )
    if taken:
        raise dnf_locked(int(taken.group(1) or taken.group(2)))
    return status, text


def holder() -> Optional[int]:
    """The process that holds a lock of dnf's, whose files hold its pid, or of rpm's."""
    for path in spoken().pid_files:
        pid = line_of(path)
        if pid.isdigit() and os.path.isdir(below("/proc/" + pid)):
            return int(pid)
    return next((pid for pid in map(posix_holder, RPM_LOCKS) if pid), None)


def dnf_locked(pid: int) -> Failure:
    return Failure("dnf-locked", "%s is in use by %s (pid %d)" % (spoken().program, command_of(pid), pid))


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


def no_repositories(text: str) -> Failure:
    return Failure("no-repositories", "%s has no enabled repository" % spoken().program, last(text, 5))


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
