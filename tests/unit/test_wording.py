"""Sentences with commands in them."""

from __future__ import annotations

from gpunode.wording import Advice, Command, few, lines


def test_advice_reads_as_its_sentence_and_names_an_inventory_where_asked() -> None:
    found = Advice("`", Command("provision", "--limit a"), "` shows it.")
    assert found == "`gpunode provision --limit a` shows it."
    assert found.on("my.yaml") == "`gpunode provision my.yaml --limit a` shows it."


def test_a_command_in_an_ordinary_text_is_left_alone() -> None:
    """What a host or a pod printed is no advice, whatever it looks like."""
    made = lines(("the log has: gpunode verify", Advice(Command("verify"))))
    assert made.on("my.yaml") == "the log has: gpunode verify\ngpunode verify my.yaml"


def test_empty_texts_make_no_line() -> None:
    assert lines(("", "a", "", "b")) == "a\nb"
    assert lines(()) == ""


def test_long_lists_name_the_first() -> None:
    assert (few(["a", "b", "c"], 2), few(["a", "b"], 2)) == ("a, b and 1 more", "a, b")
