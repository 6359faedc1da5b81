"""A kubelet's configuration files: which it reads, and their merged content. Pure."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from functools import lru_cache
from types import MappingProxyType
from typing import Any

import yaml

from gpunode.deviceplugin.settings import syntax
from gpunode.links.kubelet.arguments import flag, is_plain
from gpunode.model import Facts


def files(facts: Facts, words: Sequence[str], default: str) -> tuple[str, ...]:
    """The files that a command reads, later ones over earlier ones; () where it names none. `default`: a script's.

    cmd/kubelet/app/server.go: drop-ins are a JSON merge patch each, in the order of their paths; flags win gate by gate.
    """
    main = flag(words[1:], "config")
    if main is None and not is_plain(words):
        main = default  # a script may name it
    named = (main,) if main else ()
    folder = (flag(words[1:], "config-dir") or "").rstrip("/")
    if not folder:
        return named
    there = (path for path, file in facts.files.items() if file.exists and path.startswith(f"{folder}/"))
    return (*named, *sorted(path for path in there if path.endswith(".conf")))


def read(texts: Iterable[tuple[str, str]]) -> tuple[Mapping[str, Any], str | None]:
    """The files' merged content, {} where they are not mappings; and the first mistake, as `file:line:column: cause`."""
    found: Any = {}
    problems = []
    for path, text in texts:
        data, problem = _load(text)
        found = _over(found, data)
        problems += [f"{path}{problem}"] if problem else []
    return MappingProxyType(found), next(iter(problems), None)


def gates(config: Mapping[str, Any]) -> dict[str, bool]:
    """The feature gates that a configuration sets."""
    found = config.get("featureGates")
    return {str(name): state is True for name, state in found.items()} if isinstance(found, dict) else {}


@lru_cache(maxsize=64)  # many hosts have the same text
def _load(text: str) -> tuple[Mapping[str, Any], str | None]:
    if text.lstrip().startswith("{"):
        try:
            data = json.loads(text)  # its tabs are none of YAML's
            return MappingProxyType(data), None
        except (ValueError, RecursionError):
            pass
    try:
        data = syntax.data(text)
    except yaml.MarkedYAMLError as error:
        mark = error.problem_mark
        where = f":{mark.line + 1}:{mark.column + 1}" if mark else ""
        return MappingProxyType({}), f"{where}: not valid YAML: {error.problem}"
    except yaml.YAMLError as error:
        return MappingProxyType({}), f": not valid YAML: {error}"
    return MappingProxyType(data if isinstance(data, dict) else {}), None


def _over(base: Any, more: Any) -> Any:
    """Mappings merged key by key; anything else replaces."""
    if not isinstance(base, Mapping) or not isinstance(more, Mapping):
        return more
    return {**base, **{key: _over(base.get(key), value) for key, value in more.items()}}
