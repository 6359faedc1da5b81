"""Why a pod has no GPU, a node offers fewer than it has, or a GPU is not used: from the symptom, by the judges of verify."""

from collections.abc import Sequence

from gpunode.engine.session import Session
from gpunode.errors import Problem
from gpunode.links.pod import pending, symptom
from gpunode.wording import lines

ANSWER = ("subject", "state", "text")
REASON = ("code", "what", "evidence", "fix")
UNKNOWN = 7
NOT_KNOWN = (pending.UNKNOWN, symptom.UNEXPLAINED)  # codes of what is only quoted
NAMED = 4


def report(
    session: Session,
    subject: str,
    state: str,
    text: str,
    problems: Sequence[Problem],
    *,
    fine: bool = False,
) -> int:
    """Report an answer and its reasons; the exit code. `problems`: that to fix first first. `fine`: without a problem, nothing is wrong."""
    reporter = session.reporter
    unknown = "" if fine else ": neither the cluster's objects nor its hosts show why"
    answer = lines((f"{text}. Cause:", problems[0].what), " ") if problems else text + unknown
    reporter.rows("answer", ANSWER, [(subject, state, answer)])
    rows = [(problem.code, problem.what, problem.cause.splitlines(), problem.fix) for problem in problems]
    reporter.rows("reason", REASON, rows)
    reporter.total("", {"reasons": len(problems)})
    if all(problem.code in NOT_KNOWN for problem in problems):
        return 0 if fine and not problems else UNKNOWN
    return 1
