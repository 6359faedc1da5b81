"""How `gpunode explain` answers labelled lines of public threads and of provoked failures: `python -m tests.explained [FILE …]` prints the figures by
file, and below them each line that is not answered as labelled."""

import sys
from collections import Counter
from collections.abc import Mapping
from typing import Literal, TypeAlias

from gpunode.explain import Explanation, explain
from tests import cases, tables

Judgement: TypeAlias = Literal["right", "wrong", "unknown"]
UNKNOWN = ("unknown", "unknown")


def causes(answer: Explanation | None) -> list[tuple[str, str]]:
    if answer is None or answer.fault == "unknown":
        return [UNKNOWN]
    return [(cause.fault, cause.action) for cause in (answer, answer.alternative) if cause]


def judge(row: Mapping[str, str], answer: Explanation | None) -> Judgement:
    """By the answer's fault and action, both; or by both of its alternative, which has to tell when it holds.

    A line of no single cause has no answer with one. An answer whose cause is unknown counts as none.
    """
    named = causes(answer)
    if (row["fault"], row["action"]) in named or (row["fault"] == "unknown" and len(named) > 1):
        return "right"
    return "unknown" if named == [UNKNOWN] else "wrong"


def main(names: list[str]) -> None:
    total: Counter[Judgement] = Counter()
    others = []
    for name in names or [row["name"] for row in tables.read("explained-threads")]:
        answers = [(row, explain(row["line"])) for row in cases.read(f"explain/{name}.yaml")]
        verdicts = [(row, answer, judge(row, answer)) for row, answer in answers]
        figures = Counter(judgement for *_, judgement in verdicts)
        print(f"{name:12}", len(verdicts), dict(figures))
        total += figures
        others += [(judgement, row, answer) for row, answer, judgement in verdicts if judgement != "right"]
    print(
        *(f"{count} {judgement} ({count / total.total():.1%})" for judgement, count in total.items()),
        sep=", ",
    )
    for judgement, row, answer in sorted(others, key=lambda other: other[0]):
        code = answer.code if answer else "-"
        print(
            f"{judgement}: {code} {causes(answer)}, labelled {row['fault']} {row['action']} ({row['outcome']}): {row['line'][:150]}"
        )


if __name__ == "__main__":
    main(sys.argv[1:])
