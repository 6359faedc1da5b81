"""Hosts whose apt knows many lists, and the plan that adds NVIDIA's sources to them."""

import difflib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any
from unittest import mock

from gpunode.links.toolkit import plan as repository
from gpunode.model import Change, Desired, Facts, File, PackageSpec, RemoveFile, Source, WriteFile
from gpunode.packages import repositories
from tests import cases

SOURCES = {
    "driver": "https://developer.download.nvidia.com/compute/cuda/repos/debian12/x86_64",
    "toolkit": "https://nvidia.github.io/libnvidia-container/stable/deb/amd64",
}


def uris(case: Mapping[str, Any]) -> tuple[str, ...]:
    """The sources that a case's inventory names."""
    return tuple(case.get(name, uri) for name, uri in SOURCES.items())


def plan(case: Mapping[str, Any], lists: Mapping[str, str]) -> tuple[Change, ...]:
    """The repository's part of a plan for a host with these lists."""
    base = cases.facts("modern")
    files = {path: File(path, exists=True, content=text) for path, text in lists.items()}
    facts: Facts = replace(base, files=files)
    sources = zip(SOURCES, uris(case), strict=True)
    wish = Desired(
        "containerd",
        "default",
        {},
        {},
        toolkit=(PackageSpec("nvidia-container-toolkit", "1.20.1-1", origin="nvidia"),),
        sources=tuple(Source(f"gpunode-{name}", uri, cases.KEY) for name, uri in sources),
    )
    with mock.patch.object(repositories, "key_fingerprint", return_value=None):  # KEY is not NVIDIA's
        return repository.plan_sources(facts, wish)


def written(lists: Mapping[str, str], changes: tuple[Change, ...]) -> dict[str, str]:
    """The host's files after these changes."""
    texts = dict(lists)
    for change in changes:
        if isinstance(change, WriteFile):
            assert texts.get(change.path) == change.before
            texts[change.path] = change.content
        elif isinstance(change, RemoveFile):
            del texts[change.path]
    return texts


def lines(changes: tuple[Change, ...]) -> dict[str, list[str]]:
    """The lines that each file of the host's owner loses and gets."""
    texts = {}
    for change in changes:
        if isinstance(change, WriteFile) and change.before is not None:
            diff = difflib.ndiff(change.before.split("\n"), change.content.split("\n"))
            texts[change.path] = [line for line in diff if line[0] in "+-"]
    return texts


def removed(changes: tuple[Change, ...]) -> list[str]:
    """The files that are removed."""
    return [change.path for change in changes if isinstance(change, RemoveFile)]
