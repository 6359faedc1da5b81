"""`python -m gpunode.deviceplugin.mps`: runs the MPS control daemons of this node until SIGTERM or SIGINT."""

import asyncio
import logging
import os
import sys
from pathlib import Path
from typing import Any

from gpunode.contract.checkpoint import FILE_NAME
from gpunode.contract.config import BadConfig

from ..gpus import Handles, explain
from ..logfmt import log_to_stderr
from ..nvml import Nvml
from ..reload import CHANGED, HANGUP, ConfigSource, Signals
from . import shm
from .daemons import Supervisor
from .modes import ComputeModes
from .report import ReportServer, status_path

log = logging.getLogger("gpunode.deviceplugin")


async def keep(nvml: Any, source: ConfigSource, signals: Signals) -> str:
    """Run the daemons by the current configuration, across reloads; the name of the signal that ended it."""
    root, report_server = source.config.mps_root, ReportServer()
    record = Path(source.config.kubelet_socket).with_name(FILE_NAME)
    handles = Handles(nvml)
    supervisor = Supervisor(handles, root, ComputeModes(handles, root, record), report_server)
    async with report_server.open(status_path(root)):
        try:
            while True:
                log.setLevel(source.config.log_level.upper())
                word = await signals.run(supervisor.run(source.config), source)
                if word not in (HANGUP, CHANGED):
                    return word
                if word == HANGUP:
                    source.reload()
                log.info("following the configuration", extra={"because": word})
        finally:
            await supervisor.stop()


def main() -> int:
    """Exit status: 0 after a signal; 1 if something is missing in this container; 2 for a bad configuration."""
    log_to_stderr()
    signals, nvml = Signals(), Nvml()
    try:
        # The plugin's own flags, variables and file: both must derive the same shares.
        source = ConfigSource(sys.argv[1:], os.environ, program=__doc__ or "")
        config = source.config
    except BadConfig as error:
        log.critical("%s", error)
        return 2
    try:
        Path(config.mps_root).mkdir(parents=True, exist_ok=True)
        shm.share(config.mps_root)
        nvml.nvmlInit()
    except (OSError, shm.NotShared) as error:
        log.critical("%s", error)
        return 1
    except nvml.NVMLError as error:  # exit: a restarted container gets the driver's current libraries
        log.critical("%s", explain(error))
        return 1
    log.info("stopped", extra={"signal": asyncio.run(keep(nvml, source, signals))})
    return 0


if __name__ == "__main__":
    sys.exit(main())
