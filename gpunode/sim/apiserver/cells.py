"""The cells of an object's row, in the order of its kind's columns, as in kube-apiserver 1.36.

Source: pkg/printers/internalversion/printers.go.
"""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

from gpunode.sim.apiserver.age import between, since
from gpunode.sim.apiserver.store import Object

ENDED: Mapping[str, str] = MappingProxyType(
    {"Succeeded": "The pod has completed successfully.", "Failed": "The pod failed."}
)


def _name(item: Object) -> str:
    return str(item["metadata"].get("name", ""))


def _age(item: Object) -> str:
    return since(item["metadata"].get("creationTimestamp"))


def plain(item: Object) -> list[Any]:
    return [_name(item), item["metadata"].get("creationTimestamp")]


def node(item: Object) -> list[Any]:
    status, labels = item.get("status", {}), item["metadata"].get("labels", {})
    ready = next((one["status"] for one in status.get("conditions", []) if one["type"] == "Ready"), None)
    words = ["Unknown" if ready is None else "Ready" if ready == "True" else "NotReady"]
    if item.get("spec", {}).get("unschedulable"):
        words.append("SchedulingDisabled")
    prefix = "node-role.kubernetes.io/"
    roles = {name.removeprefix(prefix) for name in labels if name.startswith(prefix)}
    roles.add(labels.get("kubernetes.io/role", ""))
    info: Mapping[str, str] = status.get("nodeInfo", {})
    addresses = {one["type"]: one["address"] for one in status.get("addresses", [])}
    kernel, arch = info.get("kernelVersion") or "<unknown>", info.get("architecture")
    return [
        _name(item),
        ",".join(words),
        ",".join(sorted(roles - {""})) or "<none>",
        _age(item),
        info.get("kubeletVersion", ""),
        addresses.get("InternalIP", "<none>"),
        addresses.get("ExternalIP", "<none>"),
        info.get("osImage") or "<unknown>",
        f"{kernel} ({arch})" if arch else kernel,
        info.get("containerRuntimeVersion") or "<unknown>",
    ]


def pod(item: Object) -> list[Any]:
    spec, status = item.get("spec", {}), item.get("status", {})
    containers = status.get("containerStatuses", [])
    ends = (one.get("lastState", {}).get("terminated", {}).get("finishedAt") for one in containers)
    restarts = sum(one.get("restartCount", 0) for one in containers)
    again = max(filter(None, ends), default="")
    ready = sum(bool(one.get("ready") and "running" in one["state"]) for one in containers)
    return [
        _name(item),
        f"{ready}/{len(spec.get('containers', []))}",
        _pod_status(item, containers),
        f"{restarts} ({since(again)} ago)" if restarts and again else str(restarts),
        _age(item),
        next((one["ip"] for one in status.get("podIPs", [])), "<none>"),
        spec.get("nodeName") or "<none>",
        status.get("nominatedNodeName") or "<none>",
        "<none>",
    ]


def _pod_status(item: Object, containers: list[Object]) -> str:
    status = item.get("status", {})
    phase = str(status.get("phase", ""))
    words, failed, running = str(status.get("reason") or phase), "", False
    for one in reversed(containers):
        state = one["state"]
        if reason := state.get("waiting", {}).get("reason"):
            words = reason
        elif end := state.get("terminated"):
            words = end.get("reason") or f"ExitCode:{end['exitCode']}"
            failed = words if end["exitCode"] else failed
        elif one.get("ready") and "running" in state:
            running = True
    if words == "Completed" and running:
        ready = any(one["type"] == "Ready" and one["status"] == "True" for one in status["conditions"])
        words = "Running" if ready else failed or "NotReady"
    elif words == "Completed":
        words = failed or words
    if "deletionTimestamp" in item["metadata"] and phase not in ENDED:
        return "Terminating"
    return words


def _template(spec: Object) -> list[str]:
    """The wide columns of what makes pods."""
    containers = spec.get("template", {}).get("spec", {}).get("containers", [])
    return [
        *(",".join(one[key] for one in containers) for key in ("name", "image")),
        _selector(spec.get("selector", {})),
    ]


def daemonset(item: Object) -> list[Any]:
    spec, status = item.get("spec", {}), item.get("status", {})
    counts = ("desiredNumberScheduled", "currentNumberScheduled", "numberReady", "updatedNumberScheduled")
    return [
        _name(item),
        *(status.get(name, 0) for name in (*counts, "numberAvailable")),
        _labels(spec.get("template", {}).get("spec", {}).get("nodeSelector", {})),
        _age(item),
        *_template(spec),
    ]


def deployment(item: Object) -> list[Any]:
    spec, status = item.get("spec", {}), item.get("status", {})
    return [
        _name(item),
        f"{status.get('readyReplicas', 0)}/{spec.get('replicas', 1)}",
        *(status.get(name, 0) for name in ("updatedReplicas", "availableReplicas")),
        _age(item),
        *_template(spec),
    ]


def job(item: Object) -> list[Any]:
    spec, status = item.get("spec", {}), item.get("status", {})
    begin, end = status.get("startTime"), status.get("completionTime")
    ends = [one["type"] for one in status.get("conditions", []) if one["status"] == "True"]
    return [
        _name(item),
        *(ends[:1] or ["Terminating" if "deletionTimestamp" in item["metadata"] else "Running"]),
        f"{status.get('succeeded', 0)}/{spec.get('completions', 1)}",
        (between(begin, end) if end else since(begin)) if begin else "",
        _age(item),
        *_template(spec),
    ]


