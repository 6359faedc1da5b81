"""README and --help say what the command line does."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
import typer.main
from typer.testing import CliRunner

from gpunode.cli import EPILOG, app

ROOT = Path(__file__).parents[2]
README = (ROOT / "README.md").read_text()


def commands() -> list[tuple[str, ...]]:
    """Every command as the words that call it."""
    found: list[tuple[str, ...]] = []

    def walk(command: object, words: tuple[str, ...]) -> None:
        children = getattr(command, "commands", None)
        if children is None:
            found.append(words)
        else:
            for name, child in children.items():
                walk(child, (*words, name))

    walk(typer.main.get_command(app), ())
    return found


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_has_help_with_an_example(words: tuple[str, ...]) -> None:
    """What it does, and one line to copy."""
    text = " ".join(CliRunner().invoke(app, [*words, "--help"]).stdout.split())

    assert f"Example: gpunode {words[0]}" in text


@pytest.mark.parametrize("words", commands(), ids=" ".join)
def test_every_command_is_in_the_readme(words: tuple[str, ...]) -> None:
    """By name, in the overview."""
    overview = README.split("## What it does")[1].split("```")[1]
    line = next((line for line in overview.splitlines() if line.startswith(f"gpunode {words[0]}")), "")

    assert all(word in line for word in words)


@pytest.mark.parametrize("words", [words for words in commands() if words[0] != "demo"], ids=" ".join)
def test_every_command_speaks_json(words: tuple[str, ...]) -> None:
    """`--json` is everywhere but in the demo, which is a show for people."""
    assert "--json" in CliRunner().invoke(app, [*words, "--help"]).stdout


def test_the_exit_codes_are_told_alike() -> None:
    """README and --help name the same codes with the same words."""
    codes = README.split("**Exit codes**: ")[1].split("\n\n")[0].replace("`", "")

    assert " ".join(codes.split()).rstrip(".") == EPILOG.removeprefix("Exit codes: ")


def test_help_imports_no_heavy_library() -> None:
    """Start-up stays fast: clients are imported by the commands that use them."""
    program = (
        "import sys\nfrom gpunode.cli import app\n"
        "try:\n    app(['--help'])\nexcept SystemExit:\n    pass\n"
        "print([name for name in ('paramiko', 'kubernetes', 'rich', 'jinja2', 'yaml', 'jsonschema', 'gpunode.model')"
        " if name in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)

    assert done.stdout.splitlines()[-1] == "[]"


def test_every_file_the_documents_point_to_is_there() -> None:
    """Links between the documents hold."""
    for document in (ROOT / "README.md", ROOT / "CONTRIBUTING.md", *(ROOT / "docs").glob("*.md")):
        for part in document.read_text().split("](")[1:]:
            target = part.split(")")[0].split("#")[0]
            if target and "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"
