"""containerd: its facts and its images."""

import json
import os
import re
from typing import Any, Dict, Optional, Tuple

from gpunode.agent.machine import read_arch
from gpunode.agent.system import Answer, Message, below, have, last, run

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
        "error": "\n".join(last(dump.words, 5)) if dump.status else None,
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
    there = os.path.exists(below(socket)) and have(command[0]) is not None
    # not `-n`: MicroK8s' own command has `--namespace` already, and ctr takes one spelling only
    return (*command, "--namespace", "k8s.io") if there else None


def containerd_image(reference: str, runtime: str = "containerd") -> Optional[str]:
    ctr = ctr_of(runtime)
    if ctr is None:
        return None
    first, slash, _ = reference.partition("/")
    if not slash:
        reference = "docker.io/library/" + reference
    elif "." not in first and ":" not in first and first != "localhost":
        reference = "docker.io/" + reference
    if ":" not in reference.rsplit("/", 1)[1]:
        reference += ":latest"
    images = run(*ctr, "images", "ls").out
    listed = re.search(r"^%s\s.*?(sha256:\w+)" % re.escape(reference), images, re.M)
    if listed is None:
        return None
    manifest = containerd_content(ctr, listed.group(1))
    if "manifests" in manifest:
        arch = read_arch()
        for entry in manifest["manifests"]:
            platform = entry.get("platform") or {"os": "linux", "architecture": arch}
            if (platform["os"], platform["architecture"]) == ("linux", arch):
                manifest = containerd_content(ctr, entry["digest"])
                break
    return str(manifest["config"]["digest"]) if "config" in manifest else None


def containerd_content(ctr: Tuple[str, ...], digest: str) -> Message:
    return dict(json.loads(run(*ctr, "content", "get", digest).out))
