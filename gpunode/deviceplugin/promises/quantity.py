"""Kubernetes' quantities of extended resources: whole numbers, however they are written. Pure."""

from __future__ import annotations

import re
from decimal import Decimal

MOST = 2**63 - 1  # the API server's own limit
# The API server writes 1000 as "1k" (apimachinery's resource.Quantity is canonical).
SUFFIXES = {"": 1, "k": 10**3, "M": 10**6, "G": 10**9, "T": 10**12, "P": 10**15, "E": 10**18} | {
    f"{letter}i": 1024**power for power, letter in enumerate("KMGTPE", 1)
}
QUANTITY = re.compile(r"([+-]?\d{1,19}(?:\.\d{0,18})?)(?:[eE]([+-]?\d{1,2})|([kMGTPE]|[KMGTPE]i)?)", re.ASCII)


def whole(value: object) -> int:
    """The number that a quantity of an extended resource stands for. ValueError if it is none, negative or too large."""
    match = QUANTITY.fullmatch(str(value)) if type(value) in (str, int) else None
    if match is None:
        raise ValueError(f"expected a quantity, found {str(value)[:40]!r}")
    digits, exponent, suffix = match.groups()
    number = Decimal(digits) * (Decimal(10) ** int(exponent) if exponent else SUFFIXES[suffix or ""])
    if number != number.to_integral_value():
        raise ValueError(f"expected a whole number, found {value!r}")
    if not 0 <= number <= MOST:
        raise ValueError(f"expected a number from 0 to {MOST}, found {value!r}")
    return int(number)
