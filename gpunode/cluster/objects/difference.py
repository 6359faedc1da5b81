"""Changes of cluster objects as unified diffs, without secrets, status and bookkeeping."""

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from typing import Any, Literal

import yaml

from gpunode.agent.redaction import placeholder, redact
from gpunode.agent.values import is_secret
from gpunode.cluster.api.kinds import Object
from gpunode.cluster.api.notes import KEYS, PREFIX
from gpunode.errors import Claim
from gpunode.model import Title

# The API server and kubectl keep these for themselves.
BOOKKEEPING = ("managedFields", "resourceVersion", "generation", "uid", "creationTimestamp", "selfLink")
GENERATION = "deprecated.daemonset.template.generation"  # counts changes of a DaemonSet's pod template
NOTES = (GENERATION, "kubectl.kubernetes.io/last-applied-configuration")
SECRET = ("(a secret changes)",)
# The action of a Difference → the verb in a plan.
DO: Mapping[str, str] = {
    "created": "create",
    "changed": "change",
    "removed": "remove",
    "labelled": "label",
    "replaced": "replace",
}


@dataclass(frozen=True, slots=True)
class Difference:
    """A change of an object, planned or done.

    `lines` is a unified diff without its header, or the whole object that is created or removed; () when it is the
    same. `claims` are fields that another field manager has set since and that gpunode sets back. `untried` is why there
    was no dry run, "" where there was one: then the manifest is compared with the current object. `node`: of a pod that
    is replaced. `before`, `manifest`: of an object its state and what is applied; None: absent, or removed.
    """

    title: Title
    action: Literal["created", "changed", "same", "foreign", "removed", "labelled", "replaced"]
    lines: tuple[str, ...] = ()
    claims: tuple[Claim, ...] = ()
    untried: str = ""
    node: str = ""
    before: Object | None = field(default=None, compare=False, repr=False)
    manifest: Object | None = field(default=None, compare=False, repr=False)

    @property
    def what(self) -> str:
        return str(self.title)

    @property
    def is_change(self) -> bool:
        """False where the object stays as it is."""
        return self.action not in ("same", "foreign")


def creation(manifest: Object, untried: str = "") -> Difference:
    return Difference(Title.of(manifest), "created", _all("+", manifest), untried=untried, manifest=manifest)


def removal(live: Object) -> Difference:
    before = as_manifest(live)
    return Difference(Title.of(live), "removed", _all("-", before), before=before)


def change(live: Object, result: Object, claims: tuple[Claim, ...] = (), untried: str = "") -> Difference:
    """An object before, and as the API server returned it, or would where there is no dry run."""
    return _diff(Title.of(live), as_manifest(live), as_manifest(result), claims, untried)


def comparison(live: Object | None, manifest: Object, untried: str) -> Difference:
    """An object's fields that the manifest sets: no defaults, and no fields of an earlier manifest."""
    if live is None:
        return creation(manifest, untried)
    part = _diff(Title.of(manifest), _part(live, manifest), manifest, untried=untried)
    return replace(part, before=as_manifest(live), manifest=manifest)


def labelling(
    node: str, labels: Mapping[str, tuple[str | None, str | None]], untried: str = ""
) -> Difference:
    """A node whose labels change: label → before, after."""
    if not labels:
        return Difference(Title("Node", node), "same", untried=untried)
    pairs = [
        (sign, key, value) for key, both in labels.items() for sign, value in zip("-+", both, strict=True)
    ]
    lines = tuple(f"{sign}{key}={value}" for sign, key, value in pairs if value is not None)
    return Difference(Title("Node", node), "labelled", lines, untried=untried)


def replacement(pod: Object, node: str) -> Difference:
    """A pod that is deleted, and that its controller makes again."""
    return Difference(Title.of({**pod, "kind": "Pod"}), "replaced", node=node)


def as_manifest(live: Object) -> Object:
    """The object as a manifest: without status and the API server's bookkeeping."""
    meta = {key: value for key, value in live["metadata"].items() if key not in BOOKKEEPING}
    notes = {
        key: value
        for key, value in meta.pop("annotations", {}).items()
        if key not in NOTES and not key.startswith(PREFIX)
    }
    shown = {key: value for key, value in live.items() if key != "status"}
    return shown | {"metadata": meta | ({"annotations": notes} if notes else {})}


def _diff(
    title: Title, before: Object, after: Object, claims: tuple[Claim, ...] = (), untried: str = ""
) -> Difference:
    if before == after:
        return Difference(title, "same", claims=claims, untried=untried)
    lines = list(difflib.unified_diff(_yaml(before), _yaml(after), lineterm=""))[2:]
    return Difference(title, "changed", tuple(lines) or SECRET, claims, untried)


def _part(live: Any, manifest: Any, name: str = "") -> Any:
    """The fields of the current object that the manifest sets."""
    if isinstance(manifest, dict) and isinstance(live, dict):
        return {key: _part(live[key], value, key) for key, value in manifest.items() if key in live}
    if isinstance(manifest, list) and isinstance(live, list) and name in KEYS:
        current = {item.get(KEYS[name]): item for item in live}
        pairs = [(current.get(item[KEYS[name]]), item) for item in manifest]
        return [_part(before, item) for before, item in pairs if before is not None]
    return live


def own_part(before: Any, manifest: Any, live: Any, name: str = "") -> Any:
    """What of an object `before` a change is gpunode's to put back: fields that its `manifest` set, and those that have gone since. None
    for a field of others that the `live` object has."""
    if live is None:
        return before
    if isinstance(before, dict) and isinstance(live, dict):
        mine = manifest or {}
        parts = {key: own_part(value, mine.get(key), live.get(key), key) for key, value in before.items()}
        parts = {key: part for key, part in parts.items() if part is not None}
        return parts if parts or manifest is not None else None
    if isinstance(before, list) and isinstance(live, list) and name in KEYS:
        wanted, now = ({item.get(KEYS[name]): item for item in items or ()} for items in (manifest, live))
        pairs = [(item.get(KEYS[name]), item) for item in before]
        items = [
            own_part(item, wanted.get(key), now.get(key))
            for key, item in pairs
            if key in wanted or key not in now
        ]
        return items if items or manifest is not None else None
    return None if manifest is None else before


def _all(sign: str, shown: Object) -> tuple[str, ...]:
    return tuple(f"{sign}{line}" for line in _yaml(shown))


def _yaml(shown: Object) -> list[str]:
    if shown.get("kind") == "Secret":
        shown = shown | {"data": dict.fromkeys(shown.get("data") or {}, "(hidden)")}
    text = yaml.dump(hide(shown), Dumper=_dumper(), sort_keys=True, width=200)
    return redact(text).splitlines()


def hide(value: Any) -> Any:
    """The same without the values of environment variables that have a secret's name."""
    if isinstance(value, dict):
        kept = {key: hide(part) for key, part in value.items()}
        if isinstance(plain := value.get("value"), str) and is_secret(str(value.get("name", ""))):
            return kept | {"value": placeholder(plain)}
        return kept
    return [hide(part) for part in value] if isinstance(value, list) else value


@cache
def _dumper() -> type[yaml.SafeDumper]:
    """A dumper that writes multi-line text as a block."""

    class Dumper(getattr(yaml, "CSafeDumper", yaml.SafeDumper)):  # type: ignore[misc]
        pass

    def text(dumper: yaml.SafeDumper, value: str) -> yaml.ScalarNode:
        return dumper.represent_scalar("tag:yaml.org,2002:str", value, style="|" if "\n" in value else None)

    Dumper.add_representer(str, text)
    return Dumper
