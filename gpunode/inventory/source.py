"""The inventory file: its data with positions and mistakes, and the paths that it names."""

import difflib
import errno
import re
from dataclasses import dataclass
from pathlib import Path
from typing import ClassVar

from gpunode.contract.yaml_text import INVALID, Document, Mistake, Where, format_path, kind
from gpunode.errors import InventoryError
from gpunode.local import files as localfile
from gpunode.wording import few

# A section that starts with a host
INI = re.compile(rb"^\[[\w.:-]+\]\s*$(?=.*\n[\w.-]+( \w+=.*)?$)", re.MULTILINE)
LARGEST = 64 << 20  # bytes; ten thousand hosts with values of their own have 2 MB


@dataclass
class Source(Document):
    """An inventory's document and its path."""

    no_merge: ClassVar[str] = "what hosts share goes into a group or `defaults`"

    path: Path = Path()

    def relative(self, name: str) -> Path:
        """The absolute path for a path in this file: `~` is the user's home, others start at the file's folder."""
        return (self.path.parent / localfile.full(name)).absolute()

    def place(self, where: Where) -> str:
        """`file:line:column: key` of a value, as mistakes begin."""
        line, column = self.values[where]
        return f"{self.path}:{line}:{column}: {format_path(where)}"

    def stop(self) -> None:
        """Raise InventoryError with all mistakes noted so far, as `mistakes` orders them; return if there are none."""
        if self.problems:
            raise InventoryError([f"{self.path}:{mistake}" for mistake in self.mistakes])


def read(path: Path) -> Source:
    """The parsed file. Raises InventoryError if it cannot be read or is no YAML; other mistakes are noted."""
    source = Source(path=path)
    raw = content(path)
    try:
        source.read(raw)
    except Mistake as mistake:
        if ini := INI.search(raw):
            line = raw.count(b"\n", 0, ini.start()) + 1
            what = "this is an INI file, such as Ansible's; gpunode reads YAML: see inventories/ for examples"
            raise InventoryError([f"{path}:{line}:1: {what}"]) from None
        raise InventoryError([f"{path}:{mistake}"]) from None
    if source.data is INVALID:
        source.stop()
    if source.data is None:
        raise InventoryError([f"{path}: the file is empty; it needs `groups` with `hosts`"])
    if not isinstance(source.data, dict):
        source.problem((), f"expected `groups:` and the like at the top, got {kind(source.data)}")
        source.stop()
    if other := _other(source.data):
        raise InventoryError([f"{path}: {other}; `gpunode init` writes an inventory"])
    return source


def _other(data: dict[str, object]) -> str:
    """What the file is where it is another tool's; "" where it may be an inventory."""
    if {"apiVersion", "kind"} <= data.keys() and "groups" not in data:
        if data["kind"] == "Config":
            return "this is a kubeconfig, which an inventory names: `cluster: {kubeconfig: FILE}`"
        return f"this is a manifest of kind {data['kind']}"
    return "this is an inventory of Ansible's" if "all" in data and "groups" not in data else ""


def content(path: Path) -> bytes:
    try:
        return localfile.read(path, LARGEST)
    except IsADirectoryError:
        inside = sorted(entry.name for entry in path.iterdir() if entry.suffix in {".yaml", ".yml"})
        listing = f"; in it: {', '.join(inside[:5])}" if inside else ""
        raise InventoryError([f"{path}: is a directory, expected a YAML file{listing}"]) from None
    except FileNotFoundError:
        near = "; standard input has the name /dev/stdin" if str(path) == "-" else near_file(path)
        if not near and not path.suffix:  # perhaps a host's name
            near = "; the argument is the inventory's file, `--limit` chooses hosts"
        raise InventoryError([f"{path}: no such file{near}"]) from None
    except OSError as error:
        if error.errno == errno.EFBIG:
            raise InventoryError(
                [f"{path}: has more than {LARGEST >> 20} MiB, as no inventory has; name another file"]
            ) from None
        raise InventoryError([f"{path}: cannot be read: {error.strerror}; name another file"]) from None


def near_file(path: Path) -> str:
    """`; did you mean …?` if the folder has a file of a similar name, else what there is in place of an inventory."""
    try:
        names = [entry.name for entry in path.parent.iterdir()]
    except OSError:
        return f"; there is no folder {path.parent} either"
    if near := difflib.get_close_matches(path.name, names, n=1, cutoff=0.75):
        return f"; did you mean {path.with_name(near[0])}?"
    here = sorted(name for name in names if name.endswith((".yaml", ".yml")))
    if here and path.suffix:
        return f"; its folder has {few(here, 5)}"
    return "; `gpunode init` writes an inventory" if path.suffix else ""
