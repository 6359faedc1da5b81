"""The agent's source fits the oldest host: Python 3.6, the standard library, one text."""

import ast
import functools
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import gpunode
from gpunode.host import bootstrap
from gpunode.packages import hint_of

ROOT = Path(gpunode.__file__).parent
PROGRAM = "the program"
NEWER_ARGUMENTS = {"capture_output", "text", "missing_ok", "dirs_exist_ok", "strict", "cancel_futures"}
NEWER_NAMES = {
    "removeprefix",
    "removesuffix",
    "walrus",
    "prod",
    "cache",
    "cached_property",
    "TypedDict",
    "Protocol",
}
NEWER_NAMES |= {
    "Literal",
    "Final",
    "shlex_join",
    "monotonic_ns",
    "time_ns",
    "fromisoformat",
    "dataclass",
    "get_running_loop",
}


def test_every_module_is_sent_but_the_one_that_puts_them_together():
    """The same code at the same places, so that a traceback is right. Docstrings stay behind."""
    paths = [path.relative_to(ROOT) for path in ROOT.rglob("*.py") if path.name != "__init__.py"]
    ours = [path for path in paths if path.parts[0] == "agent" or "on_host" in path.with_suffix("").parts]
    files = {".".join(("gpunode", *path.with_suffix("").parts)): (ROOT / path).read_text() for path in ours}
    assert {name for name, text in bootstrap.sources().items() if text} == set(files)
    for name, text in files.items():
        sent = bootstrap.sources()[name]
        (ours, texts), (theirs, none) = (undocumented(ast.parse(each)) for each in (text, sent))
        assert ast.dump(theirs, include_attributes=True) == ast.dump(ours, include_attributes=True)
        assert texts
        assert set(none) == {""}


def undocumented(tree: ast.Module) -> tuple[ast.Module, list[str]]:
    """Without its docstrings, and they."""
    missing = []
    for node in ast.walk(tree):
        if isinstance(node, (ast.Module, ast.ClassDef, ast.FunctionDef)):
            match node.body[0]:
                case ast.Expr(ast.Constant(str(text))):
                    missing.append(text)
                    del node.body[0]
    return tree, missing


@functools.cache
def trees() -> dict[str, ast.Module]:
    texts = {PROGRAM: bootstrap.program(), **bootstrap.sources()}
    return {name: ast.parse(text, feature_version=(3, 6)) for name, text in texts.items()}


def nodes(*kinds: type[ast.AST]) -> Iterator[tuple[str, Any]]:
    """Those of these kinds in the program and in every module, with its name."""
    for name, tree in trees().items():
        yield from ((name, node) for node in ast.walk(tree) if isinstance(node, kinds))


def test_the_program_holds_each_module_as_it_is_sent():
    """They stand in one raw string, which costs a host less to read than a dictionary of escaped texts."""
    loaded: dict[str, object] = {"__name__": "agent"}
    text = bootstrap.program()
    exec(text[: text.index("class Modules")], loaded)
    assert loaded["SOURCES"] == dict(bootstrap.sources())


def test_only_the_standard_library_is_imported():
    """The host has nothing else but the modules that are sent."""
    imported = {(name, alias.name) for name, node in nodes(ast.Import) for alias in node.names}
    for name, node in nodes(ast.ImportFrom):
        own = bootstrap.sources().get(str(node.module)) == ""
        imported |= {(name, f"{node.module}.{each.name}" if own else str(node.module)) for each in node.names}
    sent = {(name, module) for name, module in imported if module in bootstrap.sources()}
    known = sys.stdlib_module_names | {"_sha256", "_sha2"} - {"__future__"}  # of Python to 3.11, from 3.12 on
    assert sent
    assert {
        (name, module) for name, module in imported - sent if module.partition(".")[0] not in known
    } == set()


def test_annotations_are_those_that_python_3_6_evaluates():
    """`list[str]` and `str | None` fail there when the function is defined."""
    newer = {"list", "dict", "tuple", "set", "frozenset", "type"}
    annotations = [
        (name, node.lineno)
        for name, node in nodes(ast.Subscript)
        if isinstance(node.value, ast.Name) and node.value.id in newer
    ]
    for name, node in nodes(ast.BinOp):
        sides = (node.left, node.right) if isinstance(node.op, ast.BitOr) else ()
        annotations += [
            (name, node.lineno) for part in sides if isinstance(part, ast.Constant) and part.value is None
        ]
    assert annotations == []


def test_no_newer_names_or_arguments_are_used():
    """What a syntax check cannot see."""
    arguments = [
        (name, keyword.arg)
        for name, node in nodes(ast.Call)
        for keyword in node.keywords
        if keyword.arg in NEWER_ARGUMENTS
    ]
    names = [(name, node.attr) for name, node in nodes(ast.Attribute) if node.attr in NEWER_NAMES]
    assert arguments + names == []


def test_a_traceback_on_a_host_names_the_file_and_line_of_the_repository(tmp_path):
    """Of an uncaught mistake, too; the file is not there."""
    stored = tmp_path / "agent.py"
    stored.write_text(bootstrap.program())
    done = subprocess.run(
        [sys.executable, "-I", "-S", stored, "work", "run1"],
        env={"GPUNODE_ROOT": str(tmp_path), "PATH": ""},
        cwd=tmp_path,
        capture_output=True,
        text=True,
        check=False,
    )
    lines = (ROOT / "engine/on_host/jobs.py").read_text().splitlines()
    number, line = next((number, line) for number, line in enumerate(lines, 1) if "crash = os.open" in line)
    assert (
        f'File "gpunode/engine/on_host/jobs.py", line {number}, in detached\n    {line.strip()}'
        in done.stderr
    )


def test_every_failure_has_a_hint():
    """Without one a user has the cause alone. Codes that are computed are seen by the tests of their changes."""
    codes = {
        node.args[0].value
        for _, node in nodes(ast.Call)
        if isinstance(node.func, ast.Name)
        and node.func.id == "Failure"
        and isinstance(node.args[0], ast.Constant)
    }
    assert len(codes) > 30
    assert {code for code in codes if not hint_of(code)} == set()
