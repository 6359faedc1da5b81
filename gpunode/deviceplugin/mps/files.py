"""Where things lie below the MPS root: the same paths on the host, here, and in containers of clients."""

from __future__ import annotations

from pathlib import Path


def pipe(root: str, gpu: str) -> Path:
    """CUDA_MPS_PIPE_DIRECTORY of a GPU's control daemon and of its clients."""
    return Path(root) / gpu / "pipe"


def log(root: str, gpu: str) -> Path:
    """CUDA_MPS_LOG_DIRECTORY of a GPU's control daemon."""
    return Path(root) / gpu / "log"


def mode(root: str, gpu: str) -> Path:
    """Holds the compute mode that the GPU had before."""
    return Path(root) / gpu / "compute-mode"


def shm(root: str) -> Path:
    """What daemons and clients have as /dev/shm."""
    return Path(root) / "shm"


def status(root: str) -> Path:
    """The socket on which the daemons' state is told."""
    return Path(root) / "status.sock"
