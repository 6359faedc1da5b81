"""The kubelet's feature gates: set where it needs them, taken out where they would keep it from starting."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace

from gpunode import compat, kubelet
from gpunode.model import Change, Desired, Facts, File, Service, WriteFile
from gpunode.render import Unfit, template
from gpunode.render import gates as merge
from gpunode.steps import files

SERVICE = "kubelet.service"
VARIABLE = "KUBELET_EXTRA_ARGS"
DROP_IN = "/etc/systemd/system/kubelet.service.d/20-gpunode.conf"
CONFIG_SINCE = 10  # before Kubernetes 1.10 the configuration file was an alpha, and had no place for gates

FILES = (*kubelet.EXTRA_ARGS_FILES, kubelet.KUBEADM_FLAGS, kubelet.CONFIG, *kubelet.UNIT_FILES)
UNITS = (SERVICE,)
PACKAGES = ()


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Files that set gates brought to what is wished; a restart while the running kubelet has it otherwise."""
    written = tuple(_files(facts, desired))
    reason = _restart(facts, desired, changed=bool(written))
    if reason is None:
        return written
    guards = tuple(change.path for change in written)
    return (*written, Service(SERVICE, reason, restart=True, guards=guards, note="pods go on running"))


def _places(facts: Facts) -> tuple[str, ...]:
    """Files with arguments that are there: environment files, units and drop-ins."""
    named = (*kubelet.environment_files(facts), *kubelet.unit_files(facts))
    return tuple(path for path in dict.fromkeys(named) if files.text(facts, path) is not None)


def _files(facts: Facts, desired: Desired) -> Iterator[WriteFile]:
    gates = desired.gates
    now = _set_by(facts)
    texts = {path: merge.kubelet_args(files.text(facts, path) or "", gates) for path in _places(facts)}
    for path in kubelet.config_files(facts):
        if text := files.text(facts, path):
            texts[path] = merge.config_gates(text, gates)
    absent = {name: state for name, state in gates.items() if state is not None and name not in now}
    result = _with(facts, texts)
    present = {name: state for name, state in gates.items() if name not in absent}
    if not _differ_only_in(facts, result, present):
        raise _not_editable(result, present)
    if absent:
        path, content = _add(facts, result, gates, absent)
        texts[path] = content
    changed = [
        name for name, state in gates.items() if name in absent or (name in now and now[name] != state)
    ]
    why = "; ".join(f"{name}: {desired.gate_reasons.get(name, 'as wished')}" for name in changed)
    for path, content in texts.items():
        why = why or "gates that are not wished"
        if path in kubelet.config_files(facts):
            yield from files.write(facts, path, content, why)
        else:
            yield from files.write(facts, path, content, why, check="systemd")


def _set_by(facts: Facts) -> dict[str, bool]:
    """The gates that the files as they are would set."""
    return kubelet.config_gates(facts) | kubelet.gates(kubelet.next_start(facts))


def _with(facts: Facts, texts: Mapping[str, str]) -> Facts:
    """The facts once these files are written."""
    written = {path: File(path, exists=True, content=text) for path, text in texts.items()}
    return replace(facts, files={**facts.files, **written})


def _differ_only_in(before: Facts, after: Facts, gates: merge.Gates) -> bool:
    """True if these gates are as wished after, and nothing else of what the kubelet is started with is another."""
    wished = {name: state for name, state in _set_by(before).items() if name not in gates}
    wished |= {name: state for name, state in gates.items() if state is not None}
    return _set_by(after) == wished and _else(before) == _else(after)


def _else(facts: Facts) -> object:
    """All that systemd and the kubelet make of the files but gates."""
    start = kubelet.start(facts)
    variables = {name: _bare(value.split()) for name, value in start.variables.items()}
    config = {key: value for key, value in kubelet.config(facts).items() if key != "featureGates"}
    return _bare(start.words), {name: value for name, value in variables.items() if value}, config


def _bare(words: Iterable[str]) -> list[str]:
    """Words without the flag, and without the value that follows it."""
    found: list[str] = []
    skip = False
    for word in words:
        flag = re.match(r"[\"']*--?feature-gates(=|$)", word)
        if not flag and not skip:
            found.append(word)
        skip = bool(flag and not flag[1])
    return found


def _not_editable(facts: Facts, gates: merge.Gates) -> Unfit:
    """Names the line that sets a gate in a way that a merge does not understand."""
    found = _set_by(facts)
    wrong = next((name for name, state in gates.items() if found.get(name) != state), "the feature gates")
    texts = [
        (path, files.text(facts, path) or "") for path in (*_places(facts), *kubelet.config_files(facts))
    ]
    lines = (
        f"{path}:{number}: {wrong} is set here in a way that cannot be changed safely"
        for path, text in texts
        for number, line in enumerate(text.split("\n"), 1)
        if re.search(rf"\b{wrong}\b", line) and not line.lstrip().startswith(("#", ";"))
    )
    return Unfit(
        next(lines, f"{wrong} of the kubelet cannot be changed without changing other arguments"),
        hint="Write it as --feature-gates=NAME=true,OTHER=false on one line, or as featureGates of the kubelet's "
        "configuration file; then run again. Nothing was touched.",
    )


