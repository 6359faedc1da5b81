"""Logging of this package's programs: one line per event, on standard error."""

import json
import logging
import sys

from gpunode.contract.times import utc


class Logfmt(logging.Formatter):
    """Formats one line per event: time, level, sentence, then the fields of `extra=` as key=value."""

    _own = frozenset(vars(logging.makeLogRecord({}))) | {"message", "asctime", "taskName"}

    def format(self, record: logging.LogRecord) -> str:
        stamp = utc(record.created)
        fields = "".join(
            f" {key}={_word(value)}" for key, value in vars(record).items() if key not in self._own
        )
        line = " ".join(f"{stamp} {record.levelname} {record.getMessage()}{fields}".splitlines())
        if not line.isprintable():  # for terminals
            line = "".join(char if char.isprintable() or char == "\t" else repr(char)[1:-1] for char in line)
        return f"{line}\n{self.formatException(record.exc_info)}" if record.exc_info else line


def _word(value: object) -> str:
    """The value, quoted where its end would be ambiguous."""
    word = str(value)
    return json.dumps(word, ensure_ascii=False) if not word or set(word) & set(' "=\n') else word


def log_to_stderr() -> None:
    """Log warnings of all libraries in one format; this package's own logger sets its level."""
    # Nobody reads callers, threads and processes (Optimization in Python's logging HOWTO)
    logging._srcfile = None
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    output = logging.StreamHandler(sys.stderr)
    output.setFormatter(Logfmt())
    logging.basicConfig(level=logging.WARNING, handlers=[output])
