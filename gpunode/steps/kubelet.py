"""The kubelet's feature gates: set where it needs them, taken out where they would keep it from starting."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpunode import kubelet
from gpunode.model import Change, Desired, Facts, Service, WriteFile
from gpunode.render import Unfit, config_gates, kubelet_args, template
from gpunode.steps import files

UNIT = "kubelet.service"
VARIABLE = "KUBELET_EXTRA_ARGS"
DROP_IN = "/etc/systemd/system/kubelet.service.d/20-gpunode.conf"

FILES = (*kubelet.EXTRA_ARGS_FILES, kubelet.KUBEADM_FLAGS, kubelet.CONFIG, *kubelet.UNIT_FILES)
UNITS = (UNIT,)
PACKAGES = ()


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Files that set gates brought to what is wished; a restart while the running kubelet has it otherwise."""
    written = tuple(_files(facts, desired))
    reason = _restart(facts, desired, changed=bool(written))
    if reason is None:
        return written
    guards = tuple(change.path for change in written)
    return (*written, Service(UNIT, reason, restart=True, guards=guards, note="pods go on running"))


def _places(facts: Facts) -> tuple[str, ...]:
    """Files with arguments that are there: environment files, units and drop-ins."""
    named = kubelet.environment_files(facts)
    units = [p for p in sorted(facts.files) if "/systemd/system/kubelet.service" in p]
    # where /lib is a link to /usr/lib, its files are the same ones
    units = [p for p in units if not (p.startswith("/lib/") and f"/usr{p}" in facts.files)]
    return tuple(path for path in (*dict.fromkeys(named), *units) if files.text(facts, path) is not None)


def _files(facts: Facts, desired: Desired) -> Iterator[WriteFile]:
    gates = desired.gates
    now = _set_now(facts)
    texts = {path: kubelet_args(files.text(facts, path) or "", gates) for path in _places(facts)}
    config = kubelet.config_path(facts)
    if text := files.text(facts, config):
        texts[config] = config_gates(text, gates)
    absent = {name: state for name, state in gates.items() if state is not None and name not in now}
    if absent:
        path, content = _add(facts, absent, texts)
        texts[path] = content
    changed = [
        name for name, state in gates.items() if name in absent or (name in now and now[name] != state)
    ]
    why = "; ".join(f"{name}: {desired.gate_reasons.get(name, 'as wished')}" for name in changed)
    for path, content in texts.items():
        yield from files.write(facts, path, content, why)


def _set_now(facts: Facts) -> dict[str, bool]:
    """The gates that the files as they are would set."""
    return kubelet.config_gates(facts) | kubelet.gates(kubelet.next_start(facts))


def _add(facts: Facts, gates: Mapping[str, bool | None], texts: Mapping[str, str]) -> tuple[str, str]:
    """Path and text of the file that sets gates which nothing sets yet.

    That is the file for a user's own arguments; where the unit names none, the unit or drop-in that sets
    KUBELET_EXTRA_ARGS (a later drop-in would replace it and lose what the user has there), or a drop-in of ours.
    """
    written = ",".join(f"{name}={str(state).lower()}" for name, state in gates.items())
    if not kubelet.takes_extra_args(facts):
        raise Unfit(
            f"the kubelet needs --feature-gates={written}, and its unit has no ${VARIABLE} to put it in",
            hint=f"Add the flag to the kubelet's ExecStart by hand, or ${VARIABLE} at its end; then run again.",
        )
    path = next((p for p in kubelet.EXTRA_ARGS_FILES if p in kubelet.environment_files(facts)), None)
    if path is None:
        units = [p for p in texts if p.endswith((".conf", ".service")) and f"{VARIABLE}=" in texts[p]]
        path = units[-1] if units else DROP_IN
    if path in texts:
        return path, kubelet_args(texts[path], gates, VARIABLE)
    name = DROP_IN if path == DROP_IN else kubelet.EXTRA_ARGS_FILES[0]
    return path, template(name.lstrip("/"), variable=VARIABLE, gates=written)


def _restart(facts: Facts, desired: Desired, *, changed: bool) -> str | None:
    """Why the kubelet must be restarted; one that is not running is left alone while it has joined no cluster."""
    config = kubelet.config_path(facts)
    unit = facts.units.get(UNIT)
    if unit is None or unit.active != "active":
        if files.text(facts, config) is None:
            return None
        return f"it is not running ({unit.sub})" if unit else "it is not running"
    if changed:
        return "it reads its gates at its start"
    running = kubelet.config_gates(facts) | kubelet.gates(kubelet.started(facts))
    for name, state in desired.gates.items():
        if running.get(name) != state:
            return f"the running one was started with another {name}"
    return f"{config} is newer than the running one" if files.newer(facts, config, UNIT) else None
