"""The host's processes, from /proc, and whose they are: container and pod by their cgroup, with their names."""

import glob
import json
import os
import re
from typing import Any, Dict, Iterator, List, Optional, Pattern

from gpunode.agent.section import Section
from gpunode.agent.system import below, line_of, names_in, text_of, unrooted


def links(folder: str) -> Iterator[str]:
    """The targets of a folder's symbolic links, without those that are removed meanwhile."""
    try:
        names = os.listdir(below(folder))
    except OSError:
        return
    for name in names:
        try:
            yield os.readlink(below(folder + "/" + name))
        except OSError:
            continue


def command_of(pid: int) -> str:
    """A process's program and, for an interpreter, the script. Never other arguments, which may be secrets."""
    argv = (text_of("/proc/%d/cmdline" % pid) or "").split("\0")
    if not argv[0]:
        return line_of("/proc/%d/comm" % pid) or "?"
    names = [os.path.basename(argument) for argument in argv[:2] if argument]
    script = len(names) > 1 and not argv[1].startswith("-")
    if script and re.match(r"(python|platform-python|perl|ruby|bash|sh\b)", names[0]):
        return " ".join(names)
    return names[0]


def started_at(pid: int) -> Optional[str]:
    """When a process began, in clock ticks since the boot; None if there is no such process."""
    cells = line_of("/proc/%d/stat" % pid).rpartition(")")[2].split()  # its name may hold anything
    return cells[19] if len(cells) > 19 else None


def send_signal(pid: int, started: Optional[str], number: int) -> None:
    """Send a signal, unless the process has ended and another has its number."""
    if started_at(pid) == started:
        try:
            os.kill(pid, number)
        except ProcessLookupError:
            pass


CONTAINER = re.compile(r"(?<![0-9a-f])[0-9a-f]{64}(?![0-9a-f])")
POD = re.compile(r"pod([0-9a-f]{8}(?:[-_][0-9a-f]{4}){3}[-_][0-9a-f]{12}|[0-9a-f]{32})(?![0-9a-f])")
# LXC, LXD and Incus; systemd-nspawn and libvirt. source: lxc's src/lxc/cgroups; systemd.special(7)
MACHINE = re.compile(r"/(lxc\.payload[^/\n]*|machine\.slice/[^/\n]+)")
HOST = "/proc/1/cgroup"  # with the host's own id, where it is a container without a cgroup namespace
LOGS = "/var/log/pods/*_*_"  # NAMESPACE_NAME_UID, from kubelet 1.14 on
DOCKER = "/var/lib/docker/containers/%s/config.v2.json"
BUNDLES = (  # OCI's config.json: containerd's, CRI-O's and podman's
    "/run/containerd/io.containerd.runtime.v*/*/%s/config.json",
    "/run/containers/storage/overlay-containers/%s/userdata/config.json",
)
PODMAN = "/var/lib/containers/storage/overlay-containers/containers.json"
# Labels and annotations: (pod's namespace, pod's name) of dockershim and CRI-O, of containerd; names of nerdctl's.
PODS = (
    ("io.kubernetes.pod.namespace", "io.kubernetes.pod.name"),
    ("io.kubernetes.cri.sandbox-namespace", "io.kubernetes.cri.sandbox-name"),
)
NERDCTL = "nerdctl/name"


def owner(cgroup: str) -> Dict[str, Optional[str]]:
    """From /proc/PID/cgroup: `container` (its id), `pod` (its UID), `name`: `namespace/name` of the pod, else the
    container's own. None: there is none, or no file names it."""
    host = text_of(HOST) or ""
    container = innermost(cgroup, host, CONTAINER) or task(cgroup)
    pod = (innermost(cgroup, host, POD) or "").replace("_", "-") or None
    name = (pod_of(pod) if pod else None) or (name_of(container) if container else None)
    return {"container": container, "pod": pod, "name": name}


def read_cgroups() -> Dict[str, int]:
    """Text of /proc/PID/cgroup -> the lowest pid that has it."""
    cgroups: Dict[str, int] = {}
    for pid in sorted((int(name) for name in names_in("/proc") if name.isdigit()), reverse=True):
        cgroups[text_of("/proc/%d/cgroup" % pid) or ""] = pid
    return cgroups


def count_containers(read: Section) -> int:
    """How many containers and virtual machines have processes, whatever started them: by their own ids, or by their pods'."""
    host = text_of(HOST) or ""
    ids = {innermost(cgroup, host, CONTAINER, POD, MACHINE) or task(cgroup) for cgroup in read.result()}
    return len(ids - {None})


def innermost(cgroup: str, host: str, *patterns: Pattern[str]) -> Optional[str]:
    """The last id in a cgroup, by the first pattern that has one, but none in that of the `host`, which may be a container itself."""
    own = {name for pattern in patterns for name in pattern.findall(host)}
    ids = (name for pattern in patterns for name in reversed(pattern.findall(cgroup)) if name not in own)
    return next(ids, None)


def task(cgroup: str) -> Optional[str]:
    """The id of a container that containerd knows by another id than a hash: `ctr run` takes any."""
    for line in cgroup.splitlines():
        parts = line.rpartition(":")[2].split("/")
        if len(parts) > 2 and all(parts[-2:]):
            name = "/".join(glob.escape(part) for part in parts[-2:])
            if glob.glob(below("/run/containerd/io.containerd.runtime.v*/" + name + "/config.json")):
                return parts[-1]
    return None


def pod_of(uid: str) -> Optional[str]:
    for path in glob.glob(below(LOGS + uid)):
        return "/".join(os.path.basename(path).split("_")[:2])
    return None


def name_of(container: str) -> Optional[str]:
    """What Kubernetes, docker, nerdctl or podman call the container."""
    config = read_json(DOCKER % container)
    labels: Dict[str, Any] = (config.get("Config") or {}).get("Labels") or {}
    for pattern in BUNDLES:
        for path in glob.glob(below(pattern % glob.escape(container))):
            labels = dict(labels, **(read_json(unrooted(path)).get("annotations") or {}))
    for namespace, name in PODS:
        if labels.get(name):
            return "%s/%s" % (labels.get(namespace, "default"), labels[name])
    return labels.get(NERDCTL) or str(config.get("Name") or "").lstrip("/") or podman(container)


def podman(container: str) -> Optional[str]:
    every: List[Any] = read_json(PODMAN, [])
    names = [
        entry.get("names") for entry in every if isinstance(entry, dict) and entry.get("id") == container
    ]
    return str(names[0][0]) if names and names[0] else None


def read_json(path: str, otherwise: Any = None) -> Any:
    """The JSON of a file, of the kind of `otherwise` (None: an object); that where there is none."""
    otherwise = {} if otherwise is None else otherwise
    try:
        document = json.loads(text_of(path) or "")
    except ValueError:
        return otherwise
    return document if isinstance(document, type(otherwise)) else otherwise
