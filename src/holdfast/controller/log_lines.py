"""Log lines: JSON for machines, text for a terminal. `job`, `attempt`, `epoch` and `host` are
fields of their own, so that one grep tells one job's whole story."""

import asyncio
import logging
import sys
from typing import IO, Any

import msgspec

from holdfast.process.loop import write_instant

FIELDS = ("job", "attempt", "epoch", "rank", "cause", "moved", "host", "queue", "loop", "request")


def _read_fields(record: logging.LogRecord) -> dict[str, Any]:
    return {n: record.__dict__[n] for n in FIELDS if record.__dict__.get(n) is not None}


class JsonFormatter(logging.Formatter):
    """One JSON object per line."""

    def format(self, record: logging.LogRecord) -> str:
        line: dict[str, Any] = {
            "at": write_instant(record.created),
            "level": record.levelname.lower(),
            "logger": record.name,
            "message": record.getMessage(),
            **_read_fields(record),
        }
        if record.exc_info:
            line["traceback"] = self.formatException(record.exc_info)
        return msgspec.json.encode(line, enc_hook=str).decode()


class TextFormatter(logging.Formatter):
    """Time, level, message, then the fields."""

    def format(self, record: logging.LogRecord) -> str:
        at = write_instant(record.created)
        fields = "".join(f" {name}={value}" for name, value in _read_fields(record).items())
        text = f"{at} {record.levelname:<7} {record.getMessage()}{fields}"
        return text + ("\n" + self.formatException(record.exc_info) if record.exc_info else "")


class _StderrHandler(logging.StreamHandler[IO[str]]):
    """Ours, so that setting up twice replaces it and leaves others alone."""


def set_up_logging(log_format: str) -> None:
    """Send the log to stderr. `log_format`: "json", "text", or "auto": text on a terminal."""
    text = log_format == "text" or (log_format == "auto" and sys.stderr.isatty())
    handler = _StderrHandler(sys.stderr)
    handler.setFormatter(TextFormatter() if text else JsonFormatter())
    root = logging.getLogger()
    for old in [h for h in root.handlers if isinstance(h, _StderrHandler)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(logging.INFO)
    server = logging.getLogger("uvicorn.error")
    server.setLevel(logging.ERROR)
    server.addFilter(_is_fault)


def _is_fault(record: logging.LogRecord) -> bool:
    """Return whether a line of the HTTP server tells of a fault. A stop cancels the streams that are
    still open, and the server would log a traceback for each."""
    return not (record.exc_info and isinstance(record.exc_info[1], asyncio.CancelledError))
