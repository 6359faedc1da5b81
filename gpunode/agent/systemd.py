"""Units as `systemctl show` prints them, and their lines in the journal."""

import re
import time
from typing import Any, Dict, Iterable, List, Optional

from gpunode.agent.system import Answer, last, number, run

UNIT_PROPERTIES = (
    "LoadState,ActiveState,SubState,UnitFileState,ActiveEnterTimestampMonotonic,NRestarts,MainPID,Type,Result,"
    "ConditionResult"
)


def show_units(names: Iterable[str]) -> List[Dict[str, str]]:
    """`systemctl show` of all units at once, in the order asked for."""
    answer = run("systemctl", "show", "--no-pager", "-p", UNIT_PROPERTIES, "--", *names)
    if answer.status:
        raise OSError(answer.words)
    blocks = answer.out.strip("\n").split("\n\n")
    return [dict(line.split("=", 1) for line in block.splitlines() if "=" in line) for block in blocks]


def read_units(names: List[str]) -> Dict[str, Dict[str, Any]]:
    names = list(dict.fromkeys([*names, "kubelet.service"]))
    found = {}
    booted = time.time() - time.monotonic()
    answers = show_units(names)
    if len(answers) != len(names) or not all("LoadState" in answer for answer in answers):
        raise OSError("`systemctl show` does not answer for each of " + ", ".join(names))
    for name, shown in zip(names, answers):  # noqa: B905 - Python 3.10 has `strict`
        since, restarts, pid = (
            number(shown.get(key, ""), "%s of %s, by systemctl show" % (key, name))
            for key in ("ActiveEnterTimestampMonotonic", "NRestarts", "MainPID")
        )
        active = shown.get("ActiveState") in ("active", "reloading")
        found[name] = {
            "load": shown.get("LoadState", ""),
            "active": shown.get("ActiveState", ""),
            "sub": shown.get("SubState", ""),
            "enabled": shown.get("UnitFileState", ""),
            "active_since": booted + since / 1e6 if active and since else None,
            "restarts": restarts,
            "pid": pid,
        }
    return found


def transient(*arguments: str) -> Answer:
    """Run systemd-run with these arguments. Before systemd 236 a unit that failed stays until `systemctl reset-failed`."""
    answer = run("systemd-run", "--quiet", "--collect", *arguments)
    if answer.status and "unrecognized option '--collect'" in answer.words:
        return run("systemd-run", "--quiet", *arguments)
    return answer


CHATTER = re.compile(
    r"Scheduled restart job|Main process exited|Failed with result|Start request repeated|Control process exited"
    r"|^(Started|Starting|Stopped|Stopping) |^Failed to start |Deactivated successfully|Consumed .* CPU time"
)


def journal(unit: str, count: int, since: Optional[float] = None) -> List[str]:
    """The unit's last lines in the journal; systemd's own lines only if there are no others."""
    newer = ["--since", "@%d" % since] if since else []
    lines = last(run("journalctl", "-u", unit, "-o", "cat", "--no-pager", "-n", "200", *newer).out, 200)
    return ([line for line in lines if not CHATTER.search(line)] or lines)[-count:]
