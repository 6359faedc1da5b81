"""The rights that a user lacks: which are named, in which order, and the roles on offer."""

from collections.abc import Iterable
from contextlib import nullcontext
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from gpunode.cluster import rights
from gpunode.cluster.rights import Right
from gpunode.engine import nodes
from gpunode.errors import NO_RIGHTS, ApiConnectionLost, ClusterError, HttpError
from gpunode.links.plugin.deployment import all_objects
from gpunode.model import Cluster, Inventory, PluginImage

SERVED: Any = SimpleNamespace(
    served=SimpleNamespace(has=lambda _: True, fit=lambda version: version)
)  # an API
INVENTORY = Inventory("inventory.yaml", (), Cluster(plugin=PluginImage("plugin:1")))
PLUGIN = nodes.spec_of(INVENTORY).manifests
BLOCKS = (Path(__file__).parents[3] / "docs/rights.md").read_text().split("```yaml\n")[1:]
ROLES = {
    role["metadata"]["name"]: role["rules"]
    for block in BLOCKS
    if (role := yaml.safe_load(block.split("```")[0]))
}


def refusal(verb: str, resource: str, where: str = "at the cluster scope") -> HttpError:
    detail = f'is forbidden: User "ops" cannot {verb} resource "{resource}" in API group "" {where}'
    return HttpError("refused", status=403, reason="Forbidden", detail=detail)


def lacking(monkeypatch, *missing: Right) -> None:
    monkeypatch.setattr(nodes, "api_of", lambda _: SERVED)
    monkeypatch.setattr(rights, "find_missing", lambda *_: missing)


def grants(rules: Iterable[dict[str, Any]], right: Right) -> bool:
    whole, mark, part = right.resource.partition("/")
    name, _, group = whole.partition(".")
    return any(
        group in rule["apiGroups"]
        and f"{name}{mark}{part}" in rule["resources"]
        and right.verb in rule["verbs"]
        for rule in rules
    )


def test_the_documents_roles_have_all_rights_that_commands_ask_for():
    operator, viewer = ROLES["gpunode-operator"], ROLES["gpunode-viewer"]
    asked = {
        *rights.of_reading("ns"),
        *rights.of_run("ns", proves=True),
        *rights.of_objects(PLUGIN, all_objects("ns")),
        *rights.of_claims("ns"),
        *rights.of_owners(),
        *rights.EVICTION,
    }
    shared = {*rights.of_share("ns"), *rights.of_notebook("ns")}

    assert [right for right in asked if not grants(operator, right)] == []
    assert [right for right in shared if not grants(operator + ROLES["gpunode-share-operator"], right)] == []
    assert [right for right in rights.of_reading("ns") if not grants(viewer, right)] == []


def test_the_refused_right_comes_first_in_what_is_missing(monkeypatch):
    lacking(monkeypatch, Right("list", "nodes"), Right("get", "pods/proxy", "gpunode"))
    refused = refusal("get", "pods/proxy", 'in the namespace "gpunode"')

    named = nodes.name_rights(INVENTORY, refused)

    assert named.message.endswith("let this user get pods/proxy in namespace gpunode, list nodes")
    assert (named.problem.code, named.exit_code) == (NO_RIGHTS, 4)


@pytest.mark.parametrize(
    ("refused", "missing"),
    [
        (refusal("patch", "nodes/status"), (Right("list", "nodes"),)),
        (refusal("list", "nodes"), (Right("list", "nodes"),)),
        (refusal("list", "nodes"), ()),
    ],
    ids=["no right to read", "it alone is missing", "it was granted since"],
)
def test_a_refusal_that_says_all_stays(monkeypatch, refused: HttpError, missing: tuple[Right, ...]):
    lacking(monkeypatch, *missing)
    named = nodes.name_rights(INVENTORY, refused)
    assert (named, named.message, named.problem.code) == (refused, "refused", NO_RIGHTS)
    assert named.exit_code == 4


def test_a_refusal_stays_when_the_api_is_gone_by_then(monkeypatch):
    def lose(*_: object) -> None:
        raise ApiConnectionLost("gone")

    lacking(monkeypatch)
    monkeypatch.setattr(rights, "find_missing", lose)
    refused = refusal("list", "nodes")
    assert nodes.name_rights(INVENTORY, refused) is refused
    refused = refusal("patch", "namespaces")
    assert nodes.name_rights_to_deploy(SERVED, INVENTORY, refused) is refused


def test_the_role_on_offer_holds_no_more_than_is_missing():
    """A right of one namespace is granted there."""
    missing = (
        Right("get", "secrets", "gpunode"),
        Right("list", "nodes"),
        Right("get", "pods", "kube-system"),
    )
    objects = granted(rights.lacks(missing, user="ops"))
    roles = [
        (item["kind"], item["metadata"].get("namespace"), [rule["resources"] for rule in item["rules"]])
        for item in objects
        if "rules" in item
    ]
    bindings = [item for item in objects if "roleRef" in item]

    assert roles == [
        ("Role", "gpunode", [["secrets"]]),
        ("ClusterRole", None, [["nodes"]]),
        ("Role", "kube-system", [["pods"]]),
    ]
    assert "Namespace" not in {
        item["kind"] for item in objects
    }  # an apply would take labels from one that is there
    assert [(item["kind"], item["metadata"].get("namespace")) for item in bindings] == [
        (f"{kind}Binding", namespace) for kind, namespace, _ in roles
    ]
    role = bindings[0]["roleRef"]["name"]
    assert {(item["roleRef"]["name"], item["subjects"][0]["name"]) for item in bindings} == {(role, "ops")}
    assert {item["metadata"]["name"] for item in objects} == {role}


