"""docker, where the kubelet drives it itself (dockershim) or through cri-dockerd: the nvidia runtime in daemon.json."""

import json
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from json.decoder import scanstring  # type: ignore[attr-defined]  # parses one string at an offset
from typing import Any

from gpunode.errors import CannotPlan
from gpunode.links.runtime import nvidia
from gpunode.links.runtime.nvidia import Containers
from gpunode.model import Change, Desired, Expected, Facts, GpuUser, RemoveFile, Watch, WriteFile
from gpunode.planning import files, services
from gpunode.planning.files import at
from gpunode.planning.versions import numbers

# source: Mirantis/cri-dockerd, core/sandbox_run.go
SANDBOXED = 2  # containers of a pod with one: dockershim and cri-dockerd make another, the sandbox
FILE = "/etc/docker/daemon.json"
UNITS: tuple[str, ...] = ("docker.service",)
SNAP = "snap.docker.dockerd.service"
# What docker is started by.
PACKAGED_UNIT = "/lib/systemd/system/docker.service"
OWN_UNIT = "/etc/systemd/system/docker.service"
OPTIONS = "/etc/default/docker"

WATCH = Watch(files=(FILE, PACKAGED_UNIT, OWN_UNIT, f"{OWN_UNIT}.d/*.conf", OPTIONS), units=(*UNITS, SNAP))

# dockerd does not start when a flag and daemon.json set the same thing.
FLAGS = ("--default-runtime", "--add-runtime")
FLAG = re.compile(
    r"""(?:[ \t]+(?P<whole>["'])|(?P<before>^|[ \t]+|(?<=["'=])))"""
    r"""(?P<name>--default-runtime|--add-runtime)(?:=|[ \t]+)(?P<quote>["']?)(?P<value>[^\s"'\\]+)(?P=quote)(?(whole)(?P=whole))"""
    r"""(?=[\s"'\\]|$)"""
)


@dataclass(frozen=True, slots=True)
class Line:
    """A line of a file that docker is started by: the setting that it is part of, and its text without space round it."""

    path: str
    number: int
    key: str
    text: str

    @property
    def place(self) -> str:
        return f"{self.path}:{self.number}"


def check(facts: Facts) -> None:
    if not services.is_loaded(facts, UNITS[0]):
        if services.is_loaded(facts, SNAP):
            raise CannotPlan(
                "docker runs from a snap, where it finds neither NVIDIA's runtime nor its libraries",
                hint="gpunode configures docker of packages, containerd and CRI-O so far; use one of them.",
            )
        raise CannotPlan(
            "this kubelet runs its pods with docker, and there is no docker.service",
            hint="Install docker, or give the kubelet --container-runtime=remote with containerd's endpoint.",
        )


def containers(facts: Facts) -> Containers:
    """Read from dockerd's answer and daemon.json. A daemon.json that does not parse gives no labels; the plan reports it."""
    try:
        labelled = bool(json.loads(files.text(facts, FILE) or "{}").get("selinux-enabled"))
    except (ValueError, AttributeError, RecursionError):
        labelled = False
    by_systemd = facts.docker is not None and facts.docker.cgroup_driver == "systemd"
    return Containers(labelled, by_systemd, "runc")


def headline(facts: Facts) -> str:
    return f"docker {facts.docker.version}" if facts.docker else "docker, which does not answer"


def state(facts: Facts) -> str:
    info = facts.docker
    return f"docker {info.version}, default runtime {info.default_runtime}" if info else "docker"


def plan(facts: Facts, _desired: Desired, *, default: bool) -> tuple[Change, ...]:
    """Merge daemon.json; restart docker while the running one does not know the runtime."""
    _check_config_file(facts)
    before = files.text(facts, FILE) or ""
    if before.startswith("\ufeff") and facts.docker and numbers(facts.docker.version) < (23,):
        raise CannotPlan(
            f"{FILE}:1:1: it begins with a byte order mark, which docker ignores since 23.0 only",
            hint="Take the mark out (sed -i '1s/^\\xef\\xbb\\xbf//'), then run again; the file was not touched.",
        )
    texts, runtimes = _without_flags(facts)
    after = daemon_json(before, default=default, path=FILE, more=runtimes)
    written = _daemon_json(facts, before, after, runtimes, default=default)
    for path, text in texts.items():
        why = "its flags for runtimes move into daemon.json: docker does not start with both"
        wrong = "starts docker with flags that daemon.json is to have"
        written += files.write(facts, path, text, why, wrong=wrong)
    ends = None if _survive(facts, after) else services.user_keys(_container_users(facts))
    return services.add_restart(
        written,
        UNITS[0],
        _restart_reason(facts, changed=bool(written)),
        _note(facts, after),
        guards=(FILE, *texts),
        ends=ends,
    )


