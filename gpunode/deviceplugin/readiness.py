"""The plugin's readiness, for the kubelet's probe: whether pods can get what the node offers."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from gpunode.contract.status import Reason

from .kubelet.server import ResourceServer
from .offer.state import NodeState

log = logging.getLogger(__name__)


class Readiness:
    """Derives readiness from the state and the servers, by resource."""

    def __init__(self, state: NodeState, servers: Mapping[str, ResourceServer]) -> None:
        self._state = state
        self._servers = servers
        self._logged: Reason | None = None

    def why_not(self) -> Reason | None:
        """Why pods can get nothing here, or None; a new reason is logged.

        A node without GPUs is ready, and so is one with only some GPUs Unhealthy.
        """
        why = self.reason()
        if why is not None and why != self._logged:
            log.info("not ready: %s", why)
        self._logged = why
        return why

    def reason(self) -> Reason | None:
        """The same, not logged."""
        state = self._state
        if state.problem is not None:
            return state.problem
        waiting = [name for name in state.offers if not self._registered(name)]
        if waiting:
            return self._unregistered(waiting)
        offered = {unit.device.uuid for units in state.offers.values() for unit in units}
        if offered and offered <= state.excluded.keys():
            why = next(iter(state.excluded.values()))
            return Reason(why.code, "; ".join(dict.fromkeys(str(one) for one in state.excluded.values())))
        return None

    def _registered(self, name: str) -> bool:
        return name in self._servers and self._servers[name].registered

    def _unregistered(self, names: list[str]) -> Reason:
        taken = [name for name in names if name in self._servers and self._servers[name].standing_by]
        if taken:
            which = ", ".join(taken)
            words = (
                f"another device plugin on this node has taken over {which}; remove it: this one stands by"
            )
            return Reason("taken-over", words)
        return Reason("not-registered", f"not registered with the kubelet: {', '.join(names)}")
