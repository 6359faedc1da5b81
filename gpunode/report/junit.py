"""Verify's chains as a JUnit file, which every CI reads: a suite for each host, a case for each link."""

from __future__ import annotations

from xml.etree import ElementTree

from gpunode import __version__
from gpunode.model import Verdict
from gpunode.report.page import Page
from gpunode.report.plain import lines, plain

HEAD = '<?xml version="1.0" encoding="UTF-8"?>\n'
FOLLOWS = "not checked: a link before it is broken"


class JUnit(Page):
    """A report that writes the chains at the end. What ended the command is an error in a case of its own."""

    option, begins = "--junit", f'{HEAD}<testsuites name="gpunode'.encode()

    def text(self) -> str:
        """The file's text."""
        root = ElementTree.Element("testsuites", name=f"gpunode {__version__}")
        for card in self._cards.values():
            suite = ElementTree.SubElement(root, "testsuite", name=plain(card.name))
            for link in card.links:
                _add_case(suite, link)
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


def _add_case(suite: ElementTree.Element, link: Verdict) -> None:
    case = ElementTree.SubElement(suite, "testcase", classname=suite.attrib["name"], name=link.layer)
    if link.status == "broken":
        code = (link.problem.code if link.problem else "") or link.layer
        failure = ElementTree.SubElement(case, "failure", type=code, message=plain(link.text))
        failure.text = "\n".join([*lines(link.cause), *lines(link.fix and f"Fix: {link.fix}")])
    elif link.status == "unknown":
        ElementTree.SubElement(case, "skipped", message=plain(link.text or FOLLOWS))
    else:
        ElementTree.SubElement(case, "system-out").text = "\n".join(lines(link.text))
