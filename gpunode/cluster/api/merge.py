"""Three-way merges: what a writer wished last, what is there, and what it wishes now, without server-side apply. Pure.

The API server's own rules (https://kubernetes.io/docs/reference/using-api/server-side-apply/), as far as values tell: a field
that still has the value which the writer gave it is the writer's.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from gpunode.cluster.api.kinds import Object

# Lists whose items have a name of their own, by the field that has it.
KEYS = {
    "containers": "name",
    "env": "name",
    "ports": "containerPort",
    "volumeMounts": "mountPath",
    "volumes": "name",
}
FREE = {"metadata", "labels", "annotations", "data"}  # maps in which others have keys of their own
IDENTITY = {"apiVersion", "kind"}
_NONE: Any = object()


def merged(live: Object, last: Object, wish: Object) -> tuple[Object, tuple[str, ...]]:
    """The object with the wish in it, and the fields that have to be taken from others for that, as the API server writes
    them: they have another value than the wish, and than the last wish had."""
    taken: list[str] = []
    bare, before = ({k: v for k, v in one.items() if k not in IDENTITY} for one in (wish, last))
    result: Object = _map(live, before, bare, "", taken)
    return result, tuple(taken)


def patch(before: Object, after: Object) -> Object:
    """The JSON merge patch (RFC 7386) that makes `after` of `before`."""
    fields: Object = {key: None for key in before if key not in after}
    for key, value in after.items():
        if key not in before:
            fields[key] = value
        elif isinstance(value, dict) and isinstance(before[key], dict):
            if below := patch(before[key], value):
                fields[key] = below
        elif value != before[key]:
            fields[key] = value
    return fields


def covers(live: Any, wish: Any) -> bool:
    """Whether `live` has all of the wish: the API server adds defaults, and drops what is empty."""
    if isinstance(wish, dict) and isinstance(live, dict):
        return all(covers(live.get(key, _NONE), value) for key, value in wish.items())
    if isinstance(wish, list) and isinstance(live, list):
        return len(live) == len(wish) and all(map(covers, live, wish))
    return bool(live == wish) or (live is _NONE and _empty(wish))


def _empty(value: Any) -> bool:
    return value in (None, "", [], {})


def _merged(live: Any, last: Any, wish: Any, place: str, name: str, taken: list[str]) -> Any:
    if isinstance(wish, dict) and isinstance(live, dict):
        return _map(live, last if isinstance(last, dict) else {}, wish, place, taken)
    if name in KEYS and isinstance(wish, list) and isinstance(live, list):
        return _items(live, last if isinstance(last, list) else [], wish, place, KEYS[name], taken)
    if covers(live, wish):
        return live
    if live is not _NONE and (last is _NONE or not covers(live, last)):
        taken.append(place)
    return wish


def _map(live: Object, last: Object, wish: Object, place: str, taken: list[str]) -> Object:
    result = dict(live)
    for key in last.keys() - wish.keys():
        if key not in live:
            continue
        if key in FREE and isinstance(live[key], dict) and isinstance(last[key], dict):
            result[key] = _map(live[key], last[key], {}, f"{place}.{key}", taken)
            if not result[key]:
                del result[key]
        elif key in KEYS and isinstance(live[key], list) and isinstance(last[key], list):
            result[key] = _items(live[key], last[key], [], f"{place}.{key}", KEYS[key], taken)
            if not result[key]:
                del result[key]
        elif covers(live[key], last[key]):
            del result[key]
    for key, value in wish.items():
        there = live.get(key, _NONE)
        found = _merged(there, last.get(key, _NONE), value, f"{place}.{key}", key, taken)
        if found is not _NONE:
            result[key] = found
    return result


def _items(
    live: list[Any], last: list[Any], wish: list[Any], place: str, by: str, taken: list[str]
) -> list[Any]:
    """Items in the order of the wish; those of others stay before the item that they preceded."""
    there, before = _by(live, by), _by(last, by)
    wished = _by(wish, by)
    left = [one for one in live if one.get(by) in wished or one.get(by) not in before]
    result: list[Any] = []
    for key, one in wished.items():
        while left and left[0].get(by) not in wished:
            result.append(left.pop(0))
        if key not in there:
            result.append(one)
            continue
        left.remove(there[key])
        words = f"{place}[{by}={json.dumps(key)}]"
        result.append(_map(there[key], before.get(key, {}), one, words, taken))
    return result + left


def _by(items: list[Any], by: str) -> Mapping[Any, Object]:
    return {one.get(by): one for one in items}
