"""Discovery: the API's groups, versions and resources, which kubectl reads first."""

from __future__ import annotations

from gpunode.sim.apiserver.store import KINDS, Object

VERBS = ["create", "delete", "get", "list", "patch", "update", "watch"]
SHORT = {"Namespace": "ns", "Node": "no", "Pod": "po", "Event": "ev", "ConfigMap": "cm", "DaemonSet": "ds",
         "Deployment": "deploy", "Service": "svc",
         "ServiceAccount": "sa", "PersistentVolumeClaim": "pvc", "ResourceQuota": "quota"}  # fmt: skip
ALL = {"Pod", "DaemonSet", "Deployment", "Job", "Service"}  # shown by `kubectl get all`
PARTS: list[Object] = [
    {"name": "pods/eviction", "kind": "Eviction", "group": "policy", "version": "v1", "verbs": ["create"]},
    {"name": "pods/log", "kind": "Pod", "verbs": ["get"]},
    {"name": "nodes/status", "kind": "Node", "namespaced": False, "verbs": ["patch"]},
    {"name": "nodes/proxy", "kind": "NodeProxyOptions", "namespaced": False, "verbs": ["get"]},
    {"name": "pods/proxy", "kind": "PodProxyOptions", "verbs": ["get"]},
]


def found(parts: list[str]) -> Object | None:
    """The answer for /api, /apis, /api/v1, /apis/GROUP/VERSION and /openapi/v3; None for another path."""
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if parts == ["apis"]:
        named = sorted({kind.api for kind in KINDS.values() if "/" in kind.api})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(one) for one in named]}
    if parts[:2] == ["openapi", "v3"]:
        return _openapi("/".join(parts[2:]))
    api = "/".join(parts[1:])
    kinds = {name: kind for name, kind in KINDS.items() if kind.api == api}
    if not kinds or (parts[0] == "api") != (api == "v1"):
        return None
    resources = [
        {
            "name": kind.plural,
            "singularName": name.lower(),
            "namespaced": kind.namespaced,
            "kind": name,
            "verbs": VERBS,
            **({"shortNames": [SHORT[name]]} if name in SHORT else {}),
            **({"categories": ["all"]} if name in ALL else {}),
        }
        for name, kind in kinds.items()
    ]
    if api == "v1":
        resources += [{"singularName": "", "namespaced": True, **part} for part in PARTS]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api, "resources": resources}


def _openapi(place: str) -> Object | None:
    """The part of an OpenAPI document that kubectl reads before it sends a file: the server validates fields."""
    places = {("apis/" if "/" in kind.api else "api/") + kind.api: kind.api for kind in KINDS.values()}
    if not place:
        return {"paths": {one: {"serverRelativeURL": f"/openapi/v3/{one}"} for one in places}}
    paths: Object = {}
    for name, kind in KINDS.items():
        if kind.api == places.get(place):
            group, _, version = kind.api.rpartition("/")
            patch = {
                "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": name},
                "parameters": [{"name": "fieldValidation", "in": "query"}],
            }
            paths[f"/{place}/{kind.plural}/{{name}}"] = {"patch": patch}
    info = {"title": "Kubernetes", "version": "v1.36.3"}
    return {"openapi": "3.0.0", "info": info, "paths": paths} if paths else None


def _group(api: str) -> Object:
    name, _, version = api.partition("/")
    entry = {"groupVersion": api, "version": version}
    return {"name": name, "versions": [entry], "preferredVersion": entry}
