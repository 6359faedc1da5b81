"""What an upgrade of Kubernetes would break on one host, from one probe of it. Pure."""

from collections.abc import Iterator, Mapping
from typing import Any

import yaml

from gpunode.contract import yaml_text
from gpunode.errors import CannotPlan, Problem
from gpunode.links.kubelet import k0s, microk8s, microshift, minors, places
from gpunode.links.kubelet.decide import refuses_cgroup
from gpunode.links.kubelet.start import flag, flag_gates, has_flag, minor_of
from gpunode.model import Facts, File, Host, KubeletStart
from gpunode.planning import files
from gpunode.planning.tables import table
from gpunode.planning.versions import numbers

SCHEDULER = "kube-scheduler"
UNREADABLE = "Fix the file: the kubelet reads it too."
# Its configuration may be anywhere; `*.conf` beside it are kubeconfigs.
FILES = (
    f"{places.MANIFESTS}kube-*.y*ml",
    "/etc/kubernetes/*scheduler*.y*ml",
    "/etc/kubernetes/scheduler/*.y*ml",
    f"{microk8s.ARGS}kube-*",
    microshift.CONFIG,
    f"{microshift.DROP_INS}*.yaml",
)


def removals() -> Mapping[str, Any]:
    """What each minor takes away; `known`: the newest that is judged."""
    return table(__package__, "upgrades.yaml")


def lint(host: Host, facts: Facts, target: int) -> tuple[Problem, ...]:
    """All that keeps Kubernetes 1.`target` from working on this host; () where nothing is known to, or it is newer."""
    if unreadable := facts.errors.get("kubelet") or facts.errors.get("files"):
        return (_unknown(f"its kubelet could not be read: {unreadable}", "Fix what the host reports."),)
    now = minor_of(facts)
    if facts.kubelet is None or now is None:
        return (_unknown("no kubelet with a known version", "Make it a node first."),)
    if now > target:
        return ()
    try:
        return tuple(_findings(host, facts, now, target))
    except CannotPlan as error:
        return (_unknown(error.message, error.hint),)


def _findings(host: Host, facts: Facts, now: int, target: int) -> Iterator[Problem]:
    start = places.read(facts)
    if kind := places.KINDS.get(start.place.unit):
        start = kind.set_by_user(facts, start)
    brings = start.place.brings  # a runtime, or Kubernetes whole
    if start.problem:
        yield Problem("unreadable", start.problem, fix=UNREADABLE)
    yield from _gates(host, start, target)
    for name, (gone, fix) in removals()["kubelet_flags"].items():
        if target >= gone and has_flag(start.argv[1:], name):
            cause = f"--{name} is gone since 1.{gone}: a kubelet 1.{target} does not start with it"
            yield Problem("flag", cause, fix=fix)
    if not brings:
        yield from _runtime(facts, start, now, target)
    if refuses_cgroup(facts, target, start):
        cause = f"a kubelet 1.{target} refuses cgroup v1, which this host runs"
        fix = f"Boot with systemd.unified_cgroup_hierarchy=1, or set `failCgroupV1: false` in {start.config_path}."
        yield Problem("cgroup-v1", cause, fix=fix)
    only, have = removals()["kubelet_config"], str(start.config.get("apiVersion") or "none")
    if not brings and start.config and target >= only["from"] and have != only["version"]:
        cause = (
            f"{start.config_path} has apiVersion {have}; a kubelet 1.{target} reads {only['version']} only"
        )
        yield Problem("kubelet-config", cause, fix=f"Write it as {only['version']} before the upgrade.")
    yield from _control_plane(facts, start, target)
    if path := k0s.unread_file(facts, start):
        yield _unknown(f"the configuration of its k0s, {path}, was not read", "Name it by `--config FILE`.")
    if name := k0s.unknown_profile(facts, start):
        cause = f"its kubelet's worker profile {name} is kept by the cluster"
        yield _unknown(cause, "See `spec.workerProfiles` in the k0s.yaml of the controllers.")


def _unknown(cause: str, fix: str) -> Problem:
    return Problem("not-judged", cause, fix=fix)


def _gates(host: Host, start: KubeletStart, target: int) -> Iterator[Problem]:
    for name, state in start.gates.items():
        if cause := _gate(name, state, target, "kubelet"):
            where = "its configuration" if name in start.config_gates else "its arguments"
            fix = f"Remove {name} there before the upgrade."
            yield Problem("gate", f"{cause}; it is set in {where}", fix=fix)
    for name, state in host.feature_gates.items():
        if cause := _gate(name, state, target, "kubelet"):
            fix = f"Take it out of `kubelet.feature_gates` of {host.name} in the inventory."
            yield Problem("gate", f"{cause}; the inventory sets it", fix=fix)


