"""The plugin's settings: flags, over environment, over file, over defaults."""

import logging
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from gpunode.contract.config import IGNORED_FLAGS, OPTIONS, BadConfig, Config, parse_option

if TYPE_CHECKING:
    import argparse

log = logging.getLogger(__name__)

PROGRAM = "`python -m gpunode.deviceplugin`: offers this node's NVIDIA GPUs to the kubelet."


def read(arguments: Sequence[str], environ: Mapping[str, str], program: str = PROGRAM) -> Config:
    """The configuration, with the file that it names. Raises BadConfig as `settings` and `build` do."""
    return build(settings(arguments, environ, program))


def settings(arguments: Sequence[str], environ: Mapping[str, str], program: str = PROGRAM) -> dict[str, Any]:
    """Values for fields of Config, from flags and environment.

    `program` is the one whose flags they are: its command, a colon, and what it does. Raises BadConfig; `--help` ends
    the process.
    """
    flags = vars(_parser(program).parse_args(arguments)) if arguments else {}  # a DaemonSet has variables
    values: dict[str, Any] = {}
    for place, text in (
        ("--imex-channel-ids", flags.get("imex")),
        ("IMEX_CHANNEL_IDS", environ.get("IMEX_CHANNEL_IDS")),
    ):
        if text and text != "[]":
            raise BadConfig(f"{place}: IMEX channels are not supported")
    for option in OPTIONS:
        text, place = flags.get(option.field), option.flag
        if text is None:
            names = (option.field.upper(), *option.env)
            place = next((name for name in names if environ.get(name)), "")
            text = environ[place] if place else None
        if text is not None:
            if text == []:
                text = "--"  # argparse before Python 3.13 takes it away where it is a flag's value
            try:
                values[option.field] = parse_option(option, text)
            except ValueError as error:
                raise BadConfig(f"{place}: {error}") from None
    return values


def build(values: Mapping[str, Any]) -> Config:
    """The configuration of these values over those of the file that they name. Raises BadConfig."""
    if path := values.get("config_file"):
        from gpunode.contract import config_file  # PyYAML only where there is a file

        config = config_file.read(Path(path), values)
    else:
        config = Config(**values)
    if not config.node_name.isascii():
        raise BadConfig(f"--node-name (NODE_NAME): no node is called {config.node_name!r}")
    writes = config.node_events or config.node_annotation or config.node_condition or config.follow_promises
    if not config.node_name and writes:
        raise BadConfig(
            "--node-name (NODE_NAME) is not set: whose events, annotation, condition or pods is not known"
        )
    return config


def _parser(program: str) -> "argparse.ArgumentParser":
    import argparse

    class PassOver(argparse.Action):
        """Logs that a flag is ignored."""

        def __call__(self, _parser: Any, _namespace: Any, _values: Any, flag: str | None = None) -> None:
            log.warning("%s has no meaning for this plugin", flag)

    class Parser(argparse.ArgumentParser):
        def error(self, message: str) -> NoReturn:
            raise BadConfig(f"{message} (--help lists the flags)")

    command, _, does = program.partition(": ")
    command = command.strip("`")
    parser = Parser(
        prog=command,
        description=f"{does[:1].upper()}{does[1:]} Each option can be set in the environment too, in capitals with "
        "underscores, and in --config-file; a flag overrides the environment, and the environment the file.",
        epilog=f"example: {command} --mig-strategy=single --fail-on-init-error=false",
    )
    for option in OPTIONS:
        names = (option.flag, *(f"--{flag}" for flag in option.flags))
        if option.kind is bool:
            parser.add_argument(
                *names, dest=option.field, nargs="?", const="true", metavar="BOOL", help=option.help
            )
        else:
            metavar = "{" + ",".join(option.choices) + "}" if option.choices else None
            parser.add_argument(*names, dest=option.field, metavar=metavar, help=option.help)
    parser.add_argument("--imex-channel-ids", dest="imex", help=argparse.SUPPRESS)
    parser.add_argument(*IGNORED_FLAGS, dest="passed_over", action=PassOver, help=argparse.SUPPRESS)
    return parser
