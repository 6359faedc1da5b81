"""Faults put into the product one by one (`faults.yaml`), each of which a test must catch: says caught or NOT caught.

On a copy in a temporary folder. `python bench/faults.py [ID…]`; exit status 1: not caught, or its text not there once.
"""

import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any, NamedTuple

import yaml

CHECKOUT = Path(__file__).parents[1]
FAILED = 1  # pytest's exit status where a test failed; others: no test ran, or none could be collected
SECONDS = 900


class Fault(NamedTuple):
    """`text` of `file` becomes `becomes`; `tests` are pytest's arguments."""

    id: str
    file: str
    text: str
    becomes: str
    breaks: str
    tests: str


def copied(to: Path) -> None:
    """This checkout's files as they are now, without what git ignores."""
    words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
    listed = subprocess.run(words, cwd=CHECKOUT, capture_output=True, text=True, check=True).stdout
    for name in filter(None, listed.split("\0")):
        if (CHECKOUT / name).is_file():
            (to / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy2(CHECKOUT / name, to / name)


def tested(folder: Path, tests: str) -> int:
    """pytest's exit status; a test that hangs has failed."""
    words = [sys.executable, "-m", "pytest", "-x", "-q", "--timeout", "120", *tests.split()]
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    options: dict[str, Any] = {"cwd": folder, "env": environment, "capture_output": True, "timeout": SECONDS}
    try:
        return subprocess.run(words, check=False, **options).returncode
    except subprocess.TimeoutExpired:
        return FAILED


def judged(folder: Path, fault: Fault, stamp: float) -> str:
    """`caught`, or what is wrong. `stamp`: another one for each fault, as Python compares whole seconds of a file's time."""
    path = folder / fault.file
    before, times = path.read_text(), path.stat()
    if before.count(fault.text) != 1:
        return f"its text is there {before.count(fault.text)} times"
    path.write_text(before.replace(fault.text, fault.becomes))
    os.utime(path, (stamp, stamp))
    try:
        status = tested(folder, fault.tests)
    finally:
        path.write_text(before)
        os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    return "caught" if status == FAILED else "NOT caught" if not status else f"pytest ended with {status}"


def main(wanted: list[str]) -> int:
    faults = [Fault(**row) for row in yaml.safe_load((CHECKOUT / "bench/faults.yaml").read_text())]
    faults = [fault for fault in faults if not wanted or fault.id in wanted]
    missed = sorted(set(wanted) - {fault.id for fault in faults})
    with tempfile.TemporaryDirectory(prefix="gpunode-faults-") as name:
        copied(folder := Path(name))
        if tested(folder, " ".join(dict.fromkeys(word for fault in faults for word in fault.tests.split()))):
            missed.append("the tests, without any fault")
        for number, fault in enumerate(faults):
            word = judged(folder, fault, time.time() + number + 60)
            missed += [fault.id] * (word != "caught")
            print(f"{word:<12}{fault.id}: {fault.breaks}", flush=True)
    print(f"{len(faults)} faults" + (f"; not right: {', '.join(missed)}" if missed else ", all caught"))
    return 1 if missed else 0


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
