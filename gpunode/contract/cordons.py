"""GPUs that an operator has taken out: a file on the host, which gpunode writes and the device plugin follows. Pure.

It is in the kubelet's directory for device plugins, in the plugin's own folder: it needs no right of the API, and is there when the
plugin, the host or the API server starts again. A kubelet that starts removes files of that directory, but no folders.
"""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass

from .status import CORDONED, Reason
from .typed import parse, read

FILE = "gpunode/cordoned-gpus.json"  # beside the plugin's socket
VERSION = 1


@dataclass(frozen=True, slots=True)
class Cordon:
    """Who took the GPU out, why, and since when (RFC 3339)."""

    by: str
    reason: str
    since: str

    @property
    def why(self) -> Reason:
        """Why the GPU is Unhealthy."""
        return Reason(CORDONED, f"cordoned by {self.by} since {self.since}: {self.reason}")


def dumps(cordons: Mapping[str, Cordon]) -> str:
    """The file's text. `cordons`: by the GPU's UUID."""
    gpus = {uuid: asdict(cordon) for uuid, cordon in sorted(cordons.items())}
    return json.dumps({"version": VERSION, "gpus": gpus}, indent=2) + "\n"


def loads(text: str) -> dict[str, Cordon]:
    """The cordons by the GPU's UUID. Raises ValueError for anything but a file of this version."""
    document = parse(text)
    if not isinstance(document, dict) or document.get("version") != VERSION:
        raise ValueError(f"no document of version {VERSION}, which this program reads")
    gpus: dict[str, Cordon] = read(Mapping[str, Cordon], document.get("gpus"), "gpus")
    return gpus
