"""The configuration and its reload, from flags, environment and a file, or one of several files by node label; and the
signals on which work ends or begins again."""

import asyncio
import contextlib
import logging
import signal
import sys
from collections.abc import Callable, Coroutine, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from gpunode.contract.config import DEFAULT, LABEL, BadConfig, Config, choose_name

from .cluster.apiserver import NodeLabel
from .directory import Directory
from .settings import PROGRAM, build, settings
from .threads import post

log = logging.getLogger(__name__)

LABEL_DEADLINE = 2.0  # seconds to wait for the node's label before a warning


@dataclass(frozen=True, slots=True)
class FileContent:
    """The configuration file's path ("": none) and content, or the problem of reading it."""

    path: str = ""
    content: bytes = b""
    problem: str = ""


class ConfigSource:
    """The configuration in force, `config`, and its reload. The constructor raises BadConfig.

    A later configuration that is invalid goes to `on_refused`, and the earlier one stays in force. `on_accepted` is
    called when a configuration is valid again.
    """

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str], program: str = PROGRAM) -> None:
        self.on_refused: Callable[[BadConfig], None] = lambda _: None
        self.on_accepted: Callable[[], None] = lambda: None
        self._broken = False  # the last one was refused
        self._given = settings(arguments, environ, program)
        self._label: NodeLabel | None = None
        self._default = str(self._given.get("default_config", ""))
        self._folder = Path(self._given["config_dir"]) if self._given.get("config_dir") else None
        if self._folder is not None:
            if self._given.get("config_file"):
                raise BadConfig("--config-file and --config-dir: set only one of them")
            self._label = self._follow(environ)
        self._read_last = self._current_file()
        self.config = self._read(self._read_last)
        if self._folder is not None or self.config.config_file:
            self._log("read")

    def reload(self) -> bool:
        """Read the configuration again; True if it differs from the one before."""
        self._read_last = self._current_file()
        try:
            config = self._read(self._read_last)
        except BadConfig as error:
            log.error("the configuration is unchanged: %s", error)  # noqa: TRY400 (the message is the cause)
            self.on_refused(error)
            self._broken = True
            return False
        if self._broken:
            self.on_accepted()
        self._broken = False
        other = config != self.config
        self.config = config
        self._log("a new one" if other else "the same")
        return other

    @contextlib.contextmanager
    def watch(self, changed: Callable[[], None]) -> Iterator[None]:
        """While entered, call `changed` in the event loop whenever `config` has changed."""
        path = self._folder or (Path(self.config.config_file).parent if self.config.config_file else None)
        if path is None:
            yield
            return

        def check() -> None:
            if self._current_file() != self._read_last and self.reload():
                changed()

        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(Directory(path, check))
            except OSError as error:
                log.warning("configuration changes take effect only on SIGHUP: %s", error)
            if self._label is not None:
                self._label.listen(lambda: post(loop, check))  # a closed one: the next checks when it starts
            check()  # for a change since the last read
            yield

    def _follow(self, environ: Mapping[str, str]) -> NodeLabel:
        """Watch the node's label, and wait without limit until it is known.

        Starting with a guessed configuration would reserve what pods use, or allocate it twice where the kubelet does
        not report pods' devices. While the API server is away, no new pod is scheduled here anyway.
        """
        config = build(self._given)
        if not config.node_name:
            raise BadConfig("--config-dir needs --node-name (NODE_NAME): the node whose label is followed")
        from .cluster.incluster import InCluster

        api = InCluster(environ, Path(config.service_account_directory))
        label = NodeLabel(api, config.node_name)
        label.start()
        if not label.wait(LABEL_DEADLINE):
            log.warning(
                "nothing is offered until the label %s of node %s is known", label.key, config.node_name
            )
            label.wait()
        return label

    def _log(self, how: str) -> None:
        """Log the configuration and its file: of several files, only this line names the one in force."""
        if self._folder is not None and not self.config.config_file:
            how += f", without a file: the node has no label {LABEL}, and no file in {self._folder} is called {DEFAULT}"
        file = self.config.config_file
        log.info("the configuration is %s", how, extra={"file": file} if file else {})

    def _current_file(self) -> FileContent:
        path = self._given.get("config_file", "")
        try:
            if self._folder is not None and self._label is not None:
                path = choose_file(self._folder, self._label.value, self._label.key, self._default)
            if not path:
                return FileContent()
            from gpunode.contract import config_file  # PyYAML only where there is a file

            return FileContent(path, config_file.content(Path(path)))
        except BadConfig as error:
            return FileContent(problem=str(error))
        except OSError as error:
            return FileContent(problem=f"{path}: {error.strerror}")

    def _read(self, content: FileContent) -> Config:
        """Raises BadConfig."""
        if content.problem:
            raise BadConfig(content.problem)
        return build({**self._given, **({"config_file": content.path} if content.path else {})})


def choose_file(folder: Path, label: str, key: str, default: str = "") -> str:
    """Path of the file in `folder` for a node with this label; "" for none. Raises BadConfig."""
    try:
        # In a ConfigMap's folder names with two dots are the kubelet's own.
        names = sorted(
            path.name for path in folder.iterdir() if not path.name.startswith("..") and path.is_file()
        )
    except OSError as error:
        raise BadConfig(f"{folder}: {error.strerror}") from None
    wanted = choose_name(names, label, default)
    if wanted and wanted not in names:
        by = f"the node's label {key}" if label else "--default-config"
        raise BadConfig(
            f"{folder}: {by} names {wanted}, which is not there; there are {', '.join(names) or 'none'}"
        )
    return str(folder / wanted) if wanted else ""


HANGUP, CHANGED = "SIGHUP", "changed"
ENDS = (signal.SIGTERM, signal.SIGINT, signal.SIGQUIT)


class Signals:
    """Handles this process's signals from now on. Signals between two runs count for the next run.

    Before the first run, a signal to end exits at once: there is nothing to clean up, and the start may wait long.
    Handlers are needed: the kernel ignores signals to a container's first process that have none.
    """

    def __init__(self) -> None:
        self._received: list[str] = []  # since the last run
        self._wake: Callable[[], None] | None = None
        for number in (*ENDS, signal.SIGHUP):
            signal.signal(number, lambda number, _: self._receive(signal.Signals(number).name))

    async def run(self, work: Coroutine[Any, Any, None], source: ConfigSource) -> str:
        """Run `work` until a signal arrives or `source` has another configuration: the signal's name, or CHANGED.

        A signal to end takes precedence, even if it arrives while the work is cancelled. Errors of the work are raised;
        if the work ends on its own, this still waits for a signal.
        """
        loop, stirred = asyncio.get_running_loop(), asyncio.Event()
        self._wake = lambda: post(loop, stirred.set)  # a signal does not wake the loop
        if self._received:
            stirred.set()
        task, heard = asyncio.create_task(work), asyncio.create_task(stirred.wait())
        try:
            with source.watch(lambda: self._receive(CHANGED)):
                await asyncio.wait((task, heard), return_when=asyncio.FIRST_COMPLETED)
                if task.done():
                    task.result()
                await heard
        finally:
            heard.cancel()
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)
        received, self._received = self._received, []
        ends = [name for name in received if name not in (HANGUP, CHANGED)]
        return ends[0] if ends else HANGUP if HANGUP in received else CHANGED

    def _receive(self, what: str) -> None:
        self._received.append(what)
        if self._wake is not None:
            self._wake()
        elif what != HANGUP:
            sys.exit(0)
