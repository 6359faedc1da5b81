"""How a host's kubelet would be started now, read as systemd and the kubelet read it. Pure: from one probe."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import PurePosixPath

from gpunode.links.kubelet import arguments, config, envfile, unitfile, units
from gpunode.links.kubelet.envfile import Assignment
from gpunode.model import Facts, KubeletStart, Place, UnitSetting
from gpunode.planning import files

# In environment files: another assignment within a quote, a flag's value that continues in the next line, and a comment
# that ends with its line for systemd 254 and newer, and with the next line for older ones.
SWALLOWED = re.compile(r"(?<!\\)\n[ \t]*[A-Za-z_]\w*=")
CUT = re.compile(r"--?feature-gates[= ][^\s\"']*\\\n[^\s\"']")
ENDLESS = re.compile(r"^[ \t]*[#;].*\\\n[ \t]*[A-Za-z_]\w*=", re.MULTILINE)


def read(facts: Facts, place: Place) -> KubeletStart:
    """The next start, after `systemctl daemon-reload`, from the unit and the files that it names."""
    name = place.unit.rpartition(".")[0]
    texts = units.texts(facts, place.unit)
    own: dict[str, tuple[str, str]] = {}
    named: list[str] = []
    command: tuple[str, UnitSetting] | None = None
    twice: str | None = None
    for path, setting in ((path, one) for path, text in texts.items() for one in unitfile.read(text)):
        if setting.key == "Environment":
            sets = {key: (value, path) for key, value in unitfile.assignments(setting.value, name)}
            own = own | sets if setting.value else {}
        elif setting.key == "EnvironmentFile":
            named = [*named, *_named(facts, setting.value, name)] if setting.value else []
        elif setting.key == "ExecStart":
            if setting.value and command is not None and command[0] != path and twice is None:
                line = texts[path].count("\n", 0, setting.start) + 1
                twice = (
                    f"{path}:{line}: a second ExecStart= beside that of {command[0] or place.unit}, without an empty one "
                    "before it: systemd does not start such a unit"
                )
            command = (path, setting) if setting.value else None
    environment = {path: envfile.read(_text(facts, path)) for path in dict.fromkeys(named)}
    sets = own | {one.name: (one.value, path) for path in named for one in environment[path]}
    variables = {key: value for key, (value, _) in sets.items()}
    words = unitfile.command(command[1].value, variables, name) if command else ()
    paths = config.files(facts, words, place.config)
    found, problem = config.read((path, _text(facts, path)) for path in paths)
    return KubeletStart(
        place=place,
        words=words,
        variables=variables,
        setters={key: path for key, (_, path) in sets.items()},
        command=command,
        units=tuple(texts),
        environment_files=tuple(named),
        config_files=paths,
        config_path=arguments.flag(words[1:], "config") or place.config,
        config=found,
        config_gates=config.gates(found),
        gates=config.gates(found) | arguments.gates(words[1:]),
        problem=twice or problem or _environment_problem(facts, environment),
    )


def below(
    facts: Facts, service: KubeletStart, words: Sequence[str], paths: Sequence[str], problem: str | None
) -> KubeletStart:
    """The start of a kubelet that a distribution's service runs: by these words and files of configuration, and no variables."""
    found, mistake = config.read((path, files.text(facts, path) or "") for path in paths)
    return replace(
        service,
        words=tuple(words),
        variables={},
        setters={},
        config_files=tuple(paths),
        config_path=arguments.flag(words, "config") or service.place.config,
        config=found,
        config_gates=config.gates(found),
        gates=config.gates(found) | arguments.gates(words[1:]),
        problem=problem or mistake,
    )


def _environment_problem(facts: Facts, environment: Mapping[str, Sequence[Assignment]]) -> str | None:
    """Where an environment file cannot be read as it was meant, as `file:line: cause`.

    systemd takes a quote that is never closed for one that ends with the file: all lines below are part of that value.
    """
    for path, assignments in environment.items():
        text = _text(facts, path)
        for one in assignments:
            written, line = text[one.start : one.stop], text.count("\n", 0, one.start) + 1
            if not one.closed or SWALLOWED.search(written):
                return f"{path}:{line}: the quote before the value of {one.name} is not closed on its line"
            if CUT.search(written):
                return f"{path}:{line}: in {one.name} the value of --feature-gates continues in the next line; write it on one"
        if found := ENDLESS.search(text):
            line = text.count("\n", 0, found.start()) + 1
            return f"{path}:{line}: this comment ends in a backslash: some versions of systemd pass over the next line too"
    return None


def _named(facts: Facts, value: str, unit: str) -> list[str]:
    """The files of one EnvironmentFile=, whose wildcards systemd expands in glob's order."""
    path = unitfile.specified(value.removeprefix("-"), unit) or ""
    if not re.search(r"[*?\[]", path):
        return [path] if path else []
    return sorted(
        name for name, file in facts.files.items() if file.exists and PurePosixPath(name).match(path)
    )


def _text(facts: Facts, path: str) -> str:
    return files.text(facts, path) or ""
