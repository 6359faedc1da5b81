"""The containerd that MicroK8s brings: a template, of which its service makes the configuration at every start.

source: canonical/microk8s, microk8s-resources/wrappers/run-containerd-with-args and default-args/containerd-template.toml.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from fnmatch import fnmatchcase

from gpunode.errors import CannotPlan
from gpunode.links.kubelet import microk8s_settings as microk8s
from gpunode.links.runtime.containerd.config_toml import (
    RUNC,
    binaries,
    containerd_toml,
    is_right,
    lookup,
    section,
)
from gpunode.links.runtime.containerd.host import brought, keeps_cgroups, labelled
from gpunode.links.runtime.containerd.source import read
from gpunode.model import Change, Desired, Facts, Host, Service, Watch, WriteFile
from gpunode.planning import files, services

UNIT = microk8s.CONTAINERD
TEMPLATE = f"{microk8s.ARGS}containerd-template.toml"
MADE = f"{microk8s.ARGS}containerd.toml"
SNAP = "/snap/microk8s/current/meta/snap.yaml"
ADDON = "`microk8s disable nvidia`"

WATCH = Watch(files=(TEMPLATE, MADE, SNAP), units=(UNIT,))


def unit(facts: Facts) -> str:  # noqa: ARG001 - the same everywhere
    """Its service, which is not the kubelet's."""
    return UNIT


def serves(endpoint: str | None) -> bool:  # noqa: ARG001 - its kubelet is known by its unit
    """Its kubelet uses it alone."""
    return False


def in_use(facts: Facts) -> bool:
    """Where the node's service is, and no kubelet.service runs beside it."""
    return microk8s.is_node(facts) and not services.is_active(facts, "kubelet.service")


def check(host: Host, facts: Facts) -> None:  # noqa: ARG001 - each way that a host may wish works
    """It must see the host's programs, and be the only one that decides."""
    if re.search(r"^confinement:\s*strict", files.text(facts, SNAP) or "", re.MULTILINE):
        raise CannotPlan(
            "MicroK8s is a strict snap here, whose containerd finds neither NVIDIA's runtime nor its libraries",
            hint="Install it from a channel without `-strict` (`snap install microk8s --classic`) and join the node again, or "
            "take the host out of the inventory.",
        )
    if files.text(facts, TEMPLATE) is None:
        raise CannotPlan(
            f"MicroK8s has no {TEMPLATE}",
            hint="Let `microk8s inspect` say what is wrong with it; `snap refresh microk8s` brings the file back.",
        )
    for path in _imported(facts):
        cri = lookup(read(files.text(facts, path) or "", path), ("plugins",))
        if any(lookup(table, ("containerd",)) for table in cri.values() if isinstance(table, Mapping)):
            raise CannotPlan(
                f"{path}: this file of others has the last word on the runtimes of MicroK8s, which imports it",
                hint=f"Where the addon or the GPU operator wrote it, let {ADDON} or `helm uninstall` take it out; "
                f"else move it into {TEMPLATE}. Then run again.",
            )


def labels(facts: Facts) -> bool:
    """By the configuration that it was started with."""
    return labelled(files.text(facts, MADE) or "")


def by_systemd(facts: Facts) -> bool:
    """By the configuration that it was started with."""
    return keeps_cgroups(files.text(facts, MADE) or "")


def runc(facts: Facts) -> str:  # noqa: ARG001 - the same everywhere
    """The one of its snap."""
    return "/snap/microk8s/current/bin/runc"


def headline(facts: Facts) -> str:
    """Its name; the kubelet's version is the snap's own."""
    return "containerd of MicroK8s" if microk8s.is_node(facts) else ""


def state(facts: Facts) -> str:
    """With the default runtime that it was started with."""
    return brought(facts, "MicroK8s", MADE)


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Add the runtime to the template; restart containerd while the template is newer than it."""
    if desired.runtime != "microk8s" or desired.runtime_mode == "none":
        return ()
    default = desired.runtime_mode == "default"
    written = _template(facts, default=default)
    why = "it makes its configuration of the template at its start"
    reason = services.restart(facts, UNIT, (TEMPLATE,), changed=bool(written), why=why)
    if not reason:
        _taken(facts, default=default)
        return written
    guards, fault = tuple(change.path for change in written), "" if written else None
    note = "containers keep running"
    return (*written, Service(UNIT, reason, restart=True, guards=guards, note=note, fault=fault))


def filled(text: str) -> str:
    """The template as its service fills it in, as far as runtimes go."""
    return text.replace("${RUNTIME}", "runc").replace("${RUNTIME_TYPE}", RUNC)


def _template(facts: Facts, *, default: bool) -> tuple[WriteFile, ...]:
    text = files.text(facts, TEMPLATE) or ""
    now = read(filled(text), TEMPLATE)
    if is_right(now, default=default):
        return ()
    after = containerd_toml(text, default=default, effective=now, path=TEMPLATE)
    why = "pods get GPUs from the nvidia runtime" + (", here as the default one" if default else "")
    nvidia = lookup(now, (*section(now), "runtimes", "nvidia"))
    if any(str(binary).startswith(files.OPERATOR) for binary in binaries(nvidia)):
        why += f"; {files.WRITES_BACK} ({ADDON} ends that)"
    return files.write(facts, TEMPLATE, after, why, wrong="does not have the nvidia runtime as wished")


def _taken(facts: Facts, *, default: bool) -> None:
    """Raise CannotPlan where it was started with a template that is right, and made something else of it."""
    made = read(files.text(facts, MADE) or "", MADE)
    if not made or not is_right(made, default=default):
        raise CannotPlan(
            f"{UNIT} was started with the nvidia runtime in {TEMPLATE}, and {MADE} does not have it as wished",
            hint=f"See `journalctl -u {UNIT}` on the host, and whether its arguments in {microk8s.ARGS}containerd name another "
            "file; then run again.",
        )


def _imported(facts: Facts) -> tuple[str, ...]:
    """The files that the configuration imports, of those that were read."""
    texts = (files.text(facts, path) or "" for path in (TEMPLATE, MADE))
    patterns = [str(one) for text in texts for one in read(filled(text), TEMPLATE).get("imports") or ()]
    there = (path for path, file in facts.files.items() if file.exists)
    return tuple(sorted(path for path in there if any(fnmatchcase(path, one) for one in patterns)))
