"""Runs `gpunode.accept` on the host itself, where no pod can: its modules come in the job, and nothing of them stays."""

import base64
import os
import re
import shutil
import subprocess
import sys
import tempfile
import time
from typing import Iterator, List

from gpunode.agent.system import ENV, Message, below, glob_of, last

NEEDS = (3, 10)  # of the program; the agent itself runs on 3.6
BEAT = 10  # seconds between two signs of life
PYTHONS = ("/usr/bin/python3.*", "/usr/local/bin/python3.*", "/opt/gpunode/python/bin/python3.*")


def measure(program: str, level: str, seconds: float) -> Iterator[Message]:
    """Signs of life, then the answer: the program's `output`, or why there is none. `program`: a zip in base64."""
    python = find_python()
    if not python:
        yield answer(error="no Python 3.10 or newer is on this host; with `python` the inventory names one")
        return
    folder = tempfile.mkdtemp(prefix="gpunode-accept-", dir=below("/run"))
    bundle = os.path.join(folder, "program.zip")
    process = None
    try:
        with open(bundle, "wb") as file:
            file.write(base64.b64decode(program))
        with open(os.path.join(folder, "stderr"), "w+b") as errors:
            process = subprocess.Popen(
                [python, "-S", "-B", "-m", "gpunode.accept", "--level", level],
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=errors,
                cwd=folder,
                env=dict(ENV, PYTHONPATH=bundle),
                start_new_session=True,
            )
            end = time.monotonic() + seconds
            out = b""
            while time.monotonic() < end:
                try:
                    out, _ = process.communicate(timeout=BEAT)
                    break
                except subprocess.TimeoutExpired:
                    yield {"type": "alive"}
            else:
                yield answer(error="it did not end within %d seconds" % seconds)
                return
            errors.seek(0)
            why = last(errors.read().decode("utf-8", "replace"), 3)
        if process.returncode:
            yield answer(error="; ".join(why) or "it ended with status %d" % process.returncode)
        else:
            yield answer(output=out.decode("utf-8", "replace"))
    finally:
        if process is not None and process.poll() is None:
            os.killpg(process.pid, 9)
        shutil.rmtree(folder, ignore_errors=True)


def answer(output: str = "", error: str = "") -> Message:
    return {"type": "measurements", "output": output, "error": error}


def find_python() -> str:
    """A Python that is new enough for the program, the agent's own first; "" for none."""
    if sys.version_info[:2] >= NEEDS:
        return sys.executable
    newer: List[str] = []
    for pattern in PYTHONS:
        for path in glob_of(pattern):
            name = re.match(r"python3\.(\d+)$", os.path.basename(path))
            if name and (3, int(name.group(1))) >= NEEDS:
                newer.append(below(path))
    return newer[0] if newer else ""
