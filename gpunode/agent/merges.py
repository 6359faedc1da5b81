"""Failures of a file's check by the program that reads it."""

from typing import List

from gpunode.agent.failures import Failure
from gpunode.agent.system import Answer, last


def unexpected(program: str, path: str, wrong: List[str]) -> Failure:
    sentence = "%s would read the new %s otherwise than planned: %s" % (program, path, wrong[0])
    return Failure("check-failed", sentence, wrong[:8])


def rejected(path: str, temporary: str, program: str, answer: Answer) -> None:
    words = [line.replace(temporary, path) for line in last(answer.words, 8)]
    raise Failure("check-failed", "%s does not accept the new %s: %s" % (program, path, words[-1]), words)
