"""docker: the nvidia runtime in daemon.json, as its default."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

from gpunode.model import Change, Desired, Expected, Facts, Service, Watch, WriteFile
from gpunode.planning import CannotPlan, files, services, users
from gpunode.runtimes.docker.daemon_json import daemon_json
from gpunode.versions import numbers

FILE = "/etc/docker/daemon.json"
UNIT = "docker.service"
SNAP = "snap.docker.dockerd.service"
# dockerd does not start when a flag and daemon.json set the same thing.
PACKAGED_UNIT = "/lib/systemd/system/docker.service"
OWN_UNIT = "/etc/systemd/system/docker.service"
OPTIONS = "/etc/default/docker"
STARTED_BY = (PACKAGED_UNIT, OWN_UNIT, f"{OWN_UNIT}.d/*.conf", OPTIONS)

WATCH = Watch(files=(FILE, *STARTED_BY), units=(UNIT, SNAP))


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Merge daemon.json; restart docker while the running one does not know the runtime."""
    if desired.runtime != "docker" or desired.runtime_mode == "none":
        return ()
    _same_file(facts)
    default = desired.runtime_mode == "default"
    before = files.text(facts, FILE) or ""
    _no_mark(facts, before)
    after = daemon_json(before, default=default, path=FILE)
    written: tuple[WriteFile, ...] = ()
    if after != before:
        _no_flags(facts)
        there = json.loads(before.removeprefix("\ufeff")) if before.strip() else {}
        why = "pods get GPUs from the nvidia runtime, which a kubelet with docker only finds as its default"
        if _path(there).startswith(files.OPERATOR):
            why += f"; {files.WRITES_BACK}"
        wrong = "does not hold the nvidia runtime"
        if default and there.get("default-runtime") != "nvidia":
            wrong = "does not name nvidia as its default runtime"
        expected = Expected("nvidia", "nvidia" if default else None)
        written = files.write(facts, FILE, after, why, wrong=wrong, check="docker", expected=expected)
    reason = _restart(facts, changed=bool(written))
    if not reason:
        return written
    fault = "" if written else None
    note = _note(facts, after)
    return (*written, Service(UNIT, reason, restart=True, guards=(FILE,), note=note, fault=fault))


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


def _note(facts: Facts, text: str) -> str:
    """What happens to the containers. To survive, they need live-restore in the running docker and in the next."""
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
    if (
        facts.docker.live_restore
        and json.loads(text.removeprefix("\ufeff")).get("live-restore", True) is True
    ):
        return f"{count} container{' goes' if one else 's go'} on running: live-restore is on"
    inside = [user for user in facts.gpu_users if user.container]
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
    for place, line in _started_by(facts):
        match = re.search(r"--config-file[= ]\s*[\"']?([^\s\"']+)", line)
        if match and match[1] != FILE:
            raise CannotPlan(
                f"{place}: docker is started with --config-file {match[1]}, and does not read {FILE}",
                hint=f"Move that file to {FILE} and take the flag out, then run again; "
                "or add the nvidia runtime to it by hand and set `runtime: none` for this host.",
            )


def _no_flags(facts: Facts) -> None:
    for place, line in _started_by(facts):
        for flag in ("--default-runtime", "--add-runtime"):
            if flag in line:
                raise CannotPlan(
                    f"{place}: docker is started with {flag}, and does not start when daemon.json sets the same",
                    hint=f"Take {flag} out of that file (gpunode sets it in daemon.json), then run again.",
                )


def _started_by(facts: Facts) -> Iterator[tuple[str, str]]:
    """Every line that counts, as `file:line` and text, of what docker is started by.

    As systemd has it: a unit in /etc hides the packages' own, drop-ins follow by name, and `ExecStart=` takes back
    earlier lines.
    """
    units = [path for path in (OWN_UNIT, PACKAGED_UNIT) if files.text(facts, path) is not None][:1]
    drop_ins = sorted(path for path in facts.files if path.startswith(f"{OWN_UNIT}.d/"))
    lines = [line for path in (*units, *drop_ins) for line in _lines(facts, path)]
    resets = [place for place, (_, _, text) in enumerate(lines) if re.fullmatch(r"ExecStart\s*=", text)]
    for place, (where, key, text) in enumerate(lines):
        if key != "ExecStart" or not resets or place > resets[-1]:
            yield where, text
    if not units or any(key == "EnvironmentFile" and OPTIONS in text for _, key, text in lines):
        yield from ((where, text) for where, _, text in _lines(facts, OPTIONS))


def _lines(facts: Facts, path: str) -> Iterator[tuple[str, str, str]]:
    """A file's lines but comments, each as `file:line`, the setting that it is part of, and its text."""
    key, goes_on = "", False
    for number, line in enumerate((files.text(facts, path) or "").splitlines(), 1):
        text = line.strip()
        if text.startswith(("#", ";")):
            continue
        key = key if goes_on else text.partition("=")[0].strip()
        goes_on = text.endswith("\\")
        yield f"{path}:{number}", key, text