def take_back(facts: Facts, original: str) -> tuple[WriteFile | RemoveFile, ...]:
    """daemon.json with NVIDIA's runtime as its `original` had it; a file that has nothing else goes."""
    before = files.text(facts, FILE)
    if not (before or "").strip():
        return ()
    after = without_nvidia(before or "", original)
    why = "docker's runtimes are as before gpunode"
    if json.loads(after.removeprefix("\ufeff")) == {} and after != before:
        return (RemoveFile(FILE, before or "", why),)
    return files.write(facts, FILE, after, why)


def _daemon_json(
    facts: Facts, before: str, after: str, moved: Mapping[str, str], *, default: bool
) -> tuple[WriteFile, ...]:
    if after == before:
        return ()
    present = json.loads(before.removeprefix("\ufeff")) if before.strip() else {}
    entry = (present.get("runtimes") or {}).get("nvidia")
    why = "with docker, pods get GPUs only if nvidia is the default runtime"
    if isinstance(entry, dict) and nvidia.is_operators([entry.get("path", "")]):
        why += f"; {nvidia.WRITES_BACK}"
    wrong = "does not hold the nvidia runtime"
    if default and present.get("default-runtime") != "nvidia":
        wrong = "does not name nvidia as its default runtime"
        if facts.docker and facts.docker.default_runtime == "nvidia":
            wrong = "no longer names nvidia as its default runtime: docker still has it, and its next start loses it"
    expected = Expected("nvidia", "nvidia" if default else None, tuple(moved))
    return files.write(facts, FILE, after, why, wrong=wrong, check="docker", expected=expected)


def _restart_reason(facts: Facts, *, changed: bool) -> str | None:
    """Why docker must be restarted: by `docker info`, or by the file's age where docker does not answer."""
    why = "it reads daemon.json at its start"
    if changed or facts.docker is None or not services.is_active(facts, UNITS[0]):
        return services.restart_reason(facts, UNITS[0], (FILE,), changed=changed, why=why)
    knows = "nvidia" in facts.docker.runtimes and facts.docker.default_runtime == "nvidia"
    return None if knows else "the running one does not know the nvidia runtime that daemon.json names"


def _survive(facts: Facts, text: str) -> bool:
    """Whether containers go on through a restart: live-restore is on in the running docker and in the next."""
    now = facts.docker is not None and facts.docker.live_restore
    return now and json.loads(text.removeprefix("\ufeff")).get("live-restore", True) is True


def stopped_by_restart(facts: Facts) -> int:
    """How many containers stop with docker beside gpunode's device plugin, as far as known; none with live-restore."""
    if facts.docker is None or facts.docker.live_restore:
        return 0
    own = {user.container for user in _container_users(facts) if user.is_plugin}
    return max(0, facts.docker.containers_running - SANDBOXED * len(own))


def _container_users(facts: Facts) -> tuple[GpuUser, ...]:
    return tuple(user for user in facts.gpu_users if user.container)


def _note(facts: Facts, text: str) -> str:
    if facts.docker is None:
        if not services.is_active(facts, UNITS[0]):
            return ""
        return "it does not report its containers; they stop with it unless live-restore is on"
    count = facts.docker.containers_running
    if not count:
        return "no container runs in it"
    if _survive(facts, text):
        return f"{count} container{' keeps' if count == 1 else 's keep'} running: live-restore is on"
    users = _container_users(facts)
    inside = [user for user in users if not user.is_plugin]
    own = {user.container for user in users if user.is_plugin}
    count, beside = count - SANDBOXED * len(own), " beside gpunode's device plugin" if own else ""
    if count <= 0:
        return "only gpunode's device plugin runs in it"
    return (
        f"{count} container{' stops' if count == 1 else 's stop'} with it{beside}; "
        "the kubelet starts those of pods again"
        + (f"; on GPUs: {services.user_names(inside)}" if inside else "")
    )


def _check_config_file(facts: Facts) -> None:
    for line in _start_lines(facts):
        match = re.search(r"--config-file[= ]\s*[\"']?([^\s\"']+)", line.text)
        if match and match[1] != FILE:
            raise CannotPlan(
                f"{line.place}: docker is started with --config-file {match[1]}, and does not read {FILE}",
                hint=f"Move that file to {FILE} and take the flag out, then run again; "
                "or add the nvidia runtime to it by hand and set `runtime: none` for this host.",
            )


