"""The containerd that MicroK8s brings: a template, of which its service makes the configuration at every start.

source: canonical/microk8s, microk8s-resources/wrappers/run-containerd-with-args and default-args/containerd-template.toml.
"""

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from gpunode.errors import CannotPlan
from gpunode.links.kubelet import microk8s
from gpunode.links.runtime import nvidia
from gpunode.links.runtime.config_toml import RUNC, containerd_toml, is_right, nvidia_binaries, read
from gpunode.links.runtime.containerd import Brought
from gpunode.model import Change, Desired, Facts, Watch, WriteFile
from gpunode.planning import files, services
from gpunode.planning.toml import lookup

UNITS: tuple[str, ...] = (microk8s.CONTAINERD,)
TEMPLATE = f"{microk8s.ARGS}containerd-template.toml"
MADE = f"{microk8s.ARGS}containerd.toml"
SNAP = "/snap/microk8s/current/meta/snap.yaml"
ADDON = "`microk8s disable nvidia`"

WATCH = Watch(files=(TEMPLATE, MADE, SNAP), units=UNITS)


def check(facts: Facts) -> None:
    """It must see the host's programs, and be the only one that decides."""
    if re.search(r"^confinement:\s*strict", files.text(facts, SNAP) or "", re.MULTILINE):
        raise CannotPlan(
            "MicroK8s is a strict snap here, whose containerd finds neither NVIDIA's runtime nor its libraries",
            hint="Install it from a channel without `-strict` (`snap install microk8s --classic`) and join the node again, or "
            "remove the host from the inventory.",
        )
    if files.text(facts, TEMPLATE) is None:
        raise CannotPlan(
            f"MicroK8s has no {TEMPLATE}",
            hint="`microk8s inspect` names the problem; `snap refresh microk8s` restores the file.",
        )
    for path in _imports(facts):
        cri = lookup(read(files.text(facts, path) or "", path), ("plugins",))
        if any(lookup(table, ("containerd",)) for table in cri.values() if isinstance(table, Mapping)):
            raise CannotPlan(
                f"{path}: MicroK8s imports this file of another tool, and it overrides the runtimes",
                hint=f"If the addon or the GPU Operator wrote it, {ADDON} or `helm uninstall` removes it. "
                f"Else move it into {TEMPLATE}. Then run again.",
            )


BROUGHT = Brought("MicroK8s", (microk8s.UNIT,), MADE, "/snap/microk8s/current/bin/runc")
containers, headline, state = BROUGHT.containers, BROUGHT.headline, BROUGHT.state


def plan(facts: Facts, _desired: Desired, *, default: bool) -> tuple[Change, ...]:
    """Add the runtime to the template; restart containerd while the template is newer than it."""
    written = _template(facts, default=default)
    why = "it writes its configuration from the template at its start"
    reason = services.restart_reason(facts, UNITS[0], (TEMPLATE,), changed=bool(written), why=why)
    settings = BROUGHT.read(facts)
    if not reason and not (settings and is_right(settings, default=default)):
        raise CannotPlan(
            f"{UNITS[0]} was started with the nvidia runtime in {TEMPLATE}, and {MADE} does not have it as planned",
            hint=f"See `journalctl -u {UNITS[0]}` on the host, and whether its arguments in {microk8s.ARGS}containerd name another "
            "file; then run again.",
        )
    return services.add_restart(written, UNITS[0], reason, "containers keep running")


def fill(text: str) -> str:
    """The template with the values that MicroK8s' service fills in for runtimes."""
    return text.replace("${RUNTIME}", "runc").replace("${RUNTIME_TYPE}", RUNC)


def _template(facts: Facts, *, default: bool) -> tuple[WriteFile, ...]:
    text = files.text(facts, TEMPLATE) or ""
    now = read(fill(text), TEMPLATE)
    if is_right(now, default=default):
        return ()
    after = containerd_toml(text, default=default, effective=now, path=TEMPLATE)
    why = nvidia.reason(default=default)
    if nvidia.is_operators(nvidia_binaries(now)):
        why += f"; {nvidia.WRITES_BACK} ({ADDON} ends that)"
    return files.write(facts, TEMPLATE, after, why, wrong="does not have the planned nvidia runtime")


def _imports(facts: Facts) -> tuple[str, ...]:
    """The files that the configuration imports, of those that were read."""
    texts = (files.text(facts, path) or "" for path in (TEMPLATE, MADE))
    patterns = [str(pattern) for text in texts for pattern in read(fill(text), TEMPLATE).get("imports") or ()]
    paths = (path for path, file in facts.files.items() if file.exists)
    return tuple(sorted(path for path in paths if any(fnmatchcase(path, pattern) for pattern in patterns)))
