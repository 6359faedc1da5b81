"""`python -m gpunode.deviceplugin.mps`: keeps the MPS control daemons of this node until it is told to stop."""

from __future__ import annotations

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

from ..gpus.devices import explain
from ..logfmt import log_to_stderr
from ..offer.checkpoint import NAME
from ..settings.config import BadConfig
from ..source import Source
from ..told import AGAIN, CHANGED, Told
from . import files, shm
from .bulletin import Bulletin
from .keeper import Keeper
from .modes import NvmlModes

log = logging.getLogger("gpunode.deviceplugin")


async def keep(nvml: Any, source: Source, told: Told) -> str:
    """Keep the daemons, by the configuration as it is and as it changes; returns the signal that ended it."""
    root, bulletin = source.config.mps_root, Bulletin()
    record = Path(source.config.kubelet_socket).with_name(NAME)
    keeper = Keeper(nvml, root, NvmlModes(nvml, root, record), bulletin)
    async with bulletin.open(files.status(root)):
        try:
            while True:
                log.setLevel(source.config.log_level.upper())
                word = await told.until(keeper.run(source.config), source)
                if word not in (AGAIN, CHANGED):
                    return word
                if word == AGAIN:
                    source.renew()
                log.info("following the configuration", extra={"because": word})
        finally:
            await keeper.stop()


def main() -> int:
    """Exit status: 0 after a signal; 1 where this container lacks something; 2 for a bad configuration."""
    import pynvml

    log_to_stderr()
    told = Told()
    try:
        # The plugin's own flags, variables and file: both have to make the same of them.
        source = Source(sys.argv[1:], os.environ, program=__doc__ or "")
        config = source.config
    except BadConfig as error:
        log.critical("%s", error)
        return 2
    try:
        Path(config.mps_root).mkdir(parents=True, exist_ok=True)
        shm.share(config.mps_root)
        pynvml.nvmlInit()
    except (OSError, shm.NotShared) as error:
        log.critical("%s", error)
        return 1
    except pynvml.NVMLError as error:  # started anew, the container gets what the driver then has
        log.critical("%s", explain(error))
        return 1
    log.info("stopped", extra={"signal": asyncio.run(keep(pynvml, source, told))})
    return 0


if __name__ == "__main__":
    sys.exit(main())
