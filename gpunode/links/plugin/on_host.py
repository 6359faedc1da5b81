"""Images of the runtimes, and the change `load_image`."""

import json
import os
from typing import BinaryIO, Dict, List, Optional, Tuple

from gpunode.agent.failures import Failure
from gpunode.agent.files import CHUNK
from gpunode.agent.record import Run
from gpunode.agent.system import Message, below, have, last, naming, run
from gpunode.links.runtime.on_host.containerd import CTR, containerd_image, ctr_of, remove_containerd_image
from gpunode.links.runtime.on_host.docker import docker_image


def read_images(references: List[str]) -> Dict[str, Dict[str, str]]:
    """The image ids (digests of their configs) of the references that each runtime has."""
    images: Dict[str, Dict[str, str]] = {"docker": {}, "containerd": {}}
    for reference in references:
        for runtime in ("docker", "crio", *CTR):
            image = image_of(runtime, reference)
            if image:
                images.setdefault(runtime, {})[reference] = image
    return images


def image_of(runtime: str, reference: str) -> Optional[str]:
    if runtime == "crio":
        return crio_image(reference)
    return docker_image(reference) if runtime == "docker" else containerd_image(reference, runtime)


def crio_image(reference: str) -> Optional[str]:
    """CRI-O's images are those of the tools that share its storage."""
    if not os.path.exists(below("/run/crio/crio.sock")):
        return None
    answer = run("crictl", "inspecti", "-o", "json", reference)
    try:
        image = json.loads(answer.out).get("status", {}).get("id") if not answer.status else None
    except ValueError:
        return None
    return "sha256:" + str(image).rpartition(":")[2] if image else None


def importer(runtime: str, path: str, reference: str) -> Tuple[str, ...]:
    """The command that puts an archive, its standard input too, into a runtime. Raises Failure where there is none."""
    if runtime == "docker":
        return ("docker", "load")
    if runtime != "crio":
        return (*(ctr_of(runtime) or ("ctr", "--namespace", "k8s.io")), "images", "import", "-")
    if have("podman"):
        return ("podman", "load", "-q", "-i", path)
    if have("skopeo"):
        return ("skopeo", "copy", "docker-archive:" + path, "containers-storage:" + reference)
    raise Failure("image-failed", "CRI-O cannot load an archive, and this host has neither podman nor skopeo")


def load_image(this: Run, change: Message) -> Message:
    path, runtime = this.payload(change["payload"]), change["runtime"]
    argv = importer(runtime, path, change["reference"])
    with open(path, "rb") as archive:
        answer = run(*argv, stdin=archive, timeout=900)
    os.unlink(path)
    if answer.status:
        full = "no space left" in answer.message
        sentence = "%s failed to load the image: %s" % (argv[0], last(answer.message, 1)[0])
        raise Failure("disk-full" if full else "image-failed", sentence, last(answer.message, 8))
    loaded = image_of(runtime, change["reference"])
    if loaded != change["image_id"]:
        sentence = "after loading, %s is %s and not %s" % (change["reference"], loaded, change["image_id"])
        raise Failure("image-failed", sentence, last(answer.out, 5))
    return {}


def remove_image(_this: Run, change: Message) -> Message:
    """A runtime that keeps the image, as a container still has it, is no failure: the answer has its words."""
    runtime, reference = change["runtime"], change["reference"]
    image = image_of(runtime, reference)
    if image is None:
        return {"unchanged": True}
    commands = {"docker": ("docker", "rmi"), "crio": ("crictl", "rmi")}
    if runtime in commands:
        answer = run(*commands[runtime], reference, timeout=120)
    else:
        answer = remove_containerd_image(runtime, reference, image)
    return {"kept": last(answer.message, 1)[0]} if answer.status else {}


def spool(path: str, payload: Message, stdin: BinaryIO) -> None:
    import hashlib

    digest, left = hashlib.sha256(), payload["size"]
    with naming(path), open(path, "wb") as file:
        while left:
            chunk = stdin.read(min(CHUNK, left))
            if not chunk:
                raise Failure("payload-damaged", "the archive arrived incomplete")
            file.write(chunk)
            digest.update(chunk)
            left -= len(chunk)
    if digest.hexdigest() != payload["sha256"]:
        raise Failure("payload-damaged", "the archive changed on its way")
