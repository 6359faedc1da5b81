"""The container runtime: which one the kubelet uses, whether it runs and gives containers their GPUs; SELinux' boolean for it."""

from collections.abc import Mapping, Sequence
from functools import partial
from typing import Any

from gpunode.errors import CannotPlan
from gpunode.links import runtime as runtimes
from gpunode.links.kubelet import minors, places
from gpunode.links.kubelet.start import flag
from gpunode.links.link import Link, Step, cause_by_plan, fix_by_plan, judge_by_plan, state_of
from gpunode.links.runtime import RUNTIMES
from gpunode.model import (
    Change,
    Desired,
    Facts,
    Fault,
    Host,
    KubeletStart,
    Layer,
    Outcome,
    Runtime,
    SelinuxBoolean,
    Verdict,
    Watch,
)
from gpunode.planning import files
from gpunode.wording import few, lines

BELOW: tuple[Layer, ...] = ("PCI", "module", "library", "NVML", "toolkit", "runtime")


def plan(name: Runtime, facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """The changes of this runtime; () where it is not the desired one."""
    if desired.runtime != name or desired.runtime_mode == "none":
        return ()
    return runtimes.RUNTIMES[name].plan(facts, desired, default=desired.runtime_mode == "default")


def judge_runtime(outcome: Outcome, seen: Facts) -> Verdict:
    name = outcome.desired.runtime if outcome.desired else runtimes.detect(seen)
    service = runtimes.unit(name, seen)
    unit = seen.units.get(service)
    if unit is None or unit.active != "active":
        shown = service.removesuffix(".service")
        by_hand = f"See `systemctl status {shown}` and `journalctl -u {shown}` on the host."
        # k3s and RKE2 restart both by one unit, after the files of both.
        steps = (name, "kubelet") if places.find(seen).unit == service else (name,)
        fix = fix_by_plan(outcome, "runtime", by_hand, *steps)
        if fix != by_hand and outcome.status != "refused":
            fix = lines((fix, f"If that does not help, see `systemctl status {shown}` there."))
        return Verdict.broken(
            "runtime", f"{shown} {state_of(unit)}", cause_by_plan(outcome, "runtime", *steps), fix
        )
    try:
        state = runtimes.RUNTIMES[name].state(seen)
    except CannotPlan as error:
        what, _, why = error.message.partition("\n")
        return Verdict.broken("runtime", what, why, error.hint)
    link = judge_by_plan(outcome, "runtime", state, *runtimes.RUNTIMES, "dev-char")
    if link.status == "ok" and outcome.desired and outcome.desired.device_loss:
        return link.with_cause(*outcome.desired.device_loss)
    return link


def needs_container(links: Sequence[Verdict]) -> bool:
    """Whether every link below the kubelet holds and no pod can be run: the kubelet does not work, or its node is not known."""
    good = {link.layer for link in links if link.status == "ok"}
    return good.issuperset(BELOW) and "node" not in good


def runtime_of(outcome: Outcome) -> str:
    if outcome.desired is not None and outcome.desired.runtime:
        return outcome.desired.runtime
    return runtimes.detect(outcome.facts) if outcome.facts else ""


def judge_container(answer: Mapping[str, Any], facts: Facts) -> Verdict:
    """By the answer of a GPU container on the host itself: ok where it saw every GPU that the host has."""
    tool, image = answer["tool"], answer["image"]
    if tool is None:
        why = list(answer["words"])
        if answer["tools"]:
            tools = " and ".join(answer["tools"])
            why.append(
                f"{tools}: this host has no image of the device plugin or of CUDA, and gpunode pulls none"
            )
        text = f"not tried: {'; '.join(why)}" if why else "no docker, nerdctl, ctr or podman answers"
        return Verdict.unknown("container", text)
    expected = {gpu.uuid for gpu in facts.gpus}
    seen = expected & set(answer["uuids"])
    text = f"{len(seen)} of {len(expected)} GPUs answer in a container of {image}, by {tool}"
    if answer["devices"]:
        files = few([path.rpartition("/")[2] for path in answer["mounts"]], 6)
        text += f"; its devices: {few(answer['devices'], 12)}; mounted of the driver: {files or 'nothing'}"
    if answer["status"] == 0 and seen == expected:
        return Verdict.ok("container", text)
    cause = "\n".join(answer["words"]) if answer["status"] else "nvidia-smi in it does not list the others"
    fix = f"Run nvidia-smi in a container of that image on the host, by {tool}; its runtime nvidia or its CDI devices are broken."
    return Verdict.broken("container", text, cause, fix)


def insert_container(links: Sequence[Verdict], verdict: Verdict) -> tuple[Verdict, ...]:
    """The chain with the container's verdict after the runtime's."""
    at = 1 + max(n for n, link in enumerate(links) if link.layer == "runtime")
    return (*links[:at], verdict, *links[at:])


OTHERS = {"k3s": "k3s' containerd", "k0s": "k0s' containerd"}


def endpoint(facts: Facts, minor: int, start: KubeletStart) -> str | None:
    """The runtime's socket in the kubelet's arguments or configuration; "" without one; None: docker, by dockershim."""
    argv = (facts.kubelet.arguments if facts.kubelet else ()) or start.argv[1:]
    if minors.has_dockershim(minor) and flag(argv, "container-runtime") != "remote":
        return None
    named = flag(argv, "container-runtime-endpoint") or start.config.get("containerRuntimeEndpoint")
    return str(named or "")


def runtime(host: Host, facts: Facts, minor: int, start: KubeletStart) -> Runtime:
    """The runtime that the kubelet starts containers with, from its arguments and configuration. Raises CannotPlan."""
    served = start.place.brings
    if served is None:
        named = endpoint(facts, minor, start)
        other = next((name for part, name in OTHERS.items() if part in (named or "")), None)
        served = runtimes.at_endpoint(named)
        if other or served is None:
            uses = f"the kubelet uses {other} ({named})"
            raise CannotPlan(
                uses if other else f"gpunode does not know the kubelet's runtime endpoint {named}",
                hint="gpunode configures docker (by dockershim or cri-dockerd), containerd and CRI-O so far; use one of them.",
            )
    RUNTIMES[served].check(facts)
    if served == "docker" and host.runtime == "class":
        raise CannotPlan(
            "`runtime: class` cannot work here: a kubelet with docker knows no handlers of RuntimeClass",
            hint="Set `runtime: default` for this host, which makes nvidia docker's default runtime.",
        )
    return served


# --- SELinux ------------------------------------------------------------------------------------------------
#
# source: container-selinux (boolean container_use_devices), Red Hat's recipes for GPUs in bootc images and MicroShift. What is written
# below /etc gets its label by the agent.

ENFORCE = "/sys/fs/selinux/enforce"
BOOLEAN = "container_use_devices"
STATE = f"/sys/fs/selinux/booleans/{BOOLEAN}"
SELINUX_WATCH = Watch(files=(ENFORCE, STATE))


def plan_selinux(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Set the boolean; nothing where the kernel does not enforce, no policy for containers is there, or none is labelled."""
    if desired.runtime_mode == "none" or (files.text(facts, ENFORCE) or "").strip() != "1":
        return ()
    state = files.text(facts, STATE)
    if state is None or state.startswith("1") or not RUNTIMES[desired.runtime].containers(facts).labelled:
        return ()
    why = (
        "SELinux is enforced and labels containers: without it a container cannot open the GPUs' device files"
    )
    return (SelinuxBoolean(BOOLEAN, why),)


UNPARSED = "gpunode never overwrites a file that does not parse. Fix it by hand."
LINK = Link(
    "runtime",
    steps=(
        Step("selinux", "runtime", plan_selinux, SELINUX_WATCH),
        *(Step(name, "runtime", partial(plan, name), each.WATCH) for name, each in runtimes.RUNTIMES.items()),
    ),
    judges=(judge_runtime,),
    faults=(
        Fault(
            "runtime",
            "runtime",
            "another tool rewrote the runtime's configuration without nvidia and restarted it",
        ),
        Fault("stopped", "runtime", "the container runtime died"),
        Fault("daemon.json", "runtime", "an edit lost a comma in daemon.json", UNPARSED),
        Fault("config.toml", "runtime", "an edit lost a quote in containerd's config.toml", UNPARSED),
    ),
)
