"""README and --help say what the command line does."""

import ast
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import get_args

import pytest
import typer.main
import yaml
from typer.testing import CliRunner

from gpunode import inventory, wording
from gpunode.cli import EPILOG, app
from gpunode.links.plugin.deployment import Spec
from gpunode.model import Layer, PluginImage

ROOT = Path(__file__).parents[2]
DOCUMENTS = [
    ROOT / "README.md",
    ROOT / "CONTRIBUTING.md",
    *sorted(ROOT.glob("docs/**/*.md")),
    *ROOT.glob("tests/**/README.md"),
]
README = (ROOT / "README.md").read_text()


def commands() -> list[tuple[str, ...]]:
    """Every command as the words that call it."""
    names: list[tuple[str, ...]] = []

    def walk(command: object, words: tuple[str, ...]) -> None:
        children = getattr(command, "commands", None)
        if children is None:
            names.append(words)
        else:
            for name, child in children.items():
                walk(child, (*words, name))

    walk(typer.main.get_command(app), ())
    return names


def test_every_command_has_help_with_an_example_and_speaks_json():
    """One line to copy; `--json` is everywhere but in `demo` and `help`."""
    for words in commands():
        text = " ".join(CliRunner().invoke(app, [*words, "--help"]).stdout.split())
        assert f"Example: gpunode {words[0]}" in text, words
        assert ("--json" in text) == (words[0] not in ("demo", "help")), words


def test_every_command_is_in_the_readme():
    """By name, in the overview."""
    overview = README.split("## What it does")[1].split("```")[1].splitlines()
    lines = {line.split()[1]: line for line in overview if line.startswith("gpunode ")}
    assert [words for words in commands() if any(word not in lines.get(words[0], "") for word in words)] == []


def test_the_exit_codes_are_told_alike():
    """README and --help name the same codes with the same words."""
    codes = README.split("**Exit codes**: ")[1].split("\n\n")[0].replace("`", "")

    assert " ".join(codes.split()).rstrip(".") == EPILOG.removeprefix("Exit codes: ")


@pytest.mark.parametrize(
    ("words", "before", "heavy"),
    [
        ("--help", "sys", "paramiko kubernetes rich jinja2 yaml jsonschema gpunode.model"),
        # invoke is half of paramiko's import; certificates are the scheduler extender's; pydantic checks what needs no check
        (
            "plan --limit a --out plan --quiet inventory.yaml",
            "sys, gpunode.host.ssh",
            "invoke kubernetes cryptography.x509 jsonschema pydantic",
        ),
    ],
)
def test_a_command_imports_no_library_that_it_does_not_use(tmp_path, words: str, before: str, heavy: str):
    """Start-up stays fast: clients are imported by the commands that use them."""
    inventory = "groups: {gpu: {hosts: [a], connection: local, python: /nowhere, sudo: false}}"
    (tmp_path / "inventory.yaml").write_text(inventory)
    program = (
        f"import {before}\nfrom gpunode.cli import app\n"
        f"try:\n    app({words.split()})\nexcept SystemExit:\n    pass\n"
        f"print([name for name in {heavy.split()} if sys.modules.get(name)])"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], cwd=tmp_path, capture_output=True, text=True, check=True
    )

    assert done.stdout.splitlines()[-1] == "[]"


def test_every_file_the_documents_point_to_is_there():
    """Links between the documents hold."""
    for document in DOCUMENTS:
        for part in document.read_text().split("](")[1:]:
            target = part.split(")")[0].split("#")[0]
            if target and "://" not in target:
                assert (document.parent / target).exists(), f"{document.name}: {target}"


def anchors(document: Path) -> set[str]:
    """Of its headings, as GitHub makes them."""
    titles = re.findall(r"^#+ (.*)$", document.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w -]", "", title.lower()).replace(" ", "-") for title in titles}


def test_every_section_that_a_document_points_to_is_there():
    """In itself or in another one."""
    missing = [
        f"{document.name}: {target}#{name}"
        for document in DOCUMENTS
        for target, name in re.findall(r"\]\(([^)\s#:]*)#([^)\s]+)\)", document.read_text())
        if name not in anchors(document.parent / target if target else document)
    ]
    assert missing == []


