"""What the API has, for clients that ask before they ask for it: kubectl does."""

from __future__ import annotations

from gpunode.sim.store import KINDS, Object

VERBS = ["create", "delete", "get", "list", "patch", "watch"]
SHORT = {"Namespace": "ns", "Node": "no", "Pod": "po", "Event": "ev", "ConfigMap": "cm", "DaemonSet": "ds"}


def found(parts: list[str]) -> Object | None:
    """The answer for /api, /apis, /api/v1 and /apis/GROUP/VERSION; None for another path."""
    if parts == ["api"]:
        return {"kind": "APIVersions", "versions": ["v1"], "serverAddressByClientCIDRs": []}
    if parts == ["apis"]:
        named = sorted({kind.api for kind in KINDS.values() if "/" in kind.api})
        return {"kind": "APIGroupList", "apiVersion": "v1", "groups": [_group(one) for one in named]}
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
        }
        for name, kind in kinds.items()
    ]
    return {"kind": "APIResourceList", "apiVersion": "v1", "groupVersion": api, "resources": resources}


def _group(api: str) -> Object:
    name, _, version = api.partition("/")
    entry = {"groupVersion": api, "version": version}
    return {"name": name, "versions": [entry], "preferredVersion": entry}
