"""Whether pods can be given what the node offers, as the kubelet's probe asks for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from .kubelet.server import ResourceServer
from .offer.board import Board
from .status import Reason

log = logging.getLogger(__name__)


class Ready:
    """Looks at the board and at who serves it, by resource."""

    def __init__(self, board: Board, servers: Mapping[str, ResourceServer]) -> None:
        self._board = board
        self._servers = servers
        self._logged: Reason | None = None

    def why_not(self) -> Reason | None:
        """Why pods can be given nothing here, in the log too where it is another reason than before; None if they can.

        No GPU to give is no reason, nor is one that cannot be given.
        """
        why = self.reason()
        if why is not None and why != self._logged:
            log.info("not ready: %s", why)
        self._logged = why
        return why

    def reason(self) -> Reason | None:
        """The same, without a line in the log."""
        board = self._board
        if board.missing is not None:
            return board.missing
        waiting = [name for name in board.offers if not self._registered(name)]
        if waiting:
            return self._unregistered(waiting)
        given = {unit.device.uuid for units in board.offers.values() for unit in units}
        if given and given <= board.barred.keys():
            why = next(iter(board.barred.values()))
            return Reason(why.code, "; ".join(dict.fromkeys(str(one) for one in board.barred.values())))
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