def lines_of_gpunode(text: str) -> list[str]:
    """Calls of gpunode, in `code` and in blocks."""
    blocks = "\n".join(re.findall(r"^ *```\w*\n(.*?)^ *```$", text, re.DOTALL | re.MULTILINE))
    called = re.findall(r"^ *(?:\$ )?gpunode ([a-z].*)$", blocks, re.MULTILINE)
    return [*called, *re.findall(r"`gpunode ([a-z][^`\n]*)`", text)]


def test_every_command_that_a_document_names_is_there_with_its_options():
    """Also in what no test runs."""
    missing, gpunode = [], typer.main.get_command(app)
    for line in [line for document in DOCUMENTS for line in lines_of_gpunode(document.read_text())]:
        command, words = gpunode, line.split("  ")[0].split("|")[0].split()
        while words and (child := getattr(command, "commands", {}).get(words[0])):
            command, words = child, words[1:]
        there = {each for param in command.params for each in (*param.opts, *param.secondary_opts)} | {
            "--help"
        }
        named = {word.split("=")[0].strip("[],") for word in words if re.match(r"\[?-", word)}
        if command is gpunode or named - there:
            missing.append(line)
    assert missing == []


def test_every_page_stands_in_the_table_of_contents():
    """Of the site (zensical.toml), once."""
    listed = re.findall(r'= "([\w/-]+\.md)"', (ROOT / "zensical.toml").read_text())
    assert sorted(listed) == sorted(
        str(path.relative_to(ROOT / "docs")) for path in ROOT.glob("docs/**/*.md")
    )


