"""Makes the status document from the node's state. Pure."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpunode.contract.config import Config
from gpunode.contract.offer import Device
from gpunode.contract.status import ENFORCED, Configuration, Reason, Reserved, Resource, Status, Unavailable

from ..offer.state import NodeState


def of(
    state: NodeState,
    config: Config,
    registered: Mapping[str, bool],
    not_ready: Reason | None,
    gone: tuple[Unavailable, ...] = (),
) -> Status:
    """The status of `state`; `gone`: GPUs that NVML listed earlier."""
    listed = {device.uuid for device in state.devices}
    return Status(
        since="",
        configuration=_configuration(config),
        driver=state.driver,
        resources={
            name: Resource(len(units), registered.get(name, False)) for name, units in state.offers.items()
        },
        problem=state.problem,
        not_ready=not_ready,
        lost=(*_unavailable(state), *gone),
        reserved=tuple(
            Reserved(
                reservation.resource,
                reservation.device,
                len(reservation.ids),
                reservation.pods,
                reservation.why,
            )
            for reservation in state.reservations
            if reservation.confirmed and reservation.device in listed
        ),
        memory_limits={
            uuid: Reason(ENFORCED, "") if why is None else Reason("not-enforced", why)
            for uuid, why in state.memory_limits.items()
            if uuid in listed
        },
    )


def gone(
    before: Mapping[str, Unavailable], devices: Mapping[str, Device], state: NodeState
) -> Mapping[str, Unavailable]:
    """The GPUs of `before` and `devices` that NVML no longer lists, by UUID."""
    if state.problem is not None:
        return before
    words = "NVML no longer lists it; see the kernel log, reboot the host"
    missing = {
        uuid: Unavailable(uuid, device.index, "gone", words, listed=False)
        for uuid, device in devices.items()
        if device.profile is None
    }
    there = {device.uuid for device in state.devices}
    return {uuid: lost for uuid, lost in {**before, **missing}.items() if uuid not in there}


def _unavailable(state: NodeState) -> Iterator[Unavailable]:
    offered = {unit.device.uuid for units in state.offers.values() for unit in units}
    for device in state.devices:
        if device.uuid in offered and (why := state.unhealthy.get(device.uuid)):
            yield Unavailable(device.uuid, device.index, why.code, why.words)
        if why := state.not_offered.get(device.uuid):
            yield Unavailable(device.uuid, device.index, why.code, why.words, listed=False)
    for index, why in state.unidentified.items():
        yield Unavailable("", index, why.code, why.words, listed=False)


def _configuration(config: Config) -> Configuration:
    replicas = "mps" if config.mps else "time-slicing"
    ways = [*(["memory"] if config.memory else []), *([replicas] if config.shares else [])]
    return Configuration(
        mig_strategy=config.mig_strategy,
        sharing=", ".join(ways) or "none",
        device_list_strategy=tuple(config.device_list_strategy),
        file=config.config_file or "",
    )
