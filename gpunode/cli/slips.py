"""Words of other tools on the command line, and what they are here."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import typer
from typer.core import TyperCommand, TyperGroup

from gpunode.errors import UsageError

PROVISION = "`gpunode plan` shows what would change, `gpunode provision` does it."
DRAIN = (
    "`kubectl drain NODE` does it by hand; with `work: drain` in the inventory `gpunode provision` drains each node that it "
    "disturbs: docs/howto/replace-a-host.md."
)
UPGRADE = (
    'Name it in the inventory, such as `driver: "580"` for a group, then `gpunode plan` and `gpunode provision`: '
    "docs/howto/upgrade-a-driver.md."
)
VERSION = "`gpunode --version` shows it."
DEPLOY = "`gpunode plugin deploy` does it, and replaces an older plugin; `gpunode provision` includes it."
ENABLE, DISABLE = "`gpunode share enable` does it.", "`gpunode share disable` takes it back."
# By group, "" for gpunode itself: a word, and what to say.
COMMANDS: Mapping[str, Mapping[str, str]] = {
    "": {
        **dict.fromkeys(("apply", "install", "deploy", "setup", "up"), PROVISION),
        **dict.fromkeys(("drain", "cordon"), DRAIN),
        "uncordon": "gpunode lifts its own cordons; `kubectl uncordon NODE` lifts yours.",
        **dict.fromkeys(("upgrade", "update"), UPGRADE),
        **dict.fromkeys(
            ("remove", "delete", "uninstall", "reset"), "By hand: docs/howto/replace-a-host.md, Take one out."
        ),
        **dict.fromkeys(("diff", "check"), "`gpunode plan` shows what would change."),
        **dict.fromkeys(("get", "list", "top", "describe", "inspect"), "`gpunode status` shows every GPU."),
        **dict.fromkeys(
            ("doctor", "test", "validate"), "`gpunode verify` follows the chain to the broken link."
        ),
        "help": "`gpunode --help` lists the commands, `gpunode COMMAND --help` has a command's options.",
        "version": VERSION,
        "rollback": "gpunode puts files back by itself where a restart fails: docs/failures.md.",
        **dict.fromkeys(
            ("notebook", "vectoradd", "nvidia-smi", "manifest"),
            "It is one of `gpunode run`: docs/workloads.md.",
        ),
    },
    "plugin": {
        **dict.fromkeys(("install", "apply", "upgrade", "update", "enable"), DEPLOY),
        **dict.fromkeys(("uninstall", "delete", "disable"), "`gpunode plugin remove` takes it out."),
        **dict.fromkeys(
            ("list", "get", "describe", "inspect", "check", "verify", "logs", "log"),
            "`gpunode plugin status` shows it on every node, with the end of its log where it fails.",
        ),
        **dict.fromkeys(("build", "push", "load", "export"), "`gpunode plugin image` writes its image."),
    },
    "share": {
        **dict.fromkeys(("install", "deploy", "apply", "on", "create"), ENABLE),
        **dict.fromkeys(("uninstall", "remove", "delete", "off"), DISABLE),
        **dict.fromkeys(
            ("list", "get", "status", "show", "describe", "top"), "`gpunode share inspect` shows every GPU."
        ),
        **dict.fromkeys(
            ("check", "verify", "repair", "fix"), "`gpunode share fsck` compares, and `--repair` repairs."
        ),
        **dict.fromkeys(("plan", "try", "test"), "`gpunode share simulate` shows where pods would go."),
    },
    "run": {
        **dict.fromkeys(("mnist", "binpack", "cuda"), "`gpunode run manifest NAME` prints it for kubectl."),
        **dict.fromkeys(("jupyter", "tensorflow"), "`gpunode run notebook` is Jupyter with TensorFlow."),
        **dict.fromkeys(("smi", "nvidia_smi"), "`gpunode run nvidia-smi` does it."),
    },
    "demo": {
        **dict.fromkeys(("start", "create", "run", "up", "keep"), "`gpunode demo --keep` begins one."),
        **dict.fromkeys(("delete", "remove", "down", "end", "kill"), "`gpunode demo stop` ends one."),
        **dict.fromkeys(("ls", "ps", "status", "get"), "`gpunode demo list` shows those that are kept."),
        **dict.fromkeys(
            ("fix", "repair", "heal"), "`gpunode provision inventory.yaml` in its folder repairs what it can."
        ),
    },
}
EXTRA = "Got unexpected extra argument"  # click's
ONE = "It shows all nodes; `gpunode status --limit NODE` shows one."
LIMIT = "`--limit NAMES` chooses hosts and groups; commas separate names."
PREVIEWS = {"--dry-run", "--dryrun", "--check"}
# Options, what a command has where this is said of it, and what is said.
OPTIONS = (
    (
        {"-i", "-f", "-c", "--inventory", "--file", "--filename", "--config"},
        "inventory",
        "The inventory is an argument: `gpunode {name} inventory.yaml`.",
    ),
    ({"-v", "-V"}, "--version", VERSION),
    ({"--driver", "--driver-version"}, "inventory", UPGRADE),
    (
        {"--image", "--archive"},
        "inventory",
        "The inventory names the plugin's image: `cluster: {{plugin: {{image: NAME}}}}`, or `archive: FILE`.",
    ),
    ({"--fix", "--repair"}, "--run", "`gpunode provision` repairs what it can, after it has shown it."),
    ({"--no-pods", "--no-verify", "--skip-verify"}, "--no-run", "`--no-run` starts no pods."),
    ({"--all"}, "--limit", "Without `--limit` it is about all hosts."),
    ({"-t", "--tag"}, "--name", "`--name NAME:TAG` names the image."),
    (
        {"--host", "--hosts", "--node", "--nodes", "--selector", "--groups", "--group"},
        "--limit",
        LIMIT,
    ),
    ({"-o", "--output", "--format"}, "--json", "`--json` writes JSON lines: docs/json.md."),
    (
        {"--kubeconfig", "--context", "-n", "--namespace", "--cluster"},
        "inventory",
        "The inventory names the cluster: `cluster: {{kubeconfig: FILE, context: NAME, namespace: NAME}}`.",
    ),
    ({"-u", "--user", "--remote-user"}, "inventory", "The inventory names it: `ssh: {{user: ops}}`."),
    (
        {"--key", "--private-key", "--identity", "--ssh-key"},
        "inventory",
        "The inventory names it: `ssh: {{key: FILE}}`; ssh's own keys and agent are used, too.",
    ),
    (
        {"-k", "--ask-pass", "--password"},
        "--ask-sudo-password",
        "gpunode logs in with ssh's keys, never with a password; `-K` asks for sudo's.",
    ),
    (
        {"-b", "--become", "--sudo", "--ask-become-pass"},
        "--ask-sudo-password",
        "gpunode uses sudo where the user is not root; `-K` asks once for its password.",
    ),
    ({"-j", "--jobs", "--parallel", "--concurrency"}, "--forks", "`--forks N` works on N hosts at once."),
    (
        {"--auto-approve", "--force", "--assume-yes", "--non-interactive"},
        "--yes",
        "`--yes` accepts what is shown beforehand.",
    ),
    (
        {"-A", "--all-namespaces"},
        "--json",
        "GPUs belong to nodes: it is about pods of all namespaces already.",
    ),
    ({"-v", "--verbose", "--debug"}, "--json", "`--json` has every event and what it found: docs/json.md."),
)
PLANNED = {"provision", "resume", "plugin deploy"}  # what `plan` shows


class Group(TyperGroup):
    """Commands. Raises UsageError for a command's name that is a known slip; others are answered as typer does."""

    def resolve_command(self, ctx: Any, args: list[str]) -> Any:
        known = COMMANDS.get(_name(ctx), {})
        if args and args[0] in known and args[0] not in self.commands:
            what = f"{_name(ctx)} {args[0]}".strip()
            raise UsageError(f"no such command: {what}", hint=known[args[0]])
        return super().resolve_command(ctx, args)


