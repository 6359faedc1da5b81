"""How a host's kubelet would be started now, read as systemd and the kubelet read it: unit, arguments, configuration. Pure."""

import json
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import lru_cache
from pathlib import PurePosixPath
from types import MappingProxyType
from typing import Any, TypeAlias

import yaml

from gpunode.contract import yaml_text
from gpunode.links.kubelet import minors, systemd
from gpunode.links.kubelet.systemd import Assignment
from gpunode.model import Facts, KubeletStart, Place, UnitSetting
from gpunode.planning import files

Components: TypeAlias = Iterator[tuple[str, tuple[str, ...]]]
"""Commands of the control plane and of kubelets, each with the file that configures it."""

# In environment files: another assignment within a quote, a flag's value that continues in the next line, and a comment
# that ends with its line for systemd 254 and newer, and with the next line for older ones.
SWALLOWED = re.compile(r"(?<!\\)\n[ \t]*[A-Za-z_]\w*=")
CUT = re.compile(r"--?feature-gates[= ][^\s\"']*\\\n[^\s\"']")
ENDLESS = re.compile(r"^[ \t]*[#;].*\\\n[ \t]*[A-Za-z_]\w*=", re.MULTILINE)


def minor_of(facts: Facts) -> int | None:
    """The kubelet's minor version; None without a kubelet, or where its version is not understood."""
    return minors.minor(facts.kubelet.version) if facts.kubelet else None


def read(facts: Facts, place: Place) -> KubeletStart:
    """The next start, after `systemctl daemon-reload`, from the unit and the files that it names."""
    name = place.unit.rpartition(".")[0]
    texts = systemd.unit_texts(facts, place.unit)
    own: dict[str, tuple[str, str]] = {}
    named: list[str] = []
    command: tuple[str, UnitSetting] | None = None
    twice: str | None = None
    for path, setting in (
        (path, setting) for path, text in texts.items() for setting in systemd.read_unit(text)
    ):
        if setting.key == "Environment":
            sets = {key: (value, path) for key, value in systemd.assignments(setting.value, name)}
            own = own | sets if setting.value else {}
        elif setting.key == "EnvironmentFile":
            named = [*named, *_match_files(facts, setting.value, name)] if setting.value else []
        elif setting.key == "ExecStart":
            if setting.value and command is not None and command[0] != path and twice is None:
                line = texts[path].count("\n", 0, setting.start) + 1
                twice = (
                    f"{path}:{line}: a second ExecStart= beside that of {command[0] or place.unit}, without an empty one "
                    "before it: systemd does not start such a unit"
                )
            command = (path, setting) if setting.value else None
    environment = {path: systemd.read_environment(_text(facts, path)) for path in dict.fromkeys(named)}
    sets = own | {item.name: (item.value, path) for path in named for item in environment[path]}
    variables = {key: value for key, (value, _) in sets.items()}
    argv = systemd.command(command[1].value, variables, name) if command else ()
    paths = config_files(facts, argv, place.config)
    merged, problem = read_config((path, _text(facts, path)) for path in paths)
    gates = config_gates(merged)
    return KubeletStart(
        place=place,
        argv=argv,
        variables=variables,
        setters={key: path for key, (_, path) in sets.items()},
        command=command,
        units=tuple(texts),
        environment_files=tuple(named),
        config_files=paths,
        config_path=flag(argv[1:], "config") or place.config,
        config=merged,
        config_gates=gates,
        gates=gates | flag_gates(argv[1:]),
        problem=twice or problem or _environment_problem(facts, environment),
    )


def below_service(
    facts: Facts, service: KubeletStart, argv: Sequence[str], paths: Sequence[str], problem: str | None
) -> KubeletStart:
    """The start of a kubelet that a distribution's service runs: by these words and files of configuration, and no variables."""
    merged, mistake = read_config((path, _text(facts, path)) for path in paths)
    gates = config_gates(merged)
    return replace(
        service,
        argv=tuple(argv),
        variables={},
        setters={},
        config_files=tuple(paths),
        config_path=flag(argv, "config") or service.place.config,
        config=merged,
        config_gates=gates,
        gates=gates | flag_gates(argv[1:]),
        problem=problem or mistake,
    )


def _environment_problem(facts: Facts, environment: Mapping[str, Sequence[Assignment]]) -> str | None:
    """Where an environment file cannot be read as it was meant, as `file:line: cause`.

    systemd takes a quote that is never closed for one that ends with the file: all lines below are part of that value.
    """
    for path, assignments in environment.items():
        text = _text(facts, path)
        for assignment in assignments:
            written = text[assignment.start : assignment.stop]
            line = text.count("\n", 0, assignment.start) + 1
            if not assignment.closed or SWALLOWED.search(written):
                return f"{path}:{line}: the quote before the value of {assignment.name} is not closed on its line"
            if CUT.search(written):
                return f"{path}:{line}: in {assignment.name} the value of --feature-gates continues in the next line; write it on one"
        if comment := ENDLESS.search(text):
            line = text.count("\n", 0, comment.start()) + 1
            return f"{path}:{line}: this comment ends in a backslash: some versions of systemd pass over the next line too"
    return None


