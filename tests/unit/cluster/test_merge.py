"""Three-way merges: as server-side apply would, as far as values tell."""

from __future__ import annotations

from typing import Any

import pytest

from gpunode.cluster.api.notes import merge, patch

Object = dict[str, Any]
C = {"name": "c", "image": "i:1"}


def containers(*items: Object) -> Object:
    return {"spec": {"containers": list(items)}}


def labels(**values: str) -> Object:
    return {"metadata": {"labels": values}}


# live, last wish, wish -> result, fields taken from others
CASES: dict[str, tuple[Object, Object, Object, Object, tuple[str, ...]]] = {
    "nothing changes": (labels(a="1"), labels(a="1"), labels(a="1"), labels(a="1"), ()),
    "another's key stays": (labels(a="1", b="x"), labels(a="1"), labels(a="2"), labels(a="2", b="x"), ()),
    "ours goes": (labels(a="1", b="x"), labels(a="1"), {}, labels(b="x"), ()),
    "the last of ours goes with its map": (labels(a="1"), labels(a="1"), {}, {}, ()),
    "ours that another has changed since stays": (labels(a="9"), labels(a="1"), {}, labels(a="9"), ()),
    "ours that another has taken off comes back": ({}, labels(a="1"), labels(a="1"), labels(a="1"), ()),
    "set back": (labels(a="9"), labels(a="1"), labels(a="1"), labels(a="1"), (".metadata.labels.a",)),
    "taken": (labels(a="9"), {}, labels(a="1"), labels(a="1"), (".metadata.labels.a",)),
    "the same as another's is nobody's loss": (labels(a="1"), {}, labels(a="1"), labels(a="1"), ()),
    "an item keeps its defaults": (
        containers({**C, "policy": "Always"}),
        containers(C),
        containers({**C, "image": "i:2"}),
        containers({**C, "image": "i:2", "policy": "Always"}),
        (),
    ),
    "an item that another has edited": (
        containers({**C, "image": "evil"}),
        containers(C),
        containers(C),
        containers(C),
        ('.spec.containers[name="c"].image',),
    ),
    "another's item stays where it was": (
        containers({"name": "s", "image": "x"}, C),
        containers(C),
        containers({**C, "image": "i:2"}, {"name": "d", "image": "y"}),
        containers({"name": "s", "image": "x"}, {**C, "image": "i:2"}, {"name": "d", "image": "y"}),
        (),
    ),
    "an item of ours goes whole": (
        containers({**C, "policy": "Always"}, {"name": "d", "image": "y", "policy": "Always"}),
        containers(C, {"name": "d", "image": "y"}),
        containers(C),
        containers({**C, "policy": "Always"}),
        (),
    ),
    "a list that leaves the wish leaves others' items": (
        containers({**C, "env": [{"name": "A", "value": "1"}, {"name": "B", "value": "x"}]}),
        containers({**C, "env": [{"name": "A", "value": "1"}]}),
        containers(C),
        containers({**C, "env": [{"name": "B", "value": "x"}]}),
        (),
    ),
    "a list that leaves the wish goes where all of it is ours": (
        containers({**C, "env": [{"name": "A", "value": "edited"}]}),
        containers({**C, "env": [{"name": "A", "value": "1"}]}),
        containers(C),
        containers(C),
        (),
    ),
    "a field of ours goes with its defaults": (
        {"spec": {"probe": {"port": 1, "scheme": "HTTP"}, "other": 1}},
        {"spec": {"probe": {"port": 1}}},
        {"spec": {}},
        {"spec": {"other": 1}},
        (),
    ),
    "a list without names keeps its items' defaults": (
        {"rules": [{"verbs": ["get"], "groups": [""]}]},
        {"rules": [{"verbs": ["get"]}]},
        {"rules": [{"verbs": ["get"]}]},
        {"rules": [{"verbs": ["get"], "groups": [""]}]},
        (),
    ),
    "a list without names is replaced whole": (
        {"rules": [{"verbs": ["get", "*"]}]},
        {"rules": [{"verbs": ["get"]}]},
        {"rules": [{"verbs": ["list"]}]},
        {"rules": [{"verbs": ["list"]}]},
        (".rules",),
    ),
    "what is empty is dropped by the API server": (
        {"spec": {"a": 1}},
        {"spec": {"a": 1, "value": ""}},
        {"spec": {"a": 1, "value": ""}},
        {"spec": {"a": 1}},
        (),
    ),
    "its own version is the API server's": (
        {"apiVersion": "node.k8s.io/v1", "handler": "h"},
        {"apiVersion": "node.k8s.io/v1beta1", "handler": "h"},
        {"apiVersion": "node.k8s.io/v1beta1", "handler": "h"},
        {"apiVersion": "node.k8s.io/v1", "handler": "h"},
        (),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES)
def test_a_wish_is_merged(case: tuple[Object, Object, Object, Object, tuple[str, ...]]) -> None:
    """What was last wished tells ours from others'; the patch leads there, and a second merge changes nothing."""
    live, last, wish, result, taken = case
    assert merge(live, last, wish) == (result, taken)
    assert merge(result, wish, wish) == (result, ())
    assert _patched(live, patch(live, result)) == result


def _patched(value: Any, fields: Any) -> Any:
    """RFC 7386, as it is written there."""
    if not isinstance(fields, dict):
        return fields
    done = dict(value) if isinstance(value, dict) else {}
    for key, one in fields.items():
        if one is None:
            done.pop(key, None)
        else:
            done[key] = _patched(done.get(key), one)
    return done
