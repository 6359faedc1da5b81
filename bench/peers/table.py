"""Figures as a table, beside gpunode's, and beside what is to be reached."""

import statistics
from collections.abc import Iterator, Mapping, Sequence

from bench.results import Row

WALL, PROCESSOR, MEMORY = "wall, s", "processor, s", "memory, MiB"
# (Contender, what a run does in a place) -> figure -> the values of all rounds
Figures = Mapping[tuple[str, str], Mapping[str, Sequence[float]]]


def table(figures: Figures) -> Iterator[str]:
    """The lines, in Markdown: by place, then as the contenders ran; medians, and the wall time as a multiple of gpunode's."""
    yield "| | | wall, s | : gpunode | processor, s | memory, MiB |"
    yield "|---|---|---|---|---|---|"
    for place in dict.fromkeys(place for _, place in figures):
        for (who, where), values in figures.items():
            if where != place:
                continue
            seconds = values[WALL]
            own = figures.get(("gpunode", place))
            ratio = f"{statistics.median(seconds) / statistics.median(own[WALL]):.2f}" if own else ""
            shown = f"{statistics.median(seconds):.2f} ({min(seconds):.2f} – {max(seconds):.2f})"
            others = [f"{statistics.median(values[what]):.3g}" for what in (PROCESSOR, MEMORY)]
            yield f"| {place} | {who} | {shown} | {ratio} | {' | '.join(others)} |"


def goals(figures: Figures) -> Iterator[str]:
    """Each goal in each place, and whether the medians of the wall times reach it."""
    wall = {key: statistics.median(values[WALL]) for key, values in figures.items()}
    for (who, place), seconds in wall.items():
        if who != "gpunode":
            continue
        slow = not place.endswith(", 0 ms")
        for peer, times in (("pyinfra", 2.0 if slow else 1.0), ("ansible", 12.0)):
            if other := wall.get((peer, place)):
                yield _goal(place, f"{peer} takes {times:g} x as long", other / seconds, times, more=True)
        least, probe = wall.get(("floor", place)), wall.get(("probe", place))
        if least and probe:
            allowed = 1.25 * least + probe - least
            yield _goal(place, "1.25 x floor and the probe", seconds / allowed, 1.0, more=False)


def _goal(place: str, goal: str, value: float, bound: float, *, more: bool) -> str:
    reached = value >= bound if more else value <= bound
    return f"{'reached' if reached else 'missed '}  {place}: {goal}: {value:.2f}"


def summary(rows: Sequence[Row], figure: str) -> Iterator[str]:
    """Lines in Markdown: a place each, with a column for each contender. `figure`: wall, processor or memory."""
    values = {
        (row.who, row.what.removesuffix(f", {figure}")): row
        for row in rows
        if row.what.endswith(f", {figure}")
    }
    names = list(dict.fromkeys(who for who, _ in values))
    yield f"| {figure}, {next(iter(values.values())).unit} | {' | '.join(names)} |"
    yield f"|---|{'---|' * len(names)}"
    for place in dict.fromkeys(place for _, place in values):
        yield f"| {place} | {' | '.join(_shown(values.get((name, place))) for name in names)} |"


def _shown(row: Row | None) -> str:
    if row is None:
        return ""
    digits = 0 if row.unit == "MiB" else 1
    median, least, most = (f"{value:.{digits}f}" for value in (row.median, min(row.rounds), max(row.rounds)))
    return f"{median} ({least} – {most})"
