"""Options of other tools, and what they are here."""

from __future__ import annotations

from collections.abc import Container

from gpunode.cli.other_commands import UPGRADE, VERSION
from gpunode.wording import page

JSON = page("json.md")
ONE = "It shows all nodes; `gpunode status --limit NODE` shows one."
LIMIT = "`--limit NAMES` chooses hosts and groups; commas separate names."
PREVIEWS = {"--dry-run", "--dryrun", "--check"}
# Options, what a command must have for the answer to fit, and the answer.
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
    ({"-o", "--output", "--format"}, "--json", f"`--json` writes JSON lines: {JSON}"),
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
    ({"-v", "--verbose", "--debug"}, "--json", f"`--json` has every event and what it found: {JSON}"),
)
PLANNED = {"provision", "resume", "plugin deploy"}  # what `plan` shows


def hint(option: str, name: str, has: Container[str]) -> str:
    """What to do in the place of an option of another tool; "" where nothing is known. `name`: the command's; `has`: its
    arguments and options."""
    for options, needs, words in OPTIONS:
        if option in options and needs in has:
            return words.format(name=name)
    if option not in PREVIEWS or "--dry-run" in has:
        return ""
    if name in PLANNED:
        return "`gpunode plan` shows what would change, and changes nothing."
    if name == "plan":
        return "plan changes nothing."
    return "Without --yes it shows what would change, and asks." if "--yes" in has else ""
