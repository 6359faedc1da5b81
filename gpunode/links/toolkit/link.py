"""NVIDIA's container toolkit: its packages, its configuration, its CDI specification; and the package sources before all others."""

from __future__ import annotations

from gpunode.links.link import Link, Step, judge_by_plan
from gpunode.links.toolkit import cdi, config, dev_char, plan, repository
from gpunode.model import Facts, Outcome, Verdict


def judge_toolkit(outcome: Outcome, seen: Facts) -> Verdict:
    package = seen.packages.get("nvidia-container-toolkit")
    text = f"nvidia-container-toolkit {package.version}" if package else "no nvidia-container-toolkit"
    return judge_by_plan(outcome, "toolkit", text, "toolkit", "toolkit-config", "repository", "cdi")


SOURCES = Link("sources", steps=(Step("repository", "toolkit", repository.plan, repository.WATCH),))
LINK = Link(
    "toolkit",
    steps=(
        Step("toolkit", "toolkit", plan.plan),
        Step("toolkit-config", "toolkit", config.plan, config.WATCH),
        Step("cdi", "toolkit", cdi.plan, cdi.WATCH),
        Step("dev-char", "runtime", dev_char.plan, dev_char.WATCH),
    ),
    judges=(judge_toolkit,),
)
