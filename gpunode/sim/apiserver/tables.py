"""Objects as a table, for clients that only print them, as `kubectl get` does."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from gpunode.sim.apiserver.cells import ENDED
from gpunode.sim.apiserver.columns import DEFAULT, SHOWN
from gpunode.sim.apiserver.errors import status_error
from gpunode.sim.apiserver.store import KINDS, Object

API = "meta.k8s.io/v1"


def wanted(accept: str) -> bool:
    """True if a client with this Accept header prefers a table."""
    first = accept.partition(",")[0].replace(" ", "").split(";")
    return {"as=Table", "g=meta.k8s.io", "v=v1"} <= set(first)


def table(kind: str, answer: Object, include: str, *, headers: bool = True) -> Object:
    """A list or an object of a kind as a table. `include` is the `object` of each row: Metadata, Object or None."""
    _known(include)
    columns, cells = SHOWN.get(kind, DEFAULT)
    kept = ("resourceVersion", "continue", "remainingItemCount")
    return {
        "kind": "Table",
        "apiVersion": API,
        "metadata": {name: value for name, value in answer["metadata"].items() if name in kept},
        "columnDefinitions": [_column(name) for name in columns.split(", ")] if headers else None,
        "rows": [_row(kind, one, cells(one), include) for one in answer.get("items", [answer])],
    }


def rows(kind: str, events: Iterator[Object], include: str) -> Iterator[Object]:
    """The events of a watch, each with a table of one row; only the first has headers. Raises StatusError at once."""
    _known(include)
    return _rows(kind, events, include)


def _rows(kind: str, events: Iterator[Object], include: str) -> Iterator[Object]:
    headers = True
    for event in events:
        item = event["object"]
        if item["kind"] != "Status":
            item = table(kind, item, include, headers=headers)
            headers = False
        yield {**event, "object": item}


def _known(include: str) -> None:
    if include not in {"", "Metadata", "Object", "None"}:
        raise status_error(400, "BadRequest", f'unrecognized includeObject value: "{include}"')


def _column(name: str) -> Object:
    bare = name.lstrip("+#")
    kind = "integer" if "#" in name else "date" if bare == "Created At" else "string"
    form = "name" if bare == "Name" else ""
    return {"name": bare, "type": kind, "format": form, "description": "", "priority": int("+" in name)}


def _row(kind: str, item: Object, cells: list[Any], include: str) -> Object:
    row: Object = {"cells": cells}
    phase = item.get("status", {}).get("phase")
    if kind == "Pod" and phase in ENDED:
        row["conditions"] = [
            {"type": "Completed", "status": "True", "reason": phase, "message": ENDED[phase]}
        ]
    if include == "Object":
        row["object"] = {"kind": kind, "apiVersion": KINDS[kind].api, **item}
    elif include == "None":
        row["object"] = None
    else:
        row["object"] = {"kind": "PartialObjectMetadata", "apiVersion": API, "metadata": item["metadata"]}
    return row
