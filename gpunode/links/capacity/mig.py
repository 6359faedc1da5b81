"""GPUs of a host that pods cannot use because of their MIG mode, and the fix. Pure."""

from collections.abc import Mapping, Sequence
from types import MappingProxyType

from gpunode.contract.offer import CannotOffer, offers
from gpunode.errors import Problem
from gpunode.links.node import Node
from gpunode.links.plugin import expected
from gpunode.model import Desired, Gpu, Layout, PluginConfig
from gpunode.wording import advise

STRATEGY = "set flags.migStrategy to mixed in the plugin's configuration (cluster.plugin.config)"


def is_ignored(config: PluginConfig | None, desired: Desired | None, labels: Mapping[str, str]) -> bool:
    """True if the host is to have MIG devices that the plugin on a node with these labels does not offer."""
    settings = expected.find_config(config, labels)
    cut = desired is not None and any(layout is not None for layout in desired.mig.values())
    return cut and settings is not None and settings.mig_strategy == "none"


def problem(
    config: PluginConfig | None,
    gpus: Sequence[Gpu],
    labels: Mapping[str, str],
    layouts: Mapping[str, Layout] = MappingProxyType({}),
) -> Problem | None:
    """Why pods cannot use all GPUs on a node with these labels, as their MIG mode does not fit the plugin's strategy. Its subject:
    the GPUs that the node does not offer because of it, "" for none. `layouts`: of the inventory, by PCI address; what is set by hand
    in their place does not stay."""
    settings = expected.find_config(config, labels)
    on = [gpu for gpu in gpus if gpu.mig_on]
    if settings is None or not on:
        return None
    uncut = [gpu for gpu in on if gpu.mig == ()]
    if settings.mig_strategy == "none":
        cut = f", and {_make(uncut, layouts)}" if uncut else ""
        return Problem(
            "mig",
            f"{_name(on)}: MIG is on, but pods get {_pronoun(on)} whole, as the plugin's migStrategy is none",
            fix=advise(f"{_place(on, layouts)}{_off(on, layouts)}. Or {STRATEGY}{cut}."),
        )
    if settings.mig_strategy == "single" and all(gpu.mig is not None for gpu in gpus):
        try:
            offers(expected.make_devices(gpus), "single")
        except CannotOffer as error:
            some = f" ({_off(on, layouts)})" if len(on) < len(gpus) else ""
            alike = _cut_or_off(uncut, layouts) if uncut else f"Make them alike{some}, or {STRATEGY}."
            return Problem("mig", str(error), subject="all GPUs", fix=advise(alike))
        return None
    if uncut:
        which = _name(uncut)
        return Problem(
            "mig",
            f"{which}: MIG is on, but no MIG device was made, so nothing of {_pronoun(uncut)} is offered",
            subject=which,
            fix=advise(_cut_or_off(uncut, layouts)),
        )
    return None


def has_unseen(config: PluginConfig | None, gpus: Sequence[Gpu], node: Node) -> bool:
    """Whether a node's plugin may have started before some of the host's MIG devices were created: the kubelet counts
    too few, and a running container gets no device nodes of new ones."""
    settings, units = expected.find_config(config, node.labels), expected.units(config, gpus, node.labels)
    if not settings or settings.mig_strategy == "none" or not units or not any(gpu.mig for gpu in gpus):
        return False
    return any(node.units.get(name, 0) + node.short.get(name, 0) < count for name, count in units.items())


def _cut_or_off(gpus: Sequence[Gpu], layouts: Mapping[str, Layout]) -> str:
    text = f"{_place(gpus, layouts)}{_make(gpus, layouts)}; {_off(gpus, layouts)}."
    return text if _has(gpus, layouts) else f"{text} A reboot leaves MIG on, but removes MIG devices."


def _has(gpus: Sequence[Gpu], layouts: Mapping[str, Layout]) -> bool:
    return any(gpu.pci in layouts for gpu in gpus)


def _place(gpus: Sequence[Gpu], layouts: Mapping[str, Layout]) -> str:
    return "" if _has(gpus, layouts) else "On the host, "


def _make(gpus: Sequence[Gpu], layouts: Mapping[str, Layout]) -> str:
    if _has(gpus, layouts):
        return "`gpunode provision` makes the MIG devices that the inventory has (`mig`)"
    return f"`nvidia-smi mig -i {_indexes(gpus)} -cgi PROFILE -C` makes MIG devices (`-lgip` lists the profiles), which the plugin sees once its pod is replaced"


def _off(gpus: Sequence[Gpu], layouts: Mapping[str, Layout]) -> str:
    if _has(gpus, layouts):
        return "`mig: off` in the inventory and a run of `gpunode provision` switch MIG off"
    return f"`nvidia-smi -i {_indexes(gpus)} -mig 0` switches MIG off"


def _name(gpus: Sequence[Gpu]) -> str:
    return f"GPU {', '.join(str(gpu.index) for gpu in gpus)}"


def _indexes(gpus: Sequence[Gpu]) -> str:
    return ",".join(str(gpu.index) for gpu in gpus)


def _pronoun(gpus: Sequence[Gpu]) -> str:
    return "it" if len(gpus) == 1 else "them"
