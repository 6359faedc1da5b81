"""Images of the runtimes, and the change `load_image`."""

import hashlib
import os
from typing import BinaryIO, Dict, List

from gpunode.agent.containerd import containerd_image
from gpunode.agent.docker import docker_image
from gpunode.agent.failures import Failure
from gpunode.agent.files import CHUNK
from gpunode.agent.record import Run
from gpunode.agent.system import Message, last, run


def read_images(references: List[str]) -> Dict[str, Dict[str, str]]:
    """The image ids (digests of their configs) of the references that docker and containerd have."""
    found: Dict[str, Dict[str, str]] = {"docker": {}, "containerd": {}}
    for reference in references:
        for runtime, image in (
            ("docker", docker_image(reference)),
            ("containerd", containerd_image(reference)),
        ):
            if image:
                found[runtime][reference] = image
    return found


def load_image(this: Run, change: Message) -> Message:
    path = this.payload(change["payload"])
    docker = change["runtime"] == "docker"
    argv = ("docker", "load") if docker else ("ctr", "-n", "k8s.io", "images", "import", "-")
    with open(path, "rb") as archive:
        answer = run(*argv, stdin=archive, timeout=900)
    os.unlink(path)
    if answer.status:
        full = "no space left" in answer.words
        sentence = "%s failed to load the image: %s" % (argv[0], last(answer.words, 1)[0])
        raise Failure("disk-full" if full else "image-failed", sentence, last(answer.words, 8))
    found = (docker_image if docker else containerd_image)(change["reference"])
    if found != change["image_id"]:
        sentence = "after loading, %s is %s and not %s" % (change["reference"], found, change["image_id"])
        raise Failure("image-failed", sentence, last(answer.out, 5))
    return {}


def spool(path: str, payload: Message, stdin: BinaryIO) -> None:
    digest, left = hashlib.sha256(), payload["size"]
    with open(path, "wb") as file:
        while left:
            chunk = stdin.read(min(CHUNK, left))
            if not chunk:
                raise Failure("payload-damaged", "the archive arrived incomplete")
            file.write(chunk)
            digest.update(chunk)
            left -= len(chunk)
    if digest.hexdigest() != payload["sha256"]:
        raise Failure("payload-damaged", "the archive changed on its way")