def _add(
    before: Facts, facts: Facts, gates: merge.Gates, absent: Mapping[str, bool | None]
) -> tuple[str, str]:
    """Path and text of the file that sets gates which nothing sets yet: of the places that would do, the first."""
    for path, content in _candidates(facts, absent):
        if _differ_only_in(before, _with(facts, {path: content}), gates):
            return path, content
    flag = f"--feature-gates={merge.written(absent)}"
    command = kubelet.start(facts).command
    where = f" in {command[0]}" if command and command[0] else ""
    raise Unfit(
        f"the kubelet needs {flag}, and neither its unit nor its files have a place for it that is safe to change",
        hint=f"Add {flag} to the command that ExecStart starts{where}, or ${VARIABLE} to its end; then run again.",
    )


def _candidates(facts: Facts, gates: merge.Gates) -> Iterator[tuple[str, str]]:
    """Places for further gates, the least invasive first, each with the file's new text."""
    start = kubelet.start(facts)
    if kubelet.flags(start.words[1:], "feature-gates"):
        for path in reversed(_places(facts)):
            for text in merge.into_flags(files.text(facts, path) or "", gates):
                yield path, text
    named = re.findall(r"(?<!\S)\$(\w+)(?!\S)", start.command[1].value) if start.command else []
    if VARIABLE in (start.command[1].value if start.command else ""):
        yield from _into(facts, start, VARIABLE, gates)
    minor = compat.minor(facts.kubelet.version) if facts.kubelet else None
    if (minor or 0) >= CONFIG_SINCE:
        for path in kubelet.config_files(facts):
            if (merged := merge.into_config(files.text(facts, path) or "", gates)) is not None:
                yield path, merged
    for variable in reversed(named):
        if re.search(r"(ARG|FLAG|OPT|OPTION|ARGUMENT)S$", variable) and variable in start.setters:
            yield from _into(facts, start, variable, gates)
    if start.command and start.ends_in_flags and start.command[0] in facts.files:
        path, setting = start.command
        yield path, merge.into_command(files.text(facts, path) or "", setting, gates)


def _into(facts: Facts, start: kubelet.Start, variable: str, gates: merge.Gates) -> Iterator[tuple[str, str]]:
    """A variable's value with the flag, where it is set now: a value elsewhere would replace what the owner has there."""
    path = start.setters.get(variable)
    named = kubelet.environment_files(facts)
    if path in named:
        yield path, merge.into_variable(files.text(facts, path) or "", variable, gates)
    elif path is not None and (text := files.text(facts, path)):
        yield path, merge.into_unit_variable(text, variable, gates)
    elif path is None and (place := next((p for p in kubelet.EXTRA_ARGS_FILES if p in named), None)):
        there = files.text(facts, place)
        new = template(kubelet.EXTRA_ARGS_FILES[0].lstrip("/"), variable=variable, gates=merge.written(gates))
        yield place, new if there is None else merge.into_variable(there, variable, gates)
    elif path is None and files.text(facts, DROP_IN) is None:
        yield DROP_IN, template(DROP_IN.lstrip("/"), variable=variable, gates=merge.written(gates))


def _restart(facts: Facts, desired: Desired, *, changed: bool) -> str | None:
    """Why the kubelet must be restarted; one that is not running is left alone while it has joined no cluster."""
    config = kubelet.config_path(facts)
    unit = facts.units.get(SERVICE)
    if unit is None or unit.active != "active":
        if files.text(facts, config) is None:
            return None
        return f"it is not running ({unit.sub})" if unit else "it is not running"
    if changed:
        return "it reads its gates at its start"
    running = kubelet.config_gates(facts) | kubelet.gates(kubelet.started(facts))
    for name, state in desired.gates.items():
        if running.get(name) != state:
            _refuse_script(facts, name)
            return f"the running one was started with another {name}"
    return f"{config} is newer than the running one" if files.newer(facts, config, SERVICE) else None


def _refuse_script(facts: Facts, name: str) -> None:
    """Where a script gives the running kubelet a gate that no file of its unit sets, a restart would not change it."""
    start = kubelet.start(facts)
    places = (*_places(facts), *kubelet.config_files(facts))
    if start.is_plain or not start.words or any(files.newer(facts, path, SERVICE) for path in places):
        return
    if name in kubelet.gates(kubelet.started(facts)):
        raise Unfit(
            f"the running kubelet was started with {name}, which no file of its unit sets: "
            f"{start.words[0]}, which starts it, must do so",
            hint=f"Change {name} in what {start.words[0]} gives the kubelet; then restart it and run again.",
        )
