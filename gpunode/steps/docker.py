"""docker: the nvidia runtime in daemon.json, as its default."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from gpunode.model import Change, Desired, Facts, Service
from gpunode.render import Unfit, daemon_json
from gpunode.steps import files, users

FILE = "/etc/docker/daemon.json"
UNIT = "docker.service"
# dockerd does not start when a flag and daemon.json set the same thing.
STARTED_BY = (
    "/lib/systemd/system/docker.service",
    "/etc/systemd/system/docker.service",
    "/etc/systemd/system/docker.service.d/*.conf",
    "/etc/default/docker",
)

FILES = (FILE, *STARTED_BY)
UNITS = (UNIT, "snap.docker.dockerd.service")
PACKAGES = ()


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """daemon.json merged, and docker restarted while the running one does not know it."""
    if desired.runtime != "docker" or desired.runtime_mode == "none":
        return ()
    _same_file(facts)
    before = files.text(facts, FILE) or ""
    after = daemon_json(before, default=desired.runtime_mode == "default", path=FILE)
    changes: list[Change] = []
    if after != before:
        _no_flags(facts)
        why = "pods get GPUs from the nvidia runtime, which a kubelet with docker only finds as its default"
        changes += files.write(facts, FILE, after, why, check="docker")
    reason = _restart(facts, changed=bool(changes))
    if reason:
        changes.append(Service(UNIT, reason, restart=True, guards=(FILE,), note=_note(facts, after)))
    return tuple(changes)


def _restart(facts: Facts, *, changed: bool) -> str | None:
    """Why docker must be restarted. The running one is asked; only where it does not answer, its file's age."""
    unit = facts.units.get(UNIT)
    if unit is None or unit.active != "active":
        return "it is not running"
    if changed:
        return "it reads daemon.json at its start"
    if facts.docker is not None:
        knows = "nvidia" in facts.docker.runtimes and facts.docker.default_runtime == "nvidia"
        return None if knows else "the running one does not know the nvidia runtime that daemon.json names"
    return "daemon.json is newer than the running one" if files.newer(facts, FILE, UNIT) else None


def _note(facts: Facts, text: str) -> str:
    count = facts.docker.containers_running if facts.docker else 0
    users_inside = [user for user in facts.gpu_users if user.container]
    if not count or json.loads(text).get("live-restore") is True:
        return ""
    there = "1 container restarts" if count == 1 else f"{count} containers restart"
    return f"{there} with it" + (f", on GPUs: {users.names(users_inside)}" if users_inside else "")


def _same_file(facts: Facts) -> None:
    for place, line in _started_by(facts):
        match = re.search(r"--config-file[= ]\s*[\"']?([^\s\"']+)", line)
        if match and match[1] != FILE:
            raise Unfit(
                f"{place}: docker is started with --config-file {match[1]}, and does not read {FILE}",
                hint=f"Move that file to {FILE} and take the flag out, then run again; "
                "or add the nvidia runtime to it by hand and set `runtime: none` for this host.",
            )


def _no_flags(facts: Facts) -> None:
    for place, line in _started_by(facts):
        for flag in ("--default-runtime", "--add-runtime"):
            if flag in line:
                raise Unfit(
                    f"{place}: docker is started with {flag}, and does not start when daemon.json sets the same",
                    hint=f"Take {flag} out of that file (gpunode sets it in daemon.json), then run again.",
                )


def _started_by(facts: Facts) -> Iterator[tuple[str, str]]:
    """Every line, as `file:line` and text, of what docker is started by."""
    for path, file in facts.files.items():
        if "docker" not in path or path == FILE or not file.content:
            continue
        for number, line in enumerate(file.content.splitlines(), 1):
            if not line.lstrip().startswith("#"):
                yield f"{path}:{number}", line
