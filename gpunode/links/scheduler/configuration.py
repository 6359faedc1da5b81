"""What tells a scheduler of an extender: a KubeSchedulerConfiguration, or a Policy of Kubernetes before 1.19."""

import copy
import json
import re
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


def version_for(minor: int) -> str:
    """The newest version of the configuration that this Kubernetes and the next read alike; "" before 1.19: a Policy."""
    if minor < 19:
        return ""
    # v1beta1: 1.19 to 1.22; v1beta2: 1.22 to 1.27; v1beta3: 1.23 to 1.28; v1: from 1.25 on.
    return "v1beta1" if minor < 22 else "v1beta2" if minor < 23 else "v1beta3" if minor < 25 else "v1"


def make_entry(extender: Extender, *, policy: bool = False) -> dict[str, Any]:
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


def make_policy(extender: Extender) -> str:
    """A Policy with this extender and the scheduler's default predicates and priorities."""
    document = {"kind": "Policy", "apiVersion": "v1", "extenders": [make_entry(extender, policy=True)]}
    return json.dumps(document, indent=2) + "\n"


def make_configuration(extender: Extender, minor: int, settings: Mapping[str, Any]) -> str:
    """A configuration for a scheduler that has none, with these settings."""
    document = {
        "apiVersion": f"{GROUP}/{version_for(minor)}",
        "kind": "KubeSchedulerConfiguration",
        **settings,
        "extenders": [make_entry(extender)],
    }
    return "# Made by gpunode share enable.\n" + yaml.safe_dump(document, sort_keys=False)


def make_second(extender: Extender, minor: int, name: str, namespace: str, lease: str) -> str:
    """The configuration of a scheduler in a pod of its own, for pods that name it; by its account's token."""
    document = {
        "apiVersion": f"{GROUP}/{version_for(minor)}",
        "kind": "KubeSchedulerConfiguration",
        "leaderElection": {
            "leaderElect": True,
            "resourceLock": "leases",  # not 1.19's default, for which it lacks the rights to endpoints
            "resourceName": lease,
            "resourceNamespace": namespace,
        },
        "profiles": [{"schedulerName": name}],
        "extenders": [make_entry(extender)],
        **insecure_addresses({"port": "0"}, minor),
    }
    return yaml.safe_dump(document, sort_keys=False)


def extend_configuration(path: str, text: str, extender: Extender) -> str:
    """The operator's configuration with this extender. Raises CannotPlan."""
    root = parse_mapping(path, text)
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
    line = f"- {json.dumps(make_entry(extender))}"
    extenders = list_of(path, value_of(root, "extenders"), "extenders")
    if extenders is None:
        end = len(text.splitlines())
        try:
            after = add_marked(text, end, 0, ["extenders:", line])
        except ValueError:
            raise CannotPlan(f"{path}: its last line does not end", hint="End it with a newline.") from None
    else:
        after = add_marked(text, extenders.value[0].start_mark.line, extenders.start_mark.column, [line])
    expected["extenders"] = [make_entry(extender), *others]
    check_edit(path, text, after, expected)
    return after


