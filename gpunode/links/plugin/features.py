"""Labels of a node as GPU feature discovery writes them, from what a probe reads; and who has them.

source: NVIDIA/k8s-device-plugin, internal/lm (resource.go, version.go, mig-strategy.go) and docs/gpu-feature-discovery/README.md
"""

import re
from collections import Counter
from collections.abc import Mapping

from gpunode.contract.config import Config
from gpunode.contract.offer import mig_resource
from gpunode.links.machine.pci import driven, gpu
from gpunode.links.node import Node
from gpunode.model import Facts

PREFIX = "nvidia.com/"
WRITER = "gpunode-features"  # of these labels alone: see links/node/labels
STAMP = f"{PREFIX}gfd.timestamp"  # of a GPU feature discovery that runs
LONGEST = 63  # characters of a label's value


def feature_labels(seen: Facts, settings: Config | None) -> dict[str, str]:
    """The labels, as far as a probe knows their values; {} where no GPU answers. As there, of several models the first is named.
    `settings`: the plugin's on this node. MIG devices have the GPU's labels with `single`, their own with `mixed`."""
    if not seen.gpus:
        return {}
    model = seen.gpus[0].name
    strategy = settings.mig_strategy if settings else "none"
    parts = Counter(part.profile for each in seen.gpus for part in each.mig or ())
    labels = {
        **_driver(seen),
        "gpu.family": _family(seen),
        "mig.capable": str(any(each.mig_capable for each in seen.gpus)).lower(),
        "mig.strategy": strategy,
        **_resource("gpu", model, len(seen.gpus), seen.gpus[0].memory_mib, settings),
    }
    if strategy == "single" and len(parts) == 1 and all(each.mig_on for each in seen.gpus):
        ((profile, count),) = parts.items()
        labels |= _resource("gpu", f"{model}-MIG-{profile}", count, None, settings)
        del labels["gpu.memory"]  # that of the devices is not known
    if strategy == "mixed":
        labels["gpu.count"] = str(sum(not each.mig_on for each in seen.gpus))
        for profile, count in parts.items():
            kind = mig_resource(profile).removeprefix(PREFIX)
            labels |= _resource(kind, f"{model}-MIG-{profile}", count, None, settings)
    return {PREFIX + key: clean(value) for key, value in labels.items() if value}


def _resource(
    kind: str, name: str, count: int, memory: int | None, settings: Config | None
) -> dict[str, str]:
    resource = PREFIX + kind
    share = next((each for each in settings.shares if each.resource == resource), None) if settings else None
    shared = "-SHARED" if share and share.rename == resource else ""
    return {
        f"{kind}.product": name + shared,
        f"{kind}.count": str(count),
        f"{kind}.replicas": str(share.replicas if share else 1),
        f"{kind}.sharing-strategy": ("mps" if share.mps else "time-slicing") if share else "none",
        f"{kind}.memory": str(memory or ""),
    }


def _driver(seen: Facts) -> dict[str, str]:
    """The version under its names of today, and under those before."""
    module = seen.modules.get("nvidia")
    version = (module.version or "") if module else ""
    major, minor, revision = [*version.split("."), "", "", ""][:3]
    return {
        "cuda.driver-version.full": version,
        "cuda.driver-version.major": major,
        "cuda.driver-version.minor": minor,
        "cuda.driver-version.revision": revision,
        "cuda.driver.major": major,
        "cuda.driver.minor": minor,
        "cuda.driver.rev": revision,
    }


def _family(seen: Facts) -> str:
    name = gpu(driven(seen.pci)[0].device).generation if driven(seen.pci) else "unknown"
    family = name.lower().removeprefix("grace ").removesuffix(" ultra").replace(" ", "-")
    return "" if family == "unknown" else family


def clean(value: str) -> str:
    """As a label takes it: no other characters, `-` for blanks."""
    kept = re.sub(r"\s+", "-", re.sub(r"[^A-Za-z0-9\-_. ]", "", value).strip())
    return kept[:LONGEST].strip("-_.")


def other_owner(node: Node, labels: Mapping[str, str]) -> str:
    """A label that another writer has set, by which GPU feature discovery is known; "" where these are free, or gpunode's."""
    own = node.applied.get(WRITER, frozenset())
    return next((key for key in (STAMP, *labels) if key in node.labels and key not in own), "")
