"""The status document of a board. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from ..gpus.devices import Device
from ..offer.board import Board
from ..settings.config import Config
from ..status import ENFORCED, Configuration, Lost, Reason, Reserved, Resource, Status


def of(
    board: Board,
    config: Config,
    registered: Mapping[str, bool],
    not_ready: Reason | None,
    gone: tuple[Lost, ...] = (),
) -> Status:
    """The board's status; `gone`: GPUs that NVML listed earlier."""
    listed = {device.uuid for device in board.devices}
    return Status(
        since="",
        configuration=_configuration(config),
        driver=board.driver,
        resources={
            name: Resource(len(units), registered.get(name, False)) for name, units in board.offers.items()
        },
        problem=board.missing,
        not_ready=not_ready,
        lost=(*_lost(board), *gone),
        reserved=tuple(
            Reserved(hold.resource, hold.device, len(hold.ids), hold.pods, hold.why)
            for hold in board.holds
            if hold.sure and hold.device in listed
        ),
        memory_limits={
            uuid: Reason(ENFORCED, "") if why is None else Reason("not-enforced", why)
            for uuid, why in board.limits.items()
            if uuid in listed
        },
    )


def gone(before: Mapping[str, Lost], devices: Mapping[str, Device], board: Board) -> Mapping[str, Lost]:
    """The GPUs that NVML listed earlier (those of `before`, and of `devices`) and does not list now, by UUID."""
    if board.missing is not None:
        return before
    words = "NVML does not list it any more; see the kernel log, reboot the host"
    missing = {
        uuid: Lost(uuid, device.index, "gone", words, listed=False)
        for uuid, device in devices.items()
        if device.profile is None
    }
    there = {device.uuid for device in board.devices}
    return {uuid: lost for uuid, lost in {**before, **missing}.items() if uuid not in there}


def _lost(board: Board) -> Iterator[Lost]:
    offered = {unit.device.uuid for units in board.offers.values() for unit in units}
    for device in board.devices:
        if device.uuid in offered and (why := board.sick.get(device.uuid)):
            yield Lost(device.uuid, device.index, why.code, why.words)
        if why := board.left.get(device.uuid):
            yield Lost(device.uuid, device.index, why.code, why.words, listed=False)
    for index, why in board.mute.items():
        yield Lost("", index, why.code, why.words, listed=False)


def _configuration(config: Config) -> Configuration:
    replicas = "mps" if config.mps else "time-slicing"
    ways = [*(["memory"] if config.memory else []), *([replicas] if config.shares else [])]
    return Configuration(
        mig_strategy=config.mig_strategy,
        sharing=", ".join(ways) or "none",
        device_list_strategy=tuple(config.device_list_strategy),
        file=config.config_file or "",
    )
