"""The screen of `gpunode top`: the fleet, its run and its hosts; and what keys do to it. Pure."""

from collections.abc import Sequence
from dataclasses import dataclass, replace

from rich.text import Text

from gpunode.engine.overview import HostCell, Overview
from gpunode.report.plain import Part
from gpunode.report.runs import run_line
from gpunode.report.terminal import to_text, wrap
from gpunode.wording import several

SIGNS = {
    "bad": ("✗", "red"),
    "unknown": ("?", "yellow"),
    "working": ("▶", "cyan"),
    "waiting": ("·", "dim"),
    "ok": ("✓", "green"),
    "absent": ("·", "dim"),
}
LOADS = "▁▂▃▄▅▆▇█"  # the sign of a host that is ok, where there is room for signs alone
LISTED = ("bad", "unknown")  # a line each, with the reason, in the upper third
FIGURES = 11  # columns of ` used/all load` in a cell, or of its state
LOW = 12  # lines: so few have no empty one
KEYS = " ↵ chain  p pods  l log  d plan  b pause  / filter  q quit"


@dataclass(frozen=True, slots=True)
class View:
    """What of the fleet is shown. `selected`: a host; "": the first. `filter`: text in a host's name, state or reason, `typing`: while
    it is typed. `note`: of the last key."""

    selected: str = ""
    filter: str = ""
    typing: bool = False
    note: str = ""


@dataclass(frozen=True, slots=True)
class Grid:
    """Hosts in rows: first `listed` rows with one each, which are always shown, then cells of `size` columns. `selected`: None without
    hosts."""

    rows: tuple[tuple[HostCell, ...], ...]
    listed: int
    size: int
    names: int
    selected: HostCell | None

    @property
    def at(self) -> int:
        """The row of the selected host."""
        return next((at for at, row in enumerate(self.rows) if self.selected in row), 0)


def draw(overview: Overview, view: View, width: int, height: int) -> list[Text]:
    """At most `height` lines of at most `width` columns."""
    head = _head(overview, width, height)
    room = max(height - len(head) - 3, 1)
    grid = arrange(overview, view, width, room)
    paged, page = grid.rows[grid.listed :], room - grid.listed
    first = max(grid.at - grid.listed, 0) // max(page, 1) * page
    body = [_listed(row[0], grid) for row in grid.rows[: grid.listed]]
    body += [_row(row, grid) for row in paged[first : first + page]]
    parts = [f"only `{view.filter}`"] if view.filter and not view.typing else []
    for rows, where in ((paged[:first], "above"), (paged[first + page :], "below (page down)")):
        parts += [f"{several(sum(map(len, rows)), 'more host')} {where}"] if rows else []
    body += [Text()] * (room - len(body))
    foot = [to_text((f" {' · '.join(parts)}", "dim")), _detail(grid, view), _keys(view)]
    lines = [*head, *body, *foot][:height]
    for line in lines:
        line.truncate(width, overflow="ellipsis")
    return lines


def _head(overview: Overview, width: int, height: int) -> list[Text]:
    fleet = overview.fleet or ("" if overview.error else "asking the cluster and its device plugins")
    head = list(wrap(to_text((f" {fleet}", "bold")), width).split("\n"))[:2] if fleet else []
    head += [to_text((f" {overview.error}", "red"))] if overview.error else []
    head += [to_text(*run_line(overview.run, width, overview.command))] if overview.run else []
    return [*head, *([Text()] if height > LOW else [])]


def shown(overview: Overview, view: View) -> tuple[HostCell, ...]:
    """The hosts that the filter lets through."""
    text = view.filter.lower()
    return tuple(cell for cell in overview.cells if text in f"{cell.name}\n{cell.state}\n{cell.why}".lower())


def selected(overview: Overview, view: View) -> HostCell | None:
    """The host that keys act on: the chosen one while the filter lets it through, else the first; None without hosts."""
    cells = shown(overview, view)
    return next((cell for cell in cells if cell.name == view.selected), cells[0] if cells else None)


