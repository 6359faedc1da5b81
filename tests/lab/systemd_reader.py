"""Asks a real systemd what it starts: units under names of their own, whose kubelet writes down how it was called."""

import base64
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

FOLDER = "/run/gpunode-starts"
UNIT = re.compile(r"^(/(?:etc|usr/lib|lib)/systemd/system/)kubelet\.service(.*)$")
PROGRAM = re.compile(
    r"/\S*/(?:kubelet|hyperkube|kubelet-wrapper|start-kubelet\.sh)(?=[\s\"']|$)|(?<==)systemd-inhibit"
)
RESET = "[Unit]\nDefaultDependencies=no\n[Service]\nType=oneshot\nRestart=no\nExecStartPre=\nWorkingDirectory=/\nSlice=\n"
DUMP = '#!/bin/sh\n{ printf "%s\\0" "$0" "$@"; printf "\\1"; env -0; } > "${0%/*}/../started"\n'
NOISE = {
    "PATH",
    "LANG",
    "PWD",
    "OLDPWD",
    "SHLVL",
    "_",
    "INVOCATION_ID",
    "JOURNAL_STREAM",
    "SYSTEMD_EXEC_PID",
    "MEMORY_PRESSURE_WATCH",
}


@dataclass(frozen=True)
class Started:
    """How systemd started a program: its words, and the variables that its unit sets."""

    words: tuple[str, ...]
    variables: Mapping[str, str]


def ask(run: Callable[[str], str], hosts: Sequence[Mapping[str, str]]) -> list[Started]:
    """How each of these kubelets is started, told by its files; `run` has a shell of the host run a script."""
    script = [f"rm -rf {FOLDER}; mkdir -p {FOLDER}"]
    for number, texts in enumerate(hosts):
        unit, root = f"gpunode-start-{number}.service", f"{FOLDER}/{number}"
        script += [
            f"mkdir -p {root}/bin",
            _write(f"{root}/bin/kubelet", DUMP),
            f"chmod 755 {root}/bin/kubelet",
        ]
        for path, text in texts.items():
            if match := UNIT.match(path):
                script.append(_write(f"{match[1]}{unit}{match[2]}", _redirected(text, root)))
            else:
                script.append(_write(f"{root}{path}", text))
        script.append(_write(f"/etc/systemd/system/{unit}.d/zz-judge.conf", RESET))
    units = " ".join(f"gpunode-start-{number}.service" for number in range(len(hosts)))
    script.append(f"systemctl daemon-reload; timeout 120 systemctl start {units} >{FOLDER}/words 2>&1")
    script.append(f"for n in $(seq 0 {len(hosts) - 1}); do base64 -w0 {FOLDER}/$n/started; echo; done")
    script.append(
        "rm -rf /etc/systemd/system/gpunode-start-* /usr/lib/systemd/system/gpunode-start-* /lib/systemd/system/gpunode-start-*"
    )
    script.append(
        f"systemctl reset-failed 'gpunode-start-*' 2>/dev/null; systemctl daemon-reload; rm -rf {FOLDER}"
    )
    answers = run("\n".join(script)).splitlines()
    return [_started(base64.b64decode(line).decode()) for line in answers]


def _redirected(text: str, root: str) -> str:
    """A unit with nothing but its [Service], its environment files below the root, and its program the one that tells."""
    text = re.sub(r"(?m)^\[(?!Service\])\w+\][^\[]*", "", text)
    text = re.sub(r"(?m)^(\s*EnvironmentFile\s*=\s*-?)/", rf"\1{root}/", text)
    return re.sub(
        r"(?m)^ExecStart=(?:.*\\\r?\n)*.*$",
        lambda line: PROGRAM.sub(f"{root}/bin/kubelet", line[0], count=1),
        text,
    )


def _write(path: str, text: str) -> str:
    written = base64.b64encode(text.encode()).decode()
    return f"mkdir -p {path.rpartition('/')[0]}; echo {written} | base64 -d > {path}"


def _started(told: str) -> Started:
    words, _, environment = told.partition("\1")
    variables = dict(part.split("=", 1) for part in environment.split("\0") if "=" in part)
    return Started(
        tuple(words.split("\0")[:-1]),
        {name: value for name, value in variables.items() if name not in NOISE},
    )
