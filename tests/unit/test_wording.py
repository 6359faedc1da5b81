"""Sentences with commands in them."""

import pydoc
import re
import sys

import pytest
from typer.testing import CliRunner

from gpunode import report
from gpunode.cli import app
from gpunode.cli.suggestions import WORDS
from gpunode.errors import UsageError
from gpunode.wording import Advice, Command, advise, few, lines, name_pages, read
from tests import tables


@pytest.mark.parametrize(
    ("text", "named"),
    [
        ("`gpunode provision --limit a` shows it.", "`gpunode provision my.yaml --limit a` shows it."),
        ("`gpunode plugin deploy` or `kubectl x`", "`gpunode plugin deploy my.yaml` or `kubectl x`"),
        ("until `gpunode uncordon-gpu GPU-1`", "until `gpunode uncordon-gpu GPU-1 my.yaml`"),
    ],
)
def test_advice_reads_as_its_sentence_and_names_an_inventory_where_asked(text: str, named: str):
    assert (advise(text), advise(text).on("my.yaml")) == (text, named)


def test_a_command_in_an_ordinary_text_is_left_alone():
    """What a host or a pod printed is no advice, whatever it looks like."""
    made = lines(("the log has: gpunode verify", Advice(Command("verify"))))
    assert made.on("my.yaml") == "the log has: gpunode verify\ngpunode verify my.yaml"


def test_empty_texts_make_no_line():
    assert lines(("", "a", "", "b")) == "a\nb"
    assert lines(()) == ""


def test_long_lists_name_the_first():
    assert (few(["a", "b", "c"], 2), few(["a", "b"], 2)) == ("a, b and 1 more", "a, b")


@tables.rows("help-topics")
def test_help_shows_a_page_a_section_or_a_commands_help(topic: str, first: str):
    shown = CliRunner().invoke(app, ["help", *topic.split()]).stdout
    assert shown.strip().startswith(first)
    assert ("## When something goes wrong" in shown) == (topic == "safety")


@pytest.mark.parametrize("word", WORDS)
def test_a_word_of_another_tool_leads_to_the_command_or_the_page(word: str):
    shown = CliRunner().invoke(app, ["help", word]).stdout
    assert shown.strip().startswith(("Usage: gpunode ", "#"))
    refused = CliRunner().invoke(app, [word]).exception
    assert isinstance(refused, UsageError)
    assert (refused.message, refused.hint.startswith("Here it is `gpunode ")) == (
        f"no such command '{word}'",
        True,
    )


def test_help_on_nothing_that_there_is_names_the_nearest_page():
    with pytest.raises(UsageError, match="no page, section or command is called inventry") as refused:
        CliRunner().invoke(app, ["help", "inventry"], catch_exceptions=False)
    assert refused.value.hint == "Did you mean `gpunode help inventory`?"


def test_a_page_names_the_command_that_shows_another_page_not_its_file():
    shown = CliRunner().invoke(app, ["help"]).stdout
    assert "| one screen (`gpunode help batches#watching-and-a-pause`) |" in shown
    assert "keys (`gpunode help reference/inventory`)" in shown
    assert "](" not in shown
    text = "[A](#b), [C](commands.md#d), [E](https://f.example)"
    assert name_pages(text) == "A, C (`gpunode help reference/commands#d`), [E](https://f.example)"


@tables.rows("help-by-a-word")
def test_help_finds_titles_keys_and_commands_by_a_word(topic: str, there: str):
    shown = CliRunner().invoke(app, ["help", *topic.split()]).stdout
    assert there in shown
    for named in re.findall(r"`gpunode help (\S+#\S+)`", shown):
        assert read(named), named


def test_a_table_in_a_narrow_terminal_has_all_of_a_long_word(monkeypatch):
    shown: list[str] = []
    monkeypatch.setattr(sys.stdout, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(pydoc, "pager", shown.append)
    monkeypatch.setenv("COLUMNS", "80")
    report.document(f"| a | b |\n|---|---|\n| `{'x' * 100}` | {'y ' * 60}|\n")
    assert (shown[0].count("x"), "…" in shown[0]) == (100, False)
