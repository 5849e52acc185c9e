"""Times in words, and the lines that `why` answers with. Pure."""

from datetime import datetime

from holdfast.core.words import say_span
from holdfast.wire.api import WhyLine


def line(code: str, message: str, hint: str = "") -> WhyLine:
    """Return a line: its stable code, its sentence, and what to do about it."""
    return WhyLine(code=code, message=message, hint=hint)


def say_moment(moment: datetime) -> str:
    """Return a stored time with its date."""
    return f"{moment:%Y-%m-%d %H:%M:%S} UTC"


def say_due(due: datetime | None, now: datetime) -> str:
    """Return " at TIME (SPAN from now)", " any moment now" where the time has come, or ""."""
    if due is None:
        return ""
    left = (due - now).total_seconds()
    return f" at {say_moment(due)} ({say_span(left)} from now)" if left > 0 else " any moment now"
