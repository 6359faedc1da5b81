"""The check of a new containerd configuration: its dump, compared with the dump of the one in force."""

import os
import re
from typing import Dict, List, Optional, Tuple

from gpunode.agent.merges import rejected, unexpected
from gpunode.agent.system import Answer, Message, below, resolve, run
from gpunode.links.runtime.on_host.containerd import CONTAINERD_FILE, containerd_dump


def check_containerd(path: str, temporary: str, expected: Optional[Message]) -> None:
    before = containerd_dump()
    answer, whole = containerd_with(path, temporary)
    if answer.status == 127:
        return
    if answer.status:
        rejected(path, temporary, "containerd", answer)
    if expected is not None and whole and not before.status:
        wrong = containerd_differences(
            containerd_settings(before.out), containerd_settings(answer.out), expected
        )
        if wrong:
            raise unexpected("containerd", path, wrong)


def containerd_with(path: str, temporary: str) -> Tuple[Answer, bool]:
    """The dump with `temporary` in the place of `path`, and whether it is of all files, not of this one alone.

    The file is mounted over `path`, visible to this command only: the main file may import itself, and an imported file
    alone does not give the whole configuration.
    """
    real = below(resolve(path))
    if os.path.exists(real):
        script = 'mount --bind "$1" "$2" || exit 126; shift 2; exec "$@"'
        answer = run(
            "unshare", "-m", "sh", "-c", script, "sh", temporary, real, "containerd", "config", "dump"
        )
        if answer.status not in (126, 127) and not answer.err.startswith("unshare: "):
            return answer, True
    return run("containerd", "--config", temporary, "config", "dump"), path == CONTAINERD_FILE


def containerd_settings(dump: str) -> Dict[Tuple[str, ...], str]:
    """A dump's settings by table and key, without those that are not set.

    The CRI plugin's tables are `cri`, whatever this containerd calls it. Keys of options, which have no case, are in
    lower case.
    """
    found = {}
    table: Tuple[str, ...] = ()
    for line in dump.splitlines():
        header = re.match(r"\s*\[+(.*?)\]+\s*$", line)
        key, equals, value = line.partition("=")
        value = value.strip().replace("'", '"')
        if header and not equals:
            parts = re.findall(r"\"([^\"]*)\"|'([^']*)'|([^.\s]+)", header.group(1))
            table = tuple("".join(part) for part in parts)
            if (
                len(table) > 2
                and table[0] == "plugins"
                and "cri" in table[1].split(".")
                and table[2] == "containerd"
            ):
                table = ("cri", *table[3:])
        elif equals and not key.lstrip().startswith("#") and value not in ('""', "0", "false", "[]", "{}"):
            key = key.strip().strip("\"'")
            where = (*table, key.lower() if "options" in table else key)
            found[where] = value
    return found


def containerd_differences(
    old: Dict[Tuple[str, ...], str], new: Dict[Tuple[str, ...], str], expected: Message
) -> List[str]:
    """Unexpected differences between two dumps."""
    own, runc = ("cri", "runtimes", expected["runtime"]), ("cri", "runtimes", "runc")

    def default(settings: Dict[Tuple[str, ...], str]) -> str:
        if ("cri", "default_runtime", "runtime_type") in settings:  # it comes before the name
            return "default"
        return settings.get(("cri", "default_runtime_name"), "runc").strip('"')

    wrong = []
    if default(new) != (expected["default"] or default(old)):
        wrong.append("its default runtime would be %s" % default(new))
    if new.get((*own, "options", "binaryname")) != '"/usr/bin/nvidia-container-runtime"':
        wrong.append("its runtime %s would not be NVIDIA's" % expected["runtime"])
    if new.get((*own, "runtime_type")) != '"io.containerd.runc.v2"':
        wrong.append(
            "its runtime %s would have the type %s" % (own[2], new.get((*own, "runtime_type"), "none"))
        )
    may = [("imports",), ("cri", "default_runtime_name"), ("cri", "default_runtime", "runtime_type")]
    for key in sorted(set(old) | set(new)):
        added = key[:3] == runc and (*runc, "runtime_type") not in old
        if old.get(key) != new.get(key) and key not in may and key[:3] != own and not added:
            wrong.append(
                "%s would be %s instead of %s" % (".".join(key), new.get(key, "unset"), old.get(key, "unset"))
            )
    return wrong
