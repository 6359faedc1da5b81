"""Authorization of users and service accounts by their Roles and ClusterRoles."""

from __future__ import annotations

from gpunode.sim.apiserver.store import Object, Store

PREFIX = "system:serviceaccount:"


def allows(store: Store, user: str, verb: str, group: str, plural: str, namespace: str) -> bool:
    """True if a user, or a service account (`system:serviceaccount:NAMESPACE:NAME`), may."""
    subject = {"kind": "User", "name": user}
    if user.startswith(PREFIX):
        home, _, name = user.removeprefix(PREFIX).partition(":")
        subject = {"kind": "ServiceAccount", "namespace": home, "name": name}
    bindings = store.all("ClusterRoleBinding") + (store.all("RoleBinding", namespace) if namespace else [])
    for binding in bindings:
        if not any(subject.items() <= one.items() for one in binding.get("subjects", [])):
            continue
        ref = binding["roleRef"]
        place = binding["metadata"].get("namespace", "") if ref["kind"] == "Role" else ""
        role = store.get(ref["kind"], place, ref["name"])
        if role is not None and any(_covers(rule, verb, group, plural) for rule in role.get("rules") or []):
            return True
    return False


def _covers(rule: Object, verb: str, group: str, plural: str) -> bool:
    return group in rule["apiGroups"] and plural in rule["resources"] and verb in rule["verbs"]
