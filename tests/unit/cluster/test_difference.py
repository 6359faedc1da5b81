"""How a change of an object reads."""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from gpunode.cluster.objects import difference
from gpunode.links.plugin.deployment import Spec
from gpunode.model import PluginConfig, PluginImage, PluginPublish

Object = dict[str, Any]


def config_map(**data: str) -> Object:
    return {
        "kind": "ConfigMap",
        "apiVersion": "v1",
        "metadata": {"name": "c", "namespace": "n"},
        "data": data,
    }


def container(**fields: Any) -> Object:
    template = {"spec": {"containers": [{"name": "c", **fields}]}}
    return {"kind": "DaemonSet", "metadata": {"name": "d"}, "spec": {"template": template}}


def test_a_text_of_several_lines_is_compared_line_by_line() -> None:
    """The plugin's configuration is one value of a ConfigMap."""
    before, after = config_map(a="x: 1\ny: 2\n"), config_map(a="x: 1\ny: 3\n")
    shown = difference.changed(before, after)
    assert (shown.what, shown.action) == ("ConfigMap n/c", "changed")
    assert [line for line in shown.lines if line[0] in "+-"] == ["-    y: 2", "+    y: 3"]


@pytest.mark.parametrize(
    "noise",
    [
        {"managedFields": [{"manager": "x"}]},
        {"resourceVersion": "7", "generation": 3, "uid": "u", "creationTimestamp": "t"},
        {"annotations": {"deprecated.daemonset.template.generation": "4"}},
        {"annotations": {"kubectl.kubernetes.io/last-applied-configuration": '{"password": "hunter2"}'}},
    ],
)
def test_bookkeeping_of_others_is_no_difference(noise: Object) -> None:
    """Of the API server and of kubectl; nor is the status."""
    plain = config_map(a="b")
    busy = {**plain, "metadata": {**plain["metadata"], **noise}, "status": {"phase": "Active"}}
    assert difference.changed(busy, plain).action == "same"
    assert difference.removed(busy).lines == difference.removed(plain).lines


@pytest.mark.parametrize(
    "item",
    [
        container(env=[{"name": "DB_PASSWORD", "value": "hunter2"}]),
        container(env=[{"name": "AWS_SECRET_ACCESS_KEY", "value": "hunter2"}]),
        container(env=[{"name": "api_token", "value": "hunter2"}]),
        container(args=["--token=hunter2"]),
        container(args=["https://me:hunter2@mirror.example"]),
        config_map(a="password: hunter2\n"),
        config_map(a="x: 1\n  auth_token: hunter2 and more\n"),
        config_map(a="[x]\nsecret = 'hunter2'\n"),
        config_map(password="hunter2"),
        config_map(a="-----BEGIN RSA PRIVATE KEY-----\nhunter2\n-----END RSA PRIVATE KEY-----\n"),
    ],
    ids=lambda item: str(item.get("data") or item["spec"]["template"]["spec"]["containers"]),
)
def test_a_secret_appears_by_its_size(item: Object) -> None:
    """Whether it comes, goes, changes, or stands beside what changes."""
    other = copy.deepcopy(item)
    other["metadata"]["labels"] = {"x": "y"}
    longer = json.loads(json.dumps(item).replace("hunter2", "hunter2hunter2"))
    for shown in (
        difference.created(item),
        difference.removed(item),
        difference.changed(item, other),
        difference.changed(item, longer),
        difference.compared(item, longer, "why"),
    ):
        assert "hunter2" not in str(shown.lines)
        assert shown.lines
    assert "characters>" in str(difference.created(item).lines)


def test_a_secret_that_changes_is_not_silent() -> None:
    """The person sees that something does, and not what."""
    assert difference.changed(config_map(a="password: aaaa\n"), config_map(a="password: bbbb\n")).lines == (
        "(a secret changes)",
    )


def test_what_is_no_secret_is_shown() -> None:
    """Keys that only sound like it."""
    item = container(
        volumes=[{"name": "v", "secret": {"secretName": "shown"}}],
        automountServiceAccountToken=False,
        env=[{"name": "FAIL_ON_INIT_ERROR", "value": "false"}],
    )
    lines = "\n".join(difference.created(item).lines)
    assert "secretName: shown" in lines
    assert "automountServiceAccountToken: false" in lines
    assert "characters>" not in lines


def test_objects_of_ours_hold_no_secret() -> None:
    """Nothing of what gpunode applies is hidden from who is asked."""
    publish = PluginPublish(events=True, annotation=True, metrics=True)
    for manifest in Spec(
        "n", PluginImage("i:1", "id"), PluginConfig("version: v1\n", mps_root="/m"), publish
    ).manifests:
        assert "characters>" not in "\n".join(difference.created(manifest).lines)


def test_labels_read_as_what_goes_and_what_comes() -> None:
    """As `kubectl label` takes them."""
    changes = {"a": (None, "1"), "b": ("1", "2"), "c": ("3", None)}
    shown = difference.labelled("gpu-1", changes)
    assert (shown.what, shown.action) == ("Node gpu-1", "labelled")
    assert shown.lines == ("+a=1", "-b=1", "+b=2", "-c=3")
    assert difference.labelled("gpu-1", {}).action == "same"


COMPARED = {
    "the same": (container(image="i"), container(image="i"), ()),
    "a default": (container(image="i"), container(image="i", terminationMessagePath="/dev/x"), ()),
    "somebody's variable": (
        container(env=[{"name": "A", "value": "1"}]),
        container(env=[{"name": "B", "value": "2"}, {"name": "A", "value": "1"}]),
        (),
    ),
    "another image": (container(image="i"), container(image="j"), ("-      - image: j", "+      - image: i")),
    "a variable taken away": (
        container(env=[{"name": "A", "value": "1"}, {"name": "B", "value": "2"}]),
        container(env=[{"name": "A", "value": "1"}]),
        ("+        - name: B", "+          value: '2'"),
    ),
    "a list that is one value": (
        container(args=["a", "b"]),
        container(args=["b", "a", "c"]),
        ("+        - a", "-        - a", "-        - c"),
    ),
    "a field of another type": (
        container(env=[]),
        container(env={}),
        ("-      - env: {}", "+      - env: []"),
    ),
}


@pytest.mark.parametrize("what", COMPARED)
def test_without_a_dry_run_what_is_wished_is_compared_with_what_is_there(what: str) -> None:
    """As far as it is wished: defaults, and what others added, are no difference."""
    wish, live, lines = COMPARED[what]
    shown = difference.compared(live, wish, "why")
    assert tuple(line for line in shown.lines if line[0] in "+-") == lines
    assert shown.untried == "why"


def test_without_a_dry_run_what_is_not_there_is_new() -> None:
    """It is reported as not tried."""
    shown = difference.compared(None, config_map(a="b"), "why")
    assert (shown.action, shown.untried) == ("created", "why")
