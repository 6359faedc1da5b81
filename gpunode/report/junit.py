"""Results as a JUnit file, which every CI reads: a suite for each host, a case for each link, for each GPU of an acceptance, or for the
host's end of a run."""

from collections.abc import Mapping, Sequence
from itertools import groupby
from pathlib import Path
from xml.etree import ElementTree

from gpunode import __version__
from gpunode.engine.member import PAUSED
from gpunode.engine.reporter import Reporter
from gpunode.errors import Problem
from gpunode.model import Verdict
from gpunode.report.page import BAD, UNPROVEN, Card, Page
from gpunode.report.plain import lines, plain
from gpunode.report.plans import WORDS

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
FOLLOWS = "not checked: a link before it is broken or not judged"


class JUnit(Page):
    """A report that writes the chains at the end. What ended the command is an error in a case of its own."""

    option, begins = "--junit", f'{HEAD}<testsuites name="gpunode'.encode()

    def __init__(self, report: Reporter, path: Path, title: str) -> None:
        super().__init__(report, path, title)
        self._gpus: list[dict[str, object]] = []
        self._why: list[Problem] = []
        self._seconds: dict[object, object] = {}  # of a host's changes

    def rows(self, kind: str, columns: Sequence[str], rows: Sequence[Sequence[object]]) -> None:
        super().rows(kind, columns, rows)
        if kind == "acceptance":
            self._gpus += [dict(zip(columns, row, strict=True)) for row in rows]
        if kind == "time":
            self._seconds |= {host: seconds for host, seconds, *_ in rows}

    def problem(self, problem: Problem, host: str | None = None) -> None:
        """A GPU's is in its case."""
        if any(str(gpu["uuid"]) in problem.subject for gpu in self._gpus if gpu["uuid"]):
            self._report.problem(problem, host)
            self._why.append(problem)
        else:
            super().problem(problem, host)

    def text(self) -> str:
        root = ElementTree.Element("testsuites", name=f"gpunode {__version__}")
        for card in self._cards.values():
            suite = ElementTree.SubElement(root, "testsuite", name=plain(card.name))
            for link in card.links:
                _add_case(suite, link)
            if not card.links and (card.result or card.outcome):
                _add_host(suite, card)
                if card.name in self._seconds:
                    suite[0].set("time", str(self._seconds[card.name]))
        for node, gpus in groupby(self._gpus, key=lambda gpu: str(gpu["node"])):
            suite = ElementTree.SubElement(root, "testsuite", name=plain(node))
            for gpu in gpus:
                uuid = str(gpu["uuid"])
                _add_gpu(suite, gpu, [problem for problem in self._why if uuid in problem.subject])
        for error in self._view["errors"]:
            suite = ElementTree.SubElement(root, "testsuite", name="gpunode")
            case = ElementTree.SubElement(suite, "testcase", classname="gpunode", name="gpunode")
            ElementTree.SubElement(case, "error", message=error[0]).text = "\n".join(error)
        for suite in root:
            suite.set("tests", str(len(suite)))
            for kind, name in (("failure", "failures"), ("error", "errors"), ("skipped", "skipped")):
                suite.set(name, str(len(suite.findall(f"*/{kind}"))))
        ElementTree.indent(root)
        return f"{HEAD}{ElementTree.tostring(root, encoding='unicode')}\n"


def _add_host(suite: ElementTree.Element, card: Card) -> None:
    """How a run ended on the host."""
    case = ElementTree.SubElement(suite, "testcase", classname=plain(card.name), name="result")
    problem = card.outcome.problem if card.outcome else None
    if card.status == WORDS["planned"]:
        ElementTree.SubElement(case, "skipped", message="no change was made")
    elif card.code == PAUSED:
        ElementTree.SubElement(case, "skipped", message=card.cause)
    elif card.status in (*BAD, UNPROVEN):
        failure = ElementTree.SubElement(case, "failure", type=card.status, message=card.cause)
        failure.text = "\n".join([*lines(str(problem)), *lines(problem.fix)] if problem else [card.cause])
    else:
        shown = plain(card.result[1]) if card.result else card.cause  # of what is verified, its proof
        ElementTree.SubElement(case, "system-out").text = ": ".join(filter(None, (card.status, shown)))


def _add_gpu(suite: ElementTree.Element, gpu: Mapping[str, object], problems: Sequence[Problem]) -> None:
    case = ElementTree.SubElement(
        suite, "testcase", classname=suite.attrib["name"], name=plain(str(gpu["uuid"] or gpu["gpu"]))
    )
    if gpu["result"] == "failed":
        codes = ", ".join(problem.code for problem in problems)
        failure = ElementTree.SubElement(case, "failure", type=codes, message=codes)
        failure.text = "\n".join(line for each in problems for line in [*lines(str(each)), *lines(each.fix)])
    elif gpu["result"] == "skipped":
        ElementTree.SubElement(case, "skipped", message="in use")
    else:
        figures = (f"{name}: {value}" for name, value in gpu.items() if value is not None and str(value))
        ElementTree.SubElement(case, "system-out").text = "\n".join(map(plain, figures))


def _add_case(suite: ElementTree.Element, link: Verdict) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=suite.attrib["name"], name=link.layer)
    if link.status == "broken" or link.lacks_right:
        code = (link.problem.code if link.problem else "") or link.layer
        kind = "error" if link.lacks_right else "failure"  # an error: the test itself could not be made
        failure = ElementTree.SubElement(case, kind, type=code, message=plain(link.text))
        failure.text = "\n".join([*lines(link.cause), *lines(link.fix and f"Fix: {link.fix}")])
    elif link.status == "unknown":
        ElementTree.SubElement(case, "skipped", message=plain(link.text or FOLLOWS))
    else:
        ElementTree.SubElement(case, "system-out").text = "\n".join(lines(link.text))
