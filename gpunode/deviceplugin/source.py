"""Where a program's configuration comes from, and that it changes: flags, environment, a file, or one of several files."""

from __future__ import annotations

import asyncio
import contextlib
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from .cluster.apiserver import InCluster
from .cluster.nodelabel import NodeLabel
from .settings import PROGRAM, build, settings
from .settings.config import DEFAULT, LABEL, BadConfig, Config, choice
from .settings.directory import Directory

log = logging.getLogger(__name__)

USUAL = 2.0  # seconds in which the node's label is known; a longer wait is told


@dataclass(frozen=True, slots=True)
class Seen:
    """What a configuration is made of besides flags and environment: a file ("": none), or why there can be none."""

    path: str = ""
    content: bytes = b""
    problem: str = ""


class Source:
    """The configuration in force, `config`, and where the next one comes from.

    Raises BadConfig when it is made. A configuration that cannot be used later is told to `refused`, and the one
    before stays; that one can be used after that, to `taken`.
    """

    def __init__(self, arguments: Sequence[str], environ: Mapping[str, str], program: str = PROGRAM) -> None:
        self.refused: Callable[[BadConfig], None] = lambda _: None
        self.taken: Callable[[], None] = lambda: None
        self._broken = False  # the last one could not be used
        self._given = settings(arguments, environ, program)
        self._label: NodeLabel | None = None
        self._default = str(self._given.get("default_config", ""))
        self._folder = Path(self._given["config_dir"]) if self._given.get("config_dir") else None
        if self._folder is not None:
            if self._given.get("config_file"):
                raise BadConfig("--config-file and --config-dir: only one of them can be had")
            self._label = self._follow(environ)
        self._seen = self._look()
        self.config = self._read(self._seen)
        if self._folder is not None or self.config.config_file:
            self._tell("read")

    def renew(self) -> bool:
        """Read it again; whether it is another one than before."""
        self._seen = self._look()
        try:
            config = self._read(self._seen)
        except BadConfig as error:
            log.error("the configuration stays as it was: %s", error)  # noqa: TRY400 (the message is the cause)
            self.refused(error)
            self._broken = True
            return False
        if self._broken:
            self.taken()
        self._broken = False
        other = config != self.config
        self.config = config
        self._tell("a new one" if other else "the same")
        return other

    @contextlib.contextmanager
    def watched(self, changed: Callable[[], None]) -> Iterator[None]:
        """Meanwhile `changed` is called in the event loop when `config` has become another one."""
        path = self._folder or (Path(self.config.config_file).parent if self.config.config_file else None)
        if path is None:
            yield
            return

        def look() -> None:
            if self._look() != self._seen and self.renew():
                changed()

        loop = asyncio.get_running_loop()
        with contextlib.ExitStack() as stack:
            try:
                stack.enter_context(Directory(path, look))
            except OSError as error:
                log.warning("a change of the configuration is only noticed on SIGHUP: %s", error)
            if self._label is not None:
                self._label.listen(lambda: _call(loop, look))
            look()  # what came between the reading and now
            yield

    def _follow(self, environ: Mapping[str, str]) -> NodeLabel:
        """Follow the node's label, and wait until it is known, however long that takes.

        To begin with another configuration than the one before would hold back what pods have, and could give it twice
        where the kubelet does not tell. And without an API server no new pod comes to this node.
        """
        config = build(self._given)
        if not config.node_name:
            raise BadConfig(
                "--config-dir needs --node-name (NODE_NAME): whose label is to be followed is not known"
            )
        api = InCluster(environ, Path(config.service_account_directory))
        label = NodeLabel(api, config.node_name)
        label.start()
        if not label.wait(USUAL):
            log.warning(
                "nothing is offered until the label %s of node %s is known", label.key, config.node_name
            )
            label.wait()
        return label

    def _tell(self, how: str) -> None:
        """Log how the configuration is, and which file it is in: of several, nothing else says so."""
        if self._folder is not None and not self.config.config_file:
            how += f", without a file: the node has no label {LABEL}, and no file in {self._folder} is called {DEFAULT}"
        log.info("the configuration is %s", how, extra=_fields(self.config))

    def _look(self) -> Seen:
        """The file that counts now."""
        path = self._given.get("config_file", "")
        try:
            if self._folder is not None and self._label is not None:
                path = chosen(self._folder, self._label.value, self._label.key, self._default)
            return Seen(path, Path(path).read_bytes()) if path else Seen()
        except BadConfig as error:
            return Seen(problem=str(error))
        except OSError as error:
            return Seen(problem=f"{path}: {error.strerror}")

    def _read(self, seen: Seen) -> Config:
        """Raises BadConfig."""
        if seen.problem:
            raise BadConfig(seen.problem)
        return build({**self._given, **({"config_file": seen.path} if seen.path else {})})


def chosen(folder: Path, label: str, key: str, default: str = "") -> str:
    """The file of `folder` for a node with this label; "" for none. Raises BadConfig."""
    try:
        # In a ConfigMap's folder names with two dots are the kubelet's own.
        names = sorted(
            path.name for path in folder.iterdir() if not path.name.startswith("..") and path.is_file()
        )
    except OSError as error:
        raise BadConfig(f"{folder}: {error.strerror}") from None
    wanted = choice(names, label, default)
    if wanted and wanted not in names:
        by = f"the node's label {key}" if label else "--default-config"
        raise BadConfig(
            f"{folder}: {by} names {wanted}, which is not there; there are {', '.join(names) or 'none'}"
        )
    return str(folder / wanted) if wanted else ""


def _call(loop: asyncio.AbstractEventLoop, act: Callable[[], None]) -> None:
    with contextlib.suppress(RuntimeError):  # the loop is closed: the next one looks when it begins
        loop.call_soon_threadsafe(act)


def _fields(config: Config) -> dict[str, str]:
    return {"file": config.config_file} if config.config_file else {}
