"""Field ownership with server-side apply, and the other patches: JSON merge and kubectl's strategic ones.

As in the API server: lists of named items are merged by name, other lists and a few maps are one value. A field's path
is written as in managedFields: `f:metadata`, `k:{"name":"c"}`, and `.` for an item of a list itself.
"""

import copy
import json
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeAlias

from gpunode.contract.times import utc
from gpunode.sim.apiserver.store import Object

Path: TypeAlias = tuple[str, ...]
Owner: TypeAlias = tuple[str, str, str]  # operation, manager, subresource
Owners: TypeAlias = dict[Owner, set[Path]]

# Lists keyed by a field, and maps that are replaced as a whole (from the kinds' +listType and +mapType).
KEYS = {
    "containers": "name",
    "initContainers": "name",
    "env": "name",
    "volumes": "name",
    "volumeMounts": "mountPath",
    "imagePullSecrets": "name",
    "conditions": "type",
    "ownerReferences": "uid",
}
WHOLE = {"selector", "nodeSelector", "requiredDuringSchedulingIgnoredDuringExecution", "fieldRef", "roleRef"}
# An object's identity and the fields that only the API server sets have no owner.
NOBODYS = {"name", "namespace", "uid", "resourceVersion", "creationTimestamp", "generation", "managedFields"}
_NONE = object()
# A strategic patch merges the items of these lists by a field, and replaces other lists (the kinds' patchMergeKey).
PATCH_KEYS = {**KEYS, "ports": "containerPort"}
ORDER = "$setElementOrder/"


class Conflict(Exception):
    """Other managers own these fields with other values: (manager, field) pairs, as the API writes them."""

    def __init__(self, fields: list[tuple[str, str]]) -> None:
        super().__init__()
        self.fields = fields


def apply(live: Object, manifest: Object, manager: str, *, force: bool) -> Object:
    """The live object after `manager` applied its manifest: fields it no longer names go. Raises Conflict."""
    owners = _owners(live)
    mine, new = ("Apply", manager, ""), _leaves(_bare(manifest))
    old = owners.pop(mine, set())
    lost = [
        (who, place)
        for who, places in owners.items()
        for place in sorted(places & new)
        if _at(live, place) != _at(manifest, place) and not _adds_nothing(manifest, live, place)
    ]
    if lost and not force:
        raise Conflict([(who[1], _field_name(place)) for who, place in lost])
    for who, place in lost:
        owners[who].discard(place)
    result = copy.deepcopy(live)
    held = set().union(*owners.values())
    # Whole items of lists first: an item without its key field is not found again.
    for place in sorted(old - new - held, key=lambda place: (place[-1] != ".", -len(place))):
        _remove(result, place, held | new)
    _merge(result, _bare(manifest))
    return _with_owners(result, {**owners, mine: new}, live)


def own_changes(before: Object | None, after: Object, manager: str) -> Object:
    """The object with `manager` as the owner of every field that differs from `before`.

    The earlier owners are those in `after`, where the client may have changed them.
    """
    was, is_ = _leaves(_bare(before or {})), _leaves(_bare(after))
    owners = _owners(after)
    changed = {place for place in is_ if place not in was or _at(before, place) != _at(after, place)}
    for places in owners.values():
        places.difference_update(changed | (was - is_))
    owners.setdefault(("Update", manager, ""), set()).update(changed)
    return _with_owners(copy.deepcopy(after), owners, before or {})


def _bare(item: Object) -> Object:
    """The fields that can have owners: not the identity, the server's own fields or the status (a subresource)."""
    meta = {name: value for name, value in item.get("metadata", {}).items() if name not in NOBODYS}
    rest = {
        name: value
        for name, value in item.items()
        if name not in {"apiVersion", "kind", "metadata", "status"}
    }
    return {**rest, **({"metadata": meta} if meta else {})}


def _leaves(value: Any, name: str = "", place: Path = ()) -> set[Path]:
    if isinstance(value, dict) and value and name not in WHOLE:
        return {leaf for key, below in value.items() for leaf in _leaves(below, key, (*place, f"f:{key}"))}
    if isinstance(value, list) and name in KEYS:
        leaves: set[Path] = set()
        for item in value:
            inside = (*place, _item(item, KEYS[name]))
            leaves |= {(*inside, "."), *_leaves(item, "", inside)}
        return leaves
    return {place} if place else set()


def _item(item: Object, by: str) -> str:
    return "k:" + json.dumps({by: item.get(by)}, separators=(",", ":"))


def _at(value: Any, place: Path) -> Any:
    """The value at a path; a unique object if there is none."""
    for step in place:
        if step == ".":
            return True  # two items of the same name are the same item
        value = _step(value, step)
        if value is _NONE:
            return _NONE
    return value


def _step(value: Any, step: str) -> Any:
    if step.startswith("f:"):
        return value.get(step[2:], _NONE) if isinstance(value, dict) else _NONE
    ((by, name),) = json.loads(step[2:]).items()
    return next((item for item in value if item.get(by) == name), _NONE) if isinstance(value, list) else _NONE


def _adds_nothing(manifest: Object, live: Object, place: Path) -> bool:
    """True if an empty map is applied over a map: other managers' fields in it stay."""
    return _at(manifest, place) == {} and isinstance(_at(live, place), dict) and place[-1][2:] not in WHOLE