def service(item: Object) -> list[Any]:
    spec = item.get("spec", {})
    ports = (
        f"{one['port']}{':' + str(one['nodePort']) if one.get('nodePort') else ''}/{one.get('protocol', 'TCP')}"
        for one in spec.get("ports", [])
    )
    return [
        _name(item),
        spec.get("type", "ClusterIP"),
        next(iter(spec.get("clusterIPs", [])), "<none>"),
        ",".join(spec.get("externalIPs", [])) or "<none>",
        ",".join(ports) or "<none>",
        _age(item),
        _labels(spec.get("selector", {})),
    ]


def _labels(labels: Mapping[str, str]) -> str:
    return ",".join(f"{name}={value}" for name, value in sorted(labels.items())) or "<none>"


def _selector(selector: Object) -> str:
    found = [(name, f"{name}={value}") for name, value in selector.get("matchLabels", {}).items()]
    for one in selector.get("matchExpressions", []):
        name, values = one["key"], ",".join(sorted(one.get("values", [])))
        form = {"Exists": name, "DoesNotExist": f"!{name}"}
        found.append((name, form.get(one["operator"], f"{name} {one['operator'].lower()} ({values})")))
    return ",".join(words for _, words in sorted(found)) or "<none>"


def event(item: Object) -> list[Any]:
    about, source = item.get("involvedObject", {}), item.get("source", {})
    kind, name = about.get("kind", "").lower(), about.get("name", "")
    series = item.get("series") or {}  # the count in events.k8s.io
    first = item.get("firstTimestamp") or item.get("eventTime")
    component = source.get("component") or item.get("reportingComponent", "")
    host = source.get("host") or item.get("reportingInstance", "")
    return [
        since(series.get("lastObservedTime") or item.get("lastTimestamp") or first),
        item.get("type", ""),
        item.get("reason", ""),
        f"{kind}/{name}" if name else kind,
        about.get("fieldPath", ""),
        f"{component}, {host}" if host else component,
        item.get("message", "").strip(),
        since(first),
        series.get("count") or item.get("count") or 1,
        _name(item),
    ]


def namespace(item: Object) -> list[Any]:
    return [_name(item), item.get("status", {}).get("phase", ""), _age(item)]


def config(item: Object) -> list[Any]:
    return [_name(item), len(item.get("data", {})) + len(item.get("binaryData", {})), _age(item)]


def secret(item: Object) -> list[Any]:
    return [_name(item), item.get("type", "Opaque"), len(item.get("data", {})), _age(item)]


def account(item: Object) -> list[Any]:
    return [_name(item), _age(item)]


def claim(item: Object) -> list[Any]:
    spec, gone = item.get("spec", {}), "deletionTimestamp" in item["metadata"]
    phase = "Terminating" if gone else item.get("status", {}).get("phase", "")
    unset = "<unset>"
    storage, attributes = spec.get("storageClassName", ""), spec.get("volumeAttributesClassName", unset)
    mode = spec.get("volumeMode", unset)
    return [
        _name(item),
        phase,
        "",
        "",
        "",
        storage,
        attributes,
        _age(item),
        mode,
    ]  # nothing is ever bound here


def binding(item: Object) -> list[Any]:
    role, subjects = item.get("roleRef", {}), item.get("subjects", [])
    names: dict[str, list[str]] = {"User": [], "Group": [], "ServiceAccount": []}
    for one in subjects:
        names[one["kind"]].append("/".join(filter(None, (one.get("namespace"), one["name"]))))
    held = f"{role.get('kind', '')}/{role.get('name', '')}"
    return [_name(item), held, _age(item), *(", ".join(found) for found in names.values())]


def runtime_class(item: Object) -> list[Any]:
    return [_name(item), item.get("handler", ""), _age(item)]


def policy(item: Object) -> list[Any]:
    spec = item.get("spec", {})
    kind = spec.get("paramKind")
    words = f"{kind['apiVersion']}/{kind['kind']}" if kind else "<unset>"
    return [_name(item), len(spec.get("validations", [])), words, _age(item)]


def policy_binding(item: Object) -> list[Any]:
    return [_name(item), item.get("spec", {}).get("policyName", ""), "<unset>", _age(item)]


def slice_of_devices(item: Object) -> list[Any]:
    spec = item.get("spec", {})
    pool = spec.get("pool", {}).get("name", "")
    return [_name(item), spec.get("nodeName", ""), spec.get("driver", ""), pool, _age(item)]


def lease(item: Object) -> list[Any]:
    return [_name(item), item.get("spec", {}).get("holderIdentity", ""), _age(item)]


def budget(item: Object) -> list[Any]:
    spec = item.get("spec", {})
    bounds = [str(spec.get(name, "N/A")) for name in ("minAvailable", "maxUnavailable")]
    return [_name(item), *bounds, item.get("status", {}).get("disruptionsAllowed", 0), _age(item)]


def quota(item: Object) -> list[Any]:
    """Limits in a column of their own."""
    status = item.get("status", {})
    hard, used = status.get("hard", {}), status.get("used", {})
    bounds: dict[bool, list[str]] = {False: [], True: []}
    for name in sorted(hard):
        bounds[name.startswith("limits.")].append(f"{name}: {used.get(name, '0')}/{hard[name]}")
    return [_name(item), *(", ".join(found) for found in bounds.values()), _age(item)]
