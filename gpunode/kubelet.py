"""How a host's kubelet is started: its arguments and configuration, read as systemd and the kubelet read them.

Pure: everything comes from one probe. `started` is what runs now, `next_start` what the files as they are would run.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

import yaml

from gpunode import envfile, unitfile
from gpunode.model import Facts
from gpunode.unitfile import Setting

UNIT = "kubelet"
CONFIG = "/var/lib/kubelet/config.yaml"
# Where the kubelet's packages expect a user's own arguments: Debian's place, then the RPMs'.
EXTRA_ARGS_FILES = ("/etc/default/kubelet", "/etc/sysconfig/kubelet")
KUBEADM_FLAGS = "/var/lib/kubelet/kubeadm-flags.env"
UNIT_FILES = (
    "/usr/lib/systemd/system/kubelet.service",
    "/usr/lib/systemd/system/kubelet.service.d/*.conf",
    "/lib/systemd/system/kubelet.service",
    "/lib/systemd/system/kubelet.service.d/*.conf",
    "/usr/local/lib/systemd/system/kubelet.service",
    "/usr/local/lib/systemd/system/kubelet.service.d/*.conf",
    "/run/systemd/system/kubelet.service",
    "/run/systemd/system/kubelet.service.d/*.conf",
    "/etc/systemd/system/kubelet.service",
    "/etc/systemd/system/kubelet.service.d/*.conf",
)
# systemd takes a unit, and a drop-in of a name, from the first of these that has it; else from /usr/lib or /lib.
FOLDERS = ("/etc/", "/run/", "/usr/local/lib/")
UNIT_FILE = re.compile(r"/systemd/system/kubelet\.service(?:\.d/(?:[^/]+\.conf))?$")
# What `systemctl cat` writes above each file.
HEADER = re.compile(
    r"^# (/\S+/(?:kubelet\.service|(?:kubelet\.)?service\.d/[^/\s]+\.conf))[ \t\r]*\n", re.MULTILINE
)

# In environment files: another assignment within a quote, a flag's value that goes on in the next line, and a comment of
# which systemd 254 and newer say that its line ends it, older ones that the next belongs to it.
SWALLOWED = re.compile(r"(?<!\\)\n[ \t]*[A-Za-z_]\w*=")
CUT = re.compile(r"--?feature-gates[= ][^\s\"']*\\\n[^\s\"']")
ENDLESS = re.compile(r"^[ \t]*[#;].*\\\n[ \t]*[A-Za-z_]\w*=", re.MULTILINE)


@dataclass(frozen=True, slots=True)
class Start:
    """What systemd would start now. `words`: the program and its arguments, () where it could start none.

    `setters`: the file that each variable's value comes from. `command`: the ExecStart= that counts, and its file.
    """

    words: tuple[str, ...]
    variables: Mapping[str, str]
    setters: Mapping[str, str]
    command: tuple[str, Setting] | None

    @property
    def is_plain(self) -> bool:
        """True if the unit starts the kubelet itself, not a script or another program that does."""
        names = [word.rsplit("/", 1)[-1] for word in self.words[:2]]
        return names[:1] == ["kubelet"] or names == ["hyperkube", "kubelet"]

    @property
    def ends_in_flags(self) -> bool:
        """True if what stands at the command's end is the kubelet's, where a container or another program starts it."""
        names = [word.rsplit("/", 1)[-1] for word in self.words]
        last = max(
            (n for n, name in enumerate(names) if re.fullmatch(r"kubelet(-wrapper)?", name)), default=None
        )
        if last is None or names[last - 1 : last] == ["--name"]:
            return False
        return self.is_plain or (
            self.words[last + 1 : last + 2] != () and self.words[last + 1].startswith("--")
        )


def started(facts: Facts) -> tuple[str, ...]:
    """The running kubelet's arguments, () when none runs."""
    return facts.kubelet.arguments if facts.kubelet else ()


