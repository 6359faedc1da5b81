"""Apply for API servers without server-side apply: what each writer wished last is noted in the object itself.

An annotation for each writer, so that two of them can have labels on one node. An object with such a note is kept by it also
after an upgrade of the API server: its fields have no other owner there that could be asked. Of a Secret a note has hashes.
What is sent is a JSON merge patch, which takes the same rights as an apply.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Protocol

from gpunode.cluster.api.kinds import Object, Served, title
from gpunode.errors import Claim, HttpError

PREFIX = "gpunode.dev/applied-by-"
TRIES = 5
BARE = ("apiVersion", "kind", "metadata")


class Objects(Protocol):
    """What it takes of the API."""

    @property
    def served(self) -> Served: ...

    def get(self, kind: str, name: str, namespace: str | None = None) -> Object | None: ...

    def create(self, manifest: Object, *, manager: str, dry_run: bool) -> Object: ...

    def merge(
        self,
        kind: str,
        name: str,
        fields: Object,
        namespace: str | None = None,
        *,
        manager: str,
        dry_run: bool,
    ) -> Object: ...


def read(live: Object) -> dict[str, Object]:
    """Writer -> what it wished last; a note that another client has broken says nothing."""
    found = {}
    for key, text in (live["metadata"].get("annotations") or {}).items():
        if key.startswith(PREFIX):
            try:
                wish = json.loads(text)
            except ValueError:
                continue
            if isinstance(wish, dict):
                found[key.removeprefix(PREFIX)] = wish
    return found


def apply(api: Objects, manifest: Object, *, manager: str, force: bool, dry_run: bool) -> Object:
    """As `Api.apply`. An API server without dry runs is sent none: the merged object is the answer."""
    meta = manifest["metadata"]
    kind, name, namespace = manifest["kind"], meta["name"], meta.get("namespace")
    for attempt in range(1, TRIES + 1):
        live = api.get(kind, name, namespace)
        if "uid" in meta and (live is None or live["metadata"]["uid"] != meta["uid"]):
            raise _conflict(f"{title(manifest)} was deleted since it was read")
        result = wanted(live, manifest, manager, force=force)
        if result == live or (dry_run and not api.served.dry_run):
            return result
        try:
            if live is None:
                return api.create(result, manager=manager, dry_run=dry_run)
            fields = patch(live, result)
            # Only of what was read: a change in between is a Conflict.
            seen = {"resourceVersion": live["metadata"]["resourceVersion"]}
            fields["metadata"] = {**fields.get("metadata", {}), **seen}
            return api.merge(kind, name, fields, namespace, manager=manager, dry_run=dry_run)
        except HttpError as error:
            if error.reason not in ("Conflict", "AlreadyExists") or attempt == TRIES:
                raise
    raise AssertionError


def wanted(live: Object | None, manifest: Object, manager: str, *, force: bool) -> Object:
    """The object as it is to be, with the note. Raises HttpError (Conflict) where fields would be taken from others."""
    wish = {**manifest, "metadata": {k: v for k, v in manifest["metadata"].items() if k != "uid"}}
    if live is None:
        return _noted(wish, wish, manager)
    last = read(live).get(manager, {})
    result, taken = merged(live, _known(live, last), wish)
    if taken and not force:
        claims = tuple(Claim(field, "") for field in taken)
        many = "s" if len(taken) > 1 else ""
        raise _conflict(f"Apply failed with {len(taken)} conflict{many}: {', '.join(taken)}", claims)
    return _noted(result, _ours(live, last, wish), manager)


def _ours(live: Object, last: Object, wish: Object) -> Object:
    """The wish without labels and annotations that others had set before, with the same value: they stay theirs."""
    there, before, meta = live["metadata"], last.get("metadata") or {}, dict(wish["metadata"])
    for name in ("labels", "annotations"):
        have, noted = there.get(name) or {}, before.get(name) or {}
        if name in meta:
            meta[name] = {
                key: value for key, value in meta[name].items() if key in noted or have.get(key) != value
            }
    return {**wish, "metadata": meta}


def _known(live: Object, last: Object) -> Object:
    """The last wish, with the values of a Secret that are still as they were noted."""
    if live.get("kind") != "Secret" or "data" not in last:
        return last
    have = live.get("data") or {}
    return {
        **last,
        "data": {
            key: have[key] if key in have and _hash(have[key]) == value else value
            for key, value in last["data"].items()
        },
    }


def _hash(value: str) -> str:
    return f"sha256:{hashlib.sha256(value.encode()).hexdigest()}"


def _noted(result: Object, wish: Object, manager: str) -> Object:
    """The object with the note of this wish; without one where the writer wishes nothing."""
    meta = result["metadata"]
    notes = {key: value for key, value in (meta.get("annotations") or {}).items() if key != PREFIX + manager}
    of = {key: value for key, value in wish["metadata"].items() if key not in ("name", "namespace") and value}
    kept = {key: value for key, value in wish.items() if key not in BARE} | ({"metadata": of} if of else {})
    if wish["kind"] == "Secret" and "data" in kept:  # who may read annotations may not read Secrets
        kept["data"] = {key: _hash(value) for key, value in kept["data"].items()}
    if kept:
        notes[PREFIX + manager] = json.dumps(kept, sort_keys=True, separators=(",", ":"))
    bare = {key: value for key, value in meta.items() if key != "annotations"}
    return {**result, "metadata": {**bare, **({"annotations": notes} if notes else {})}}


def _conflict(why: str, claims: tuple[Claim, ...] = ()) -> HttpError:
    return HttpError(
        f"another client set the same fields: {why}" if claims else why,
        hint="Set the value there, or remove the field there first." if claims else "Run it again.",
        status=409,
        reason="Conflict",
        claims=claims,
    )


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
    return {item.get(by): item for item in items}
