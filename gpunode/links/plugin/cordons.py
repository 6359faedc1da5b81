"""The host's file of cordoned GPUs, which the device plugin follows: what it says, and its changes. Pure."""

from collections.abc import Mapping

from gpunode.contract.cordons import FILE, Cordon, dumps, loads
from gpunode.errors import CannotPlan
from gpunode.model import Change, Facts
from gpunode.planning import files

PATH = f"/var/lib/kubelet/device-plugins/{FILE}"  # where the plugin's manifest mounts it


def read(facts: Facts) -> Mapping[str, Cordon]:
    """The cordoned GPUs by UUID; {} for a file that cannot be read, which the plugin does not follow either."""
    try:
        return loads(files.text(facts, PATH) or "")
    except ValueError:
        return {}


def plan(facts: Facts, uuid: str, cordon: Cordon | None) -> tuple[Change, ...]:
    """Cordon the GPU, or uncordon it (None). Raises CannotPlan for a file that cannot be read."""
    before = files.text(facts, PATH)
    try:
        now = loads(before) if before else {}
    except ValueError as error:
        raise CannotPlan(
            f"{PATH}: {error}", hint="Move the file away: no GPU is cordoned by it then."
        ) from None
    others = {other: known for other, known in now.items() if other != uuid}
    if cordon is None:
        if uuid not in now:
            return ()
        if not others:
            return (files.remove(PATH, before or "", f"{uuid} was {now[uuid].why}"),)
        return files.write(facts, PATH, dumps(others), f"{uuid} was {now[uuid].why}")
    if uuid in now and (now[uuid].by, now[uuid].reason) == (cordon.by, cordon.reason):
        return ()
    return files.write(facts, PATH, dumps({**others, uuid: cordon}), f"{uuid} is {cordon.why}")
