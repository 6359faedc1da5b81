"""The kubelet: its command line, the files it is started with, and the check of a new one of them."""

import os
import re
from typing import Any, Dict, List, Optional

from gpunode.agent.files import read_file, read_files, unexpected_result
from gpunode.agent.machine import journal
from gpunode.agent.section import Section
from gpunode.agent.system import Message, below, glob_of, have, resolve, run, run_transient, text_of

# Units that a kubelet runs in, and the command that prints its version, where it brings the kubelet.
BROUGHT = {
    "k3s.service": ("k3s", "--version"),
    "k3s-agent.service": ("k3s", "--version"),
    "rke2-server.service": ("rke2", "--version"),
    "rke2-agent.service": ("rke2", "--version"),
    "k0sworker.service": ("k0s", "version"),
    "k0scontroller.service": ("k0s", "version"),
    "snap.microk8s.daemon-kubelite.service": ("snap", "list", "microk8s"),
    "microshift.service": ("microshift", "version"),
}


def unit_of(units: Dict[str, Dict[str, Any]]) -> str:
    """The unit that this host's kubelet runs in, an active one first, then one that brings a runtime."""
    loaded = [name for name in ("kubelet.service", *BROUGHT) if units.get(name, {}).get("load") == "loaded"]
    loaded.sort(key=lambda name: (units[name]["active"] != "active", name not in BROUGHT))
    return loaded[0] if loaded else "kubelet.service"


def read_kubelet(units: Section) -> Optional[Dict[str, Any]]:
    try:
        shown = units.result()
    except Exception:
        if have("kubelet") is None:
            return None  # that systemd does not answer is reported as the error of the section `units`
        raise
    name = unit_of(shown)
    version = run(*BROUGHT.get(name, ("kubelet", "--version")))
    if version.status == 127:
        return None
    text = run("systemctl", "cat", "--no-pager", name).out
    unit = shown[name]
    raw = text_of("/proc/%d/cmdline" % unit["pid"]) if unit["pid"] else None
    number = re.search(r"\bv(\d\S*)", version.out)
    return {
        "version": number.group(1) if number else (version.out.split() or [""])[-1],
        "arguments": (raw or "").rstrip("\0").split("\0") if raw else [],
        "unit_text": text,
        "journal": [] if unit["active"] == "active" else journal(name, 15),
    }


def read_watched_files(patterns: List[str], kubelet: Section) -> Dict[str, Dict[str, Any]]:
    """The files that match, and those that this host's kubelet is started with, wherever they are."""
    files = read_files(patterns)
    try:
        seen = kubelet.result()
    except Exception:
        return files  # reported as the error of the section `kubelet`
    if seen is None:
        return files
    texts = [seen["unit_text"], " ".join(seen["arguments"])]
    for path in re.findall(r"(?m)^# (/\S+\.service(?:\.d/\S+\.conf)?)\s*$", seen["unit_text"]):
        files.setdefault(path, read_file(path))
    unit = re.search(r"(?m)^# /\S+/([^/\s]+)\.service\s*$", seen["unit_text"])
    name = unit.group(1) if unit else "kubelet"
    for pattern in re.findall(r"(?m)^\s*EnvironmentFile\s*=\s*-?(/.*\S)\s*$", seen["unit_text"]):
        # systemd, too, reads all files that match
        more = read_files([re.sub("%[Np]", name, pattern)])
        files.update({path: file for path, file in more.items() if path not in files})
        texts.extend(file.get("content", "") for file in more.values())
    whole = "\n".join(texts)
    for folder in re.findall(r"--?dynamic-config-dir[= ]\s*[\"']*(/[^\s\"'\\]+)", whole):
        target = folder.rstrip("/") + "/store/meta/assigned"
        files.setdefault(target, read_file(target))
    for kind, path, name in re.findall(
        r"(?<![\w-])--?config(-dir)?[= ]\s*[\"']*(?:(/[^\s\"'\\]+)|\$\{?(\w+))", whole
    ):
        for target in [path] if path else re.findall(r"\b%s=[\"']*(/[^\s\"'\\]+)" % name, whole):
            for each in glob_of(target + "/**/*.conf") if kind else [target]:
                files.setdefault(each, read_file(each))
    return files


def check_kubelet_file(path: str, temporary: str, _expected: Optional[Message]) -> None:
    """Raises Failure if systemd reads more from the new file than from the old one, but for what gpunode writes there."""
    is_unit = re.search(r"\.service(\.d/[^/]+\.conf)?$", path)
    effective = effective_unit if is_unit else effective_environment
    before, after = effective(below(resolve(path))), effective(temporary)
    if before is None or after is None:
        return  # no systemd, or one that is too old to answer
    old, new = without_ours(before), without_ours(after)
    if old != new:
        lost, got = [word for word in old if word not in new], [word for word in new if word not in old]
        wrong = ["it would lose " + word.split("=")[0] for word in lost]  # the value may be a secret
        wrong += ["it would get " + word.split("=")[0] for word in got]
        raise unexpected_result("systemd", path, wrong or ["its words would be in another order"])


def effective_unit(file: str) -> Optional[str]:
    """A unit or drop-in as systemd reads it, under a temporary name; None if systemd cannot read it."""
    name = "gpunode-check-%d.service" % os.getpid()
    import shutil

    copy = below("/run/systemd/system/" + name)
    if not os.path.isdir(os.path.dirname(copy)):
        return None
    if not os.path.exists(file):
        return ""
    try:
        shutil.copyfile(file, copy)
        answer = run("systemctl", "show", "-p", "Environment,EnvironmentFiles,ExecStart", "--", name)
    finally:
        if os.path.exists(copy):
            os.unlink(copy)
    commands = re.sub(r"\{ path=\S* ; argv\[\]=(.*?) ; ignore_errors=.*?\}", r"\1", answer.out)
    return None if answer.status else commands


def effective_environment(file: str) -> Optional[str]:
    """The variables that systemd sets from an environment file; None if systemd does not answer."""
    if not os.path.isdir(below("/run/systemd/system")):
        return None
    options = ["-p", "EnvironmentFile=-" + file]
    answer = run_transient("--wait", "--pipe", *options, "env")
    own = r"(?m)^(INVOCATION_ID|JOURNAL_STREAM|SYSTEMD_EXEC_PID|MEMORY_PRESSURE_WATCH)=.*\n"
    return None if answer.status else re.sub(own, "", answer.out)


OURS = r"--?feature-gates[= ]\S*|--register-with-taints=gpunode\.dev/unverified=joining:NoSchedule(?!\S)"


def without_ours(text: str) -> List[str]:
    """The words of systemd's answer without quotes and what gpunode writes, and without variables that are empty then."""
    plain = re.sub(OURS, "", re.sub(r"[\"'\\]", "", text))
    tokens = re.sub(r"(?<![^\s=])(\w+=)", r" \1 ", plain).split()
    empty = re.compile(r"\w*=$").match
    following = [*tokens[1:], "="]
    return [token for token, after in zip(tokens, following) if not (empty(token) and empty(after))]  # noqa: B905
