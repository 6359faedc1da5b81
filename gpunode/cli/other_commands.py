"""Commands of other tools, and what they are here."""

from __future__ import annotations

from collections.abc import Mapping

from gpunode.wording import page

PROVISION = "`gpunode plan` shows what would change, `gpunode provision` does it."
DRAIN = (
    "`kubectl drain NODE` does it by hand; with `work: drain` in the inventory `gpunode provision` drains each node that it "
    f"disturbs: {page('howto/replace-a-host.md')}"
)
UPGRADE = (
    'Name it in the inventory, such as `driver: "580"` for a group, then `gpunode plan` and `gpunode provision`: '
    f"{page('howto/upgrade-a-driver.md')}"
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
            ("remove", "delete", "uninstall", "reset"),
            f"By hand: Take one out, in {page('howto/replace-a-host.md')}",
        ),
        **dict.fromkeys(("diff", "check"), "`gpunode plan` shows what would change."),
        **dict.fromkeys(("get", "list", "top", "describe", "inspect"), "`gpunode status` shows every GPU."),
        **dict.fromkeys(
            ("doctor", "test", "validate"), "`gpunode verify` follows the chain to the broken link."
        ),
        "help": "`gpunode --help` lists the commands, `gpunode COMMAND --help` has a command's options.",
        "version": VERSION,
        "rollback": f"gpunode puts files back by itself where a restart fails: {page('failures.md')}",
        **dict.fromkeys(
            ("notebook", "vectoradd", "nvidia-smi", "manifest"),
            f"It is one of `gpunode run`: {page('workloads.md')}",
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
