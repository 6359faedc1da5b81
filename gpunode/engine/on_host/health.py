"""Which parts of a node work, and whether they still do after a restart."""

import re
import time
from typing import Dict, List, Optional

from gpunode.agent.machine import show_units
from gpunode.agent.system import Message, last, number, run
from gpunode.links.runtime.on_host.docker import read_docker

NODE_UNITS = ("docker.service", "containerd.service", "kubelet.service")
CTR = {
    "containerd.service": ("ctr",),
    "snap.microk8s.daemon-containerd.service": ("microk8s", "ctr"),
}
HANDLER = re.compile(r"""(?m)^\s*\[plugins\..*\.containerd\.runtimes\.("[^"]+"|'[^']+'|[^.\]"']+)\]\s*$""")


def node_units(unit: str) -> Dict[str, Dict[str, str]]:
    """The unit, docker, containerd and the kubelet, as systemctl shows them."""
    names = list(dict.fromkeys((unit, *NODE_UNITS)))
    return dict(zip(names, show_units(names)))  # noqa: B905 - Python 3.10 has `strict`


def working(units: Dict[str, Dict[str, str]]) -> Dict[str, str]:
    """What works now: units, each with its process; containerd's CRI plugins; runtime handlers."""
    found = {
        name: shown.get("MainPID", "")
        for name, shown in units.items()
        if shown.get("ActiveState") == "active"
    }
    for unit, ctr in CTR.items():
        # With an invalid CRI section, containerd stays up and only this plugin is in error.
        listed = run(*ctr, "plugins", "ls", timeout=10).out if unit in found else ""
        for cells in map(str.split, listed.splitlines()):
            if cells[-1:] == ["ok"] and "cri" in cells[0].split(".") + cells[1:2]:
                found["containerd's plugin %s.%s" % (cells[0], cells[1])] = ""
    if "containerd.service" in found:
        dump = run("containerd", "config", "dump")
        for name in HANDLER.findall("" if dump.status else dump.out):
            found["containerd's runtime " + name.strip("\"'")] = ""
    try:
        docker = read_docker() if "docker.service" in found else None
    except OSError:
        docker = None
    for name in docker["runtimes"] if docker else ():
        found["docker's runtime " + name] = ""
    return found


def what_worked(units: Dict[str, Dict[str, str]]) -> List[str]:
    """What must still work after a restart. What did not work before is no reason to restore files."""
    found = working(units)
    for name, shown in units.items():
        up = time.monotonic() - count_of(shown, "ActiveEnterTimestampMonotonic") / 1e6
        if count_of(shown, "NRestarts") and up < 60:
            found.pop(name, None)  # active between two crashes
    return sorted(found)


def count_of(shown: Dict[str, str], key: str) -> int:
    """A number of `systemctl show`; 0 where it has none. Raises OSError."""
    return number(shown.get(key, ""), "%s, by systemctl show" % key)


RESTORE_SECONDS = 180  # after which the timer restores guarded files whose restart was not verified


def restart(unit: str, verb: str, guard: Message) -> Dict[str, str]:
    """(Re)start a unit: what does not work for `settle` seconds then, of it and all that worked before, and why. A unit that
    does one thing and ends works if it has done that."""
    settle = guard["settle"]
    run("systemctl", "daemon-reload", timeout=60)
    run("systemctl", "reset-failed", unit)
    answer = run("systemctl", verb, unit, timeout=RESTORE_SECONDS - 60)
    begun = since = time.monotonic()
    wanted = list(dict.fromkeys([unit, *guard["worked"]]))
    before: Dict[str, Optional[str]] = {}
    restarts: Optional[int] = None
    while True:
        now = time.monotonic()
        why = "no longer works"
        shown: Dict[str, str] = {}
        works: Dict[str, str] = {}
        count = restarts or 0
        try:
            units = node_units(unit)
            shown, works = units.get(unit, {}), working(units)
            count = count_of(shown, "NRestarts")
        except OSError as error:  # systemctl may fail for a moment while the unit is healthy
            why = "has an unknown state: %s" % error
        ended = not answer.status and shown.get("Type") == "oneshot" and not skipped(shown)
        lost = {name: why for name in wanted if name not in works and not (ended and name == unit)}
        seen = {name: works.get(name) for name in wanted}
        if lost or seen != before:
            before, since = seen, now
        elif now - since >= settle:
            return {}
        restarts = count if restarts is None else restarts
        twice = shown.get("SubState") == "auto-restart" and count > restarts
        # one crash is allowed: what the unit needs may be starting, too
        late = now - begun > settle * (2 if twice else 6)
        down = (
            bool(shown)
            and not ended
            and (shown.get("ActiveState") in ("failed", "inactive") or shown.get("LoadState") != "loaded")
        )
        if down or late:
            if shown and unit not in works:
                state = "is %s (%s)" % (shown.get("ActiveState", "unknown"), shown.get("SubState", ""))
                if skipped(shown):
                    state = "was skipped: a condition of its own is not met"
                lost[unit] = last(answer.words, 3)[0] if answer.status else state
            return lost or {unit: "restarts again and again"}
        time.sleep(min(0.5, settle / 5.0))


def skipped(shown: Dict[str, str]) -> bool:
    """Whether the unit did nothing at its last start, as a condition was not met: of that `systemctl restart` is no failure."""
    return shown.get("ConditionResult") == "no" or shown.get("Result") == "exec-condition"


def reasons(lines: List[str]) -> List[str]:
    """The last five error lines of a journal, each once and without klog's prefix."""
    strong = [line for line in lines if re.match(r"[EF]\d{4} |(?i:error|fatal|panic|failed|unable)\b", line)]
    weak = [line for line in lines if re.search(r"(?i)error|fail|fatal|invalid|unknown|panic", line)]
    short = [re.sub(r"^[A-Z]\d{4} [\d:.]+ +\d+ [\w.]+:\d+\] ", "", line) for line in strong or weak or lines]
    return list(dict.fromkeys(short))[-5:]
