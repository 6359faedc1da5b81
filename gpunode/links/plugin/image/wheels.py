"""The plugin's libraries as wheels, fetched by pip and checked by the hashes of requirements.lock."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import gpunode
from gpunode.errors import GpunodeError

LOCK = Path(gpunode.__file__).parent / "deviceplugin/requirements.lock"
GLIBC = ("manylinux2014", "manylinux_2_17", "manylinux_2_28")


def fetch(dest: Path, *, python: str, machine: str, folder: Path | None = None) -> list[Path]:
    """The wheels for CPython `python` on `machine`, sorted, in `dest`: from `folder` alone, or as pip is configured.

    Raises GpunodeError with pip's own reason.
    """
    source = ["--isolated", "--no-index", "--find-links", str(folder)] if folder else []
    done = subprocess.run(
        [
            *(sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"),
            *("--require-hashes", "--only-binary=:all:", f"--python-version={python}", "--implementation=cp"),
            *(f"--platform={name}_{machine}" for name in GLIBC),
            *("--dest", str(dest), "--requirement", str(LOCK), *source),
        ],
        capture_output=True,
        text=True,
        check=False,
        stdin=subprocess.DEVNULL,
    )
    if done.returncode:
        lines = [line.strip() for line in done.stderr.splitlines() if line.strip()]
        shown = [
            line.removeprefix("ERROR: ") for line in lines if not line.startswith(("WARNING", "Expected"))
        ] or lines
        raise GpunodeError(
            f"pip cannot bring the libraries for Python {python} on {machine}"
            + (f" from {folder}" if folder else "")
            + "".join(f"\n    {line}" for line in shown[-8:]),
            hint=_hint(done.stderr, folder),
        )
    return sorted(dest.glob("*.whl"))


def _hint(words: str, folder: Path | None) -> str:
    if "No module named pip" in words:
        return f"Install pip beside gpunode: {sys.executable} -m ensurepip"
    if "DO NOT MATCH THE HASHES" in words:
        return "This is not the file that requirements.lock names: fetch it again, from another place."
    if folder:
        return f"The folder needs the wheels of {LOCK}, each for this Python and machine."
    return "Where there is no internet, name a folder of wheels with --wheels, or write the image elsewhere."
