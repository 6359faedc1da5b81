"""What this host needs so that running containers keep their GPUs, and for CDI; and why.

A `systemctl daemon-reload` makes systemd apply the device rules that it knows. It does not know, and so removes, rules
- of devices without a link in /dev/char, by runc 1.1.3 to 1.1.6 (fixed in 1.1.7: opencontainers/runc#3671, #3708, #3842), and
  before systemd 240, which looks devices up by that link;
- of devices that NVIDIA's hook adds without runc knowing, as the toolkit does before 1.18 and in mode legacy.
source: NVIDIA's troubleshooting of the container toolkit, NVIDIA/nvidia-container-toolkit#48, runc's CHANGELOG.md.
"""

import re
from collections.abc import Iterator
from typing import NamedTuple

from gpunode.links import runtime as runtimes
from gpunode.links.kubelet.start import flag
from gpunode.links.toolkit import plan
from gpunode.links.toolkit.cdi import JUST_IN_TIME, other_problems
from gpunode.model import Facts, Host, KubeletStart, PackageSpec, Runtime
from gpunode.planning.versions import numbers, upstream

COMMANDS = (1, 12)  # from which toolkit on nvidia-ctk makes the links and generates specifications
LINKLESS, FIXED, BY_NUMBER = (1, 1, 3), (1, 1, 7), 240
LOSE = "`systemctl daemon-reload` takes the GPUs from running containers (NVML: Unknown Error)"


class Devices(NamedTuple):
    toolkit: tuple[int, ...]
    links: str
    cdi: str
    loss: tuple[str, str] | None
    notes: tuple[str, ...]


def decide(
    host: Host, facts: Facts, runtime: Runtime, start: KubeletStart, specs: tuple[PackageSpec, ...]
) -> Devices:
    """What this host needs. Raises CannotPlan where the toolkit's or the runtime's configuration cannot be read."""
    version = _toolkit(facts, specs)
    if host.runtime == "none":
        return Devices(version, "", "", None, ())
    links, cdi = _links(facts, runtime), next(_readers(host, facts, runtime), "")
    loss = _loss(host, facts, runtime, start, version)
    notes = (*((f"{loss[0]} {loss[1]}",) if loss else ()), *_unread_notes(facts, links, cdi, version))
    if cdi:
        notes += tuple(other_problems(facts))
    unread = not version and "versions" in facts.errors
    if (links or cdi) and version < COMMANDS and not unread:
        what = f"{links}: links in /dev/char" if links else f"{cdi}: a CDI specification"
        notes += (f"{what} would help; it needs nvidia-ctk 1.12 or newer.",)
        return Devices(version, "", "", loss, notes)
    return Devices(version, links, cdi, loss, notes)


def _unread_notes(facts: Facts, links: str, cdi: str, version: tuple[int, ...]) -> Iterator[str]:
    """What is not planned as it could not be read: an empty answer looks like a right one."""
    if (error := facts.errors.get("versions")) and not version:
        planned = (
            " If the toolkit's unit exists, gpunode plans the CDI specification as for 1.18 or newer."
            if cdi
            else ""
        )
        yield f"The version of nvidia-ctk could not be read ({error}): whether running containers can lose their GPUs is not known.{planned}"
    if error := facts.errors.get("versions"):
        yield f"The versions of systemd and runc could not be read ({error}): whether devices need links in /dev/char is not known."
    if links and (error := facts.errors.get("unlinked")):
        yield f"Which devices have links in /dev/char could not be read ({error}): links that are missing are not planned."


def _toolkit(facts: Facts, specs: tuple[PackageSpec, ...]) -> tuple[int, ...]:
    """The version that the host will have: the plan's, else that of the program that is there."""
    planned = next((spec.version for spec in specs if spec.name.startswith("nvidia-container-toolkit")), "")
    return numbers(upstream(planned) or facts.versions.get("nvidia-ctk", ""))


def _links(facts: Facts, runtime: Runtime) -> str:
    containers = runtimes.RUNTIMES[runtime].containers(facts)
    if not containers.by_systemd:
        return ""
    systemd = numbers(facts.versions.get("systemd", ""))
    if systemd and systemd[0] < BY_NUMBER:
        return f"systemd {systemd[0]} finds devices by their links in /dev/char, without which {LOSE}"
    version = facts.versions.get(containers.runc, "")
    if LINKLESS <= numbers(version)[:3] < FIXED:
        return (
            f"runc {version} passes systemd only devices with a link in /dev/char (fixed in 1.1.7), so {LOSE}"
        )
    return ""


def _readers(host: Host, facts: Facts, runtime: Runtime) -> Iterator[str]:
    """The programs that are configured to read the toolkit's CDI specification. Newer runtimes read it by default."""
    if host.cdi:
        yield "the device plugin makes the devices of its CDI strategy from the toolkit's specification"
    if plan.runtime_mode(facts) == "cdi":
        yield f"NVIDIA's runtime is in mode cdi ({plan.CONFIG})"
    asked = {
        "docker": ("/etc/docker/daemon.json", r'"cdi"\s*:\s*true'),
        "containerd": ("/etc/containerd/", r"^[ \t]*enable_cdi\s*=\s*true"),
        "crio": ("/etc/crio/", r"^[ \t]*cdi_spec_dirs\s*=\s*\[\s*[^\]\s]"),
    }
    folder, pattern = asked.get(runtime, ("", ""))
    for path, file in facts.files.items():
        if folder and path.startswith(folder) and re.search(pattern, file.content or "", re.MULTILINE):
            yield f"CDI is switched on in {path}"


def _loss(
    host: Host, facts: Facts, runtime: Runtime, start: KubeletStart, version: tuple[int, ...]
) -> tuple[str, str] | None:
    """Why the runtime below does not know a container's GPUs, and what changes that."""
    mode = plan.runtime_mode(facts)
    by_hook = mode == "legacy" or (mode == "auto" and () < version < JUST_IN_TIME)
    if not by_hook or host.device_specs or host.cdi:
        return None
    policy = flag(start.argv[1:], "cpu-manager-policy") or start.config.get("cpuManagerPolicy")
    if runtimes.RUNTIMES[runtime].containers(facts).by_systemd:
        what = f"so {LOSE}."
    elif policy == "static":
        what = "so the kubelet's static CPU manager, which updates containers, takes the GPUs from them."
    else:
        return None
    why = f"is in mode legacy ({plan.CONFIG})" if mode == "legacy" else f"is {'.'.join(map(str, version))}"
    fix = "Let gpunode install 1.18 or newer (`toolkit: auto`)"
    if mode == "legacy":
        fix = 'Set `mode = "auto"` there'
    return (
        f"NVIDIA's toolkit {why}: its hook gives containers GPUs that runc does not know of, {what}",
        f"{fix}, or set `flags.plugin.passDeviceSpecs: true` in the plugin's configuration.",
    )
