"""Whether pods can be given what the node offers, as the kubelet's probe asks for it."""

from __future__ import annotations

import logging
from collections.abc import Mapping

from .kubelet.server import ResourceServer
from .offer.board import Board

log = logging.getLogger(__name__)


class Ready:
    """Looks at the board and at who serves it, by resource."""

    def __init__(self, board: Board, servers: Mapping[str, ResourceServer]) -> None:
        self._board = board
        self._servers = servers
        self._said: str | None = None

    def why_not(self) -> str | None:
        """Why pods can be given nothing here, in the log too where it is another reason than before; None if they can.

        No GPU to give is no reason, nor is one that cannot be given.
        """
        why = self._why_not()
        if why is not None and why != self._said:
            log.info("not ready: %s", why)
        self._said = why
        return why

    def _why_not(self) -> str | None:
        board = self._board
        if board.missing is not None:
            return board.missing
        waiting = [name for name in board.offers if not self._registered(name)]
        if waiting:
            return self._unregistered(waiting)
        given = {unit.device.uuid for units in board.offers.values() for unit in units}
        if given and given <= board.barred.keys():
            return "; ".join(dict.fromkeys(board.barred.values()))
        return None

    def _registered(self, name: str) -> bool:
        return name in self._servers and self._servers[name].registered

    def _unregistered(self, names: list[str]) -> str:
        taken = [name for name in names if name in self._servers and self._servers[name].standing_by]
        if taken:
            which = ", ".join(taken)
            return f"another device plugin on this node has taken over {which}; remove it: this one stands by"
        return f"not registered with the kubelet: {', '.join(names)}"
