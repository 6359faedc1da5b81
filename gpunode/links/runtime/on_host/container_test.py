"""A GPU container on the host itself: what `verify` runs where no pod can. Its image is on the host already; none is pulled."""

import fcntl
import os
import re
import time
from contextlib import contextmanager
from typing import Dict, Iterator, List, Optional, Tuple

from gpunode.agent.system import Answer, Message, below, have, last, run

SECONDS = 120  # for one container, from its start to its end
NAME = "gpunode-verify"
IMAGES = "{{.Repository}}:{{.Tag}}"
CUDA = r"(^|[/_.-])cuda([/_.:-]|$)"
GPUS = "--env=NVIDIA_VISIBLE_DEVICES=all"
CAPABILITIES = "--env=NVIDIA_DRIVER_CAPABILITIES=compute,utility"
# What a container runs: its GPUs, its devices, its mounts; in an image without a shell the GPUs alone.
LOOK = "nvidia-smi -L || exit; ls -d /dev/nvidia* /dev/nvidia-caps/* 2>/dev/null; cat /proc/self/mounts"
PROGRAMS = (("sh", "-c", LOOK), ("nvidia-smi", "-L"))
NO_SHELL = r"(?s)\bsh\b.*(not found|no such file)"
DRIVER = r"/[^/]*(nvidia|cuda|libnv)[^/]*$"
# tool -> the names of its images, a container with all GPUs but for image and program, and how one is removed that did not end.
# docker's has no --pull before 20.10; the image is one that it has just listed.
# source: docker run(1), nerdctl's command reference, ctr run --help (containerd 1.6, 2.2), podman-run(1); each tool's way to GPUs in
#   NVIDIA's container toolkit documentation (docker: --runtime; podman: CDI), nerdctl's docs/gpu.md
RUN = ("run", "--rm", "--name", NAME, "--network=none")
CTR, NERDCTL = ("ctr", "--namespace=k8s.io"), ("nerdctl", "--namespace=k8s.io")
TOOLS: Dict[str, Tuple[Tuple[str, ...], Tuple[str, ...], Tuple[str, ...]]] = {
    "docker": (
        ("docker", "images", "--format", IMAGES),
        ("docker", *RUN, "--runtime=nvidia", GPUS, CAPABILITIES),
        ("docker", "rm", "--force", NAME),
    ),
    "nerdctl": (
        (*NERDCTL, "images", "--format", IMAGES),
        (*NERDCTL, *RUN, "--pull=never", "--gpus=all"),
        (*NERDCTL, "rm", "--force", NAME),
    ),
    "ctr": (
        (*CTR, "images", "list", "--quiet"),
        (*CTR, "run", "--rm", "--runc-binary=nvidia-container-runtime", GPUS, CAPABILITIES),
        (*CTR, "tasks", "delete", "--force", NAME),
    ),
    "podman": (
        ("podman", "images", "--format", IMAGES),
        ("podman", *RUN, "--pull=never", "--security-opt=label=disable", "--device=nvidia.com/gpu=all"),
        ("podman", "rm", "--force", NAME),
    ),
}
CTR_DELETE = (*CTR, "containers", "delete", NAME)
# Of the runtime that the kubelet uses, first: another one may not know the GPUs.
ORDER = {"docker": ("docker", "podman"), "containerd": ("nerdctl", "ctr", "podman")}
SOCKETS = {
    "docker": "/run/docker.sock",
    "nerdctl": "/run/containerd/containerd.sock",
    "ctr": "/run/containerd/containerd.sock",
}


def test_container(runtime: str, reference: str) -> Message:
    """The answer: `tool` and `image` (None where there is none), `tools` that have no image; of the container its status and words, or
    those of tools that did not list their images; the UUIDs of the GPUs that it saw, its device files and the driver's files that are
    mounted into it."""
    tools, failed = [], []
    for tool in ORDER.get(runtime, ()):
        if not (have(tool) and can_answer(tool)):
            continue
        listed = run(*TOOLS[tool][0])
        image = choose_image(listed.out.split(), reference)
        if listed.status:
            failed += [text if tool in text else "%s: %s" % (tool, text) for text in last(listed.message, 1)]
        elif image is None:
            tools.append(tool)
        else:
            answer = run_container(tool, image, PROGRAMS[0])
            if answer.status not in (0, 124) and re.search(NO_SHELL, answer.message):
                answer = run_container(tool, image, PROGRAMS[1])
            result = {"tool": tool, "image": image, "status": answer.status, "words": last(answer.message, 5)}
            return dict(result, **parse_output(answer.out))
    nothing: Message = {"tool": None, "image": None, "tools": tools, "status": 0, "words": failed}
    return dict(nothing, **parse_output(""))


def run_container(tool: str, image: str, program: Tuple[str, ...]) -> Answer:
    """A container's end; it is removed where it did not end. Another operator's goes first: they have one name."""
    with locked("/run") as alone:
        if not alone:
            return Answer(124, "", "another process has kept the lock of /run for %d s" % SECONDS)
        return run_alone(tool, image, program)


@contextmanager
def locked(folder: str) -> Iterator[bool]:
    """This process has the folder's lock, for which nothing is written; False: another one kept it for SECONDS, as any user can."""
    descriptor = os.open(below(folder), os.O_RDONLY)
    end = time.monotonic() + SECONDS
    try:
        while not is_taken(descriptor) and time.monotonic() < end:
            time.sleep(0.2)
        yield is_taken(descriptor)
    finally:
        os.close(descriptor)


def is_taken(descriptor: int) -> bool:
    """Take its lock, if no other process has it."""
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def run_alone(tool: str, image: str, program: Tuple[str, ...]) -> Answer:
    if tool == "ctr":  # one that an earlier run left, which keeps its name
        run(*CTR_DELETE)
    argv = (image, NAME, *program) if tool == "ctr" else ("--entrypoint=" + program[0], image, *program[1:])
    _, start, remove = TOOLS[tool]
    answer = run(*start, *argv, timeout=SECONDS)
    if answer.status == 124:
        run(*remove)
        if tool == "ctr":  # its task was all that this removed
            run(*CTR_DELETE)
    return answer


def parse_output(text: str) -> Message:
    devices = re.findall(r"(?m)^(/dev/nvidia\S*)$", text)
    targets = [line.split()[1] for line in text.splitlines() if re.match(r"\S+ /\S+ \S+ \S+ \d \d$", line)]
    return {
        "uuids": sorted(set(re.findall(r"UUID: (GPU-[0-9a-f-]+)", text))),
        "devices": sorted(device for device in set(devices) if device != "/dev/nvidia-caps"),
        "mounts": sorted(
            target for target in set(targets) if re.search(DRIVER, target) and target not in devices
        ),
    }


def can_answer(tool: str) -> bool:
    """Whether its daemon can answer; podman has none."""
    return tool not in SOCKETS or os.path.exists(below(SOCKETS[tool]))


def choose_image(names: List[str], reference: str) -> Optional[str]:
    """The device plugin's image, which needs nothing but a C library here; else the first that is named after CUDA."""
    matches = [name for name in names if reference and (name == reference or name.endswith("/" + reference))]
    return next(iter(matches + sorted(name for name in names if re.search(CUDA, name))), None)
