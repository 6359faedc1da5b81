"""A host's systemd units: their states, and their restarts as changes; and processes that use the GPUs, in words."""

from collections.abc import Iterable, Sequence

from gpunode.model import Change, Facts, GpuUser, Service, WriteFile
from gpunode.planning import files
from gpunode.wording import few


def is_loaded(facts: Facts, unit: str) -> bool:
    """Whether the unit exists and is not masked."""
    state = facts.units.get(unit)
    return state is not None and state.load == "loaded"


def is_active(facts: Facts, unit: str) -> bool:
    state = facts.units.get(unit)
    return state is not None and state.active == "active"


def pick(facts: Facts, units: Sequence[str]) -> str | None:
    """The unit that the host has of these, an active one first; None where it has none."""
    loaded = [unit for unit in units if is_loaded(facts, unit)]
    return next((unit for unit in loaded if is_active(facts, unit)), loaded[0] if loaded else None)


AT_START = "it reads its configuration at its start"


def restart_reason(
    facts: Facts, unit: str, paths: Iterable[str], *, changed: bool, why: str = AT_START
) -> str | None:
    """Why a unit that reads these files at its start must be restarted; None: it need not. `changed`: this plan writes them, and
    `why` says what that restart is for."""
    if not is_active(facts, unit):
        return "it is not running"
    if changed:
        return why
    stale = next((path for path in paths if files.is_newer(facts, path, unit)), None)
    return f"{stale} is newer than the running one" if stale else None


def add_restart(
    written: tuple[WriteFile, ...],
    unit: str,
    reason: str | None,
    note: str,
    *,
    guards: Iterable[str] | None = None,
    ends: tuple[str, ...] | None = None,
) -> tuple[Change, ...]:
    """The writes and, where there is a reason, the restart of the unit that reads them. `guards`: the files to restore where
    it does not come up, by default those written. `ends`: the work that it ends, as Service has it."""
    if not reason:
        return written
    guards = tuple(change.path for change in written) if guards is None else tuple(guards)
    fault = "" if written else None
    return (*written, Service(unit, reason, restart=True, guards=guards, note=note, ends=ends, fault=fault))


SHOWN = 5


def user_names(users: Sequence[GpuUser]) -> str:
    """`python (pid 4242, pod ml/train), Xorg (pid 900) and 2 more`."""
    return few([str(user) for user in users], SHOWN)


def user_keys(users: Sequence[GpuUser]) -> tuple[str, ...]:
    """The pids of processes, and the UIDs of their pods: each once, in order."""
    return tuple(dict.fromkeys(user.pod or str(user.pid) for user in users))