def _remove(item: Object, place: Path, kept: Iterable[Path]) -> None:
    """Remove a field, and the maps and lists that are empty then."""
    place = place[:-1] if place[-1] == "." else place
    if any(path[: len(place)] == place for path in kept):
        return  # an item, or a once empty map, in which another manager owns fields
    parents = [item]
    for step in place[:-1]:
        parents.append(_step(parents[-1], step))
        if parents[-1] is _NONE:
            return
    for parent, step in zip(reversed(parents), reversed(place), strict=True):
        below = _step(parent, step)
        if below is _NONE:
            return
        if isinstance(parent, list):
            parent.remove(below)
        else:
            del parent[step[2:]]
        if parent:
            return


def _merge(into: Object, manifest: Object) -> None:
    for name, value in manifest.items():
        current = into.get(name)
        if isinstance(value, dict) and isinstance(current, dict) and name not in WHOLE:
            _merge(current, value)
        elif isinstance(value, list) and isinstance(current, list) and name in KEYS:
            into[name] = _merge_list(current, value, KEYS[name])
        else:
            into[name] = copy.deepcopy(value)


def _merge_list(live: list[Object], manifest: list[Object], by: str) -> list[Object]:
    """Items in the order of the manifest; its missing ones stay before the item that they preceded."""
    known = {_item(item, by): item for item in live}
    named = {_item(item, by) for item in manifest}
    left, merged = list(live), []
    for entry in manifest:
        while left and _item(left[0], by) not in named:
            merged.append(left.pop(0))
        item = known.get(_item(entry, by))
        if item is None:
            merged.append(copy.deepcopy(entry))
            continue
        left.remove(item)
        _merge(item, entry)
        merged.append(item)
    return merged + left


def _owners(item: Object) -> Owners:
    entries = item.get("metadata", {}).get("managedFields") or []
    return {_owner(entry): set(_places(entry["fieldsV1"])) for entry in entries if entry}


def _places(tree: Object, place: Path = ()) -> Iterable[Path]:
    for step, below in tree.items():
        if below:
            yield from _places(below, (*place, step))
        else:
            yield (*place, step)


def _with_owners(item: Object, owners: Owners, before: Object) -> Object:
    """The object with managedFields. Only managers with more fields than before get a new time."""
    entries = []
    known = _owners(before)
    times = {
        _owner(field): field.get("time")
        for field in before.get("metadata", {}).get("managedFields") or []
        if field
    }
    for owner, places in owners.items():
        if not places:
            continue
        tree: Object = {}
        for place in sorted(places):
            below = tree
            for step in place:
                below = below.setdefault(step, {})
        time = times[owner] if places <= known.get(owner, set()) else utc()
        entry = {"manager": owner[1], "operation": owner[0], "apiVersion": item["apiVersion"], "time": time}
        entry |= {
            "fieldsType": "FieldsV1",
            "fieldsV1": tree,
            **({"subresource": owner[2]} if owner[2] else {}),
        }
        entries.append(entry)
    order = ("operation", "time", "manager", "subresource")
    entries.sort(key=lambda entry: [str(entry.get(name, "")) for name in order])
    meta = {k: v for k, v in item["metadata"].items() if v or k not in {"labels", "annotations"}}
    # Without empty maps, as with Go's `omitempty`
    item["metadata"] = {**meta, "managedFields": entries}
    return item


def _owner(entry: Object) -> Owner:
    return entry["operation"], entry["manager"], entry.get("subresource", "")


def _field_name(place: Path) -> str:
    """`.metadata.labels.pool`, `.spec.template.spec.containers[name="c"].image`."""
    text = ""
    for step in place:
        if step.startswith("f:"):
            text += f".{step[2:]}"
        elif step.startswith("k:"):
            ((by, name),) = json.loads(step[2:]).items()
            text += f"[{by}={json.dumps(name)}]"
    return text


def merge_patch(live: Object, patch: Mapping[str, Any]) -> Object:
    """RFC 7386: the patch's values replace the object's; null removes one."""
    result = copy.deepcopy(live)
    for name, value in patch.items():
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            current = result.get(name)
            result[name] = merge_patch(current if isinstance(current, dict) else {}, value)
        else:
            result[name] = copy.deepcopy(value)
    return result


def strategic_patch(live: Object, patch: Mapping[str, Any]) -> Object:
    """The object after a strategic merge patch, with its directives."""
    values = {name: value for name, value in patch.items() if not name.startswith("$")}
    if patch.get("$patch") == "replace":
        return copy.deepcopy(values)
    kept = {*patch.get("$retainKeys", live), *values}
    result = {name: copy.deepcopy(value) for name, value in live.items() if name in kept}
    for name, value in values.items():
        current = result.get(name)
        if value is None:
            result.pop(name, None)
        elif isinstance(value, dict):
            result[name] = strategic_patch(current if isinstance(current, dict) else {}, value)
        elif name in PATCH_KEYS and all(isinstance(item, dict) for item in value):
            order = [entry[PATCH_KEYS[name]] for entry in patch.get(f"{ORDER}{name}", [])]
            result[name] = _list(current or [], value, PATCH_KEYS[name], order)
        elif name == "finalizers":
            result[name] = [*(current or []), *(item for item in value if item not in (current or []))]
        else:
            result[name] = copy.deepcopy(value)
    return result


def _list(live: list[Object], patch: list[Object], by: str, order: list[Any]) -> list[Object]:
    if any(item.get("$patch") == "replace" and by not in item for item in patch):
        live = []
    items = {item[by]: item for item in live}
    for item in patch:
        if item.get("$patch") == "delete":
            items.pop(item[by], None)
        elif by in item:
            items[item[by]] = strategic_patch(items.get(item[by], {}), item)
    first = [items.pop(name) for name in order if name in items]
    return [*first, *items.values()]


BY_CONTENT: Mapping[str, Callable[[Object, Any], Object]] = {
    "application/merge-patch+json": merge_patch,
    "application/strategic-merge-patch+json": strategic_patch,
}
