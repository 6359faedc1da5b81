"""Which of many patterns a line may match, by a text that each of them needs: a log has a hundred thousand lines, and the table 400 patterns."""

import re
import sys
from collections import Counter
from collections.abc import Sequence
from importlib import import_module
from typing import Any

# Python's own parser of patterns, which has moved once.
PARSER = import_module("re._parser" if sys.version_info >= (3, 11) else "sre_parse")
LENGTH = 4  # of the keys: a line's parts of this length are looked up at once


class Index:
    """Patterns that ignore case, by their numbers."""

    def __init__(self, patterns: Sequence[str]) -> None:
        needs = [_needs(PARSER.parse(pattern, re.IGNORECASE)) for pattern in patterns]
        # Those that need no text of LENGTH: each line is tried with them.
        self.always = [number for number, texts in enumerate(needs) if not texts]
        often = Counter(part for texts in needs for text in texts for part in _parts(text))
        self._keys: dict[str, set[tuple[str, int]]] = {}
        for number, texts in enumerate(needs):
            for text in texts:
                rarest = min(_parts(text), key=lambda part: (often[part], part))
                self._keys.setdefault(rarest, set()).add((text, number))

    def numbers(self, text: str) -> Sequence[int]:
        """Of the patterns that the text may match, in their order."""
        low = text.lower()
        keys = self._keys.keys() & _parts(low)
        numbers = {number for key in keys for need, number in self._keys[key] if need in low}
        return sorted(numbers.union(self.always))


def _parts(text: str) -> set[str]:
    return {text[start : start + LENGTH] for start in range(len(text) - LENGTH + 1)}


def _needs(sequence: Any, before: str = "") -> frozenset[str]:
    """Texts in lower case of which every match has one, with the text `before` it; empty: none is long enough."""
    kinds, text = [], before
    for operation, value in sequence:
        kind = str(operation)
        if kind == "LITERAL":
            text += chr(value).lower()
        elif kind != "AT":
            kinds += [frozenset({text}), _inner(kind, value, text)]
            text = ""
    fit = [kind for kind in [*kinds, frozenset({text})] if kind and min(map(len, kind)) >= LENGTH]
    return max(fit, key=lambda kind: min(map(len, kind)), default=frozenset())


def _inner(kind: str, value: Any, before: str) -> frozenset[str]:
    """What a group, an alternative or a repeat needs."""
    if kind == "SUBPATTERN":
        return _needs(value[3], before)
    if kind == "ASSERT" and value[0] > 0:
        return _needs(value[1], before)
    if kind in ("MAX_REPEAT", "MIN_REPEAT") and value[0] > 0:
        return _needs(value[2], before)
    if kind == "BRANCH":
        branches = [_needs(branch, before) for branch in value[1]]
        return frozenset().union(*branches) if all(branches) else frozenset()
    return frozenset()