def next_start(facts: Facts) -> tuple[str, ...]:
    """The arguments that systemd would start it with now, from its unit and the environment files it names."""
    return start(facts).words[1:]


def start(facts: Facts) -> Start:
    """The next start, after `systemctl daemon-reload`."""
    own: dict[str, tuple[str, str]] = {}
    from_files: dict[str, tuple[str, str]] = {}
    command: tuple[str, Setting] | None = None
    for path, setting in settings(facts):
        if setting.key == "Environment":
            sets = {name: (value, path) for name, value in unitfile.assignments(setting.value, UNIT)}
            own = own | sets if setting.value else {}
        elif setting.key == "EnvironmentFile":
            from_files = from_files if setting.value else {}
            for name in _named(facts, setting.value):
                from_files |= {one.name: (one.value, name) for one in envfile.read(_text(facts, name))}
        elif setting.key == "ExecStart":
            command = (path, setting) if setting.value else None
    sets = own | from_files
    variables = {name: value for name, (value, _) in sets.items()}
    words = unitfile.command(command[1].value, variables, UNIT) if command else ()
    return Start(words, variables, {name: path for name, (_, path) in sets.items()}, command)


def unit_files(facts: Facts) -> Mapping[str, str]:
    """The texts of its unit and drop-ins in the order in which systemd reads them, those not loaded yet among them."""
    if facts.kubelet is None:
        return {}
    there = {path for path, file in facts.files.items() if file.exists and UNIT_FILE.search(path)}
    before, *parts = HEADER.split(facts.kubelet.unit_text)
    texts = dict(zip(parts[::2], parts[1::2], strict=True))
    if before.strip() and "" not in map(_place, texts):
        texts[""] = before
    for path in sorted(there - set(texts)):
        same = next((other for other in texts if _place(other) == _place(path)), None)
        if same is None or _rank(path) < _rank(same):
            texts = {path: "", **{other: text for other, text in texts.items() if other != same}}
    texts = {path: _text(facts, path) if path in there else text for path, text in texts.items()}
    return {path: texts[path] for path in sorted(texts, key=_place)}


def _place(path: str) -> str:
    """The name of a drop-in, which one of the same name in another folder replaces; empty for the unit itself."""
    found = re.search(r"\.d/([^/]+)$", path)
    return found[1] if found else ""


def _rank(path: str) -> int:
    folders = (*FOLDERS, "/")
    return next((rank for rank, folder in enumerate(folders) if path.startswith(folder)), len(folders))


def settings(facts: Facts) -> Iterator[tuple[str, Setting]]:
    """All settings of [Service] that systemd would read, each with its file."""
    for path, text in unit_files(facts).items():
        for setting in unitfile.read(text):
            yield path, setting


def environment_files(facts: Facts) -> tuple[str, ...]:
    """The environment files that its unit names, in the order in which they are read; of a pattern, those there are."""
    names: list[str] = []
    for _, setting in settings(facts):
        if setting.key == "EnvironmentFile":
            names = [*names, *_named(facts, setting.value)] if setting.value else []
    return tuple(names)


def flag(arguments: Sequence[str], name: str) -> str | None:
    """The value of a flag; the last one wins, as for the kubelet."""
    found = flags(arguments, name)
    return found[-1] if found else None


def flags(arguments: Sequence[str], name: str) -> tuple[str, ...]:
    """All values that a flag is given, as `--name=value` or `--name value`."""
    values = []
    for number, argument in enumerate(arguments):
        if argument.startswith((f"--{name}=", f"-{name}=")):
            values.append(argument.split("=", 1)[1])
        elif argument in (f"--{name}", f"-{name}") and number + 1 < len(arguments):
            values.append(arguments[number + 1])
    return tuple(values)


def gates(arguments: Sequence[str]) -> dict[str, bool]:
    """The feature gates that arguments set; later ones win, gate by gate."""
    found = {}
    for value in flags(arguments, "feature-gates"):
        for part in value.split(","):
            name, _, state = part.partition("=")
            if name.strip():
                found[name.strip()] = state.strip().lower() in ("true", "t", "1")
    return found


