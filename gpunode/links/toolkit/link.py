"""NVIDIA's container toolkit: its packages, its configuration, its CDI specification; and the package sources before all others."""

from gpunode.links.link import Link, Step, judge_by_plan, waiting_step
from gpunode.links.toolkit import cdi, plan
from gpunode.model import Facts, Fault, Outcome, Verdict


def judge_toolkit(outcome: Outcome, seen: Facts) -> Verdict:
    package = seen.packages.get("nvidia-container-toolkit")
    text = f"nvidia-container-toolkit {package.version}" if package else "no nvidia-container-toolkit"
    sources = waiting_step(outcome, "repository")
    # A refresh without a fault follows from what is to be installed.
    wrong = sources is not None and any(change.fault != "" for change in sources.changes)
    names = ("toolkit", "toolkit-config", *(["repository"] if wrong else []), "cdi")
    return judge_by_plan(outcome, "toolkit", text, *names)


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
