"""docker: the nvidia runtime in daemon.json, as its default."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from typing import Any

from gpunode.errors import CannotPlan
from gpunode.links.runtime.docker import started
from gpunode.links.runtime.docker.daemon_json import daemon_json
from gpunode.model import Change, Desired, Expected, Facts, GpuUser, Service, Watch, WriteFile
from gpunode.planning import files, services, users
from gpunode.planning.versions import numbers

FILE = "/etc/docker/daemon.json"
UNIT = "docker.service"
SNAP = "snap.docker.dockerd.service"

WATCH = Watch(files=(FILE, *started.FILES), units=(UNIT, SNAP))


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Merge daemon.json; restart docker while the running one does not know the runtime."""
    if desired.runtime != "docker" or desired.runtime_mode == "none":
        return ()
    _same_file(facts)
    default = desired.runtime_mode == "default"
    before = files.text(facts, FILE) or ""
    _no_mark(facts, before)
    moved = started.without_runtimes(facts)
    after = daemon_json(before, default=default, path=FILE, more=moved.runtimes)
    written: tuple[WriteFile, ...] = ()
    if after != before:
        there = json.loads(before.removeprefix("\ufeff")) if before.strip() else {}
        why = "pods get GPUs from the nvidia runtime, which a kubelet with docker only finds as its default"
        if _path(there).startswith(files.OPERATOR):
            why += f"; {files.WRITES_BACK}"
        wrong = "does not hold the nvidia runtime"
        if default and there.get("default-runtime") != "nvidia":
            wrong = "does not name nvidia as its default runtime"
        expected = Expected("nvidia", "nvidia" if default else None, tuple(moved.runtimes))
        written = files.write(facts, FILE, after, why, wrong=wrong, check="docker", expected=expected)
    for path, text in moved.texts.items():
        why = "its flags for runtimes move into daemon.json: docker does not start with both"
        written += files.write(
            facts, path, text, why, wrong="starts docker with flags that daemon.json is to have"
        )
    reason = _restart(facts, changed=bool(written))
    if not reason:
        return written
    fault = "" if written else None
    guards, note = (FILE, *moved.texts), _note(facts, after)
    ends = None if _survive(facts, after) else users.keys(_inside(facts))
    return (
        *written,
        Service(UNIT, reason, restart=True, guards=guards, note=note, ends=ends, fault=fault),
    )


def _restart(facts: Facts, *, changed: bool) -> str | None:
    """Why docker must be restarted: by `docker info`, or by the file's age where docker does not answer."""
    if not services.is_active(facts, UNIT):
        return "it is not running"
    if changed:
        return "it reads daemon.json at its start"
    if facts.docker is not None:
        knows = "nvidia" in facts.docker.runtimes and facts.docker.default_runtime == "nvidia"
        return None if knows else "the running one does not know the nvidia runtime that daemon.json names"
    return "daemon.json is newer than the running one" if files.newer(facts, FILE, UNIT) else None


def _survive(facts: Facts, text: str) -> bool:
    """Whether containers go on through a restart: live-restore is on in the running docker and in the next."""
    now = facts.docker is not None and facts.docker.live_restore
    return now and json.loads(text.removeprefix("\ufeff")).get("live-restore", True) is True


def _inside(facts: Facts) -> tuple[GpuUser, ...]:
    """Users of the GPUs in containers."""
    return tuple(user for user in facts.gpu_users if user.container)


def _note(facts: Facts, text: str) -> str:
    """What happens to the containers."""
    if facts.docker is None:
        return (
            ""
            if not services.is_active(facts, UNIT)
            else "it does not say what runs in it; containers stop with it unless live-restore is on"
        )
    count = facts.docker.containers_running
    one = count == 1
    if not count:
        return "no container runs in it"
    if _survive(facts, text):
        return f"{count} container{' keeps' if one else 's keep'} running: live-restore is on"
    inside = _inside(facts)
    return (
        f"{count} container{' stops' if one else 's stop'} with it, since live-restore is off: "
        "the kubelet starts those of its pods again" + (f"; on GPUs: {users.names(inside)}" if inside else "")
    )


def _no_mark(facts: Facts, text: str) -> None:
    if text.startswith("\ufeff") and facts.docker and numbers(facts.docker.version) < (23,):
        raise CannotPlan(
            f"{FILE}:1:1: it begins with a byte order mark, which docker ignores since 23.0 only",
            hint="Take the mark out (sed -i '1s/^\\xef\\xbb\\xbf//'), then run again; the file was not touched.",
        )


def _path(document: Mapping[str, Any]) -> str:
    """The binary of the nvidia runtime in the file; "" where it has none."""
    runtime = (document.get("runtimes") or {}).get("nvidia")
    return str(runtime.get("path", "")) if isinstance(runtime, dict) else ""


def _same_file(facts: Facts) -> None:
    for line in started.lines(facts):
        match = re.search(r"--config-file[= ]\s*[\"']?([^\s\"']+)", line.text)
        if match and match[1] != FILE:
            raise CannotPlan(
                f"{line.place}: docker is started with --config-file {match[1]}, and does not read {FILE}",
                hint=f"Move that file to {FILE} and take the flag out, then run again; "
                "or add the nvidia runtime to it by hand and set `runtime: none` for this host.",
            )
