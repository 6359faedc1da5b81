"""The link that is judged where pods cannot run: a GPU container on the host itself."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from gpunode.links import runtime as runtimes
from gpunode.model import Facts, Layer, Outcome, Verdict
from gpunode.wording import few

BELOW: tuple[Layer, ...] = ("PCI", "module", "library", "NVML", "toolkit", "runtime")


def wanted(links: Sequence[Verdict]) -> bool:
    """Whether every link below the kubelet holds and no pod can be run: the kubelet does not work, or its node is not known."""
    good = {link.layer for link in links if link.status == "ok"}
    return good.issuperset(BELOW) and "node" not in good


def runtime(outcome: Outcome) -> str:
    """The runtime that the kubelet uses, as far as known."""
    if outcome.desired is not None and outcome.desired.runtime:
        return outcome.desired.runtime
    return runtimes.in_use(outcome.facts) if outcome.facts else ""


def link(answer: Mapping[str, Any], facts: Facts) -> Verdict:
    """Ok where the container saw every GPU that the host has."""
    tool, image = answer["tool"], answer["image"]
    if tool is None:
        asked = f"of {' and '.join(answer['tools'])} " if answer["tools"] else ""
        text = f"no image {asked}is the device plugin's or named after CUDA; none is pulled"
        return Verdict(
            "container", "unknown", text if answer["tools"] else "no docker, nerdctl, ctr or podman answers"
        )
    expected = {gpu.uuid for gpu in facts.gpus}
    seen = expected & set(answer["uuids"])
    text = f"{len(seen)} of {len(expected)} GPUs answer in a container of {image}, by {tool}"
    if answer["devices"]:
        files = few([path.rpartition("/")[2] for path in answer["mounts"]], 6)
        text += f"; its devices: {few(answer['devices'], 12)}; mounted of the driver: {files or 'nothing'}"
    if answer["status"] == 0 and seen == expected:
        return Verdict("container", "ok", text)
    cause = "\n".join(answer["words"]) if answer["status"] else "nvidia-smi in it does not list the others"
    fix = f"Run nvidia-smi in a container of that image on the host, by {tool}; its runtime nvidia or its CDI devices are not right."
    return Verdict("container", "broken", text, cause, fix)


def placed(links: Sequence[Verdict], found: Verdict) -> tuple[Verdict, ...]:
    """The chain with it after the runtime."""
    at = 1 + max(n for n, link in enumerate(links) if link.layer == "runtime")
    return (*links[:at], found, *links[at:])
