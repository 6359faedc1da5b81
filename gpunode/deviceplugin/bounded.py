"""A bound on connections. Any pod of the cluster can connect, and each connection takes memory and a descriptor."""

from collections.abc import Callable
from typing import Generic, TypeVar

T = TypeVar("T")


class Bounded(Generic[T]):
    """At most so many at once, oldest first. One more ends the oldest, so that the kubelet and the scheduler always get
    through. Not for several threads at once."""

    def __init__(self, most: int, end: Callable[[T], object]) -> None:
        self._most = most
        self._end = end
        self._there: dict[T, None] = {}

    def add(self, item: T) -> None:
        if len(self._there) >= self._most:
            oldest = next(iter(self._there))
            del self._there[oldest]
            self._end(oldest)
        self._there[item] = None

    def discard(self, item: T) -> None:
        self._there.pop(item, None)
