"""Flags of a kube-scheduler that it ignores once it reads a configuration, as keys of that configuration. Pure.

From cmd/kube-scheduler/app/options of Kubernetes 1.19 to 1.36. Since 1.22 flags of the leader election count beside a
configuration; the same value in both harms nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from gpunode.errors import CannotPlan

LAST_INSECURE = 22  # the minor version: later schedulers have no port without TLS
INSECURE = ("127.0.0.1", "10251")
BOOLS = {
    word: value
    for value, words in ((True, "1 t T true TRUE True"), (False, "0 f F false FALSE False"))
    for word in words.split()
}  # as Go's strconv.ParseBool reads them


def _bool(word: str) -> bool:
    return BOOLS[word]


Reader = Callable[[str], Any]
PROVIDER, DEFAULT = "algorithm-provider", ("", "DefaultProvider")  # up to 1.22
WEIGHT = "hard-pod-affinity-symmetric-weight"
KEYS: Mapping[str, tuple[tuple[str, ...], Reader]] = {
    "kubeconfig": (("clientConnection", "kubeconfig"), str),
    "kube-api-content-type": (("clientConnection", "contentType"), str),
    "kube-api-qps": (("clientConnection", "qps"), float),
    "kube-api-burst": (("clientConnection", "burst"), int),
    "profiling": (("enableProfiling",), _bool),
    "contention-profiling": (("enableContentionProfiling",), _bool),
    "lock-object-namespace": (("leaderElection", "resourceNamespace"), str),
    "lock-object-name": (("leaderElection", "resourceName"), str),
    "leader-elect": (("leaderElection", "leaderElect"), _bool),
    "leader-elect-lease-duration": (("leaderElection", "leaseDuration"), str),
    "leader-elect-renew-deadline": (("leaderElection", "renewDeadline"), str),
    "leader-elect-retry-period": (("leaderElection", "retryPeriod"), str),
    "leader-elect-resource-lock": (("leaderElection", "resourceLock"), str),
    "leader-elect-resource-name": (("leaderElection", "resourceName"), str),
    "leader-elect-resource-namespace": (("leaderElection", "resourceNamespace"), str),
}


def as_configuration(path: str, flags: Mapping[str, str], minor: int) -> dict[str, Any]:
    """What the flags of the manifest at `path` say, as a configuration has it. Raises CannotPlan."""
    document: dict[str, Any] = {
        "clientConnection": {"kubeconfig": "/etc/kubernetes/scheduler.conf"},
        "leaderElection": {"leaderElect": True},
    }
    for name, ((*outer, key), read) in KEYS.items():
        if name in flags:
            holder = document
            for one in outer:
                holder = holder[one]
            holder[key] = _read(path, name, flags[name], read)
    profile: dict[str, Any] = {}
    if own := flags.get("scheduler-name"):
        profile["schedulerName"] = own
    if weight := flags.get(WEIGHT):
        args = {"hardPodAffinityWeight": _read(path, WEIGHT, weight, int)}
        profile["pluginConfig"] = [{"name": "InterPodAffinity", "args": args}]
    if profile:
        document["profiles"] = [profile]
    return document | insecure(flags, minor)


def provided(path: str, flags: Mapping[str, str]) -> None:
    """Raises CannotPlan where the manifest at `path` names an algorithm provider: neither a Policy nor a configuration has a place for it."""
    if flags.get(PROVIDER, "") not in DEFAULT:
        raise CannotPlan(
            f"{path}: the scheduler has an algorithm provider, which would be lost: --{PROVIDER}={flags[PROVIDER]}",
            hint=f"Take --{PROVIDER} out first; from 1.19 on a KubeSchedulerConfiguration, named with --config, has its plugins in a profile.",
        )


def _read(path: str, name: str, word: str, read: Reader) -> Any:
    try:
        return read(word)
    except (KeyError, ValueError):
        raise CannotPlan(
            f"{path}: --{name}={word}: expected {'true or false' if read is _bool else 'a number'}",
            hint="Fix it: the scheduler refuses it, too.",
        ) from None


def insecure(flags: Mapping[str, str], minor: int) -> dict[str, str]:
    """The addresses of the port without TLS, which a configuration cannot close: "" becomes the default, and 0 is refused. So --port=0, as
    kubeadm has it, becomes one that only the host itself reaches."""
    address, port = flags.get("address", ""), flags.get("port", INSECURE[1])
    if minor > LAST_INSECURE or not {"address", "port"} & flags.keys():
        return {}
    host, number = INSECURE if port == "0" else (f"[{address}]" if ":" in address else address, port)
    return dict.fromkeys(("healthzBindAddress", "metricsBindAddress"), f"{host}:{number}")
