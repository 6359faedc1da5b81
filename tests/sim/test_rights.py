"""What a run's user needs to be allowed: the ClusterRole of docs/rights.md, and nothing that a run does not ask for."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import yaml

from gpunode.cluster.api.kinds import path
from gpunode.sim.host import kinds
from gpunode.sim.process import Demo

from . import operators
from .jobs import applies, change, client, cordoned, job

pytestmark = pytest.mark.usefixtures("records")
HOST, USER = "gpu-1", "nobody"
BLOCKS = (Path(__file__).parents[2] / "docs/rights.md").read_text().split("```yaml\n")[1:]
ROLES = {
    role["metadata"]["name"]: role for block in BLOCKS if (role := yaml.safe_load(block.split("```")[0]))
}
ROLE, VIEWER = ROLES["gpunode-operator"], ROLES["gpunode-viewer"]
VERBS = {"GET": "get", "POST": "create", "PUT": "update", "PATCH": "patch", "DELETE": "delete"}
# An apply creates where there is nothing. Objects of a plugin that is not wanted any more are found and deleted.
MAINTENANCE = {"create", "delete", "list", "patch", "watch"}
CLAIMS = {"resourceclaims", "resourceclaimtemplates"}  # of hosts with `allocation: dra`


@pytest.fixture(scope="module")
def demo() -> Iterator[Demo]:
    """A bare host, and a user with no right but those of the document's role."""
    with Demo([kinds.old_host(HOST, count=1)]) as made:
        written = yaml.safe_load(made.inventory.read_text())
        written["cluster"]["kubeconfig"] = "kubeconfig-nobody"
        made.inventory.write_text(yaml.safe_dump(written))
        allow(made, ROLE["rules"])
        yield made


def allow(demo: Demo, rules: list[dict[str, Any]], namespace: str | None = None) -> None:
    """In this namespace, or in all of them."""
    kind, api = "Role" if namespace else "ClusterRole", client(demo)
    name = ROLE["metadata"]["name"]
    binding = {
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": kind, "name": name},
        "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": USER}],
    }
    for what, values in ((kind, {"rules": rules}), (f"{kind}Binding", binding)):
        made = {**values, "apiVersion": ROLE["apiVersion"], "kind": what, "metadata": {"name": name}}
        code, answer = api.apply(made, path(what, namespace, name), force="true")
        assert code in (200, 201), answer


def given(rules: list[dict[str, Any]]) -> set[tuple[str, str]]:
    """Verb and resource."""
    return {(verb, resource) for rule in rules for resource in rule["resources"] for verb in rule["verbs"]}


def right(line: str) -> tuple[str, str] | None:
    """What RBAC calls a request; None for those that every user may make."""
    method, where = line.removesuffix("/gpus").split()
    parts = where.strip("/").split("/")
    rest = parts[2:] if parts[0] == "api" else parts[3:]
    if len(rest) > 2 and rest[0] == "namespaces":
        rest = rest[2:]
    if not rest or rest[0] == "selfsubjectaccessreviews":
        return None
    verb = "list" if method == "GET" and len(rest) == 1 else VERBS.get(method, "watch")
    return verb, "/".join((rest[0], *rest[2:]))


def test_the_documents_role_is_what_a_run_asks_for(demo: Demo):
    """From a bare host to a drained one: all of it is allowed, and nothing stands there that is not asked for."""
    words, asked = ("provision", "inventory.yaml", "--yes"), demo.folder / "asked"
    code, _ = operators.run(demo, *words, asked=str(asked))
    assert code == 0, operators.last_words(demo)
    wish = yaml.safe_load(demo.inventory.read_text())
    wish["defaults"]["work"] = "drain"
    demo.inventory.write_text(yaml.safe_dump(wish))
    change(demo, HOST)
    job(client(demo), "web", HOST, 600)
    code, _ = operators.run(demo, *words, asked=str(asked))
    assert code == 0, operators.last_words(demo)

    for look in (("verify",), ("status",), ("why", "node", HOST)):
        code, _ = operators.run(demo, *look, "inventory.yaml", asked=str(asked))
        assert code == 0, (look, operators.last_words(demo))

    needed = {granted for line in asked.read_text().splitlines() if (granted := right(line))}
    assert needed - given(ROLE["rules"]) == set()
    assert {resource for _, resource in given(ROLE["rules"])} - {resource for _, resource in needed} <= CLAIMS
    unused = {(verb, resource) for verb, resource in given(ROLE["rules"]) - needed if verb not in MAINTENANCE}
    assert unused == set()


