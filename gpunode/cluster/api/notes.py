"""Apply for API servers without server-side apply: what each writer applied last is noted in the object itself.

An annotation for each writer, so that two of them can have labels on one node. An object with such a note is kept by it also
after an upgrade of the API server: its fields have no other owner there that could be asked. Of a Secret a note has hashes.
What is sent is a JSON merge patch, which takes the same rights as an apply.
"""

import hashlib
import json
from collections.abc import Mapping
from typing import Any, Protocol

from gpunode.cluster.api.kinds import Object, Served, title
from gpunode.contract.typed import parse
from gpunode.errors import Claim, HttpError

PREFIX = "gpunode.dev/applied-by-"
TRIES = 5
BARE = ("apiVersion", "kind", "metadata")


class Objects(Protocol):
    """The part of the API that notes use."""

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
    """Writer -> the manifest that it applied last, from the notes; ignores a note that another client broke."""
    noted = {}
    for key, text in (live["metadata"].get("annotations") or {}).items():
        if key.startswith(PREFIX):
            try:
                desired = parse(text)
            except ValueError:
                continue
            if isinstance(desired, dict):
                noted[key.removeprefix(PREFIX)] = desired
    return noted


def apply(api: Objects, manifest: Object, *, manager: str, force: bool, dry_run: bool) -> Object:
    """As `Api.apply`. An API server without dry runs is sent none: the merged object is the answer."""
    meta = manifest["metadata"]
    kind, name, namespace = manifest["kind"], meta["name"], meta.get("namespace")
    for attempt in range(1, TRIES + 1):
        live = api.get(kind, name, namespace)
        if "uid" in meta and (live is None or live["metadata"]["uid"] != meta["uid"]):
            raise _conflict(f"{title(manifest)} was deleted since it was read")
        result = make_result(live, manifest, manager, force=force)
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


def make_result(live: Object | None, manifest: Object, manager: str, *, force: bool) -> Object:
    """The desired object, with the note. Raises HttpError (Conflict) if it takes fields from other managers."""
    desired = {**manifest, "metadata": {k: v for k, v in manifest["metadata"].items() if k != "uid"}}
    if live is None:
        return _with_note(desired, desired, manager)
    last = read(live).get(manager, {})
    result, taken = merge(live, _restore_values(live, last), desired)
    if taken and not force:
        claims = tuple(Claim(field, "") for field in taken)
        many = "s" if len(taken) > 1 else ""
        raise _conflict(f"Apply failed with {len(taken)} conflict{many}: {', '.join(taken)}", claims)
    return _with_note(result, _ours(live, last, desired), manager)


def _ours(live: Object, last: Object, desired: Object) -> Object:
    """The manifest without labels and annotations that others had set to the same value: they stay theirs."""
    current, before, meta = live["metadata"], last.get("metadata") or {}, dict(desired["metadata"])
    for name in ("labels", "annotations"):
        have, noted = current.get(name) or {}, before.get(name) or {}
        if name in meta:
            meta[name] = {
                key: value for key, value in meta[name].items() if key in noted or have.get(key) != value
            }
    return {**desired, "metadata": meta}


def _restore_values(live: Object, last: Object) -> Object:
    """The last manifest, with those values of a Secret that still match their noted hash."""
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


def _with_note(result: Object, desired: Object, manager: str) -> Object:
    """The object with the note of this manifest; without it if the manifest sets nothing."""
    meta = result["metadata"]
    notes = {key: value for key, value in (meta.get("annotations") or {}).items() if key != PREFIX + manager}
    of = {
        key: value for key, value in desired["metadata"].items() if key not in ("name", "namespace") and value
    }
    kept = {key: value for key, value in desired.items() if key not in BARE} | (
        {"metadata": of} if of else {}
    )
    if desired["kind"] == "Secret" and "data" in kept:  # who may read annotations may not read Secrets
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


def merge(live: Object, last: Object, desired: Object) -> tuple[Object, tuple[str, ...]]:
    """The object with the manifest in it, and the fields that have to be taken from others for that, as the API server writes
    them: they have another value than the manifest, and than the last one had."""
    taken: list[str] = []
    bare, before = ({k: v for k, v in side.items() if k not in IDENTITY} for side in (desired, last))
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


def covers(live: Any, desired: Any) -> bool:
    """True if `live` has all of the manifest: the API server adds defaults, and drops empty values."""
    if isinstance(desired, dict) and isinstance(live, dict):
        return all(covers(live.get(key, _NONE), value) for key, value in desired.items())
    if isinstance(desired, list) and isinstance(live, list):
        return len(live) == len(desired) and all(map(covers, live, desired))
    return bool(live == desired) or (live is _NONE and desired in (None, "", [], {}))


def _merge(live: Any, last: Any, desired: Any, place: str, name: str, taken: list[str]) -> Any:
    if isinstance(desired, dict) and isinstance(live, dict):
        return _map(live, last if isinstance(last, dict) else {}, desired, place, taken)
    if name in KEYS and isinstance(desired, list) and isinstance(live, list):
        return _items(live, last if isinstance(last, list) else [], desired, place, KEYS[name], taken)
    if covers(live, desired):
        return live
    if live is not _NONE and (last is _NONE or not covers(live, last)):
        taken.append(place)
    return desired


def _map(live: Object, last: Object, desired: Object, place: str, taken: list[str]) -> Object:
    result = dict(live)
    for key in last.keys() - desired.keys():
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
    for key, value in desired.items():
        current = live.get(key, _NONE)
        after = _merge(current, last.get(key, _NONE), value, f"{place}.{key}", key, taken)
        if after is not _NONE:
            result[key] = after
    return result


def _items(
    live: list[Any], last: list[Any], desired: list[Any], place: str, by: str, taken: list[str]
) -> list[Any]:
    """Items in the order of the manifest; other managers' items stay before the item that they preceded."""
    current, before = _by(live, by), _by(last, by)
    wanted = _by(desired, by)
    left = [item for item in live if item.get(by) in wanted or item.get(by) not in before]
    result: list[Any] = []
    for key, item in wanted.items():
        while left and left[0].get(by) not in wanted:
            result.append(left.pop(0))
        if key not in current:
            result.append(item)
            continue
        left.remove(current[key])
        where = f"{place}[{by}={json.dumps(key)}]"
        result.append(_map(current[key], before.get(key, {}), item, where, taken))
    return result + left


def _by(items: list[Any], by: str) -> Mapping[Any, Object]:
    return {item.get(by): item for item in items}
