"""The kubelet's feature gates: set where needed, removed where the kubelet would not start with them."""

import re
from collections.abc import Iterator, Mapping, Sequence

from gpunode.errors import CannotPlan
from gpunode.links.kubelet import gates as merge
from gpunode.links.kubelet import places, registration
from gpunode.links.kubelet.start import ends_in_flags, flag_gates, flags, is_plain, minor_of, read
from gpunode.model import Change, Desired, Facts, KubeletStart, WriteFile
from gpunode.planning import files, services
from gpunode.planning.templates import template

CONFIG_SINCE = 10  # before Kubernetes 1.10 the configuration file was an alpha, and had no place for gates

PACKAGED = ("/usr/lib/", "/lib/")  # an upgrade replaces these units
COMMAND = "etc/systemd/system/kubelet.service.d/20-gpunode-command.conf"


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Write the desired gates into the files that set them; restart while the running kubelet has others."""
    start = desired.kubelet
    if start is None:
        return ()
    if kind := places.KINDS.get(start.place.unit):
        return kind.plan(facts, desired, start)
    written = tuple(_files(facts, start, desired))
    reason = _restart_reason(facts, start, desired.gates, changed=bool(written))
    written = registration.plan(
        facts,
        start,
        written,
        desired.registers_tainted,
        lambda after, now: _into(after, now, now.place.variable, registration.FLAG),
        lambda after: read(after, start.place),
    )
    return services.add_restart(written, start.place.unit, reason, "pods keep running")


def _argument_files(facts: Facts, start: KubeletStart) -> tuple[str, ...]:
    """Existing files with arguments: environment files, units and drop-ins."""
    named = dict.fromkeys((*start.environment_files, *start.units))
    return tuple(path for path in named if files.text(facts, path) is not None)


def _files(facts: Facts, start: KubeletStart, desired: Desired) -> Iterator[WriteFile]:
    gates = desired.gates
    texts = {
        path: merge.kubelet_args(files.text(facts, path) or "", gates)
        for path in _argument_files(facts, start)
    }
    for path in start.config_files:
        if text := files.text(facts, path):
            texts[path] = merge.config_gates(text, gates)
    absent = merge.missing(gates, start)
    after, merged = _with(facts, start, texts)
    present = {name: state for name, state in gates.items() if name not in absent}
    if not merge.differ_only_in(start, merged, present):
        raise _not_editable(after, merged, present)
    if absent:
        path, content = _add(start, after, merged, gates, absent)
        texts[path] = content
    why = merge.reasons(desired, start) or "gates that must not be set"
    for path, content in texts.items():
        if path in start.config_files or (path == start.place.drop_in and "\nExecStart=" in content):
            yield from files.write(facts, path, content, why)  # systemd's check knows no repeated command
        else:
            yield from files.write(facts, path, content, why, check="systemd")


def _with(facts: Facts, start: KubeletStart, texts: Mapping[str, str]) -> tuple[Facts, KubeletStart]:
    """The facts and the start after these writes; the start is read again only where a file differs."""
    texts = {path: text for path, text in texts.items() if text != files.text(facts, path)}
    if not texts:
        return facts, start
    after = files.overlay(facts, texts)
    return after, read(after, start.place)


def _not_editable(facts: Facts, start: KubeletStart, gates: merge.Gates) -> CannotPlan:
    """Names the line that sets a gate in a way that a merge does not understand."""
    wrong = next(
        (name for name, state in gates.items() if start.gates.get(name) != state), "the feature gates"
    )
    texts = [
        (path, files.text(facts, path) or "")
        for path in (*_argument_files(facts, start), *start.config_files)
    ]
    lines = (
        f"{path}:{number}: {wrong} is set here in a way that cannot be changed safely"
        for path, text in texts
        for number, line in enumerate(text.split("\n"), 1)
        if re.search(rf"\b{wrong}\b", line) and not line.lstrip().startswith(("#", ";"))
    )
    return CannotPlan(
        next(lines, f"{wrong} of the kubelet cannot be changed without changing other arguments"),
        hint="Write it as --feature-gates=NAME=true,OTHER=false on one line, or as featureGates of the kubelet's "
        "configuration file; then run again. Nothing was touched.",
    )


def _add(
    before: KubeletStart,
    facts: Facts,
    start: KubeletStart,
    gates: merge.Gates,
    absent: Mapping[str, bool | None],
) -> tuple[str, str]:
    """Path and new text of the file for gates that no file sets yet: the first place that works."""
    for path, content in _candidates(facts, start, absent):
        _, after = _with(facts, start, {path: content})
        if merge.differ_only_in(before, after, gates):
            return path, content
    flag = f"--feature-gates={merge.format_gates(absent)}"
    where = f" in {start.command[0]}" if start.command and start.command[0] else ""
    variable = start.place.variable
    raise CannotPlan(
        f"the kubelet needs {flag}, and neither its unit nor its files have a safe place for it",
        hint=f"Add {flag} to the command that ExecStart starts{where}, or ${variable} to its end; then run again.",
    )


def _candidates(facts: Facts, start: KubeletStart, gates: merge.Gates) -> Iterator[tuple[str, str]]:
    """Places for further gates, the least invasive first, each with the file's new text."""
    if flags(start.argv[1:], "feature-gates"):
        for path in reversed(_argument_files(facts, start)):
            for text in merge.into_flags(files.text(facts, path) or "", gates):
                yield path, text
    flag = f"--feature-gates={merge.format_gates(gates)}"
    named = re.findall(r"(?<!\S)\$(\w+)(?!\S)", start.command[1].value) if start.command else []
    if start.place.variable in (start.command[1].value if start.command else ""):
        yield from _into(facts, start, start.place.variable, flag)
    minor = minor_of(facts)
    if (minor or 0) >= CONFIG_SINCE:
        for path in start.config_files:
            if (merged := merge.into_config(files.text(facts, path) or "", gates)) is not None:
                yield path, merged
    for variable in reversed(named):
        if re.search(r"(ARG|FLAG|OPT|OPTION|ARGUMENT)S$", variable) and variable in start.setters:
            yield from _into(facts, start, variable, flag)
    if start.command and ends_in_flags(start.argv) and start.command[0] in facts.files:
        path, setting = start.command
        if path.startswith(PACKAGED) and files.text(facts, start.place.drop_in) is None:
            command = f"{setting.value} {flag}"
            yield start.place.drop_in, template(COMMAND, path=path, command=command)
        yield path, merge.into_command(files.text(facts, path) or "", setting, gates)


