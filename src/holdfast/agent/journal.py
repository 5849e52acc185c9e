"""Write the agent's own log: one line per record on standard error, JSON or text, with job,
attempt, epoch and host.

Other parts log with `extra=about(key, attempt=…)`, so that one grep shows all lines of a job.
"""

import logging
import sys
from typing import Any

import msgspec

from holdfast.core.ids import TaskKey
from holdfast.process.loop import write_instant

_FIELDS = ("job", "rank", "epoch", "attempt", "data")


def about(key: TaskKey, *, attempt: int | None = None, **data: Any) -> dict[str, Any]:
    """Return the `extra` of a log call that is about a task."""
    fields: dict[str, Any] = {"job": key.job_id, "rank": key.rank, "epoch": key.epoch}
    if attempt:
        fields["attempt"] = attempt
    if data:
        fields["data"] = data
    return fields


class _Formatter(logging.Formatter):
    def __init__(self, host: str, *, as_json: bool) -> None:
        super().__init__()
        self._host = host
        self._as_json = as_json

    def format(self, record: logging.LogRecord) -> str:
        found = {name: getattr(record, name, None) for name in _FIELDS}
        fields = {name: value for name, value in found.items() if value is not None}
        message = record.getMessage()
        if record.exc_info:
            message = f"{message}\n{self.formatException(record.exc_info)}"
        at = write_instant(record.created)
        if not self._as_json:
            words = " ".join(f"{name}={value}" for name, value in fields.items())
            level = record.levelname.lower()
            return f"{at} agent {level:7} {message}{'  ' if words else ''}{words}"
        line = {
            "at": at,
            "level": record.levelname.lower(),
            "from": "agent",
            "host": self._host,
            "message": message,
            **fields,
        }
        return msgspec.json.encode(line, enc_hook=str).decode()


class _JournalHandler(logging.StreamHandler[Any]):
    def handleError(self, record: logging.LogRecord) -> None:
        """Ignore a full disk or a closed terminal, which must neither end the agent nor be
        logged."""


def open_journal(host: str, *, log_format: str) -> None:
    """Send the `holdfast` loggers to standard error."""
    # Fields that no line shows are not collected, because every short task writes lines.
    logging.logThreads = logging.logProcesses = logging.logMultiprocessing = False
    handler = _JournalHandler(sys.stderr)
    handler.setFormatter(_Formatter(host, as_json=log_format == "json"))
    logger = logging.getLogger("holdfast")
    logger.handlers[:] = [handler]
    logger.setLevel(logging.INFO)
    logger.propagate = False
