"""The containerd that k0s brings: a drop-in, which k0s merges into its own configuration.

docs.k0sproject.io/stable/runtime: drop-ins from 1.27.1 on, while /etc/k0s/containerd.toml begins with its mark; what k0s made
of all is in /run/k0s/containerd-cri.toml.
"""

from collections.abc import Mapping
from typing import Any

from gpunode.errors import CannotPlan
from gpunode.links.kubelet import k0s
from gpunode.links.kubelet.start import minor_of
from gpunode.links.runtime import nvidia
from gpunode.links.runtime.config_toml import containerd_toml, is_right, nvidia_binaries, read, section
from gpunode.links.runtime.containerd import Brought
from gpunode.model import Change, Desired, Facts, Watch, WriteFile
from gpunode.planning import files, services
from gpunode.planning.toml import lookup

UNITS: tuple[str, ...] = k0s.UNITS
MAIN = "/etc/k0s/containerd.toml"
MARK = "# k0s_managed=true"
FOLDER = "/etc/k0s/containerd.d/"
DROP_IN = f"{FOLDER}90-gpunode.toml"
MERGED = "/run/k0s/containerd-cri.toml"
SINCE, THIRD = 27, 36  # minors with drop-ins, and that take those of version 3 alone

WATCH = Watch(files=(MAIN, MERGED, f"{FOLDER}*.toml"), units=UNITS)


def check(facts: Facts) -> None:
    command = facts.kubelet.unit_text if facts.kubelet else ""
    if _unit(facts) == UNITS[1] and "--enable-worker" not in command and "--single" not in command:
        raise CannotPlan(
            "this controller of k0s runs no kubelet",
            hint="Install it with --enable-worker, or remove the host from the inventory.",
        )
    if "--cri-socket" in command:
        raise CannotPlan(
            f"{_unit(facts)} is started with --cri-socket: it does not use k0s' own runtime",
            hint="Take the flag out (`k0s install --force`), or set `runtime: none` and configure that runtime by hand.",
        )
    minor = minor_of(facts)
    if minor is not None and minor < SINCE:
        raise CannotPlan(
            f"k0s 1.{minor} reads no {FOLDER}",
            hint=f"Upgrade it to 1.{SINCE} or newer; or set `runtime: none` and write {MAIN} by hand.",
        )


BROUGHT = Brought("k0s", UNITS, MERGED, "/var/lib/k0s/bin/runc")
containers, headline, state = BROUGHT.containers, BROUGHT.headline, BROUGHT.state


def plan(facts: Facts, _desired: Desired, *, default: bool) -> tuple[Change, ...]:
    """Add the runtime to a drop-in; restart the service while a drop-in is newer than it."""
    unit = _unit(facts)
    written = _drop_in(facts, default=default)
    why = "so that its result of the drop-in is checked"
    reason = services.restart_reason(facts, unit, files.below(facts, FOLDER), changed=bool(written), why=why)
    merged = BROUGHT.read(facts)
    if not reason and merged and not is_right(merged, default=default):
        raise CannotPlan(
            f"{unit} was started with the nvidia runtime in {FOLDER}, and {MERGED} does not have it as planned",
            hint=f"See `journalctl -u {unit} | grep -i containerd` on the host for why k0s ignores the drop-in; then run again.",
        )
    note = "pods keep running; kubelet and containerd start again with it"
    return services.add_restart(written, unit, reason, note)


def _unit(facts: Facts) -> str:
    """The node's service, which starts it."""
    return services.pick(facts, UNITS) or UNITS[0]


def _drop_in(facts: Facts, *, default: bool) -> tuple[WriteFile, ...]:
    main, merged = files.text(facts, MAIN), BROUGHT.read(facts)
    if main is not None and not main.startswith(MARK):
        raise CannotPlan(
            f"{MAIN}:1: without the line `{MARK}` k0s takes no drop-ins",
            hint="Move your settings into drop-ins in /etc/k0s/containerd.d, remove the file, and restart k0s, which writes a new one. Or add the nvidia runtime to it by hand and set `runtime: none`.",
        )
    if merged and is_right(merged, default=default):
        return ()
    data = {path: read(files.text(facts, path) or "", path) for path in files.below(facts, FOLDER)}
    path = next((path for path in reversed(data) if _names_runtime(data[path])), DROP_IN)
    version = merged.get("version")
    if not isinstance(version, int):
        version = 3 if (minor_of(facts) or 0) >= THIRD else 2
    text = (
        files.text(facts, path)
        or f"# Written by gpunode: pods get GPUs from the nvidia runtime.\nversion = {version}\n"
    )
    after = containerd_toml(
        text, default=default, effective=merged or None, path=path, version=version, second=version > 2
    )
    why = nvidia.reason(default=default, binaries=nvidia_binaries(data.get(path, {}), version))
    return files.write(facts, path, after, why, wrong="does not have the planned nvidia runtime")


def _names_runtime(data: Mapping[str, Any]) -> bool:
    """Whether a drop-in names the nvidia runtime or the default one."""
    table = lookup(data, section(data))
    return "default_runtime_name" in table or "nvidia" in lookup(table, ("runtimes",))
