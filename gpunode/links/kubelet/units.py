"""A unit and its drop-ins: which of a host's files systemd reads, and in which order. Pure."""

from __future__ import annotations

import re
from collections.abc import Mapping

from gpunode.model import Facts
from gpunode.planning import files

# Where a unit may be. systemd takes it, and a drop-in of a name, from the last of these that has it; the first two are
# one folder on most hosts.
FOLDERS = ("/usr/lib", "/lib", "/usr/local/lib", "/run", "/etc")
RANKED = ("/etc/", "/run/", "/usr/local/lib/", "/")


def patterns(unit: str) -> tuple[str, ...]:
    """The files that can be the unit or a drop-in of it."""
    places = (f"{folder}/systemd/system/{unit}" for folder in FOLDERS)
    return tuple(path for place in places for path in (place, f"{place}.d/*.conf"))


def texts(facts: Facts, unit: str) -> Mapping[str, str]:
    """The texts of unit and drop-ins in the order in which systemd reads them, those not loaded yet among them."""
    if facts.kubelet is None:
        return {}
    name, kind = (re.escape(part) for part in unit.rsplit(".", 1))
    own = re.compile(rf"/systemd/system/{name}\.{kind}(?:\.d/(?:[^/]+\.conf))?$")
    # What `systemctl cat` writes above each file.
    header = re.compile(
        rf"^# (/\S+/(?:{name}\.{kind}|(?:{name}\.)?{kind}\.d/[^/\s]+\.conf))[ \t\r]*\n", re.MULTILINE
    )
    there = {path for path, file in facts.files.items() if file.exists and own.search(path)}
    before, *parts = header.split(facts.kubelet.unit_text)
    found = dict(zip(parts[::2], parts[1::2], strict=True))
    if before.strip() and "" not in map(_drop_in, found):
        found[""] = before
    for path in sorted(there - set(found)):
        same = next((other for other in found if _drop_in(other) == _drop_in(path)), None)
        if same is None or _rank(path) < _rank(same):
            found = {path: "", **{other: text for other, text in found.items() if other != same}}
    found = {path: files.text(facts, path) or "" if path in there else text for path, text in found.items()}
    return {path: found[path] for path in sorted(found, key=_drop_in)}


def _drop_in(path: str) -> str:
    """The name of a drop-in, which one of the same name in another folder replaces; empty for the unit itself."""
    found = re.search(r"\.d/([^/]+)$", path)
    return found[1] if found else ""


def _rank(path: str) -> int:
    return next((rank for rank, folder in enumerate(RANKED) if path.startswith(folder)), len(RANKED))
