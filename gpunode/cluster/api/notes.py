"""Apply for API servers without server-side apply: what each writer wished last is noted in the object itself.

An annotation for each writer, so that two of them can have labels on one node. An object with such a note is kept by it also
after an upgrade of the API server: its fields have no other owner there that could be asked. Of a Secret a note has hashes.
What is sent is a JSON merge patch, which takes the same rights as an apply.
"""

from __future__ import annotations

import hashlib
import json
from typing import Protocol

from gpunode.cluster.api.kinds import Object, title
from gpunode.cluster.api.merge import merged, patch
from gpunode.cluster.api.served import Served
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
