"""`--unchanged=skip`: a file of tests that passed with the same inputs does not run again; `=run`: all run. Both note what passes.

The inputs of a file of tests, by their contents: what it imports, and what that imports, wherever an import stands; all other files
in the folders of these modules; what READS has for them; what all tests share. Where a module reaches further and READS does not have
it, every file of the checkout is one.
"""

import contextlib
import functools
import hashlib
import os
import platform
import re
import subprocess
import sys
from collections import Counter, defaultdict
from collections.abc import Collection, Mapping
from fnmatch import fnmatch
from pathlib import Path, PurePosixPath

import pytest

ROOMS = ("gpunode", "tests")
SHARED = re.compile(r"tests/[^/]*|pyproject.toml|requirements-dev.lock")
# How a module reaches what it neither imports nor has in its folder.
REACHES = re.compile(
    r'\.parents\[|\.parent\.parent|\b\w+\.__file__|import_module|walk_packages|from bench|"-m", "gpunode"'
)
NAMES = re.compile(r"\b(?:gpunode|tests)(?:\.\w+)+")
QUOTED = re.compile(rf"[\"']({NAMES.pattern})[\"']")
# What else files read, or import, in programs that they start, too; `*` is any text, with folders. What runs on hosts travels as text,
# without the packages that it is in.
ON_HOST = ("gpunode/agent/*", "gpunode/*on_host*")
CODES = tuple(f"docs/{page}.md" for page in ("reference/codes", "json", "accept", "failures"))
PLUGIN = "tests/deviceplugin/*process.py"
IMAGE = tuple(f"gpunode/{room}/*" for room in ("accept", "contract", "deviceplugin", "share"))
READS: Mapping[str, tuple[str, ...]] = {
    "gpunode/accept/__main__.py": IMAGE,
    "gpunode/cli/manual.py": ("docs/*",),
    "gpunode/engine/acceptance.py": IMAGE,
    "gpunode/explain/__init__.py": CODES,
    "gpunode/host/bootstrap.py": ON_HOST,
    "gpunode/links/plugin/image/__init__.py": IMAGE,
    "gpunode/packages/on_host.py": ON_HOST,
    "gpunode/planning/templates.py": ("templates/*",),
    "gpunode/report/keyboard.py": (),  # starts a command for a key; no test in its own process presses it
    "gpunode/sim/forkserver.py": (),  # forks what its users load
    "gpunode/sim/host/hosts.py": (),  # folders that it made
    "gpunode/sim/host/run.py": ("gpunode/sim/host/*",),
    "gpunode/sim/host/sshd.py": ("gpunode/sim/host/*", *ON_HOST),
    "gpunode/sim/node/container.py": IMAGE,
    "gpunode/sim/process.py": (),  # starts demos, for tests of the simulation alone
    "gpunode/wording.py": (),  # finds the documents; those that read them are above
    "tests/accept/stand_in.py": IMAGE,
    "tests/deviceplugin/test_mps_daemon.py": ("tests/lab/packages/files/*", PLUGIN, *IMAGE),
    "tests/deviceplugin/test_process.py": (PLUGIN, *IMAGE),
    "tests/forks.py": (),  # those that start a program by it name it
    "tests/unit/test_unchanged.py": (),
    "tests/unchanged.py": (),
}


class Checkout:
    """Its files, without those that git ignores, and which of them decide how tests end."""

    def __init__(self, root: Path) -> None:
        """Raises ImportError, OSError or CalledProcessError where grimp or git is not there."""
        import grimp

        self._root = root
        words = ["git", "ls-files", "-z", "--cached", "--others", "--exclude-standard"]
        listed = subprocess.run(words, cwd=root, capture_output=True, text=True, check=True).stdout
        self.files = frozenset(name for name in listed.split("\0") if (root / name).is_file())
        self._imports = grimp.build_graph(*ROOMS, cache_dir=None)  # its own cache compares times
        # Package -> files in it, and in no package below it, without modules.
        self._beside = defaultdict[str, list[str]](list)
        for file in self.files:
            if not file.endswith(".py"):
                packages = (each for each in _folders(file) if f"{each}/__init__.py" in self.files)
                self._beside[next(packages, "")].append(file)

    def contents(self) -> dict[str, bytes]:
        """File -> the sum of what is in it; those that are gone have none."""
        there = {file: self._root / file for file in self.files if (self._root / file).is_file()}
        return {file: hashlib.sha256(path.read_bytes()).digest() for file, path in there.items()}

    def inputs(self, tests: str) -> Collection[str]:
        """The files that decide how this file of tests ends."""
        # tests/conftest.py imports ahead of others what they import themselves: that does not count.
        texts, done = {file for file in self.files if SHARED.fullmatch(file)}, set[str]()
        left = [tests, *(f"{folder}/conftest.py" for folder in _folders(tests)[:-1])]
        while left:
            file = left.pop()
            if file in self.files and file not in done:
                done.add(file)
                imports, reads = self._needs(file)
                if reads is self.files:
                    return self.files
                texts.update(reads)
                left += imports
        return texts | done

    @functools.cache  # noqa: B019 (of one checkout)
    def _needs(self, file: str) -> tuple[Collection[str], Collection[str]]:
        """The files that one needs with all that these need, and those of which it needs the text alone."""
        if not file.endswith(".py"):
            return (), ()
        module = file.removesuffix(".py").removesuffix("/__init__").replace("/", ".")
        text = (self._root / file).read_text(encoding="utf-8")
        if file not in READS and REACHES.search(text):
            return (), self.files
        imports = [f"{folder}/__init__.py" for folder in _folders(file)]
        imports += map(self._find, self._imports.find_modules_directly_imported_by(module))
        imports += map(self._find, QUOTED.findall(text))
        if file not in READS and "sys.executable" in text:
            for name in NAMES.findall(text):  # it may start what it names: of a package, any module
                imports += self._match(self._find(name).replace("__init__", "*"))
        reads = [*self._beside[_folders(file)[0]]]
        for pattern in READS.get(file, ()):
            (reads if pattern in ON_HOST else imports).extend(self._match(pattern))
        return imports, reads

    @functools.cache  # noqa: B019
    def _find(self, name: str) -> str:
        """The file of a module, or of the one that has something of this name."""
        path = name.replace(".", "/")
        there = {f"{path}.py", f"{path}/__init__.py"} & self.files
        return there.pop() if there else self._find(name.rpartition(".")[0])

    @functools.cache  # noqa: B019
    def _match(self, pattern: str) -> Collection[str]:
        return [file for file in self.files if fnmatch(file, pattern)]