def _match_files(facts: Facts, value: str, unit: str) -> list[str]:
    """The files of one EnvironmentFile=, whose wildcards systemd expands in glob's order."""
    path = systemd.expand_specifiers(value.removeprefix("-"), unit) or ""
    if not re.search(r"[*?\[]", path):
        return [path] if path else []
    return [name for name in files.below(facts, "/") if PurePosixPath(name).match(path)]


def _text(facts: Facts, path: str) -> str:
    return files.text(facts, path) or ""


# --- Arguments ------------------------------------------------------------------------------------------


def flag(argv: Sequence[str], name: str) -> str | None:
    """The value of a flag; the last one wins, as for the kubelet."""
    values = flags(argv, name)
    return values[-1] if values else None


def flags(argv: Sequence[str], name: str) -> tuple[str, ...]:
    """All values that a flag is given, as `--name=value` or `--name value`."""
    values = []
    for number, word in enumerate(argv):
        if word.startswith((f"--{name}=", f"-{name}=")):
            values.append(word.split("=", 1)[1])
        elif word in (f"--{name}", f"-{name}") and number + 1 < len(argv):
            values.append(argv[number + 1])
    return tuple(values)


def has_flag(argv: Sequence[str], name: str) -> bool:
    """Whether a flag is there, with a value or without."""
    return any(re.match(rf"--?{re.escape(name)}(=|$)", word) for word in argv)


def flag_gates(argv: Sequence[str]) -> dict[str, bool]:
    """The feature gates that arguments set; later ones win, gate by gate."""
    gates = {}
    for value in flags(argv, "feature-gates"):
        for part in value.split(","):
            name, _, state = part.partition("=")
            if name.strip():
                gates[name.strip()] = state.strip().lower() in ("true", "t", "1")
    return gates


def is_plain(argv: Sequence[str]) -> bool:
    """True if this command is the kubelet itself, not a script or another program that starts it."""
    names = [word.rsplit("/", 1)[-1] for word in argv[:2]]
    return names[:1] == ["kubelet"] or names == ["hyperkube", "kubelet"]


def ends_in_flags(argv: Sequence[str]) -> bool:
    """True if the command ends with a kubelet's, which a container or another program starts."""
    names = [word.rsplit("/", 1)[-1] for word in argv]
    last = max((n for n, name in enumerate(names) if re.fullmatch(r"kubelet(-wrapper)?", name)), default=None)
    if last is None or names[last - 1 : last] == ["--name"]:
        return False
    return is_plain(argv) or any(word.startswith("--") for word in argv[last + 1 : last + 2])


# --- Configuration --------------------------------------------------------------------------------------


def config_files(facts: Facts, argv: Sequence[str], default: str) -> tuple[str, ...]:
    """The files that a command reads, later ones over earlier ones; () where it names none. `default`: a script's.

    cmd/kubelet/app/server.go: drop-ins are a JSON merge patch each, in the order of their paths; flags win gate by gate.
    """
    main = flag(argv[1:], "config")
    if main is None and not is_plain(argv):
        main = default  # a script may name it
    named = (main,) if main else ()
    folder = (flag(argv[1:], "config-dir") or "").rstrip("/")
    if not folder:
        return named
    return (*named, *(path for path in files.below(facts, f"{folder}/") if path.endswith(".conf")))


def read_config(texts: Iterable[tuple[str, str]]) -> tuple[Mapping[str, Any], str | None]:
    """The files' merged content, {} where they are not mappings; and the first mistake, as `file:line:column: cause`."""
    merged: Any = {}
    problems = []
    for path, text in texts:
        data, problem = _load(text)
        merged = _merge(merged, data)
        problems += [f"{path}{problem}"] if problem else []
    return MappingProxyType(merged), next(iter(problems), None)


def config_gates(config: Mapping[str, Any]) -> dict[str, bool]:
    gates = config.get("featureGates")
    return {str(name): state is True for name, state in gates.items()} if isinstance(gates, dict) else {}


@lru_cache(maxsize=64)  # many hosts have the same text
def _load(text: str) -> tuple[Mapping[str, Any], str | None]:
    if text.lstrip().startswith("{"):
        try:
            data = json.loads(text)  # its tabs are none of YAML's
            return MappingProxyType(data), None
        except (ValueError, RecursionError):
            pass
    try:
        data = yaml_text.data(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        return MappingProxyType({}), f"{where}: not valid YAML: {error.problem}"
    except yaml.YAMLError as error:
        return MappingProxyType({}), f": not valid YAML: {error}"
    return MappingProxyType(data if isinstance(data, dict) else {}), None


def _merge(base: Any, more: Any) -> Any:
    """Mappings merged key by key; anything else replaces."""
    if not isinstance(base, Mapping) or not isinstance(more, Mapping):
        return more
    return {**base, **{key: _merge(base.get(key), value) for key, value in more.items()}}


def assigned_config(facts: Facts, argv: Sequence[str], minor: int) -> str | None:
    """The file that says which configuration of the API this kubelet goes by, as 1.11 to 1.23 can; None where it goes by its own.

    source: pkg/kubelet/kubeletconfig/checkpoint/store/fsstore.go (1.16): `assigned` is empty while it goes by its own file.
    """
    folder = flag(argv, "dynamic-config-dir")
    if not folder or not 11 <= minor < 24 or flag_gates(argv).get("DynamicKubeletConfig") is False:
        return None
    path = f"{folder.rstrip('/')}/store/meta/assigned"
    file = facts.files.get(path)
    return path if file is not None and (file.content or "").strip() else None
