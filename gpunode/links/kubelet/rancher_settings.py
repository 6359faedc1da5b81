"""k3s and RKE2: their files, and their settings as they read them. Pure.

docs.k3s.io/installation/configuration and docs.rke2.io/install/configuration: config.yaml, then config.yaml.d by name. A
later key replaces an earlier one; with a `+` after it, it is appended; arguments of the command replace both.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import Literal

import yaml

from gpunode.deviceplugin.settings import syntax
from gpunode.errors import CannotPlan
from gpunode.model import Facts, Place
from gpunode.planning import files, services


@dataclass(frozen=True, slots=True)
class Product:
    """k3s or RKE2, and where it keeps its files."""

    name: Literal["k3s", "rke2"]
    units: tuple[str, ...]  # of a server, of an agent

    @property
    def title(self) -> str:
        """As its makers write it."""
        return "k3s" if self.name == "k3s" else "RKE2"

    @property
    def config(self) -> str:
        """Its settings; drop-ins are beside it."""
        return f"/etc/rancher/{self.name}/config.yaml"

    @property
    def agent(self) -> str:
        """The folder of its kubelet and its containerd."""
        return f"/var/lib/rancher/{self.name}/agent"

    @property
    def watched(self) -> tuple[str, ...]:
        """The files of its settings."""
        return (self.config, f"{self.config}.d/*.y*ml")

    def unit(self, facts: Facts) -> str | None:
        """The unit that this host has, an active one first; None: it is no node of this product."""
        there = [unit for unit in self.units if services.is_loaded(facts, unit)]
        return next((unit for unit in there if services.is_active(facts, unit)), there[0] if there else None)

    def place(self, unit: str) -> Place:
        """Its kubelet's."""
        drop_in = f"{self.config}.d/91-gpunode-kubelet.yaml"
        return Place(unit, self.config, "", (), (), drop_in, brings=self.name)


PRODUCTS: Mapping[str, Product] = MappingProxyType(
    {
        "k3s": Product("k3s", ("k3s.service", "k3s-agent.service")),
        "rke2": Product("rke2", ("rke2-server.service", "rke2-agent.service")),
    }
)


@dataclass(frozen=True, slots=True)
class Scalar:
    """A value in a file, and where its text begins and ends."""

    path: str
    value: str
    start: int
    stop: int


@dataclass(frozen=True, slots=True)
class Setting:
    """A key of a file with its values, and where its text begins and ends. `appends`: to what earlier files set."""

    key: str
    appends: bool
    values: tuple[Scalar, ...]
    start: int
    stop: int


def settings(facts: Facts, product: Product) -> tuple[Setting, ...]:
    """All settings of a host, in the order in which they count. Raises CannotPlan for a file that is not valid."""
    there = (path for path, file in facts.files.items() if file.exists)
    drop_ins = sorted(path for path in there if path.startswith(f"{product.config}.d/"))
    return tuple(
        one for path in (product.config, *drop_ins) for one in read(files.text(facts, path) or "", path)
    )


def values(found: tuple[Setting, ...], key: str) -> tuple[Scalar, ...]:
    """What a key is set to in the end; () where no file sets it."""
    so_far: tuple[Scalar, ...] = ()
    for one in found:
        if one.key == key:
            so_far = (*so_far, *one.values) if one.appends else one.values
    return so_far


def read(text: str, path: str) -> Iterator[Setting]:
    """The settings of one file."""
    try:
        root = syntax.nodes(text)
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f"{path}:{mark.line + 1}:{mark.column + 1}" if mark else path
        raise CannotPlan(
            f"{path} does not parse\n{where}: not valid YAML: {getattr(error, 'problem', error)}",
            hint="Fix the file by hand (the node's service reads it too), then run again; it was not touched.",
        ) from None
    if not isinstance(root, yaml.MappingNode):
        return
    for key, value in root.value:
        nodes = value.value if isinstance(value, yaml.SequenceNode) else [value]
        scalars = tuple(
            Scalar(path, str(node.value), node.start_mark.index, node.end_mark.index)
            for node in nodes
            if isinstance(node, yaml.ScalarNode)
        )
        name = str(key.value)
        yield Setting(
            name.removesuffix("+"), name.endswith("+"), scalars, key.start_mark.index, value.end_mark.index
        )


def replaced(text: str, one: Scalar, value: str) -> str:
    """The text with another value, in the quotes that are there."""
    quote = text[one.start : one.start + 1]
    quote = quote if quote in ("'", '"') else ""
    return f"{text[: one.start]}{quote}{value}{quote}{text[one.stop :]}"


def without(text: str, one: Scalar) -> str:
    """The text without a value: the item of its list, or the whole key where it is the only one."""
    owner = next(s for s in read(text, one.path) if any(v.start == one.start for v in s.values))
    if len(owner.values) == 1:
        return _cut(text, owner.start, owner.stop)
    line = text.rfind("\n", 0, one.start) + 1
    if text[line : one.start].strip() == "-":
        return _cut(text, one.start, one.stop)
    after = text[one.stop :]
    if after.lstrip().startswith(","):  # a list on one line
        return text[: one.start] + after.lstrip()[1:].lstrip()
    return text[: one.start].rstrip().removesuffix(",") + after


def _cut(text: str, start: int, stop: int) -> str:
    """The text without the lines from `start` to `stop`, whole."""
    begin = text.rfind("\n", 0, start) + 1
    end = stop if text[stop - 1 : stop] == "\n" else text.find("\n", stop) + 1
    return text[:begin] + (text[end:] if end > 0 else "")