@pytest.mark.release
def test_the_site_builds_without_a_broken_link(tmp_path):
    """`make docs`: each page is there, and no browser would fetch anything from elsewhere."""
    if not (ROOT / ".venv/bin/zensical").exists() or not shutil.which("make"):
        pytest.skip("zensical needs Python 3.11, and the site make")
    words = ["make", "-C", str(ROOT), "docs", f"SITE={tmp_path / 'site'}"]
    environment = {key: value for key, value in os.environ.items() if key != "MAKEFLAGS"}
    done = subprocess.run(words, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0, done.stdout + done.stderr
    html = tmp_path / "site/html"
    for page in ROOT.glob("docs/**/*.md"):
        text = (html / page.relative_to(ROOT / "docs").with_suffix(".html")).read_text()
        assert re.findall(r'(?:src|rel="stylesheet" href)="https?:', text) == []


def test_the_device_plugins_daemonset_by_hand_is_what_gpunode_applies():
    """The one in its document is part of the one that is tried on real kubelets."""
    text = (ROOT / "docs/howto/plugin-by-hand.md").read_text().split("```yaml\n")[1].split("```")[0]
    by_hand = yaml.safe_load(text)["spec"]["template"]["spec"]
    objects = Spec("gpunode", PluginImage("gpunode-deviceplugin")).manifests
    applied = next(
        item["spec"]["template"]["spec"]
        for item in objects
        if item["metadata"]["name"] == "gpunode-device-plugin-class"
    )
    (hand,), (made,) = by_hand["containers"], applied["containers"]
    for key in ("securityContext", "volumeMounts", "image", "imagePullPolicy"):
        assert hand[key] == made[key]
    for key in ("volumes", "priorityClassName", "runtimeClassName", "tolerations"):
        assert by_hand[key] == applied[key]
    assert [variable for variable in hand["env"] if variable not in made["env"]] == []


def test_every_link_of_the_chain_is_documented():
    """docs/json.md lists the values of `layer`, in order; README's and verify's help tell of the same chain."""
    said = (ROOT / "docs/json.md").read_text().split("`layer` of a link is one of")[1].split("not whole.")[0]
    ssh, container, work, *chain = get_args(Layer)
    assert re.findall(r"`(\w+)`", said) == [*chain, ssh]
    assert all(f"there is `{name}`" in (ROOT / "docs/json.md").read_text() for name in (container, work))
    told = " ".join(CliRunner().invoke(app, ["verify", "--help"]).stdout.split())
    assert ", ".join(chain) in told


FOLDERS = ("gpunode", "tests", "docs", "templates", "inventories", "bench")


def test_every_path_that_a_document_names_is_there():
    """Files of the project in `code`, patterns too; a module also by its place in the package or beside the document."""
    missing = []
    for document in DOCUMENTS:
        spans = re.findall(r"`([^`\n]+)`", document.read_text())
        words = {word.split("::")[0].rstrip(",.:;") for span in spans for word in span.split()}
        for word in words:
            if word.startswith(tuple(f"{folder}/" for folder in FOLDERS)) or re.fullmatch(
                r"[\w./-]*\w\.py", word
            ):
                pattern = re.sub(r"<[^>]*>", "*", word)
                there = (any(place.glob(pattern)) for place in (ROOT, ROOT / "gpunode", document.parent))
                missing += [] if any(there) else [f"{document.name}: {word}"]
    assert missing == []


def test_the_rooms_are_those_of_the_package():
    """The table in docs/design.md leaves out no room and names none that is gone."""
    table = (ROOT / "docs/design.md").read_text().split("| room | holds |")[1].split("\n\n")[0]
    named = {
        word.rstrip("/")
        for row in table.splitlines()
        for word in re.findall(r"`([^`]+)`", row[: row.find("|", 1)])
    }
    package = {
        path.stem
        for path in (ROOT / "gpunode").iterdir()
        if path.suffix == ".py" or (path / "__init__.py").exists()
    }
    assert named == (package - {"__init__", "__main__"}) | {"templates"}


def test_every_step_of_a_walk_is_a_room_that_holds_what_the_step_names():
    """The walks in docs/design.md."""
    text = (ROOT / "docs/design.md").read_text().split("\n## Walks\n")[1].split("\n## ")[0]
    walks = [" ".join(part.split()) for part in text.split("\n\n") if part.startswith("**")]
    assert walks
    for walk in walks:
        steps = re.sub(r"^\*\*.*?\*\*.*?(?=`\w+/[\w/]*`:)", "", walk).split(" → ")
        assert len(steps) > 1, walk
        for step in steps:
            room, *named = re.findall(r"`([^`]+)`", step)
            assert step.startswith(f"`{room}`:"), step
            place = ROOT / "gpunode" / room
            files = [place.with_suffix(".py")] if place.with_suffix(".py").exists() else place.rglob("*.py")
            code = "\n".join(file.read_text() for file in files)
            words = [word.rsplit(".", 1)[-1] for word in named]
            assert code, room
            assert [word for word in words if not re.search(rf"\b{word}\b", code)] == [], step


def test_every_make_target_that_a_document_names_is_there():
    """In `code` or in a block of commands."""
    targets = set(re.findall(r"^([a-z][\w-]*):", (ROOT / "Makefile").read_text(), re.MULTILINE))
    texts = "\n".join(document.read_text() for document in DOCUMENTS)
    assert set(re.findall(r"(?:^|`)\s*make ([a-z][\w-]*)", texts, re.MULTILINE)) - targets == set()


def test_the_inventory_of_the_readme_is_right(tmp_path):
    """With the file beside it that the step before it writes."""
    text = README.split("```yaml\n")[1].split("```")[0]
    assert "gpunode plugin image --base python.tar" in README
    (tmp_path / "inventory.yaml").write_text(
        text.replace("archive: plugin.tar", "image: gpunode-deviceplugin")
    )

    hosts = inventory.load(tmp_path / "inventory.yaml").hosts

    assert [host.name for host in hosts] == ["gpu-01", "gpu-02", "gpu-03", "gpu-04", "gpu-11", "gpu-12"]


def test_messages_name_pages_that_the_user_has():
    """With its section; `docs/…` is there in a checkout only."""
    named, relative = set(), set()
    for path in (ROOT / "gpunode").rglob("*.py"):
        text = path.read_text()
        if "page(" not in text and "docs/" not in text:
            continue
        tree = ast.parse(text)
        documented = [
            node for node in ast.walk(tree) if hasattr(node, "body") and isinstance(node.body, list)
        ]
        docstrings = {
            id(node.body[0].value) for node in documented if node.body and isinstance(node.body[0], ast.Expr)
        }
        for node in ast.walk(tree):
            if (
                isinstance(node, ast.Call)
                and isinstance(node.func, ast.Name)
                and node.func.id == "page"
                and node.args
            ):
                named |= {arg.value for arg in node.args if isinstance(arg, ast.Constant)}
            elif (
                isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings
            ):
                relative |= set(re.findall(r"(?<![\w/.-])docs/[\w/-]+\.md", node.value))
    assert {name for name in named if not wording.read(name)} == set()
    assert named.isdisjoint(words[0] for words in commands())  # whose help `gpunode help` shows
    assert len(named) > 5
    assert relative == set()
