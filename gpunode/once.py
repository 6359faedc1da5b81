"""What is computed once for the threads of all hosts."""

import threading
from collections.abc import Callable
from typing import Any, Generic, ParamSpec, TypeVar

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


class Once(Generic[Arguments, Result]):
    """The function, computed once for its positional arguments. Threads that come together wait for the first, where
    `functools.cache` lets all compute the same. What is known takes no lock."""

    def __init__(self, function: Callable[Arguments, Result]) -> None:
        self._function = function
        self._known: dict[Any, Result] = {}
        self._computing = threading.RLock()

    def __call__(self, *arguments: Arguments.args, **none: Arguments.kwargs) -> Result:
        if arguments not in self._known:
            with self._computing:
                if arguments not in self._known:
                    self._known[arguments] = self._function(*arguments, **none)
        return self._known[arguments]

    def clear(self) -> None:
        self._known.clear()
