"""Keeps apt on a driver branch: by NVIDIA's pin package where there is one, else by a preferences file."""

from __future__ import annotations

from gpunode.compat import PackageNames
from gpunode.model import Change, DriverWish, Facts
from gpunode.planning import files, packaging
from gpunode.planning.templates import template

NAMES = PackageNames("apt")
PREFERENCE = "/etc/apt/preferences.d/gpunode-driver.pref"


def keeps(facts: Facts) -> bool:
    """Whether a pin package or the file is there."""
    preference = facts.files.get(PREFERENCE)
    return bool(NAMES.pins(facts.packages)) or (preference is not None and preference.exists)


def plan(facts: Facts, wish: DriverWish) -> tuple[Change, ...]:
    """The desired pin package and no other; without one, the file."""
    why = f"keeps apt on driver branch {wish.branch}"
    changes: list[Change] = []
    absent = tuple(spec for spec in wish.pin if spec.name not in facts.packages)
    wished = [spec.name for spec in wish.pin]
    others = tuple(sorted(name for name in NAMES.pins(facts.packages) if name not in wished))
    if absent or others:
        # A pin is its file in preferences.d: as a configuration file it would outlive a mere removal, and still pin.
        purge = bool(others)
        changes.append(packaging.change(facts, why, install=absent, remove=others, purge=purge))
    before = files.text(facts, PREFERENCE)
    if not wish.pin:
        path = PREFERENCE.lstrip("/")
        version, patterns = NAMES.any_of(wish.branch), NAMES.driver_patterns
        text = template(path, packages=patterns, version=version, archive=wish.archive)
        changes += files.write(facts, PREFERENCE, text, why)
    elif before is not None:
        changes.append(files.remove(PREFERENCE, before, f"{', '.join(wished)} says it now"))
    return tuple(changes)
