"""NVML's handles of GPUs, by UUID."""

from __future__ import annotations

from typing import Any


class Handles:
    """Handles taken by index and kept until NVML restarts. For any thread.

    Not nvmlDeviceGetHandleByUUID: it fails for every GPU while "any GPU has fallen off the bus" (nvml.h), the question by
    index only for the one that has.
    """

    def __init__(self, nvml: Any) -> None:
        self.nvml = nvml
        self._indexes: dict[str, int] = {}
        self._handles: dict[str, Any] = {}
        self._closed = False

    def take(self, index: int) -> tuple[str, Any]:
        """UUID and handle of GPU number `index`. Raises NVMLError."""
        handle = self.nvml.nvmlDeviceGetHandleByIndex(index)
        uuid = text(self.nvml.nvmlDeviceGetUUID(handle))
        self._indexes[uuid], self._handles[uuid] = index, handle
        return uuid, handle

    def of(self, uuid: str) -> Any:
        """The GPU's handle. Raises NVMLError."""
        if self._closed:
            raise self.nvml.NVMLError(self.nvml.NVML_ERROR_UNINITIALIZED)
        known = self._handles.get(uuid)
        return self._find(uuid) if known is None else known

    def drop(self, uuid: str) -> None:
        """Take the GPU's handle again before its next use: it may be back after an error."""
        self._handles.pop(uuid, None)

    def close(self) -> None:
        """Drop all handles, and refuse them until `open`: NVML restarts."""
        self._closed = True
        self._handles.clear()

    def open(self) -> None:
        self._closed = False

    def _find(self, uuid: str) -> Any:
        """By the index where the GPU was last; a GPU that was never taken is searched."""
        known = self._indexes.get(uuid)
        error = self.nvml.NVMLError(self.nvml.NVML_ERROR_NOT_FOUND)
        for index in range(self.nvml.nvmlDeviceGetCount()) if known is None else (known,):
            try:
                found, handle = self.take(index)
            except self.nvml.NVMLError as failed:
                error = failed
            else:
                if found == uuid:
                    return handle
        raise error


def text(value: str | bytes) -> str:
    """The value as str: NVML's versions return either type."""
    return value.decode() if isinstance(value, bytes) else value