@contextmanager
def _answering() -> Iterator[None]:
    """Errors of options and arguments leave as `_answered` has them."""
    try:
        yield
    except typer.TyperException as error:
        raise _answered(error) from None


class Root(Group):
    """gpunode's commands, and the options of all of them."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        with _answering():
            return super().parse_args(ctx, args)

    def invoke(self, ctx: Any) -> Any:
        with _answering():
            return super().invoke(ctx)


class Command(TyperCommand):
    """A command that is a program of its own."""

    def parse_args(self, ctx: Any, args: list[str]) -> Any:
        with _answering():
            return super().parse_args(ctx, args)


def _answered(error: Exception) -> Exception:
    """The error with what to do, where that is known; else itself."""
    where, option = getattr(error, "ctx", None), getattr(error, "option_name", "")
    words = str(getattr(error, "message", ""))
    if where and type(error).__name__ == "NoSuchOption" and (hint := _hint(option, where)):
        return UsageError(f"no such option: {option}", hint=hint)
    if where and words.startswith(EXTRA):
        hint = LIMIT if "--limit" in _has(where) else "" if _name(where) else ONE
        return UsageError(f"{words[0].lower()}{words[1:]}", hint=hint) if hint else error
    return error


def _name(where: Any) -> str:
    """The command's words without gpunode's own name."""
    words, at = list[str](), where
    while at and at.parent:
        words, at = [str(at.info_name), *words], at.parent
    return " ".join(words)


def _has(where: Any) -> set[str]:
    """The command's arguments and options."""
    return {
        one
        for parameter in where.command.params
        for one in (parameter.name, *parameter.opts, *parameter.secondary_opts)
    }


def _hint(option: str, where: Any) -> str:
    """What to say in the place of an option that the command does not have; "" where nothing is known."""
    name = _name(where)
    has = _has(where)
    for options, needs, hint in OPTIONS:
        if option in options and needs in has:
            return hint.format(name=name)
    if option not in PREVIEWS or "--dry-run" in has:
        return ""
    if name in PLANNED:
        return "`gpunode plan` shows what would change, and changes nothing."
    if name == "plan":
        return "plan changes nothing."
    return "Without --yes it shows what would change, and asks." if "--yes" in has else ""