def config_path(facts: Facts) -> str:
    """Its configuration file."""
    return flag(next_start(facts), "config") or CONFIG


def config_files(facts: Facts) -> tuple[str, ...]:
    """The configuration files that it reads, later ones over earlier ones; () where its command names none.

    cmd/kubelet/app/server.go: drop-ins are a JSON merge patch each, in the order of their paths; flags win gate by gate.
    """
    arguments, folder = next_start(facts), ""
    main = flag(arguments, "config")
    if main is None and not start(facts).is_plain:
        main = CONFIG  # a script may name it
    if folder := (flag(arguments, "config-dir") or "").rstrip("/"):
        there = (path for path, file in facts.files.items() if file.exists and path.startswith(f"{folder}/"))
        return (*((main,) if main else ()), *sorted(path for path in there if path.endswith(".conf")))
    return (main,) if main else ()


def config(facts: Facts) -> Mapping[str, Any]:
    """Its configuration; {} where there is none or it is no mapping."""
    found: Any = {}
    for path in config_files(facts):
        found = _over(found, _load(_text(facts, path))[0])
    return MappingProxyType(found)


def config_gates(facts: Facts) -> dict[str, bool]:
    """The feature gates that its configuration sets."""
    found = config(facts).get("featureGates")
    return {str(name): state is True for name, state in found.items()} if isinstance(found, dict) else {}


def config_problem(facts: Facts) -> str | None:
    """Why its configuration cannot be read, as `file:line:column: cause`; None when it can."""
    for path in config_files(facts):
        if problem := _load(_text(facts, path))[1]:
            return f"{path}{problem}"
    return None


def environment_problem(facts: Facts) -> str | None:
    """Where an environment file of its unit cannot be read as it was meant, as `file:line: cause`.

    systemd takes a quote that is never closed for one that ends with the file: all lines below are part of that value.
    """
    for path in environment_files(facts):
        text = _text(facts, path)
        for one in envfile.read(text):
            written, line = text[one.start : one.stop], text.count("\n", 0, one.start) + 1
            if not one.closed or SWALLOWED.search(written):
                return f"{path}:{line}: the quote before the value of {one.name} is not closed on its line"
            if CUT.search(written):
                return f"{path}:{line}: in {one.name} the value of --feature-gates goes on in the next line; write it on one"
        if found := ENDLESS.search(text):
            line = text.count("\n", 0, found.start()) + 1
            return f"{path}:{line}: this comment ends in a backslash: some versions of systemd pass over the next line too"
    return None


@lru_cache(maxsize=64)  # a plan asks several times, and many hosts have the same text
def _load(text: str) -> tuple[Mapping[str, Any], str | None]:
    if text.lstrip().startswith("{"):
        try:
            data = json.loads(text)  # its tabs are none of YAML's
            return MappingProxyType(data), None
        except ValueError:
            pass
    try:
        data = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        return MappingProxyType({}), f"{where}: not valid YAML: {error.problem}"
    except yaml.YAMLError as error:
        return MappingProxyType({}), f": not valid YAML: {error}"
    return MappingProxyType(data if isinstance(data, dict) else {}), None


def _over(base: Any, more: Any) -> Any:
    """Mappings merged key by key; anything else replaces."""
    if not isinstance(base, Mapping) or not isinstance(more, Mapping):
        return more
    return {**base, **{key: _over(base.get(key), value) for key, value in more.items()}}


def _named(facts: Facts, value: str) -> list[str]:
    """The files of one EnvironmentFile=, whose wildcards systemd expands in glob's order."""
    path = unitfile.specified(value.removeprefix("-"), UNIT) or ""
    if not re.search(r"[*?\[]", path):
        return [path] if path else []
    return sorted(
        name for name, file in facts.files.items() if file.exists and PurePosixPath(name).match(path)
    )


def _text(facts: Facts, path: str) -> str:
    file = facts.files.get(path)
    return file.content or "" if file else ""