@functools.cache
def read_checkout(root: Path) -> Checkout:
    """One for all processes of a run: grimp's threads stay behind in the first, and a fork that builds a graph would wait for them."""
    return Checkout(root)


class Passed:
    """Notes which files of tests pass, and keeps those from running that did."""

    def __init__(self, config: pytest.Config) -> None:
        assert config.cache
        self._root, self._cache = config.rootpath, config.cache
        self._runs_all = config.option.unchanged == "run"
        self._checkout = read_checkout(config.rootpath.resolve())
        self._contents = self._checkout.contents()
        words = [str(word) for word in config.invocation_params.args if "--unchanged=" not in str(word)]
        self._run = repr((sys.version, platform.platform(), os.geteuid(), words)).encode()
        self._passed: dict[str, str] = self._cache.get("gpunode/passed", {})
        self._left: Counter[str] = Counter()  # file -> tests of it that have not ended, or have failed
        self._skipped = 0

    def _state(self, tests: str) -> str:
        state = hashlib.sha256(self._run)
        for file in sorted(self._checkout.inputs(tests)):
            state.update(file.encode() + self._contents.get(file, b""))
        return state.hexdigest()

    def pytest_ignore_collect(self, collection_path: Path) -> bool | None:
        tests = collection_path.relative_to(self._root).as_posix()
        if self._runs_all or tests not in self._passed or self._passed[tests] != self._state(tests):
            return None
        self._skipped += 1
        return True

    def pytest_collection_finish(self, session: pytest.Session) -> None:
        self._left.update(item.nodeid.partition("::")[0] for item in session.items)

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        """`make test` names the tests that this machine skips: here they are no obstacle."""
        if report.failed or report.when == "teardown":
            self._left[report.nodeid.partition("::")[0]] += 1 if report.failed else -1

    def pytest_sessionfinish(self, session: pytest.Session) -> None:
        if session.exitstatus == pytest.ExitCode.NO_TESTS_COLLECTED and self._skipped:
            session.exitstatus = pytest.ExitCode.OK
        now, ended = self._checkout.contents(), not (session.shouldfail or session.shouldstop)
        for tests, left in self._left.items():
            same = all(self._contents.get(file) == now.get(file) for file in self._checkout.inputs(tests))
            self._passed.pop(tests, None)
            if ended and same and not left:
                self._passed[tests] = self._state(tests)
        self._cache.set("gpunode/passed", self._passed)

    def pytest_terminal_summary(self, terminalreporter: pytest.TerminalReporter) -> None:
        if self._skipped:
            terminalreporter.write_line(
                f"Files of tests that did not run: {self._skipped}. They passed, and what they use has not changed since. "
                "`make check ALL=1` runs all."
            )


def _folders(file: str) -> list[str]:
    """From its own to the outermost."""
    return [str(folder) for folder in PurePosixPath(file).parents][:-1]


def pytest_addoption(parser: pytest.Parser) -> None:
    usage = "skip or run files of tests that passed with the same inputs; note what passes"
    parser.addoption("--unchanged", choices=("skip", "run"), help=usage)


def pytest_configure(config: pytest.Config) -> None:
    if config.option.unchanged:
        with contextlib.suppress(ImportError, OSError, subprocess.CalledProcessError):
            config.pluginmanager.register(Passed(config))
