"""How long lists read in a sentence."""

from __future__ import annotations

from collections.abc import Sequence


def few(said: Sequence[str], most: int) -> str:
    """`a, b and 3 more`: the first ones, `most` of them, and how many there are besides."""
    more = f" and {len(said) - most} more" if len(said) > most else ""
    return ", ".join(said[:most]) + more
