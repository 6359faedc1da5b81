"""Patches of objects: JSON patches, JSON merge patches, and the strategic ones that kubectl makes, which merge lists."""

from __future__ import annotations

import copy
from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import Any

from gpunode.sim.apiserver import fields
from gpunode.sim.apiserver.errors import status_error
from gpunode.sim.apiserver.store import Object

# A strategic patch merges the items of these lists by a field, and replaces other lists (the kinds' patchMergeKey).
KEYS = {**fields.KEYS, "ports": "containerPort"}
ORDER, WITHOUT = "$setElementOrder/", "$deleteFromPrimitiveList/"


def merged(live: Object, patch: Mapping[str, Any]) -> Object:
    """RFC 7386: the patch's values replace the object's; null removes one."""
    result = copy.deepcopy(live)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            there = result.get(name)
            result[name] = merged(there if isinstance(there, dict) else {}, value)
        else:
            result[name] = copy.deepcopy(value)
    return result


def strategic(live: Object, patch: Mapping[str, Any]) -> Object:
    """The object after a strategic merge patch, with its directives."""
    wish = {name: value for name, value in patch.items() if not name.startswith("$")}
    if patch.get("$patch") == "replace":
        return copy.deepcopy(wish)
    kept = {*patch.get("$retainKeys", live), *wish}
    result = {name: copy.deepcopy(value) for name, value in live.items() if name in kept}
    for name, value in patch.items():
        if name.startswith(WITHOUT):
            field = name.removeprefix(WITHOUT)
            result[field] = [one for one in result.get(field, []) if one not in value]
    for name, value in wish.items():
        there = result.get(name)
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            result[name] = strategic(there if isinstance(there, dict) else {}, value)
        elif name in KEYS and all(isinstance(one, dict) for one in value):
            order = [one[KEYS[name]] for one in patch.get(f"{ORDER}{name}", [])]
            result[name] = _list(there or [], value, KEYS[name], order)
        elif name == "finalizers":
            result[name] = [*(there or []), *(one for one in value if one not in (there or []))]
        else:
            result[name] = copy.deepcopy(value)
    return result


def listed(live: Object, steps: list[Object]) -> Object:
    """RFC 6902: add, remove, replace and test, in order. Raises StatusError, and TypeError if it is not a patch."""
    if not isinstance(steps, list):
        raise TypeError("a JSON patch is a list")
    result: Any = copy.deepcopy(live)
    for step in steps:
        *way, last = [one.replace("~1", "/").replace("~0", "~") for one in step["path"].split("/")[1:]]
        try:
            at = result
            for name in way:
                at = at[int(name) if isinstance(at, list) else name]
            _step(at, last, step)
        except (KeyError, IndexError, ValueError) as error:
            why = (
                f"the server rejected our request due to an error in our request: {step['op']} {step['path']}"
            )
            raise status_error(422, "Invalid", why) from error
    return dict(result)


def _step(at: Any, last: str, step: Object) -> None:
    place: Any = (len(at) if last == "-" else int(last)) if isinstance(at, list) else last
    if step["op"] == "add" and isinstance(at, list):
        at.insert(place, step["value"])
    elif step["op"] == "add":
        at[place] = step["value"]
    elif step["op"] == "remove":
        del at[place]
    elif step["op"] not in {"replace", "test"} or (step["op"] == "test" and at[place] != step["value"]):
        raise ValueError(step["op"])
    else:
        at[place] = step["value"]


def _list(live: list[Object], patch: list[Object], by: str, order: list[Any]) -> list[Object]:
    if any(one.get("$patch") == "replace" and by not in one for one in patch):
        live = []
    items = {one[by]: one for one in live}
    for one in patch:
        if one.get("$patch") == "delete":
            items.pop(one[by], None)
        elif by in one:
            items[one[by]] = strategic(items.get(one[by], {}), one)
    first = [items.pop(name) for name in order if name in items]
    return [*first, *items.values()]


BY_CONTENT: Mapping[str, Callable[[Object, Any], Object]] = MappingProxyType(
    {
        "application/json-patch+json": listed,
        "application/merge-patch+json": merged,
        "application/strategic-merge-patch+json": strategic,
    }
)
