"""`python -m gpunode.deviceplugin.image DIR`: makes the build context of the plugin's image in DIR.

python -m gpunode.deviceplugin.image build/plugin
docker build -t gpunode-deviceplugin --build-arg BASE=python:3.11-slim-bookworm build/plugin
"""

from __future__ import annotations

import argparse
import shutil
import subprocess
import sys
from pathlib import Path

PACKAGE = Path(__file__).parent


def context(dest: Path, *, python: str = "3.11", machine: str = "x86_64", pip: tuple[str, ...] = ()) -> None:
    """Fill `dest` with the Dockerfile, the package and its libraries for CPython `python` on `machine` (glibc).

    The libraries are those of requirements.lock, checked by hash. `pip` is the command that runs pip (default:
    this interpreter's). Raises CalledProcessError if pip fails, after pip has printed the reason.
    """
    for part in ("site", "gpunode"):
        shutil.rmtree(dest / part, ignore_errors=True)
    dest.mkdir(parents=True, exist_ok=True)
    shutil.copy(PACKAGE / "Dockerfile", dest)
    shutil.copytree(
        PACKAGE,
        dest
        / "gpunode/deviceplugin",  # without gpunode/__init__.py: a namespace package, nothing else of gpunode
        ignore=shutil.ignore_patterns(
            "__pycache__", "Dockerfile", "requirements.*", "*.proto", "*.pyi", "image.py"
        ),
    )
    # The scheduler extender runs in the same image.
    shutil.copytree(
        PACKAGE.parent / "share", dest / "gpunode/share", ignore=shutil.ignore_patterns("__pycache__")
    )
    platforms = [
        f"--platform={name}_{machine}" for name in ("manylinux2014", "manylinux_2_17", "manylinux_2_28")
    ]
    subprocess.run(
        [
            *(pip or (sys.executable, "-m", "pip")),
            *("install", "--quiet", "--disable-pip-version-check", "--no-compile", "--no-deps"),
            *("--require-hashes", "--only-binary=:all:", f"--python-version={python}", "--implementation=cp"),
            *platforms,
            *("--target", str(dest / "site"), "--requirement", str(PACKAGE / "requirements.lock")),
        ],
        check=True,
        stdin=subprocess.DEVNULL,
    )


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="python -m gpunode.deviceplugin.image",
        description="Make the build context of the device plugin's image.",
        epilog="example: python -m gpunode.deviceplugin.image build/plugin && docker build build/plugin",
    )
    parser.add_argument("dest", type=Path, help="folder to fill")
    parser.add_argument("--python", default="3.11", help="version of the base image's Python (default: 3.11)")
    parser.add_argument("--machine", default="x86_64", choices=("x86_64", "aarch64"))
    options = parser.parse_args()
    try:
        context(options.dest, python=options.python, machine=options.machine)
    except subprocess.CalledProcessError as error:
        print(f"the libraries could not be fetched (pip ended with {error.returncode})", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
