"""containerd: its facts, its images, and the check of a new configuration: its dump, compared with that of the one in force."""

import json
import os
import re
from typing import Any, Dict, List, Optional, Tuple

from gpunode.agent.files import refuse_file, unexpected_result
from gpunode.agent.machine import read_arch
from gpunode.agent.system import Answer, Message, below, have, last, resolve, run

CONTAINERD_FILE = "/etc/containerd/config.toml"
BROUGHT = "/run/k3s/containerd/containerd.sock"  # of k3s and RKE2 alike
CTR: Dict[str, Tuple[Tuple[str, ...], str]] = {  # the command, and the socket that must be there
    "containerd": (("ctr",), "/run/containerd/containerd.sock"),
    "k3s": (("k3s", "ctr"), BROUGHT),
    "k0s": (("k0s", "ctr"), "/run/k0s/containerd.sock"),
    "microk8s": (("microk8s", "ctr"), "/var/snap/microk8s/common/run/containerd.sock"),
    "rke2": (("/var/lib/rancher/rke2/bin/ctr", "--address", BROUGHT), BROUGHT),
}


def read_containerd() -> Optional[Dict[str, Any]]:
    version = run("containerd", "--version")
    if version.status:
        return None
    dump = containerd_dump()
    return {
        "version": (version.out.split() or [""] * 3)[2].lstrip("v"),
        "dump": "" if dump.status else dump.out,
        "error": "\n".join(last(dump.message, 5)) if dump.status else None,
    }


def containerd_dump() -> Answer:
    """The configuration as containerd reads it. Without a file, 1.x runs with its defaults but does not dump them."""
    answer = run("containerd", "config", "dump")
    if answer.status and not os.path.lexists(below(CONTAINERD_FILE)):
        return run("containerd", "config", "default")
    return answer


def ctr_of(runtime: str) -> Optional[Tuple[str, ...]]:
    """The command of a containerd's images: the host's own, or the one that k3s or RKE2 brings; None: it is not there."""
    command, socket = CTR[runtime]
    usable = os.path.exists(below(socket)) and have(command[0]) is not None
    # not `-n`: MicroK8s' own command has `--namespace` already, and ctr takes one spelling only
    return (*command, "--namespace", "k8s.io") if usable else None


def full_name(reference: str) -> str:
    """A name of an image as containerd has it."""
    first, slash, _ = reference.partition("/")
    if not slash:
        reference = "docker.io/library/" + reference
    elif "." not in first and ":" not in first and first != "localhost":
        reference = "docker.io/" + reference
    return reference if ":" in reference.rsplit("/", 1)[1] else reference + ":latest"


def containerd_names(ctr: Tuple[str, ...]) -> Dict[str, str]:
    """The digest of each name's manifest."""
    return dict(re.findall(r"^(\S+)\s.*?\s(sha256:\w+)", run(*ctr, "images", "ls").out, re.M))


def remove_containerd_image(runtime: str, reference: str, image: str) -> Answer:
    """By its full name, since ctr completes none and takes an unknown one for removed. The kubelet's images have their id for a second
    name, which keeps their layers: it goes unless the image has a third one."""
    ctr, name = ctr_of(runtime) or (), full_name(reference)
    known = containerd_names(ctr)
    same = {other for other in known if known[other] == known.get(name)}
    return run(*ctr, "images", "rm", name, *([image] if same == {name, image} else []), timeout=120)


def containerd_image(reference: str, runtime: str = "containerd") -> Optional[str]:
    ctr = ctr_of(runtime)
    listed = containerd_names(ctr).get(full_name(reference)) if ctr else None
    if ctr is None or listed is None:
        return None
    manifest = containerd_content(ctr, listed)
    if "manifests" in manifest:
        arch = read_arch()
        for entry in manifest["manifests"]:
            platform = entry.get("platform") or {"os": "linux", "architecture": arch}
            if (platform["os"], platform["architecture"]) == ("linux", arch):
                manifest = containerd_content(ctr, entry["digest"])
                break
    return str(manifest["config"]["digest"]) if "config" in manifest else None


def containerd_content(ctr: Tuple[str, ...], digest: str) -> Message:
    """{} where it is not there, as of a platform that was not pulled."""
    answer = run(*ctr, "content", "get", digest)
    return {} if answer.status else dict(json.loads(answer.out))


def check_containerd(path: str, temporary: str, expected: Optional[Message]) -> None:
    before = containerd_dump()
    answer, whole = containerd_with(path, temporary)
    if answer.status == 127:
        return
    if answer.status:
        refuse_file(path, temporary, "containerd", answer)
    if expected is not None and whole and not before.status:
        wrong = containerd_differences(
            containerd_settings(before.out), containerd_settings(answer.out), expected
        )
        if wrong:
            raise unexpected_result("containerd", path, wrong)


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
    settings = {}
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
            settings[where] = value
    return settings


def containerd_differences(
    old: Dict[Tuple[str, ...], str], new: Dict[Tuple[str, ...], str], expected: Message
) -> List[str]:
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
