"""MIG profiles of GPU models, and which of them fit into one GPU. Pure."""

import functools
import re
from collections import Counter
from collections.abc import Mapping, Sequence

from gpunode.model import Layout
from gpunode.planning.tables import table

ALL = "all-"  # before a profile: as many of it as fit, as mig-parted names such configurations
# Where an instance of so many compute slices can begin, and how many of the 8 memory slices it takes.
# source: `nvidia-smi mig -lgipp` in NVIDIA's MIG User Guide; A30 and RTX PRO 6000 have four slices of each.
SEVEN: Mapping[int, tuple[tuple[int, ...], int]] = {
    1: (tuple(range(7)), 1),
    2: ((0, 2, 4), 2),
    3: ((0, 4), 4),
    4: ((0,), 4),
    7: ((0,), 8),
}
FOUR: Mapping[int, tuple[tuple[int, ...], int]] = {1: ((0, 1, 2, 3), 1), 2: ((0, 2), 2), 4: ((0,), 4)}
TWICE = ((0, 2, 4, 6), 2)  # one compute slice with the memory of two


def profiles(device: str) -> tuple[str, ...]:
    """The profiles of a PCI device id; () where the table does not have it."""
    rows = table(__package__, "mig.yaml")["models"]
    return next((tuple(row["profiles"]) for row in rows if device.lower() in row["devices"]), ())


def models(words: str, layout: Layout) -> Mapping[str, tuple[str, ...]]:
    """The models of the table that a rule with these words and this layout may be for, and their profiles. Without words: those that
    have all of its profiles."""
    rows = [
        (name, row["profiles"])
        for row in table(__package__, "mig.yaml")["models"]
        for name in row["devices"].values()
    ]
    return {
        name: tuple(known)
        for name, known in rows
        if matches(words, name) and (words or set(expand(layout or (), known)) <= set(known))
    }


def unknown(words: str, layout: Sequence[str]) -> str:
    """What is wrong with a rule that no model of the table fits; "" if it may be of a GPU that the table does not have."""
    rows = table(__package__, "mig.yaml")
    if words:
        known = any(matches(words, name) for name in rows["without"])
        return f"{words} has no MIG; write `mig: off`, or remove this key" if known else ""
    if layout[0].startswith(ALL):
        profile = layout[0][len(ALL) :]
        models = [[known for known in row["profiles"] if known[-1] == "b"] for row in rows["models"]]
        every = {known for model in models for known in model}
        memory = _memory(profile)
        whole = {known for model in models if max(map(_memory, model)) == memory for known in model}
        alike = {known for known in every if _slices(known) == _slices(profile)}
        near = sorted(whole or alike or every, key=lambda known: (_slices(known), _memory(known)))
        if whole:
            return f"no GPU has the MIG profile {profile}; GPUs of {memory} GB have {', '.join(near)}"
        return (
            f"no GPU of the table has the MIG profile {profile}; it has {', '.join(near)}. "
            "List the profiles of a newer GPU one by one"
        )
    return ""


def matches(words: str, name: str) -> bool:
    """Whether a GPU's name has these words, in any case; whole ones, as an L40S is no L4."""
    return not words or bool(re.search(rf"(?<!\w){re.escape(words.strip())}(?!\w)", name, re.IGNORECASE))


def expand(layout: Sequence[str], known: Sequence[str]) -> tuple[str, ...]:
    """The layout's profiles in the order in which a GPU is cut into them: the largest first, as else 3g does not fit beside
    2g, 1g and 1g (NVIDIA's MIG User Guide). `known`: the GPU's profiles, which `all-PROFILE` needs."""
    if len(layout) == 1 and layout[0].startswith(ALL):
        profile, count = layout[0][len(ALL) :], 1
        while profile in known and fit((profile,) * (count + 1), known):
            count += 1
        return (profile,) * count
    return tuple(sorted(layout, key=lambda profile: (-_slices(profile), -_memory(profile), profile)))


def problem(layout: Layout, known: Sequence[str]) -> str:
    """Why a GPU with these profiles cannot have the layout; "" if it can."""
    wanted = expand(layout or (), known)
    if unknown := [profile for profile in dict.fromkeys(wanted) if profile not in known]:
        return f"no MIG profile {', '.join(unknown)}; it has {', '.join(known)}"
    if fit(wanted, known):
        return ""
    most = (f"{len(expand((ALL + profile,), known))} × {profile}" for profile in dict.fromkeys(wanted))
    return f"{describe(wanted)} do not fit on one GPU; {' or '.join(most)} would fit"


def fit(wanted: Sequence[str], known: Sequence[str]) -> bool:
    """Whether instances of these profiles fit into a GPU beside each other. Media extensions (`+me`) are there once."""
    if sum("+me" in profile for profile in wanted) > 1:
        return False
    shapes = FOUR if max(map(_slices, known)) == 4 else SEVEN
    least = min(map(_memory, known))

    @functools.cache  # else seven equal instances are tried in each of their 5,040 orders
    def place(rest: tuple[str, ...], taken: frozenset[int]) -> bool:
        if not rest:
            return True
        slices = _slices(rest[0])
        starts, size = (
            TWICE if slices == 1 and _memory(rest[0]) > least else shapes.get(slices, ((0,), slices))
        )
        parts = (frozenset(range(start, start + size)) for start in starts)
        return any(place(rest[1:], taken | part) for part in parts if not part & taken)

    return place(expand(wanted, known), frozenset())


def describe(layout: Layout) -> str:
    """`off`, or `3g.40gb + 2 × 1g.10gb`."""
    counts = Counter(layout or ())
    parts = " + ".join(f"{n} × {profile}" if n > 1 else profile for profile, n in counts.items())
    return "off" if layout is None else parts or "on, without devices"


def _slices(profile: str) -> int:
    return int(profile.partition("g.")[0])


def _memory(profile: str) -> int:
    match = re.search(r"\.(\d+)gb", profile)
    return int(match[1]) if match else 0