def _without_flags(facts: Facts) -> tuple[Mapping[str, str], Mapping[str, str]]:
    """Texts of the files, by path, without flags for runtimes; and the runtimes that the flags added: name -> binary.

    Raises CannotPlan for a flag that is not on one line with its value.
    """
    texts: dict[str, list[str]] = {}
    runtimes: dict[str, str] = {}
    for line in _start_lines(facts):
        if not any(flag in line.text for flag in FLAGS):
            continue
        own = texts.setdefault(line.path, (files.text(facts, line.path) or "").splitlines(keepends=True))
        now = own[line.number - 1]
        for match in FLAG.finditer(now):
            name, equals, binary = match["value"].partition("=")
            if match["name"] == "--add-runtime" and equals:
                runtimes[name] = binary
        left = FLAG.sub("", now)
        if rest := [flag for flag in FLAGS if flag in left]:
            raise CannotPlan(
                f"{line.place}: docker is started with {rest[0]}, and does not start when daemon.json sets the same",
                hint="Write the flag and its value on one line, or take it out of that file (gpunode sets it in "
                "daemon.json); then run again.",
            )
        own[line.number - 1] = "" if left.strip() == "\\" else left
    return {path: "".join(own) for path, own in texts.items()}, runtimes


def _start_lines(facts: Facts) -> Iterator[Line]:
    """Every line that counts for docker's start.

    As systemd has it: a unit in /etc hides the packages' own, drop-ins follow by name, and `ExecStart=` takes back
    earlier lines.
    """
    units = [path for path in (OWN_UNIT, PACKAGED_UNIT) if files.text(facts, path) is not None][:1]
    drop_ins = sorted(path for path in facts.files if path.startswith(f"{OWN_UNIT}.d/"))
    lines = [line for path in (*units, *drop_ins) for line in _lines(facts, path)]
    resets = [n for n, line in enumerate(lines) if re.fullmatch(r"ExecStart\s*=", line.text)]
    for n, line in enumerate(lines):
        if line.key != "ExecStart" or not resets or n > resets[-1]:
            yield line
    if not units or any(line.key == "EnvironmentFile" and OPTIONS in line.text for line in lines):
        yield from _lines(facts, OPTIONS)


def _lines(facts: Facts, path: str) -> Iterator[Line]:
    key, goes_on = "", False
    for number, line in enumerate((files.text(facts, path) or "").splitlines(), 1):
        text = line.strip()
        if text.startswith(("#", ";")):
            continue
        key = key if goes_on else text.partition("=")[0].strip()
        goes_on = text.endswith("\\")
        yield Line(path, number, key, text)


RUNTIME = {"path": "nvidia-container-runtime", "args": []}
HINT = "Fix the file by hand (dockerd reads it too), then run again; gpunode left it unchanged."


@dataclass(frozen=True, slots=True)
class Member:
    """A key of a JSON object, with the positions of key and value in the text."""

    key: str
    at: int
    start: int
    end: int
    value: Any


def daemon_json(
    text: str, *, default: bool, path: str = "/etc/docker/daemon.json", more: Mapping[str, str] | None = None
) -> str:
    """The file with the nvidia runtime, as the default runtime if `default`; and with `more` (name -> binary), where it
    does not have them."""
    if not text.strip():
        text = "{}\n"
    document = _parse(text, path)
    start = text.index("{")
    if default and document.get("default-runtime") != "nvidia":
        text = _set(text, start, "default-runtime", "nvidia")
    runtimes = document.get("runtimes")
    if not isinstance(runtimes, dict | None):
        raise CannotPlan(f"{path}: `runtimes` is not an object of runtimes by name", hint=HINT)
    if not runtimes or not _is_nvidia(runtimes.get("nvidia")):
        own = _member(text, start, "runtimes")
        if own is None or own.value is None:
            text = _set(text, start, "runtimes", {"nvidia": RUNTIME})
        else:
            text = _set(text, own.start, "nvidia", RUNTIME)
    for name, binary in (more or {}).items():
        own = _member(text, start, "runtimes")
        if name != "nvidia" and own is not None and name not in own.value:
            text = _set(text, own.start, name, {"path": binary, "args": []})
    return text


