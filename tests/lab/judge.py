"""What dockerd and containerd make of a configuration file before and after gpunode's merge, by themselves.

Run in a root of its own (`judged` in test_runtime_files.py makes it), where their real paths are empty and nothing of
the machine can be reached. Takes one case as JSON on stdin and answers with one.
"""

import difflib
import json
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path
from typing import Any

import grpc

from gpunode.agent.failures import Failure
from gpunode.agent.files import put, read_files
from gpunode.errors import CannotPlan
from gpunode.links.runtime import containerd, docker
from gpunode.links.runtime.on_host.containerd import check_containerd, containerd_dump, read_containerd
from gpunode.links.runtime.on_host.docker import check_docker
from gpunode.model import Change, Desired, Facts, WriteFile
from tests import cases

SECONDS = 300  # for a machine that has much else to do; what is waited for is there in one or two
SOCKET = "/run/containerd/containerd.sock"
FILES = {"containerd": Path(containerd.FILE), "docker": Path(docker.FILE)}


def main() -> None:
    """Judge the cases on stdin, one after the other."""
    cases = json.load(sys.stdin)
    with containerd_for_docker() if cases[0]["kind"] == "docker" else nullcontext():
        json.dump([judged(case) for case in cases], sys.stdout)


def judged(case: dict[str, Any]) -> dict[str, Any]:
    """What the program makes of the file as it is, and in each mode."""
    for path, text in case.get("imports", {}).items():
        write(Path(path), text)
    before = running(case["kind"], case["text"])
    answer = {"before": before, **{mode: merged(case, mode) for mode in case["modes"]}}
    for path in case.get("imports", {}):
        write(Path(path), None)
    return answer


@contextmanager
def containerd_for_docker() -> Iterator[None]:
    """One for all of its starts: by itself each dockerd starts one."""
    with started("containerd") as (process, log):
        while "containerd successfully booted" not in log.read_text(errors="replace"):
            assert process.popen.poll() is None, log.read_text(errors="replace")
            time.sleep(0.02)
        yield


def merged(case: dict[str, Any], mode: str) -> dict[str, Any]:
    """What became of the file in this mode: the refusal, or what the program says and what a second plan would do."""
    kind = case["kind"]
    write(FILES[kind], case["text"])
    for path, text in case.get("imports", {}).items():
        write(Path(path), text)
    before = {
        path: path.read_bytes()
        for path in (FILES[kind], *map(Path, case.get("imports", {})))
        if path.exists()
    }
    try:
        changes = plan(kind, mode)
    except CannotPlan as error:
        return {"refused": error.message, "hint": error.hint}
    for change in changes:
        if isinstance(change, WriteFile):
            try:
                check(change)
            except Failure as failure:
                return {"rejected": failure.error, "detail": failure.detail, "text": change.content}
    text = FILES[kind].read_bytes().decode() if FILES[kind].exists() else None
    lost = [
        line for path, old in before.items() for line in lost_lines(old.decode(), path.read_bytes().decode())
    ]
    try:
        second = [type(change).__name__ for change in plan(kind, mode) if isinstance(change, WriteFile)]
    except CannotPlan as error:
        return {"refused": f"the second time: {error.message}"}
    return {"text": text, "second": second, "lost": lost, **running(kind, text)}


def lost_lines(old: str, new: str) -> list[str]:
    """Lines that are not there any more, or not in their order."""
    return [line[2:] for line in difflib.ndiff(old.splitlines(), new.splitlines()) if line.startswith("- ")]


def write(path: Path, text: str | None) -> None:
    """Make the file as it is, or absent."""
    path.parent.mkdir(parents=True, exist_ok=True)
    if text is None:
        path.unlink(missing_ok=True)
    else:
        path.write_bytes(text.encode())


def plan(kind: str, mode: str) -> tuple[Change, ...]:
    """What gpunode would do to the files as they are, from what its agent reads."""
    seen = facts(kind)
    desired = Desired("docker" if kind == "docker" else "containerd", mode, {}, {})
    planner = docker.plan if kind == "docker" else containerd.plan
    return planner(seen, desired, default=mode == "default")


def facts(kind: str) -> Facts:
    """What a probe would find. Whether docker runs is not asked: its file is judged, not its state."""
    base = cases.facts("legacy" if kind == "docker" else "modern")
    files = {
        path: {"exists": file["exists"], "content": file.get("content"), "error": file.get("error")}
        for path, file in read_files(list((docker if kind == "docker" else containerd).WATCH.files)).items()
    }
    seen = cases.overlaid(base, {"files": files})
    if kind == "docker":
        assert seen.docker is not None
        version = subprocess.run(["dockerd", "--version"], capture_output=True, text=True, check=True)
        return replace(seen, docker=replace(seen.docker, version=version.stdout.split()[2].rstrip(",")))
    return replace(seen, containerd=cases.Containerd(**(read_containerd() or {})))


def check(change: WriteFile) -> None:
    """As the agent writes: the program must accept the new file before it takes the name."""
    if change.check is None:
        write(Path(change.path), change.content)
        return
    wanted = change.expected
    expected = {"runtime": wanted.runtime, "default": wanted.default} if wanted else None
    checks = {"docker": check_docker, "containerd": check_containerd}
    data = change.content.encode()
    Path(change.path).parent.mkdir(parents=True, exist_ok=True)
    put(
        change.path,
        data,
        0o644,
        None,
        "t",
        lambda name: checks[str(change.check)](change.path, name, expected),
    )