LAST_INSECURE = 22  # the minor version: later schedulers have no port without TLS
INSECURE = ("127.0.0.1", "10251")
BOOLS = {
    word: value
    for value, spellings in ((True, "1 t T true TRUE True"), (False, "0 f F false FALSE False"))
    for word in spellings.split()
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
            for part in outer:
                holder = holder[part]
            holder[key] = _read(path, name, flags[name], read)
    profile: dict[str, Any] = {}
    if own := flags.get("scheduler-name"):
        profile["schedulerName"] = own
    if weight := flags.get(WEIGHT):
        args = {"hardPodAffinityWeight": _read(path, WEIGHT, weight, int)}
        profile["pluginConfig"] = [{"name": "InterPodAffinity", "args": args}]
    if profile:
        document["profiles"] = [profile]
    return document | insecure_addresses(flags, minor)


def check_provider(path: str, flags: Mapping[str, str]) -> None:
    """Raises CannotPlan where the manifest at `path` names an algorithm provider: neither a Policy nor a configuration has a place for it."""
    if flags.get(PROVIDER, "") not in DEFAULT:
        raise CannotPlan(
            f"{path}: the scheduler has an algorithm provider, which the change would drop: --{PROVIDER}={flags[PROVIDER]}",
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


def insecure_addresses(flags: Mapping[str, str], minor: int) -> dict[str, str]:
    """The addresses of the port without TLS, which a configuration cannot close: "" becomes the default, and 0 is refused. So --port=0, as
    kubeadm has it, becomes one that only the host itself reaches."""
    address, port = flags.get("address", ""), flags.get("port", INSECURE[1])
    if minor > LAST_INSECURE or not {"address", "port"} & flags.keys():
        return {}
    host, number = INSECURE if port == "0" else (f"[{address}]" if ":" in address else address, port)
    return dict.fromkeys(("healthzBindAddress", "metricsBindAddress"), f"{host}:{number}")


MARK = "  # gpunode share"


def strip_marked(text: str) -> str:
    return "".join(line for line in text.splitlines(keepends=True) if not line.rstrip("\r\n").endswith(MARK))


def add_marked(text: str, at: int, column: int, lines: Sequence[str]) -> str:
    """The text with these lines, marked and indented, before its line `at`."""
    before = text.splitlines(keepends=True)
    if before and at >= len(before) and not before[-1].endswith("\n"):
        raise ValueError("the last line does not end")
    new = [f"{' ' * column}{line}{MARK}\n" for line in lines]
    return "".join([*before[:at], *new, *before[at:]])


def parse_mapping(path: str, text: str) -> yaml.MappingNode:
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


def value_of(node: yaml.MappingNode, key: str) -> yaml.Node | None:
    """The node of a key; None without it."""
    return next((value for name, value in node.value if name.value == key), None)


def list_of(path: str, node: yaml.Node | None, what: str) -> yaml.SequenceNode | None:
    """A list to which lines can be added; None where there is no such key. Raises CannotPlan."""
    if node is None:
        return None
    if not isinstance(node, yaml.SequenceNode) or node.flow_style or not node.value:
        raise CannotPlan(
            f"{path}:{node.start_mark.line + 1}: {what} is no list in block style: gpunode only adds lines",
            hint=f"Write {what} with one `- ` a line, or leave it out.",
        )
    return node


def check_edit(path: str, before: str, after: str, expected: Any) -> None:
    """Raises CannotPlan unless the text reads as expected, and is as before without the marked lines."""
    if yaml_text.data(after) != expected or strip_marked(after) != before:
        raise CannotPlan(
            f"{path} is laid out in a way that lines cannot be added to", hint="Write it as kubeadm does."
        )


MANIFEST = "/etc/kubernetes/manifests/kube-scheduler.yaml"


@dataclass(frozen=True, slots=True)
class Manifest:
    """What it says without gpunode's lines. `flags`: without dashes; `--flag value` as `--flag=value`. `minor`: of
    Kubernetes, by its image's tag; None where that names none."""

    text: str
    flags: dict[str, str]
    minor: int | None


def read_manifest(text: str) -> Manifest:
    """Raises CannotPlan."""
    plain = strip_marked(text)
    container = _container(parse_mapping(MANIFEST, plain))
    key = "args" if value_of(container, "args") is not None else "command"
    flags: dict[str, str] = {}
    sequence = list_of(MANIFEST, value_of(container, key), key)
    before = ""
    for item in sequence.value if sequence else ():
        word = str(item.value)
        if not word.startswith("-"):
            if before:
                flags[before] = word
            continue
        name, equals, value = word.lstrip("-").partition("=")
        flags[name], before = value if equals else "true", "" if equals else name
    image = value_of(container, "image")
    tag = re.search(r"kube-scheduler[^:]*:v1\.(\d+)\.", str(image.value) if image else "")
    return Manifest(plain, flags, int(tag[1]) if tag else None)


def extend_manifest(manifest: Manifest, flag: str, volume: str, folder: str) -> str:
    """The text with one flag more ("" for none), and the host's folder at the same path. Raises CannotPlan."""
    text, expected = manifest.text, yaml_text.data(manifest.text)
    mount = {"name": volume, "mountPath": folder, "readOnly": True}
    source = {"name": volume, "hostPath": {"path": folder, "type": "Directory"}}
    index = [entry["name"] for entry in expected["spec"]["containers"]].index("kube-scheduler")
    for where, entry in (
        (("spec", "volumes"), source),
        (("container", "volumeMounts"), mount),
        (("container", "command"), flag),
    ):
        if entry:
            text = _insert(text, where, entry)
    spec = expected["spec"]
    container = spec["containers"][index]
    spec["volumes"] = [source, *(spec.get("volumes") or [])]
    container["volumeMounts"] = [mount, *(container.get("volumeMounts") or [])]
    if flag:
        key = "args" if "args" in container else "command"
        container[key] = copy.copy(container[key])
        container[key].insert(_first_flag(container[key]), flag)
    check_edit(MANIFEST, manifest.text, text, expected)
    return text


def _insert(text: str, where: tuple[str, str], entry: Any) -> str:
    root = parse_mapping(MANIFEST, text)
    spec = value_of(root, "spec")
    container = _container(root)
    place, key = where
    holder = container if place == "container" else spec
    assert isinstance(holder, yaml.MappingNode)
    if key == "command" and value_of(container, "args") is not None:
        key = "args"
    line = f"- {entry if isinstance(entry, str) else json.dumps(entry)}"
    sequence = list_of(MANIFEST, value_of(holder, key), key)
    if sequence is None:
        # Not before its first key, which may stand behind a dash.
        second = holder.value[1][0] if len(holder.value) > 1 else None
        if second is None:
            raise CannotPlan(f"{MANIFEST} has too little in it", hint="Write it as kubeadm does.")
        return add_marked(text, second.start_mark.line, second.start_mark.column, [f"{key}:", line])
    column = sequence.start_mark.column
    items = sequence.value
    if isinstance(entry, str):
        first = _first_flag([item.value for item in items])
        at = items[first].start_mark.line if first < len(items) else items[-1].end_mark.line + 1
    else:
        at = items[0].start_mark.line
    return add_marked(text, at, column, [line])


def _first_flag(argv: Sequence[object]) -> int:
    """The position of the first flag: not between a flag and its value."""
    return next((n for n, word in enumerate(argv) if str(word).startswith("-")), len(argv))


def _container(root: yaml.MappingNode) -> yaml.MappingNode:
    spec = value_of(root, "spec")
    containers = value_of(spec, "containers") if isinstance(spec, yaml.MappingNode) else None
    if isinstance(containers, yaml.SequenceNode) and not containers.flow_style:
        maps = [
            entry
            for entry in containers.value
            if isinstance(entry, yaml.MappingNode) and not entry.flow_style
        ]
        named = [
            entry
            for entry in maps
            if (name := value_of(entry, "name")) is not None and name.value == "kube-scheduler"
        ]
        if len(named) == 1:
            return named[0]
    raise CannotPlan(
        f"{MANIFEST} has no container kube-scheduler in block style", hint="Write it as kubeadm does."
    )