def _into(facts: Facts, start: KubeletStart, variable: str, flag: str) -> Iterator[tuple[str, str]]:
    """A variable's value with the flag, where it is set now: a value elsewhere would replace what the owner has there."""
    path, named, default = start.setters.get(variable), start.environment_files, start.place.variable_files
    if path in named:
        yield path, merge.into_variable(files.text(facts, path) or "", variable, flag)
    elif path is not None and (text := files.text(facts, path)):
        yield path, merge.into_unit_variable(text, variable, flag)
    elif path is None and (place := next((p for p in default if p in named), None)):
        before = files.text(facts, place)
        new = template(default[0].lstrip("/"), variable=variable, flag=flag)
        yield place, new if before is None else merge.into_variable(before, variable, flag)
    elif path is None and files.text(facts, (drop_in := start.place.drop_in)) is None:
        yield drop_in, template(drop_in.lstrip("/"), variable=variable, flag=flag)


def _restart_reason(facts: Facts, start: KubeletStart, gates: merge.Gates, *, changed: bool) -> str | None:
    """Why the kubelet must be restarted; None too where it does not run and has not joined a cluster."""
    main, unit = start.config_path, facts.units.get(start.place.unit)
    if unit is None or unit.active != "active":
        if files.text(facts, main) is None:
            return None
        return f"it is not running ({unit.sub})" if unit else "it is not running"
    if changed:
        return merge.AT_START
    running = facts.kubelet.arguments if facts.kubelet else ()
    in_force = {**start.config_gates, **flag_gates(running)}
    for name, state in gates.items():
        if in_force.get(name) != state:
            _refuse_script(facts, start, running, name)
            return f"the running one was started with another {name}"
    return f"{main} is newer than the running one" if files.is_newer(facts, main, start.place.unit) else None


def _refuse_script(facts: Facts, start: KubeletStart, running: Sequence[str], name: str) -> None:
    """Refuse where a script sets a gate of the running kubelet that no file does: a restart would not change it."""
    if is_plain(start.argv) or not start.argv:
        return
    read_from = (*_argument_files(facts, start), *start.config_files)
    if any(files.is_newer(facts, path, start.place.unit) for path in read_from):
        return
    if name in flag_gates(running):
        raise CannotPlan(
            f"the running kubelet was started with {name}, but no file of its unit sets that: "
            f"{start.argv[0]} starts the kubelet, and must set it",
            hint=f"Change {name} in what {start.argv[0]} gives the kubelet; then restart it and run again.",
        )
