"""Requests on the cluster's objects: get, list, create, update, apply, patch, delete.

`api.py` parses method and path and checks the user. Answers are plain objects; errors are raised.
"""

import copy
import secrets
import uuid
from collections.abc import Mapping
from typing import Any

from gpunode.contract.times import utc
from gpunode.sim.apiserver import patches
from gpunode.sim.apiserver.admission import FOREGROUND, admit
from gpunode.sim.apiserver.queries import selector
from gpunode.sim.apiserver.store import KINDS, Object, StatusError, Store, key, not_found, status_error

APPLY = "application/apply-patch+yaml"


class Resources:
    """The objects of one kind in one namespace ("": of all, or the cluster's own)."""

    def __init__(self, store: Store, kind: str, namespace: str = "") -> None:
        self.store, self.kind, self.namespace = store, kind, namespace
        group, _, version = KINDS[kind].api.rpartition("/")
        self.plural = KINDS[kind].plural
        self.group, self.version = group, version
        self.full = f"{self.plural}.{group}" if group else self.plural

    def get(self, name: str) -> Object:
        item = self.store.get(self.kind, self.namespace, name)
        if item is None:
            raise not_found(self.full, name)
        return item

    def list(self, query: Mapping[str, str]) -> Object:
        """The objects that the query selects, all at once."""
        wanted = selector(query)
        with self.store.changed:
            selected = [item for item in self.store.all(self.kind, self.namespace) if wanted(item)]
            version = self.store.version
        # Items of a list have no kind of their own.
        items = [{k: v for k, v in item.items() if k not in {"kind", "apiVersion"}} for item in selected]
        meta = {"resourceVersion": str(version)}
        return {
            "kind": f"{self.kind}List",
            "apiVersion": KINDS[self.kind].api,
            "metadata": meta,
            "items": items,
        }

    def create(self, item: Object, query: Mapping[str, str]) -> Object:
        dry = "dryRun" in query
        meta = item.setdefault("metadata", {})
        if self.namespace:
            meta["namespace"] = self.namespace
        if not meta.get("name") and meta.get("generateName"):
            meta["name"] = meta["generateName"] + secrets.token_hex(3)[:5]
        if not meta.get("name"):
            raise self._invalid("", "metadata.name", "Required value: name or generateName is required")
        item = {**item, "kind": self.kind, "apiVersion": KINDS[self.kind].api}
        with self.store.changed:
            if self.store.get(*key(item)):
                name = meta["name"]
                message = f'{self.full} "{name}" already exists'
                raise status_error(409, "AlreadyExists", message, name=name, kind=self.full)
            made = patches.own_changes(
                None, admit(self.store, item, None), query.get("fieldManager") or "unknown"
            )
            return self._store_item(made, dry=dry)

    def patch(self, name: str, body: Any, content: str, query: Mapping[str, str]) -> tuple[Object, bool]:
        """The object after an apply or another patch, and whether it is new."""
        with self.store.changed:
            live = self.store.get(self.kind, self.namespace, name)
            if content == APPLY:
                return self._apply(name, body, live, query), live is None
            dry = "dryRun" in query
            change = patches.BY_CONTENT[content]
            if live is None:
                raise not_found(self.full, name)
            return self._update(live, change(live, body), query, dry=dry), False

    def replace(self, name: str, item: Object, query: Mapping[str, str]) -> Object:
        """Replace an object, but not its identity and status."""
        dry = "dryRun" in query
        with self.store.changed:
            live = self.get(name)
            was = {k: v for k, v in live["metadata"].items() if k in patches.NOBODYS - {"resourceVersion"}}
            new = {
                "kind": self.kind,
                "apiVersion": KINDS[self.kind].api,
                "metadata": {**item.get("metadata", {}), **was},
            }
            status = {"status": live["status"]} if "status" in live else {}
            return self._update(live, {**item, **new, **status}, query, dry=dry)

    def _update(self, live: Object, desired: Object, query: Mapping[str, str], *, dry: bool) -> Object:
        seen, name = desired["metadata"].get("resourceVersion"), live["metadata"]["name"]
        if seen not in {None, "", live["metadata"]["resourceVersion"]}:
            message = (
                f'Operation cannot be fulfilled on {self.full} "{name}": the object has been modified; '
                "please apply your changes to the latest version and try again"
            )
            raise status_error(409, "Conflict", message, name=name, kind=self.full)
        desired = {
            **desired,
            "metadata": {**desired["metadata"], "resourceVersion": live["metadata"]["resourceVersion"]},
        }
        new = admit(self.store, desired, live)
        return self._store_item(
            patches.own_changes(live, new, query.get("fieldManager") or "unknown"), dry=dry
        )

    def delete(self, name: str, options: Mapping[str, Any], query: Mapping[str, str]) -> Object:
        """Delete an object, or mark it for a kubelet or controller that must end something first."""
        # Options in the body replace those of the query.
        dry = bool(options.get("dryRun")) if options else "dryRun" in query
        with self.store.changed:
            live = self.get(name)
            wanted = (options.get("preconditions") or {}).get("uid")
            uid = live["metadata"]["uid"]
            if wanted not in {None, uid}:
                kind = self.full.replace(self.plural, self.kind)  # here, and here only, it is not the plural
                message = f'Operation cannot be fulfilled on {kind} "{name}": the UID in the precondition does not match {uid}'
                raise status_error(409, "Conflict", message, name=name, kind=kind)
            marked = self._mark_deleted(live, options)
            if marked is None:
                if not dry:
                    self.store.drop(live)
                details = {"name": name, "kind": self.plural, "uid": uid}
                return {
                    "kind": "Status",
                    "apiVersion": "v1",
                    "metadata": {},
                    "status": "Success",
                    "details": details,
                }
            return marked if dry else self.store.put(marked)

    def _mark_deleted(self, item: Object, options: Mapping[str, Any]) -> Object | None:
        """The object marked as terminating; None if it can be removed at once."""
        marked = copy.deepcopy(item)
        meta = marked["metadata"]
        if self.kind == "Pod":
            status = item.get("status", {})
            runs = item["spec"].get("nodeName") and status.get("phase") not in {"Succeeded", "Failed"}
            seconds = options.get("gracePeriodSeconds")
            grace = item["spec"]["terminationGracePeriodSeconds"] if seconds is None else seconds
            if not (runs and grace):
                return None
            meta["deletionGracePeriodSeconds"] = min(grace, meta.get("deletionGracePeriodSeconds", grace))
        elif self.kind == "Namespace":
            marked["status"] = {**item.get("status", {}), "phase": "Terminating"}
        elif options.get("propagationPolicy") == "Foreground":
            meta["finalizers"] = sorted({*meta.get("finalizers", []), FOREGROUND})
            meta["deletionGracePeriodSeconds"] = 0
        elif not meta.get("finalizers"):
            return None
        meta.setdefault("deletionTimestamp", utc())
        return marked

    def _apply(self, name: str, manifest: Object, live: Object | None, query: Mapping[str, str]) -> Object:
        manager, force = query["fieldManager"], query.get("force") == "true"
        dry = "dryRun" in query
        uid = manifest["metadata"].get("uid")
        if uid and (live is None or uid != live["metadata"]["uid"]):
            message = f'Operation cannot be fulfilled on {self.full} "{name}": uid mismatch: it is no object with uid {uid}'
            raise status_error(409, "Conflict", message, name=name, kind=self.full)
        own = {"name": name, **({"namespace": self.namespace} if self.namespace else {})}
        empty = {"kind": self.kind, "apiVersion": KINDS[self.kind].api, "metadata": own}
        try:
            merged = patches.apply(live or empty, manifest, manager, force=force)
        except patches.Conflict as conflict:
            raise self._conflict(conflict) from conflict
        return self._store_item(admit(self.store, merged, live), dry=dry)

    def _store_item(self, item: Object, *, dry: bool) -> Object:
        if not dry:
            return self.store.put(item)
        new = {"uid": str(uuid.uuid4()), "creationTimestamp": utc()}
        return {**item, "metadata": {**new, **item["metadata"]}}

    def _invalid(self, name: str, field: str, why: str) -> StatusError:
        cause = {"reason": "FieldValueInvalid", "message": why, "field": field}
        message = f'{self.kind} "{name}" is invalid: {field}: {why}'
        return status_error(422, "Invalid", message, name=name, kind=self.kind, causes=[cause])

    def _conflict(self, conflict: patches.Conflict) -> StatusError:
        api, count = KINDS[self.kind].api, len(conflict.fields)
        causes = [
            {
                "reason": "FieldManagerConflict",
                "message": f'conflict with "{manager}" using {api}',
                "field": field,
            }
            for manager, field in conflict.fields
        ]
        text = "".join(f" {cause['message']}: {cause['field']}" for cause in causes)
        message = f"Apply failed with {count} conflict{'s' if count > 1 else ''}:{text}"
        return status_error(409, "Conflict", message, causes=causes)
