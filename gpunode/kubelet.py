"""How a host's kubelet is started: its arguments and configuration, read as systemd and the kubelet read them.

Pure: everything comes from one probe. `started` is what runs now, `next_start` what the files as they are would run.
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import lru_cache
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any

import yaml

from gpunode import envfile
from gpunode.model import Facts

CONFIG = "/var/lib/kubelet/config.yaml"
# Where the kubelet's packages expect a user's own arguments: Debian's place, then the RPMs'.
EXTRA_ARGS_FILES = ("/etc/default/kubelet", "/etc/sysconfig/kubelet")
KUBEADM_FLAGS = "/var/lib/kubelet/kubeadm-flags.env"
UNIT_FILES = (
    "/usr/lib/systemd/system/kubelet.service",
    "/usr/lib/systemd/system/kubelet.service.d/*.conf",
    "/lib/systemd/system/kubelet.service",
    "/lib/systemd/system/kubelet.service.d/*.conf",
    "/etc/systemd/system/kubelet.service",
    "/etc/systemd/system/kubelet.service.d/*.conf",
)

# In environment files: another assignment within a quote, a flag's value that goes on in the next line, and a comment of
# which systemd 254 and newer say that its line ends it, older ones that the next belongs to it.
SWALLOWED = re.compile(r"(?<!\\)\n[ \t]*[A-Za-z_]\w*=")
CUT = re.compile(r"--?feature-gates[= ][^\s\"']*\\\n[^\s\"']")
ENDLESS = re.compile(r"^[ \t]*[#;].*\\\n[ \t]*[A-Za-z_]\w*=", re.MULTILINE)


def started(facts: Facts) -> tuple[str, ...]:
    """The running kubelet's arguments, () when none runs."""
    return facts.kubelet.arguments if facts.kubelet else ()


def next_start(facts: Facts) -> tuple[str, ...]:
    """The arguments that systemd would start it with now, from its unit and the environment files it names."""
    if facts.kubelet is None:
        return ()
    variables: dict[str, str] = {}
    from_files: dict[str, str] = {}
    command = ""
    for key, value in _settings(facts.kubelet.unit_text):
        if key == "Environment":
            variables = variables | dict(_assignments(value)) if value else {}
        elif key == "EnvironmentFile":
            from_files = {} if not value else from_files
            for path in _named(facts, value):
                from_files = from_files | {one.name: one.value for one in envfile.read(_text(facts, path))}
        elif key == "ExecStart":
            command = value.lstrip("@-:+!")
    return tuple(_expand(command, variables | from_files))[1:]


def environment_files(facts: Facts) -> tuple[str, ...]:
    """The environment files that its unit names, in the order in which they are read; of a pattern, those there are."""
    if facts.kubelet is None:
        return ()
    names: list[str] = []
    for key, value in _settings(facts.kubelet.unit_text):
        if key == "EnvironmentFile":
            names = [*names, *_named(facts, value)] if value else []
    return tuple(names)


def takes_extra_args(facts: Facts) -> bool:
    """Whether its command line ends in $KUBELET_EXTRA_ARGS, as kubeadm's packages have it."""
    commands = [v for k, v in _settings(facts.kubelet.unit_text) if k == "ExecStart"] if facts.kubelet else []
    return bool(commands) and "KUBELET_EXTRA_ARGS" in commands[-1]


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


def config(facts: Facts) -> Mapping[str, Any]:
    """Its configuration file's content; {} where there is none or it is no mapping."""
    return _load(_text(facts, config_path(facts)))[0]


def config_gates(facts: Facts) -> dict[str, bool]:
    """The feature gates that its configuration file sets."""
    found = config(facts).get("featureGates")
    return {str(name): bool(state) for name, state in found.items()} if isinstance(found, dict) else {}


def config_problem(facts: Facts) -> str | None:
    """Why its configuration file cannot be read, as `file:line:column: cause`; None when it can."""
    problem = _load(_text(facts, config_path(facts)))[1]
    return f"{config_path(facts)}{problem}" if problem else None


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
    try:
        data = yaml.load(text, getattr(yaml, "CSafeLoader", yaml.SafeLoader))  # noqa: S506 - a safe loader
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        return MappingProxyType({}), f"{where}: not valid YAML: {error.problem}"
    except yaml.YAMLError as error:
        return MappingProxyType({}), f": not valid YAML: {error}"
    return MappingProxyType(data if isinstance(data, dict) else {}), None


def _named(facts: Facts, value: str) -> list[str]:
    """The files of one EnvironmentFile=, whose wildcards systemd expands in glob's order."""
    path = value.lstrip("-")
    if not re.search(r"[*?\[]", path):
        return [path] if path else []
    return sorted(
        name for name, file in facts.files.items() if file.exists and PurePosixPath(name).match(path)
    )


def _text(facts: Facts, path: str) -> str:
    file = facts.files.get(path)
    return file.content or "" if file else ""


def _settings(unit_text: str) -> Iterator[tuple[str, str]]:
    for line in unit_text.replace("\\\n", " ").splitlines():
        match = re.match(r"\s*([A-Za-z]\w*)\s*=\s*(.*)", line)
        if match:
            yield match[1], match[2].strip()


def _words(text: str) -> list[str]:
    """Split as systemd does; a line with a lone quote is split at its spaces."""
    if not re.search(r"[\"'\\]", text):
        return text.split()
    try:
        return shlex.split(text)
    except ValueError:
        return text.split()


def _assignments(value: str) -> Iterator[tuple[str, str]]:
    for word in _words(value):
        name, equals, content = word.partition("=")
        if equals:
            yield name, content


def _expand(command: str, variables: Mapping[str, str]) -> Iterable[str]:
    """`$NAME` alone becomes the words of its value, `${NAME}` is put in as it is."""
    for word in _words(command):
        if match := re.fullmatch(r"\$(\w+)", word):
            yield from _words(variables.get(match[1], ""))
        else:
            yield re.sub(r"\$\{(\w+)\}", lambda found: variables.get(found[1], ""), word)
