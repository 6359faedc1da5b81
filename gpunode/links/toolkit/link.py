"""NVIDIA's container toolkit: its packages, its configuration, its CDI specification; and the package sources before all others."""

from __future__ import annotations

from gpunode.links.link import Link, Step, judge_by_plan
from gpunode.links.toolkit import cdi, plan
from gpunode.model import Facts, Fault, Outcome, Verdict


def judge_toolkit(outcome: Outcome, seen: Facts) -> Verdict:
    package = seen.packages.get("nvidia-container-toolkit")
    text = f"nvidia-container-toolkit {package.version}" if package else "no nvidia-container-toolkit"
    return judge_by_plan(outcome, "toolkit", text, "toolkit", "toolkit-config", "repository", "cdi")


SOURCES = Link("sources", steps=(Step("repository", "toolkit", plan.plan_sources, plan.SOURCES_WATCH),))
LINK = Link(
    "toolkit",
    steps=(
        Step("toolkit", "toolkit", plan.plan),
        Step("toolkit-config", "toolkit", plan.plan_config, plan.CONFIG_WATCH),
        Step("cdi", "toolkit", cdi.plan, cdi.WATCH),
        Step("dev-char", "runtime", cdi.plan_dev_char, cdi.DEV_CHAR_WATCH),
    ),
    judges=(judge_toolkit,),
    faults=(Fault("toolkit", "toolkit", "an administrator removed nvidia-container-toolkit"),),
)
