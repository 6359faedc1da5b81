"""What lists and watches select: label selectors, field selectors, and the stream of a watch."""

import re
import time
from collections.abc import Callable, Iterator, Mapping
from typing import Any, TypeAlias

from gpunode.sim.apiserver.store import KINDS, Change, Object, Store, TooOld, status_error

Test: TypeAlias = Callable[[Object], bool]
WORD = r"[A-Za-z0-9._/-]+"
SET = re.compile(rf"({WORD}) (in|notin) \(([^)]*)\)")
EQUAL = re.compile(rf"({WORD})\s*(==|=|!=)\s*({WORD}|)")
THERE = re.compile(rf"(!?)({WORD})")
LONGEST = 3600.0
INITIAL = "k8s.io/initial-events-end"  # the bookmark after the objects that existed when the watch began


def selector(query: Mapping[str, str]) -> Test:
    """The predicate of a query's `labelSelector` and `fieldSelector`. Raises ValueError."""
    tests = [*_labels(query.get("labelSelector", "")), *_fields(query.get("fieldSelector", ""))]
    return lambda item: all(test(item) for test in tests)


def matches(labels: Mapping[str, str], expressions: list[Object]) -> bool:
    """True if the labels match all of a selector's matchExpressions."""
    return all(
        _holds(labels.get(expression["key"]), expression["operator"], expression.get("values") or [])
        for expression in expressions
    )


def _holds(value: str | None, operator: str, values: list[str]) -> bool:
    return {
        "In": value in values,
        "NotIn": value not in values,
        "Exists": value is not None,
        "DoesNotExist": value is None,
    }[operator]


def _labels(text: str) -> list[Test]:
    expressions = []
    for clause in re.split(r",(?![^(]*\))", text) if text else []:
        if match := SET.fullmatch(clause.strip()):
            values = [value.strip() for value in match[3].split(",")]
            expressions.append(
                {"key": match[1], "operator": "In" if match[2] == "in" else "NotIn", "values": values}
            )
        elif match := EQUAL.fullmatch(clause.strip()):
            operator = "NotIn" if match[2] == "!=" else "In"
            expressions.append({"key": match[1], "operator": operator, "values": [match[3]]})
        elif match := THERE.fullmatch(clause.strip()):
            expressions.append({"key": match[2], "operator": "DoesNotExist" if match[1] else "Exists"})
        else:
            raise ValueError(clause)
    return [lambda item: matches(item["metadata"].get("labels") or {}, expressions)] if expressions else []


def _fields(text: str) -> Iterator[Test]:
    for clause in text.split(",") if text else []:
        name, sign, value = re.split("(!=|==|=)", clause, maxsplit=1)
        yield _field(name, value, equal=sign != "!=")


def _field(name: str, value: str, *, equal: bool) -> Test:
    def test(item: Object) -> bool:
        field: Any = item
        for part in name.split("."):
            field = (field or {}).get(part)
        text = str(field).lower() if isinstance(field, bool) else field or ""
        return bool((text == value) is equal)

    return test


def watch(store: Store, kind: str, namespace: str, query: Mapping[str, str]) -> Iterator[Object]:
    """Watch events for `timeoutSeconds`. Raises ValueError at the call, not at the first event."""
    return _stream(store, kind, namespace, query, selector(query))


def _stream(
    store: Store, kind: str, namespace: str, query: Mapping[str, str], wanted: Test
) -> Iterator[Object]:
    end = time.monotonic() + float(query.get("timeoutSeconds") or LONGEST)
    version = int(query.get("resourceVersion") or 0)
    if not version or query.get("sendInitialEvents") == "true":
        with store.changed:
            items, version = store.all(kind, namespace), store.version
        yield from ({"type": "ADDED", "object": item} for item in items if wanted(item))
    if query.get("sendInitialEvents") == "true":
        meta = {"resourceVersion": str(version), "creationTimestamp": None, "annotations": {INITIAL: "true"}}
        mark = {"kind": kind, "apiVersion": KINDS[kind].api, "metadata": meta}
        yield {"type": "BOOKMARK", "object": mark}
    while (left := end - time.monotonic()) > 0:
        try:
            changes = store.since(version)
        except TooOld:
            message = f"too old resource version: {version} ({store.version})"
            yield {"type": "ERROR", "object": status_error(410, "Expired", message).status}
            return
        for change in changes:
            version = change.version
            item = change.item
            if item["kind"] == kind and namespace in {"", item["metadata"].get("namespace")}:
                yield from _event(change, wanted)
        with store.changed:
            if store.version == version:
                store.changed.wait(left)


def _event(change: Change, wanted: Test) -> Iterator[Object]:
    """The change as this watch sees it: ADDED once the object is selected, DELETED once it no longer is."""
    was = change.before is not None and wanted(change.before)
    is_ = change.type != "DELETED" and wanted(change.item)
    if was or is_:
        kind = "MODIFIED" if was and is_ else "ADDED" if is_ else "DELETED"
        yield {"type": kind, "object": change.item}
