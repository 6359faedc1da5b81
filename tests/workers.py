"""Tests in several processes, `--workers N`: the first collects all tests, then forks the others. Each runs a file of tests after another.

Processes of pytest-xdist each import and collect all of them.
"""

import atexit
import itertools
import os
import struct
import sys
import traceback
from collections.abc import Iterator
from multiprocessing import Pipe
from multiprocessing.connection import Connection, wait
from typing import Any, NoReturn

import pytest

NUMBER = struct.Struct("!i")
WORKER: pytest.StashKey[int] = pytest.StashKey()


def pytest_addoption(parser: pytest.Parser) -> None:
    usage = "processes that run tests, each file in one of them and in its order; 0: this process alone"
    parser.addoption("--workers", type=int, default=0, help=usage)


@pytest.fixture(scope="session")
def worker(pytestconfig: pytest.Config) -> int:
    """The number of the process that runs this test, from 0."""
    return pytestconfig.stash.get(WORKER, 0)


@pytest.hookimpl(tryfirst=True)
def pytest_runtestloop(session: pytest.Session) -> bool | None:
    config = session.config
    if not config.option.workers or config.option.collectonly or session.testsfailed:
        return None  # pytest's own loop
    files = [list(items) for _, items in itertools.groupby(session.items, key=lambda item: item.path)]
    queue, put = os.pipe()  # numbers of files; a worker that is free reads the next
    os.write(put, b"".join(NUMBER.pack(number) for number in range(len(files))))
    os.close(put)
    config._tmp_path_factory.getbasetemp()  # type: ignore[attr-defined]
    sys.stdout.flush()
    workers: dict[Connection, int] = {}
    for number in range(min(config.option.workers, len(files))):
        results, theirs = Pipe(duplex=False)
        pid = os.fork()
        if pid == 0:
            for other in (*workers, results):
                other.close()
            config.stash[WORKER] = number
            _work(session, _read_queue(session, files, queue), theirs)
        theirs.close()
        workers[results] = pid
    ends = _report(session, workers, queue)
    if any(ends) and not session.shouldfail:
        session.shouldfail = f"The processes ended with {ends}"
    if session.shouldfail:
        raise session.Failed(session.shouldfail)
    return True


def _report(session: pytest.Session, workers: dict[Connection, int], queue: int) -> list[int]:
    """Report what the workers send until they end; a test that none of them ran to its end has failed. Returns their exit statuses."""
    config, hook = session.config, session.config.hook
    config.pluginmanager.getplugin("terminalreporter").showfspath = False
    left = {item.nodeid: item for item in session.items}
    ends = []
    try:
        while workers:
            ready = wait([*workers])
            for results in [each for each in workers if each in ready]:
                try:
                    nodeid, reports = results.recv()
                except EOFError:
                    ends.append(os.waitstatus_to_exitcode(os.waitpid(workers.pop(results), 0)[1]))
                    continue
                del left[nodeid]
                for data in reports:
                    report = hook.pytest_report_from_serializable(config=config, data=data)
                    hook.pytest_runtest_logreport(report=report)
            if session.shouldfail:
                os.read(queue, 1 << 16)  # no file is begun any more
    finally:
        os.read(queue, 1 << 16)
        for results, pid in workers.items():
            results.close()
            os.waitpid(pid, 0)
    for item in [] if session.shouldfail else left.values():
        reason = f"No process ran it to its end; they ended with {ends}."
        report = pytest.TestReport(item.nodeid, item.location, {}, "failed", reason, "call")
        hook.pytest_runtest_logreport(report=report)
    return ends


class _Reports:
    """What a test's phases reported, for the first process."""

    def __init__(self, config: pytest.Config) -> None:
        self._config = config
        self.data: list[Any] = []

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        self.data.append(self._config.hook.pytest_report_to_serializable(config=self._config, report=report))


def _read_queue(session: pytest.Session, files: list[list[pytest.Item]], queue: int) -> Iterator[Any]:
    """Tests of the next file, as long as there is one; each with the one that follows it.

    After the last comes the session alone: pytest ends the fixtures of the file and of its packages.
    """
    while number := os.read(queue, NUMBER.size):
        tests = files[NUMBER.unpack(number)[0]]
        yield from zip(tests, [*tests[1:], session], strict=True)


def _work(session: pytest.Session, tests: Iterator[Any], results: Connection) -> NoReturn:
    status = 1
    atexit._clear()  # what the first process does at its end
    try:
        _be_apart(session.config)
        reports = _Reports(session.config)
        session.config.pluginmanager.register(reports)
        for item, following in tests:
            item.config.hook.pytest_runtest_protocol(item=item, nextitem=following)
            results.send((item.nodeid, reports.data))
            reports.data = []
            if session.shouldfail or session.shouldstop:
                break
        session._setupstate.teardown_exact(None)
        status = 0
    except (BrokenPipeError, KeyboardInterrupt):
        session._setupstate.teardown_exact(None)  # the first process has ended, or ends
    except BaseException:  # noqa: BLE001 (this process ends here)
        traceback.print_exc()
    finally:
        atexit._run_exitfuncs()
        os._exit(status)


def _be_apart(config: pytest.Config) -> None:
    """Have folders and files of captured output of its own, and write nothing to the terminal."""
    factory: Any = config._tmp_path_factory  # type: ignore[attr-defined]
    factory._basetemp /= f"w{config.stash[WORKER]}"
    factory._basetemp.mkdir()
    capture = config.pluginmanager.getplugin("capturemanager")
    capture.stop_global_capturing()
    capture.start_global_capturing()
    capture.suspend_global_capture()
    config.get_terminal_writer()._file = open(os.devnull, "w")  # noqa: SIM115
