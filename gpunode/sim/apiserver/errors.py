"""Errors of the API server, as Status objects."""

from __future__ import annotations

from collections.abc import Sequence

from gpunode.sim.apiserver.store import Object


class StatusError(Exception):
    """An answer with this HTTP code and Status object."""

    def __init__(self, code: int, status: Object) -> None:
        super().__init__(status["message"])
        self.code = code
        self.status = status


def status_error(
    code: int, reason: str, message: str, *, name: str = "", kind: str = "", causes: Sequence[Object] = ()
) -> StatusError:
    """`kind` is that of `details`, with its group: `nodes`, `daemonsets.apps`. In most answers it is the plural."""
    details: Object = {"name": name} if name else {}
    short, _, group = kind.partition(".")
    details |= ({"group": group} if group else {}) | ({"kind": short} if kind else {})
    details |= {"causes": list(causes)} if causes else {}
    status = {
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Failure",
        "message": message,
        "reason": reason,
        **({"details": details} if details else {}),
        "code": code,
    }
    return StatusError(code, status)


def not_found(kind: str, name: str) -> StatusError:
    """`kind` is the plural, with its group."""
    return status_error(404, "NotFound", f'{kind} "{name}" not found', name=name, kind=kind)
