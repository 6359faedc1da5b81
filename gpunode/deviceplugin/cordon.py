"""Follows the file of cordoned GPUs: they are Unhealthy while they are in it. Running containers keep them."""

import asyncio
import contextlib
import logging
from pathlib import Path

from gpunode.contract.cordons import FILE, Cordon, loads

from .directory import Directory
from .state import NodeState

log = logging.getLogger(__name__)

PAUSE = 1.0  # seconds before the folder is made again


class Cordons:
    """Cordons the GPUs of the file in `state`. A file that cannot be read changes nothing."""

    def __init__(self, directory: Path, state: NodeState) -> None:
        self._path = directory / FILE
        self._state = state
        self._cordons: dict[str, Cordon] = {}
        self._problem = ""
        self._gone = asyncio.Event()  # the folder
        self._folder = Directory(self._path.parent, self._check)
        self._read()

    async def run(self) -> None:
        """Follow the file until cancelled."""
        while True:
            self._gone.clear()
            with contextlib.suppress(OSError):  # the folder cannot be made: again later
                self._path.parent.mkdir(exist_ok=True)
                self._folder = Directory(self._path.parent, self._check)
                with self._folder:
                    self._check()  # for a change since the last read
                    await self._gone.wait()
            await asyncio.sleep(PAUSE)

    def apply(self) -> None:
        """Cordon the GPUs that NVML lists now, with their MIG devices."""
        self._state.cordon(
            {
                device.uuid: self._cordons[device.gpu].why
                for device in self._state.devices
                if device.gpu in self._cordons
            }
        )

    def _check(self) -> None:
        self._read()
        self.apply()
        if self._folder.gone or not self._path.parent.exists():
            self._gone.set()

    def _read(self) -> None:
        try:
            cordons = loads(self._path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            cordons = {}
        except (OSError, ValueError) as error:
            if str(error) != self._problem:
                log.warning("cordoned GPUs are unchanged: %s: %s", self._path, error)
            self._problem = str(error)
            return
        self._problem = ""
        for uuid in cordons.keys() - self._cordons.keys():
            log.info("%s", cordons[uuid].why, extra={"gpu": uuid})
        for uuid in self._cordons.keys() - cordons.keys():
            log.info("uncordoned", extra={"gpu": uuid})
        self._cordons = cordons