def test_many_missing_rights_are_counted_as_the_roles_name_them():
    many = [Right(verb, f"r{number}") for number in range(5) for verb in ("get", "list")]
    refused = rights.lacks(many, ": nothing was changed", "ops")
    assert refused.message == "nothing was changed: user ops lacks 10 rights"
    assert all(f"[r{number}]" in refused.hint for number in range(5))
    assert str(rights.lacks([*many, Right("get", "pods.x.io/log", "ml")])).splitlines() == [
        "this user lacks 11 rights",
        "  Missing:",
        "    cluster: get/list r0, r1, r2, r3, r4",
        "    namespace ml: get pods/log",
        "  Roles for an administrator to apply: `gpunode help rights`. --json prints a manifest of exactly these rights.",
    ]
    assert rights.lacks(many).message == "this user lacks 10 rights"
    assert rights.lacks(many[:2]).message == "the Kubernetes API does not let this user get/list r0"


def test_only_a_namespace_that_may_be_missing_is_made_first():
    missing = [Right("list", "pods", name) for name in ("default", "kube-system", "gpunode")]
    made = [line for line in rights.lacks(missing).hint.splitlines() if line.startswith("kubectl get")]
    assert made == ["kubectl get namespace gpunode || kubectl create namespace gpunode"]


@pytest.mark.parametrize(("lacked", "named"), [("a", "get a"), ("a b", "get a, get b"), ("b", "")])
def test_who_lacks_only_what_the_dry_run_judges_is_not_refused_before_it(
    monkeypatch, lacked: str, named: str
):
    """As who may escalate: he needs no right that he grants. Else all are named at once."""
    monkeypatch.setattr(rights, "_has", lambda _, right: right.resource not in lacked.split())
    monkeypatch.setattr(rights, "_user", lambda _: "ops")
    refused = pytest.raises(ClusterError, match=f"this user {named}: nothing") if named else nullcontext()
    with refused:
        rights.demand(SERVED, [Right("get", "a")], [Right("get", "a"), Right("get", "b")])


def test_a_second_grant_takes_nothing_from_the_first():
    """Of other rights, or of the same ones to another user."""
    first, second = (granted(rights.lacks((Right("get", "nodes"),))) for _ in range(2))
    assert {item["metadata"]["name"] for item in first} & {
        item["metadata"]["name"] for item in second
    } == set()


def test_rights_to_deploy_are_those_to_the_objects_and_those_that_their_roles_grant():
    needed = rights.of_objects(PLUGIN, all_objects("gpunode"))
    assert Right("patch", "daemonsets.apps", "gpunode") in needed
    assert {Right("create", "events", "default"), Right("patch", "events", "default")} <= {*needed}
    assert Right("list", "daemonsets.apps", "gpunode") in rights.of_run("gpunode", proves=False)
    assert rights.of_owners()[0] in nodes.rights_to_deploy(SERVED, INVENTORY)
    older: Any = SimpleNamespace(served=SimpleNamespace(has=lambda kind: kind != "ResourceSlice", fit=dict))
    assert rights.of_owners()[0] not in nodes.rights_to_deploy(older, INVENTORY)
    cluster_roles = "clusterroles.rbac.authorization.k8s.io"  # that an earlier configuration may have left
    assert [right.verb for right in needed if right.resource == cluster_roles] == ["get"]


def test_a_refused_grant_names_all_that_a_deployment_lacks(monkeypatch):
    lacking(monkeypatch, Right("create", "events", "default"), Right("watch", "nodes"))
    rules = '{APIGroups:[""], Resources:["events"], Verbs:["create"]}'
    detail = f'roles "x" is forbidden: user "ops" is attempting to grant RBAC permissions not currently held:\n{rules}'

    error = HttpError("refused", status=403, reason="Forbidden", detail=detail)
    named = nodes.name_rights_to_deploy(SERVED, INVENTORY, error)

    assert named.message.endswith("let this user create events in namespace default, watch nodes")


def test_a_refusal_of_another_right_than_a_deployments_stays(monkeypatch):
    lacking(monkeypatch, Right("watch", "nodes"))
    refused = refusal("list", "secrets")
    assert nodes.name_rights_to_deploy(SERVED, INVENTORY, refused) is refused


def test_the_role_on_offer_is_bound_to_the_kubeconfigs_user(monkeypatch):
    """Before Kubernetes 1.28 nobody tells who that is."""
    monkeypatch.setattr(rights, "_has", lambda *_: False)

    def refuse(_: object) -> None:
        raise HttpError("refused", status=404, reason="NotFound", detail="")

    told = {"status": {"userInfo": {"username": "ann"}}}
    for create, user in ((lambda _: told, "ann"), (refuse, "USER")):
        with pytest.raises(ClusterError) as caught:
            rights.demand(SimpleNamespace(create=create), [Right("get", "a")])
        binding = granted(caught.value)[-1]
        assert binding["subjects"][0]["name"] == user
        assert ("for USER" in caught.value.hint) == (user == "USER")


def granted(error: ClusterError) -> list[dict[str, Any]]:
    """The objects on offer."""
    return list(yaml.safe_load_all(error.hint.partition("<<'END'\n")[2].partition("\nEND\n")[0]))
