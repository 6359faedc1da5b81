"""python3 -m tests.lab up | down | status | count | check | reset HOST"""

import argparse
import os
import signal
import sys

from . import lab
from .progress import CannotRun, LabError, say

CANNOT_RUN = 77


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python3 -m tests.lab", description="A real cluster to test gpunode on."
    )
    commands = parser.add_subparsers(dest="command", required=True)
    up = commands.add_parser("up", help="bring the lab up; safe to repeat")
    up.add_argument(
        "--labs", type=int, default=1, help="so many, for tests that run side by side, or as many as fit"
    )
    commands.add_parser(
        "down", help="stop all labs of this checkout and remove what they made, but the cache"
    )
    commands.add_parser("status", help="what runs; exit code 0 if all of it does")
    commands.add_parser("count", help="how many labs of this checkout run")
    commands.add_parser("check", help="whether hosts and cluster are as tests expect them right after `up`")
    reset = commands.add_parser("reset", help="make a host bare again")
    reset.add_argument("host", choices=["modern", "legacy"])
    options = parser.parse_args()
    os.environ["PATH"] += ":/usr/sbin:/sbin:/usr/local/go/bin"  # a root shell made by `su` has none of them
    try:
        if options.command == "up":
            signal.signal(signal.SIGTERM, signal.default_int_handler)
            lab.up(options.labs)
        elif options.command == "down":
            lab.down()
        elif options.command == "status":
            return lab.status()
        elif options.command == "count":
            print(lab.count())
        elif options.command == "check":
            from .selftest import check

            return check()
        else:
            from .api import load

            load().node(options.host).reset()
    except KeyboardInterrupt:
        say("interrupted; `up` goes on from here, `down` takes it away")
        return 130
    except CannotRun as error:
        say(str(error))
        return CANNOT_RUN
    except LabError as error:
        say(f"failed: {error}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