@pytest.mark.parametrize(
    ("taken", "words"),
    [
        ({("update", "leases")}, "update leases.coordination.k8s.io in namespace kube-system"),
        ({("create", "pods/eviction")}, "create pods/eviction"),
        (
            {("patch", "nodes"), ("create", "pods"), ("get", "pods/log")},
            "patch nodes, create pods in namespace gpunode, get pods/log in namespace gpunode",
        ),
    ],
)
def test_a_missing_right_is_named_before_anything_is_changed(
    demo: Demo, taken: set[tuple[str, str]], words: str
):
    change(demo, HOST)
    before = applies(demo, HOST)
    rules = [
        {**rule, "resources": [resource], "verbs": [verb]}
        for rule in ROLE["rules"]
        for resource in rule["resources"]
        for verb in rule["verbs"]
        if (verb, resource) not in taken
    ]
    allow(demo, rules)
    try:
        code, _ = operators.run(demo, "provision", "inventory.yaml", "--yes")
    finally:
        allow(demo, ROLE["rules"])
    assert code == 4
    assert f"the Kubernetes API does not let this user {words}: nothing was changed" in operators.last_words(
        demo
    )
    assert (applies(demo, HOST), cordoned(client(demo))) == (before, [])


def test_who_may_only_look_sees_all_but_test_pods(demo: Demo):
    """The document's second role is enough, and nothing stands there that no command asks for."""
    asked = demo.folder / "looked"
    assert operators.run(demo, "provision", "inventory.yaml", "--yes")[0] == 0
    allow(demo, VIEWER["rules"])
    try:
        for words in (("verify", "--no-run"), ("status",), ("why", "node", HOST)):
            code, _ = operators.run(demo, *words, "inventory.yaml", asked=str(asked))
            assert code == 0, (words, operators.last_words(demo))
        code, seen = operators.run(demo, "verify", "inventory.yaml")
    finally:
        allow(demo, ROLE["rules"])
    (pod,) = (line for line in seen if line["type"] == "link" and line["layer"] == "pod")
    text = "not tried: no right to create/delete/watch pods in namespace gpunode"
    assert (code, pod["status"], pod["text"]) == (4, "unknown", text)
    needed = {granted for line in asked.read_text().splitlines() if (granted := right(line))}
    assert needed - given(VIEWER["rules"]) == set()


def test_who_may_nothing_gets_a_role_with_all_that_is_missing(demo: Demo):
    """It is enough to go on, as it is printed."""
    assert operators.run(demo, "provision", "inventory.yaml", "--yes")[0] == 0
    allow(demo, [])
    try:
        code, seen = operators.run(demo, "verify", "inventory.yaml", "--no-run")
        (node,) = (line for line in seen if line["type"] == "link" and line["layer"] == "node")
        text = "not judged: this user has no right to read the cluster"
        assert (code, node["status"], node["text"]) == (4, "unknown", text)
        assert node["cause"] == f"user {USER} lacks 7 rights"
        roles = list(yaml.safe_load_all(node["fix"].split("<<'END'\n")[1].split("END\n")[0]))
        for role in roles:
            if "rules" in role:
                allow(demo, role["rules"], role["metadata"].get("namespace"))
        assert {role["subjects"][0]["name"] for role in roles if "roleRef" in role} == {USER}
        code, _ = operators.run(demo, "verify", "inventory.yaml", "--no-run")
        assert code == 0, operators.last_words(demo)
        allow(demo, [])
        allow(demo, [], "gpunode")
        code, _ = operators.run(demo, "provision", "inventory.yaml", "--yes")
        refused = operators.output(demo)
    finally:
        allow(demo, ROLE["rules"])
    assert code == 4
    assert f"nothing was changed: user {USER} lacks " in refused
    granted = {
        (role["metadata"].get("namespace", ""), resource): set(rule["verbs"])
        for role in yaml.safe_load_all(refused.split("<<'END'\n")[1].split("END\n")[0])
        for rule in role.get("rules", ())
        for resource in rule["resources"]
    }
    assert granted["", "nodes"] >= {"get", "list", "patch", "watch"}
    assert granted["gpunode", "daemonsets"] >= {"get", "patch", "create"}
    assert granted["default", "events"] >= {"create", "patch"}  # the plugin's own