# --- The programs -------------------------------------------------------------------------------------------


def running(kind: str, text: str | None) -> dict[str, Any]:
    """Start the program with this file, and what it then says of itself; why not, if it does not start."""
    write(FILES[kind], text)
    return containerd_running() if kind == "containerd" else docker_running()


def containerd_running() -> dict[str, Any]:
    """The dump, and what the CRI plugin that answers has for runtimes."""
    dump = containerd_dump()
    answers: dict[str, Any] = {"dump": dump.out if not dump.status else None, "cri": None}
    with started("containerd") as (process, log):
        while time.monotonic() < process.deadline:
            said = log.read_text(errors="replace")
            if "containerd successfully booted" in said or process.popen.poll() is not None:
                break
            time.sleep(0.02)
        try:
            answers["cri"] = containerd_configuration(process)
        except grpc.RpcError as error:
            answers["error"] = str(error)
        answers["log"] = [
            line for line in log.read_text(errors="replace").splitlines() if "level=info" not in line
        ][-8:]
    return answers


def containerd_configuration(process: Any) -> Any:
    """What the CRI plugin has for runtimes. Raises grpc.RpcError."""
    with grpc.insecure_channel(f"unix://{SOCKET}") as channel:
        call = channel.unary_unary(
            "/runtime.v1.RuntimeService/Status", request_serializer=bytes, response_deserializer=bytes
        )
        answer = status(call, process)
    configuration = answer[answer.index(b'{"containerd":') :].decode(errors="replace")
    return json.JSONDecoder().raw_decode(configuration)[0]["containerd"]


def status(call: Any, process: Any) -> bytes:
    """The answer of the CRI plugin, which is "not initialized" for a moment after containerd has booted."""
    while True:
        try:
            return bytes(call(b"\x08\x01", timeout=SECONDS, wait_for_ready=process.popen.poll() is None))
        except grpc.RpcError as error:
            begins = "not initialized" in (error.details() or "")  # UNAVAILABLE in 2.x, UNKNOWN before
            if not begins or process.popen.poll() is not None or time.monotonic() > process.deadline:
                raise
        time.sleep(0.02)


def docker_running() -> dict[str, Any]:
    """The runtimes and the default one of a daemon that answers."""
    answers: dict[str, Any] = {"info": None}
    with started("dockerd") as (process, log):
        while time.monotonic() < process.deadline and process.popen.poll() is None:
            if Path("/run/docker.sock").exists():
                answer = subprocess.run(
                    ["docker", "info", "--format", "{{json .}}"], capture_output=True, check=False
                )
                info = json.loads(answer.stdout or "{}")
                if not info.get("ServerVersion"):
                    continue  # the socket is made before it is served
                names = (
                    "Runtimes",
                    "DefaultRuntime",
                    "CgroupDriver",
                    "Driver",
                    "LoggingDriver",
                    "LiveRestoreEnabled",
                )
                names += ("RegistryConfig", "DockerRootDir", "Debug", "Labels", "ExperimentalBuild")
                answers["info"] = {name: info.get(name) for name in names}
                answers["info"]["Labels"] = sorted(info.get("Labels") or ())  # dockerd has them in no order
                break
            time.sleep(0.02)
        answers["log"] = [
            line for line in log.read_text(errors="replace").splitlines() if "level=info" not in line
        ][-8:]
    return answers


class Process:
    """A started program, and until when it may take."""

    def __init__(self, popen: subprocess.Popen[bytes]) -> None:
        self.popen, self.deadline = popen, time.monotonic() + SECONDS


@contextmanager
def started(program: str) -> Iterator[tuple[Process, Path]]:
    """The program at its real paths, gone with all that it started, and its folders empty again."""
    log = Path(f"/run/{program}.log")
    folders = {
        "containerd": ("/run/containerd", "/var/lib/containerd"),
        "dockerd": ("/run/docker", "/var/lib/docker"),
    }
    for folder in folders[program]:
        unmount = ["umount", "--lazy", folder]  # dockerd binds its data folder to itself
        while not subprocess.run(unmount, stderr=subprocess.DEVNULL, check=False).returncode:
            pass
        subprocess.run(["rm", "-rf", folder], check=True)
    for left in ("/run/docker.pid", "/run/docker.sock"):
        Path(left).unlink(missing_ok=True)
    with log.open("wb") as file:
        popen = subprocess.Popen(
            [program, *flags(program)],
            stdin=subprocess.DEVNULL,
            stdout=file,
            stderr=file,
            start_new_session=True,
        )
    try:
        yield Process(popen), log
    finally:
        popen.send_signal(signal.SIGTERM)
        try:
            popen.wait(10)
        except subprocess.TimeoutExpired:
            os.killpg(popen.pid, signal.SIGKILL)
            popen.wait()


def flags(program: str) -> list[str]:
    """Those with which docker's drop-in starts it."""
    drop_ins = Path("/etc/systemd/system/docker.service.d").glob("*.conf") if program == "dockerd" else ()
    words = [line.partition("ExecStart=")[2].split() for path in drop_ins for line in path.open()]
    return [flag for command in words for flag in command[1:]]


if __name__ == "__main__":
    main()
