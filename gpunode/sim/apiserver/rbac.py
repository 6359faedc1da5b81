"""Authorization of users and service accounts by their Roles and ClusterRoles."""

from __future__ import annotations

from gpunode.sim.apiserver.errors import not_found, status_error
from gpunode.sim.apiserver.resources import Resources
from gpunode.sim.apiserver.store import Object, Store

GROUP = "rbac.authorization.k8s.io"
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


def admit(of: Resources, user: str, item: Object) -> None:
    """Raises StatusError for a user who would give rights that he does not have, or bind a role that does not exist."""
    rules = item.get("rules") or []
    if ref := item.get("roleRef"):
        role = of.store.get(ref["kind"], of.namespace if ref["kind"] == "Role" else "", ref["name"])
        if role is None:
            raise not_found(
                of.full, ref["name"]
            )  # as kube-apiserver 1.36 has it: the role's name, the binding's kind
        rules = role.get("rules") or []
    asked = [
        (verb, group, plural)
        for rule in rules
        for group in rule["apiGroups"]
        for plural in rule["resources"]
        for verb in rule["verbs"]
    ]
    missing = [
        f"{{APIGroups:[{group!r}], Resources:[{plural!r}], Verbs:[{verb!r}]}}".replace("'", '"')
        for verb, group, plural in asked
        if not allows(of.store, user, verb, group, plural, of.namespace)
    ]
    if missing:
        name, lines = item["metadata"]["name"], "\n".join(missing)
        why = f'user "{user}" is attempting to grant RBAC permissions not currently held:\n{lines}'
        raise status_error(
            403, "Forbidden", f'{of.full} "{name}" is forbidden: {why}', name=name, kind=of.full
        )
