"""docker: the nvidia runtime in daemon.json, as its default."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from gpunode import compat
from gpunode.model import Change, Desired, Expected, Facts, Service
from gpunode.render import Unfit, daemon_json
from gpunode.steps import files, users

FILE = "/etc/docker/daemon.json"
UNIT = "docker.service"
# dockerd does not start when a flag and daemon.json set the same thing.
PACKAGED_UNIT = "/lib/systemd/system/docker.service"
OWN_UNIT = "/etc/systemd/system/docker.service"
OPTIONS = "/etc/default/docker"
STARTED_BY = (PACKAGED_UNIT, OWN_UNIT, f"{OWN_UNIT}.d/*.conf", OPTIONS)

FILES = (FILE, *STARTED_BY)
UNITS = (UNIT, "snap.docker.dockerd.service")
PACKAGES = ()


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """daemon.json merged, and docker restarted while the running one does not know it."""
    if desired.runtime != "docker" or desired.runtime_mode == "none":
        return ()
    _same_file(facts)
    before = files.text(facts, FILE) or ""
    _no_mark(facts, before)
    after = daemon_json(before, default=desired.runtime_mode == "default", path=FILE)
    changes: list[Change] = []
    if after != before:
        _no_flags(facts)
        why = "pods get GPUs from the nvidia runtime, which a kubelet with docker only finds as its default"
        if any(path.startswith(files.OPERATOR) for path in _paths(before)):
            why += f"; {files.WRITES_BACK}"
        expected = Expected("nvidia", "nvidia" if desired.runtime_mode == "default" else None)
        changes += files.write(facts, FILE, after, why, check="docker", expected=expected)
    reason = _restart(facts, changed=bool(changes))
    if reason:
        changes.append(Service(UNIT, reason, restart=True, guards=(FILE,), note=_note(facts, after)))
    return tuple(changes)


def _restart(facts: Facts, *, changed: bool) -> str | None:
    """Why docker must be restarted. The running one is asked; only where it does not answer, its file's age."""
    if _down(facts):
        return "it is not running"
    if changed:
        return "it reads daemon.json at its start"
    if facts.docker is not None:
        knows = "nvidia" in facts.docker.runtimes and facts.docker.default_runtime == "nvidia"
        return None if knows else "the running one does not know the nvidia runtime that daemon.json names"
    return "daemon.json is newer than the running one" if files.newer(facts, FILE, UNIT) else None


def _down(facts: Facts) -> bool:
    unit = facts.units.get(UNIT)
    return unit is None or unit.active != "active"


def _note(facts: Facts, text: str) -> str:
    """What becomes of the containers. Those that live on need it of the docker that goes and of the one that comes."""
    if facts.docker is None:
        return (
            ""
            if _down(facts)
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
    if text.startswith("\ufeff") and facts.docker and compat.numbers(facts.docker.version) < (23,):
        raise Unfit(
            f"{FILE}:1:1: it begins with a byte order mark, which docker reads over since 23.0 only",
            hint="Take the mark out (sed -i '1s/^\\xef\\xbb\\xbf//'), then run again; the file was not touched.",
        )


def _paths(text: str) -> Iterator[str]:
    """What the nvidia runtime starts, as the file has it."""
    document = json.loads(text.removeprefix("\ufeff")) if text.strip() else {}
    runtime = (document.get("runtimes") or {}).get("nvidia")
    if isinstance(runtime, dict):
        yield str(runtime.get("path", ""))


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
    """Every line that counts, as `file:line` and text, of what docker is started by.

    As systemd has it: a unit in /etc hides the packages' own, drop-ins follow by name, and `ExecStart=` takes back
    what was said before it.
    """
    units = [path for path in (OWN_UNIT, PACKAGED_UNIT) if files.text(facts, path) is not None][:1]
    drop_ins = sorted(path for path in facts.files if path.startswith(f"{OWN_UNIT}.d/"))
    said = [line for path in (*units, *drop_ins) for line in _lines(facts, path)]
    resets = [place for place, (_, _, text) in enumerate(said) if re.fullmatch(r"ExecStart\s*=", text)]
    for place, (where, key, text) in enumerate(said):
        if key != "ExecStart" or not resets or place > resets[-1]:
            yield where, text
    if not units or any(key == "EnvironmentFile" and OPTIONS in text for _, key, text in said):
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
