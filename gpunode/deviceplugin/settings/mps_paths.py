"""Paths below the MPS root. They are the same on the host, here, and in clients' containers."""

from __future__ import annotations

from pathlib import Path


def pipe(root: str, gpu: str) -> Path:
    """CUDA_MPS_PIPE_DIRECTORY of a GPU's control daemon and of its clients."""
    return Path(root) / gpu / "pipe"


def log(root: str, gpu: str) -> Path:
    """CUDA_MPS_LOG_DIRECTORY of a GPU's control daemon."""
    return Path(root) / gpu / "log"


def mode(root: str, gpu: str) -> Path:
    """The file with the GPU's previous compute mode."""
    return Path(root) / gpu / "compute-mode"


def shm(root: str) -> Path:
    """The directory that daemons and clients mount as /dev/shm."""
    return Path(root) / "shm"


def status(root: str) -> Path:
    """The socket that serves the daemons' state."""
    return Path(root) / "status.sock"