def arrange(overview: Overview, view: View, width: int, room: int) -> Grid:
    """The hosts in rows, in the largest cells for which `room` rows suffice, else in the smallest."""
    cells = shown(overview, view)
    longest = max((len(cell.name) for cell in cells), default=0)
    names = max(1, min(longest, width - FIGURES - 5))
    listed = min(sum(cell.rank in LISTED for cell in cells), max(room // 3, 1))
    others = cells[listed:]
    sizes = (names + FIGURES + 4, names + 4, 1)
    fits = [size for size in sizes if listed - (-len(others) // _columns(width, size)) <= room]
    size = fits[0] if fits else 1
    columns = _columns(width, size)
    rows = [tuple(others[start : start + columns]) for start in range(0, len(others), columns)]
    return Grid((*((cell,) for cell in cells[:listed]), *rows), listed, size, names, selected(overview, view))


def _columns(width: int, size: int) -> int:
    return max(1, (width - 1) // size)


def _listed(cell: HostCell, grid: Grid) -> Text:
    why = f": {_in_line(cell)}" if cell.why else ""
    return to_text(" ", *_name(cell, grid), f"  {_figures(cell)}  {cell.state}{why}")


def _row(cells: Sequence[HostCell], grid: Grid) -> Text:
    return to_text(" ", *(part for cell in cells for part in _cell(cell, grid)))


def _cell(cell: HostCell, grid: Grid) -> list[Part]:
    if grid.size == 1:
        sign, style = SIGNS[cell.rank]
        load = LOADS[min((cell.load or 0) * len(LOADS) // 100, len(LOADS) - 1)]
        return [(load if cell.rank == "ok" else sign, "reverse magenta" if cell == grid.selected else style)]
    parts = _name(cell, grid)
    if grid.size > grid.names + 4:
        figures = (
            _figures(cell) if cell.rank == "ok" or cell.rank in LISTED else f" {cell.state:<{FIGURES - 1}}"
        )
        parts.append((figures, "dim"))
    return [*parts, "  "]


def _in_line(cell: HostCell) -> str:
    return cell.why.replace("\n", ": ")


def _name(cell: HostCell, grid: Grid) -> list[Part]:
    name = f"{cell.name[: grid.names]:<{grid.names}}"
    return [SIGNS[cell.rank], " ", (name, "reverse" if cell == grid.selected else "")]


def _figures(cell: HostCell) -> str:
    """`  3/8   97 %`: GPUs in use, of all, and their load."""
    gpus = "" if cell.gpus is None else f"{cell.used}/{cell.gpus}"
    load = "" if cell.load is None else f"{cell.load} %"
    return f"{gpus:>5}{load:>6}"


def _detail(grid: Grid, view: View) -> Text:
    """The selected host in words, or the note of the last key."""
    cell = grid.selected
    if view.note:
        return to_text((f" {view.note}", "yellow"))
    if cell is None:
        return to_text(f" no host has `{view.filter}`" if view.filter else "")
    gpus = [] if cell.gpus is None else [f"{several(cell.gpus, 'GPU')}, {cell.used} in use"]
    load = [] if cell.load is None else [f"{cell.load} % busy"]
    text = " · ".join([cell.state, *gpus, *load, *([_in_line(cell)] if cell.why else [])])
    return to_text(" ", (cell.name, "bold"), f"  {text}")


def _keys(view: View) -> Text:
    if view.typing:
        return to_text(f" /{view.filter}", ("█", "dim"), ("  ↵ keep  esc clear", "dim"))
    return to_text((KEYS, "dim"))


def press(view: View, key: str, overview: Overview, width: int, height: int) -> View:
    """The view after a key that moves or filters; other keys only remove the note."""
    view = replace(view, note="")
    if view.typing:
        return _type(view, key)
    if key == "/":
        return replace(view, typing=True)
    if key == "escape":
        return replace(view, filter="")
    room = max(height - len(_head(overview, width, height)) - 3, 1)
    grid = arrange(overview, view, width, room)
    if grid.selected is None:
        return view
    cells = [cell for row in grid.rows for cell in row]
    at, row = cells.index(grid.selected), grid.at
    if key in ("left", "right", "home", "end"):
        to = {"left": at - 1, "right": at + 1, "home": 0, "end": len(cells) - 1}[key]
        return replace(view, selected=cells[min(max(to, 0), len(cells) - 1)].name)
    if (step := {"up": -1, "down": 1, "page up": -room, "page down": room}.get(key, 0)) != 0:
        there = grid.rows[min(max(row + step, 0), len(grid.rows) - 1)]
        column = grid.rows[row].index(grid.selected)
        return replace(view, selected=there[min(column, len(there) - 1)].name)
    return view


def _type(view: View, key: str) -> View:
    if key in ("enter", "escape"):
        return replace(view, typing=False, filter=view.filter if key == "enter" else "")
    if key == "backspace":
        return replace(view, filter=view.filter[:-1])
    return replace(view, filter=view.filter + key) if len(key) == 1 and key.isprintable() else view
