"""`python -m gpunode` is `gpunode`."""

import gc
import signal
from importlib import import_module
from typing import Any


def main() -> None:
    _load("gpunode.cli").main()


def kubectl_inspect() -> None:
    _load("gpunode.cli.share").main()


def _load(name: str) -> Any:
    """The module. Ctrl-C while it is loaded ends the program without a traceback: nothing has begun."""
    # What is imported stays: to look for garbage in it again and again takes a tenth of a plan.
    gc.set_threshold(400_000)
    handled = signal.getsignal(signal.SIGINT) is signal.default_int_handler
    if handled:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    module = import_module(name)
    if handled:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    return module


if __name__ == "__main__":
    main()
