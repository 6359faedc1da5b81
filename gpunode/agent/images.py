"""Images of the runtimes, and the change `load_image`."""

import hashlib
import os
from typing import BinaryIO, Dict, List, Optional

from gpunode.agent.containerd import CTR, containerd_image, ctr_of
from gpunode.agent.docker import docker_image
from gpunode.agent.failures import Failure
from gpunode.agent.files import CHUNK
from gpunode.agent.record import Run
from gpunode.agent.system import Message, last, run


def read_images(references: List[str]) -> Dict[str, Dict[str, str]]:
    """The image ids (digests of their configs) of the references that each runtime has."""
    found: Dict[str, Dict[str, str]] = {name: {} for name in ("docker", *CTR)}
    for reference in references:
        for runtime, images in found.items():
            image = image_of(runtime, reference)
            if image:
                images[reference] = image
    return found


def image_of(runtime: str, reference: str) -> Optional[str]:
    return docker_image(reference) if runtime == "docker" else containerd_image(reference, runtime)


def load_image(this: Run, change: Message) -> Message:
    path = this.payload(change["payload"])
    runtime = change["runtime"]
    ctr = None if runtime == "docker" else ctr_of(runtime)
    argv = (
        ("docker", "load")
        if runtime == "docker"
        else (*(ctr or ("ctr", "-n", "k8s.io")), "images", "import", "-")
    )
    with open(path, "rb") as archive:
        answer = run(*argv, stdin=archive, timeout=900)
    os.unlink(path)
    if answer.status:
        full = "no space left" in answer.words
        sentence = "%s failed to load the image: %s" % (argv[0], last(answer.words, 1)[0])
        raise Failure("disk-full" if full else "image-failed", sentence, last(answer.words, 8))
    found = image_of(runtime, change["reference"])
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
