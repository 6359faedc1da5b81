"""The device plugin's image on the node, where it comes from an archive and not from a registry."""

from __future__ import annotations

from gpunode.links.link import judge_by_plan, waiting_step
from gpunode.model import Change, Desired, Facts, LoadImage, Outcome, Verdict, Watch

WATCH = Watch()


def plan(facts: Facts, desired: Desired) -> tuple[Change, ...]:
    """Load the image where the runtime has none of that name, or another one."""
    image = desired.image
    if image is None or image.archive is None or image.image_id is None:
        return ()
    there = facts.images.get(desired.runtime, {}).get(image.reference)
    if there == image.image_id:
        return ()
    why = "the node has another image of that name" if there else "the node needs no registry for it then"
    fault = "the plugin's image is not on the node"
    if there:
        fault = f"{image.reference} on the node is another image than the archive's"
    return (LoadImage(image.reference, image.image_id, image.archive, desired.runtime, why, fault=fault),)


def judge_image(outcome: Outcome) -> Verdict | None:
    """The plugin's verdict where the node does not have the plugin's image: new pods cannot start. None where it has."""
    if outcome.facts is None or waiting_step(outcome, "image") is None:
        return None
    return judge_by_plan(outcome, "plugin", "new pods of the plugin cannot start", "image")
