"""Reports what an upgrade of Kubernetes would break on the hosts. Changes nothing."""

from gpunode.engine import chain, converge, exit_codes
from gpunode.engine.fleet import Visit
from gpunode.engine.member import outcomes
from gpunode.engine.session import Session
from gpunode.links.kubelet import upgrade
from gpunode.model import OnEvent, Outcome
from gpunode.wording import several


def lint(session: Session, target: int) -> int:
    """Judge and report; the exit code: 1 if something would break, 3 if hosts were only unreachable."""

    def probe(visit: Visit, emit: OnEvent) -> Outcome:
        visit.watch = chain.watch(visit.image, lints=True)
        return converge.probe_and_plan(visit, emit)

    reporter = session.reporter
    members = session.for_each_host(probe)
    unseen = [member for member in members if member.facts is None]
    reporter.failures(outcomes(unseen))
    findings = [
        (member.host.name, each.code, each.what, each.fix)
        for member in members
        if member.facts is not None
        for each in chain.lint(member.host, member.facts, target)
    ]
    reporter.rows("finding", ("host", "code", "cause", "fix"), findings)
    if target > (newest := upgrade.removals()["known"]):
        reporter.note(f"gpunode knows Kubernetes up to 1.{newest}: later changes are not judged.")
    hosts, broken = len(members) - len(unseen), len({host for host, *_ in findings})
    judged = several(hosts, "host")
    text = f"Kubernetes 1.{target} breaks nothing known on {judged}"
    if broken:
        text = f"{broken} of {judged} would break with Kubernetes 1.{target}"
    elif not hosts:
        text = "no host could be judged"
    numbers = {"hosts": len(members), "broken": broken, "findings": len(findings), "unreachable": len(unseen)}
    reporter.total(text, numbers)
    return 1 if findings else exit_codes.worst(unseen)
