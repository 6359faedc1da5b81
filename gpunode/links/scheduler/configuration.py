"""What tells a scheduler of an extender: a KubeSchedulerConfiguration, or a Policy of Kubernetes before 1.19."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import yaml

from gpunode.contract import yaml_text
from gpunode.errors import CannotPlan

GROUP = "kubescheduler.config.k8s.io"
SECONDS = 10  # for an answer: a bind waits for the API server
NAME = "gpunode-share"  # in the extender's certificate


@dataclass(frozen=True, slots=True)
class Extender:
    """Where the scheduler extender is, and what it manages. `folder` has its CA and the scheduler's certificate."""

    address: str
    resource: str
    folder: str


def version(minor: int) -> str:
    """The newest version of the configuration that this Kubernetes and the next read alike; "" before 1.19: a Policy."""
    if minor < 19:
        return ""
    # v1beta1: 1.19 to 1.22; v1beta2: 1.22 to 1.27; v1beta3: 1.23 to 1.28; v1: from 1.25 on.
    return "v1beta1" if minor < 22 else "v1beta2" if minor < 23 else "v1beta3" if minor < 25 else "v1"


def entry(extender: Extender, *, policy: bool = False) -> dict[str, Any]:
    """The extender as an element of `extenders`."""
    folder = extender.folder
    tls = {
        "serverName": NAME,
        "caFile": f"{folder}/ca.crt",
        "certFile": f"{folder}/client.crt",
        "keyFile": f"{folder}/client.key",
    }
    return {
        "urlPrefix": f"https://{extender.address}/share",
        "filterVerb": "filter",
        "prioritizeVerb": "prioritize",
        "preemptVerb": "preempt",
        "weight": 1,
        "bindVerb": "bind",
        "enableHttps" if policy else "enableHTTPS": True,
        "tlsConfig": tls,
        "httpTimeout": SECONDS * 10**9 if policy else f"{SECONDS}s",
        "nodeCacheCapable": True,
        "managedResources": [{"name": extender.resource, "ignoredByScheduler": False}],
        "ignorable": False,
    }


def policy(extender: Extender) -> str:
    """A Policy with this extender and the scheduler's default predicates and priorities."""
    document = {"kind": "Policy", "apiVersion": "v1", "extenders": [entry(extender, policy=True)]}
    return json.dumps(document, indent=2) + "\n"


def fresh(extender: Extender, minor: int, settings: Mapping[str, Any]) -> str:
    """A configuration for a scheduler that has none, with these settings."""
    document = {
        "apiVersion": f"{GROUP}/{version(minor)}",
        "kind": "KubeSchedulerConfiguration",
        **settings,
        "extenders": [entry(extender)],
    }
    return "# Made by gpunode share enable.\n" + yaml.safe_dump(document, sort_keys=False)


def second(extender: Extender, minor: int, name: str, namespace: str, lease: str) -> str:
    """The configuration of a scheduler in a pod of its own, for pods that name it; by its account's token."""
    document = {
        "apiVersion": f"{GROUP}/{version(minor)}",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {
            "leaderElect": True,
            "resourceLock": "leases",  # not 1.19's default, for which it lacks the rights to endpoints
            "resourceName": lease,
            "resourceNamespace": namespace,
        },
        "profiles": [{"schedulerName": name}],
        "extenders": [entry(extender)],
        **insecure({"port": "0"}, minor),
    }
    return yaml.safe_dump(document, sort_keys=False)


def extended(path: str, text: str, extender: Extender) -> str:
    """The operator's configuration with this extender. Raises CannotPlan."""
    root = composed(path, text)
    expected = yaml_text.data(text)
    if not str(expected.get("apiVersion", "")).startswith(f"{GROUP}/v1"):
        raise CannotPlan(f"{path} is no KubeSchedulerConfiguration", hint="Name one with --config.")
    others = expected.get("extenders") or []
    for other in others:
        managed = [resource.get("name") for resource in other.get("managedResources") or []]
        if extender.resource in managed:
            raise CannotPlan(
                f"{path}: the extender at {other.get('urlPrefix')} manages {extender.resource} already",
                hint="Take it out first: two extenders would both bind the same pods.",
            )
    line = f"- {json.dumps(entry(extender))}"
    found = block(path, value(root, "extenders"), "extenders")
    if found is None:
        end = len(text.splitlines())
        try:
            after = added(text, end, 0, ["extenders:", line])
        except ValueError:
            raise CannotPlan(f"{path}: its last line does not end", hint="End it with a newline.") from None
    else:
        after = added(text, found.value[0].start_mark.line, found.start_mark.column, [line])
    expected["extenders"] = [entry(extender), *others]
    check(path, text, after, expected)
    return after


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


MARK = "  # gpunode share"


def without(text: str) -> str:
    """The text without the marked lines."""
    return "".join(line for line in text.splitlines(keepends=True) if not line.rstrip("\r\n").endswith(MARK))


def added(text: str, at: int, column: int, lines: Sequence[str]) -> str:
    """The text with these lines, marked and indented, before its line `at`."""
    before = text.splitlines(keepends=True)
    if before and at >= len(before) and not before[-1].endswith("\n"):
        raise ValueError("the last line does not end")
    new = [f"{' ' * column}{line}{MARK}\n" for line in lines]
    return "".join([*before[:at], *new, *before[at:]])


def composed(path: str, text: str) -> yaml.MappingNode:
    """The YAML mapping that the text holds, with positions. Raises CannotPlan."""
    try:
        node = yaml_text.nodes(text)
        yaml_text.data(text)
    except yaml.YAMLError as error:
        raise CannotPlan(
            f"{path} cannot be read: {error}", hint="Fix it; gpunode changes no file that it cannot read."
        ) from None
    if not isinstance(node, yaml.MappingNode) or node.flow_style:
        raise CannotPlan(f"{path} is no YAML mapping in block style", hint="Write it as kubeadm does.")
    return node


def value(node: yaml.MappingNode, key: str) -> yaml.Node | None:
    """The node of a key; None without it."""
    return next((there for name, there in node.value if name.value == key), None)


def block(path: str, node: yaml.Node | None, what: str) -> yaml.SequenceNode | None:
    """A list to which lines can be added; None where there is no such key. Raises CannotPlan."""
    if node is None:
        return None
    if not isinstance(node, yaml.SequenceNode) or node.flow_style or not node.value:
        raise CannotPlan(
            f"{path}:{node.start_mark.line + 1}: {what} is no list in block style: gpunode adds lines, and rewrites nobody's",
            hint=f"Write {what} with one `- ` a line, or leave it out.",
        )
    return node


def check(path: str, before: str, after: str, expected: Any) -> None:
    """Raises CannotPlan unless the text reads as expected, and is as before without the marked lines."""
    if yaml_text.data(after) != expected or without(after) != before:
        raise CannotPlan(
            f"{path} is laid out in a way that lines cannot be added to", hint="Write it as kubeadm does."
        )