def without_nvidia(text: str, original: str, path: str = FILE) -> str:
    """The file without what `daemon_json` added to its `original`: the nvidia runtime, and that it is the default one."""
    document, first = _parse(text, path), _parse(original if original.strip() else "{}", path)
    start = text.index("{")
    if document.get("default-runtime") == "nvidia" != first.get("default-runtime"):
        if "default-runtime" in first:
            text = _set(text, start, "default-runtime", first["default-runtime"])
        else:
            text = _unset(text, start, "default-runtime")
    own = _member(text, start, "runtimes")
    if own is not None and isinstance(own.value, dict) and _is_nvidia(own.value.get("nvidia")):
        entry = (first.get("runtimes") or {}).get("nvidia")
        if entry == own.value["nvidia"]:
            return text
        if entry is not None:
            return _set(text, own.start, "nvidia", entry)
        text = _unset(text, start, "runtimes") if len(own.value) == 1 else _unset(text, own.start, "nvidia")
    return text


def _unset(text: str, offset: int, key: str) -> str:
    """The object at `offset` without this member, and without the comma that it needed."""
    members = list(_members(text, offset))
    at = next(n for n, member in enumerate(members) if member.key == key)
    if at:
        return text[: members[at - 1].end] + text[members[at].end :]
    end = members[1].at if len(members) > 1 else text.index("}", members[0].end)
    if len(members) == 1:
        return text[: members[0].at].rstrip() + text[end:]
    return text[: members[0].at] + text[end:]


def _is_nvidia(runtime: object) -> bool:
    """Whether a runtime entry starts NVIDIA's, by name or from where its package puts it."""
    return isinstance(runtime, dict) and runtime.get("path") in (
        "nvidia-container-runtime",
        "/usr/bin/nvidia-container-runtime",
    )


def _parse(text: str, path: str) -> dict[str, Any]:
    try:
        document = json.loads(text.removeprefix("\ufeff"))
    except RecursionError:
        raise CannotPlan(f"{path} does not parse\nit is nested too deeply", hint=HINT) from None
    except json.JSONDecodeError as error:
        where = at(path, text, error.pos)
        raise CannotPlan(f"{path} does not parse\n{where}: not valid JSON: {error.msg}", hint=HINT) from None
    except ValueError as error:  # a number of more than 4300 digits
        raise CannotPlan(f"{path} does not parse\nnot valid JSON: {error}", hint=HINT) from None
    if not isinstance(document, dict):
        raise CannotPlan(f"{at(path, text, 0)}: not a JSON object", hint=HINT)
    return document


def _space(text: str, offset: int) -> int:
    match = re.compile(r"\s*").match(text, offset)
    return match.end() if match else offset


def _members(text: str, offset: int) -> Iterator[Member]:
    """The members of the object that begins at `offset`; the text is known to be valid JSON."""
    offset = _space(text, offset + 1)
    while text[offset] != "}":
        key, end = scanstring(text, offset + 1, True)
        start = _space(text, _space(text, end) + 1)
        value, stop = json.JSONDecoder().raw_decode(text, start)
        yield Member(key, offset, start, stop, value)
        offset = _space(text, stop)
        if text[offset] == ",":
            offset = _space(text, offset + 1)


def _member(text: str, offset: int, key: str) -> Member | None:
    """The member of the object at `offset` that counts: dockerd takes the last of a name."""
    return next((m for m in reversed(tuple(_members(text, offset))) if m.key == key), None)


def _set(text: str, offset: int, key: str, value: object) -> str:
    """The object at `offset` with this member: its value replaced, or the member added after the last one."""
    members = list(_members(text, offset))
    written = json.dumps(value)
    present = _member(text, offset, key)
    if present is not None:
        return text[: present.start] + written + text[present.end :]
    entry = f"{json.dumps(key)}: {written}"
    if members:
        last = members[-1]
        return f"{text[: last.end]},{_gap(text, last.at)}{entry}{text[last.end :]}"
    close = text.index("}", offset)
    outer = text[text.rfind("\n", 0, offset) + 1 : offset]
    indent = re.match(r"\s*", outer)[0]  # type: ignore[index]  # matches always
    line = _newline(text) + indent
    return f"{text[: offset + 1]}{line}  {entry}{line}{text[close:]}"


def _gap(text: str, offset: int) -> str:
    """What separates a further member from the one at `offset`: its own line's start, or a space."""
    start = text.rfind("\n", 0, offset)
    lead = text[start + 1 : offset]
    return f"{_newline(text)}{lead}" if start >= 0 and not lead.strip() else " "


def _newline(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"