def _gate(name: str, state: bool, target: int, what: str) -> str:
    """Why a component of this minor does not start with the gate; "" where it does, as far as known."""
    known = minors.GATES.get(name)
    if known is not None and known.is_gone(target):
        return f"the gate {name} is gone since 1.{known.gone}: a {what} 1.{target} does not start with it"
    if known is not None and not state and known.is_locked(target):
        return f"the gate {name} is locked to true since 1.{known.locked}: a {what} 1.{target} does not start with false"
    last = removals()["last_documented"].get(name)
    if last is not None and target >= last:
        return f"the gate {name} is gone since 1.{last} or 1.{last + 1}: a {what} does not start with it then"
    return ""


def _runtime(facts: Facts, start: KubeletStart, now: int, target: int) -> Iterator[Problem]:
    remote = flag(start.argv[1:], "container-runtime") == "remote"
    if minors.has_dockershim(now) and not remote:
        if not minors.has_dockershim(target):
            cause = "its kubelet runs pods by dockershim, which is gone since 1.24"
            fix = "Move the node to containerd first: https://kubernetes.io/docs/tasks/administer-cluster/migrating-from-dockershim/"
            yield Problem("dockershim", cause, fix=fix)
        return
    endpoint = flag(start.argv[1:], "container-runtime-endpoint")
    endpoint = str(endpoint or start.config.get("containerRuntimeEndpoint") or "containerd")
    floors = [row for row in removals()["containerd"] if row["from"] <= target]
    if not floors or facts.containerd is None or "containerd" not in endpoint:
        return
    have, needs = facts.containerd.version, floors[-1]["needs"]
    if numbers(have)[:2] < numbers(needs):
        since, why = floors[-1]["from"], floors[-1]["why"]
        cause = f"Kubernetes 1.{since} and newer need containerd {needs}, as {why}; here is {have}"
        yield Problem("containerd", cause, fix=f"Upgrade containerd to {needs} or newer before the kubelet.")


def _control_plane(facts: Facts, start: KubeletStart, target: int) -> Iterator[Problem]:
    kind = places.KINDS.get(start.place.unit)
    for path, argv in kind.components(facts, start) if kind else ():
        yield from _component(path, argv, target)
    for path in files.below(facts, "/etc/kubernetes/"):
        data = _data(facts.files[path])
        for argv in _commands(data):
            yield from _component(path, argv, target)
        version = str(data.get("apiVersion") or "")
        gone = removals()["scheduler_config"].get(version, target + 1)
        if target >= gone:
            cause = f"{path} has apiVersion {version}, which kube-scheduler 1.{gone} and newer do not read"
            yield Problem(
                "scheduler", cause, fix="Write it as kubescheduler.config.k8s.io/v1 (from 1.25 on)."
            )


def _component(path: str, argv: tuple[str, ...], target: int) -> Iterator[Problem]:
    """Problems with a control plane component's command in this file."""
    name = argv[0].rsplit("/", 1)[-1]
    for gate, state in flag_gates(argv).items():
        if cause := _gate(gate, state, target, name):
            yield Problem("gate", f"{cause}; {path} sets it", fix=f"Remove {gate} there before the upgrade.")
    for option, gone in removals()["scheduler_flags"].items() if name == SCHEDULER else ():
        if target >= gone and has_flag(argv, option):
            cause = f"--{option} in {path} is gone since 1.{gone}: Kubernetes removed scheduling policies"
            fix = "Write a KubeSchedulerConfiguration with profiles in its place."
            yield Problem("scheduler", cause, fix=fix)


def _data(file: File) -> Mapping[str, Any]:
    try:
        data = yaml_text.data(file.content or "")
    except yaml.YAMLError:
        return {}
    return data if isinstance(data, dict) else {}


def _commands(data: Mapping[str, Any]) -> Iterator[tuple[str, ...]]:
    """The words that each container of a pod is started with."""
    spec = data.get("spec")
    containers = spec.get("containers") if isinstance(spec, dict) else None
    for container in containers if isinstance(containers, list) else []:
        parts = [container.get("command"), container.get("args")] if isinstance(container, dict) else []
        argv = [word for part in parts if isinstance(part, list) for word in part]
        if argv:
            yield tuple(str(word) for word in argv)
