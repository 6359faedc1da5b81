"""`python -m gpunode` is `gpunode`."""

import signal


def main() -> None:
    """Run the command line. Ctrl-C while its modules are loaded ends it without a traceback: nothing has begun."""
    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from gpunode import cli

    if signal.getsignal(signal.SIGINT) is signal.SIG_DFL:
        signal.signal(signal.SIGINT, signal.default_int_handler)
    cli.main()


if __name__ == "__main__":
    main()
