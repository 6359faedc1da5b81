"""The steps of a run in their order: its table of contents."""

from __future__ import annotations

from collections.abc import Iterable
from types import MappingProxyType, ModuleType

from gpunode import compat
from gpunode.errors import Refused
from gpunode.model import Change, Desired, Facts, Host, Plan, PluginImage, Reboot, StepPlan, Watch
from gpunode.render import Unfit
from gpunode.steps import containerd, docker, driver, image, kubelet, nouveau, repository, toolkit

STEPS: tuple[tuple[str, ModuleType], ...] = (
    ("repository", repository),
    ("nouveau", nouveau),
    ("driver", driver),
    ("toolkit", toolkit),
    ("docker", docker),
    ("containerd", containerd),
    ("kubelet", kubelet),
    ("image", image),
)
# The link of verify's chain that a step's refusal is about.
LAYERS = MappingProxyType(
    {
        "repository": "toolkit",
        "nouveau": "module",
        "driver": "module",
        "toolkit": "toolkit",
        "docker": "runtime",
        "containerd": "runtime",
        "kubelet": "kubelet",
        "image": "plugin",
    }
)


def watch(image: PluginImage | None) -> Watch:
    """What a probe must look at for all steps."""
    modules = [module for _, module in STEPS]
    return Watch(
        files=_unique(path for module in modules for path in module.FILES),
        units=_unique((*(unit for module in modules for unit in module.UNITS), *compat.distributions())),
        packages=_unique(pattern for module in modules for pattern in module.PACKAGES),
        images=(image.reference,) if image else (),
    )


def _unique(names: Iterable[str]) -> tuple[str, ...]:
    return tuple(dict.fromkeys(names))


def plan(host: Host, facts: Facts, desired: Desired) -> Plan:
    """The changes that make the host right, in the order they are made; a reboot comes last, and once."""
    steps: list[StepPlan] = []
    reboots: list[Reboot] = []
    for name, module in STEPS:
        try:
            changes: tuple[Change, ...] = module.plan(facts, desired)
        except Unfit as unfit:
            raise Refused(host.name, unfit.message, hint=unfit.hint, layer=LAYERS[name]) from unfit
        reboots += [change for change in changes if isinstance(change, Reboot)]
        steps.append(StepPlan(name, tuple(c for c in changes if not isinstance(c, Reboot))))
    if reboots:
        why = "; ".join(dict.fromkeys(reboot.why for reboot in reboots))
        steps.append(StepPlan("reboot", (Reboot(why),)))
    return Plan(host.name, tuple(steps))
