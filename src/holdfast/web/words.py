"""Numbers, times and states as a page writes them. Pure."""

from __future__ import annotations

import re
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

from markupsafe import Markup, escape
from msgspec import Struct

from holdfast.wire.states import find_hue, tell_state

_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
THIN = "\u2009"
_COMMAND = re.compile("`([^`\n]+)`")
_MOMENT = re.compile(r"(?:(\d{4}-\d\d-\d\d) )?\b(\d\d:\d\d(?::\d\d)?) UTC")
_BROWSERS = (("Edg/", "Edge"), ("OPR/", "Opera"), ("Firefox/", "Firefox"), ("Chrome/", "Chrome"),
    ("Version/", "Safari"))  # fmt: skip
_SYSTEMS = ("Android", "iPhone", "iPad", "Windows", "Mac OS X", "Linux")


def write_state(state: object, word: str = "") -> Markup:
    """Return a thing's state, or the word of a state, as its word with its colour."""
    hue, said = find_hue(state), str(state)
    if isinstance(state, Struct):
        shown = tell_state(state)
        hue, said = shown.hue, shown.word
    return Markup('<span class="state {}">{}</span>').format(hue, word or said)


def write_reason(thing: object) -> str:
    """Return why a thing is in its state, as a sentence; "" where its state says all."""
    return tell_state(thing).sentence


def write_told(sentence: str, now: datetime | None = None) -> Markup:
    """Return a sentence with its `commands` as code, and its times as the page's script writes them
    anew in the viewer's zone. now: the day of a time without a date; None: such a time stays."""

    def mark(found: re.Match[str]) -> str:
        day = found[1] or (now and now.astimezone(UTC).date().isoformat())
        if not day:
            return found[0]
        return f'<time datetime="{day}T{found[2]}Z" data-plain>{found[0]}</time>'

    marked = _MOMENT.sub(mark, str(escape(sentence)))
    return Markup(_COMMAND.sub(r"<code>\1</code>", marked))


def name_browser(agent: str) -> str:
    """Return a browser's name and system, as `Chrome 131, Linux`, of what it calls itself."""
    for sign, name in _BROWSERS:
        found = re.search(re.escape(sign) + r"(\d+)", agent)
        if found:
            system = next((each for each in _SYSTEMS if each in agent), "")
            return f"{name} {found[1]}" + (
                f", {system.replace('Mac OS X', 'macOS')}" if system else ""
            )
    return agent


def write_wants(job: Any) -> str:
    """Return the devices that a job wants: `6 GPU`, `64 × 1 CPU`."""
    each = f"{job.gpus} GPU" if job.gpus else f"{job.cpu_slots} CPU"
    return each if job.tasks == 1 else f"{job.tasks} × {each}"


def write_setting(value: float | bool | str | None) -> str:
    """Return a setting's value as a person types it: `off`, `true`, `3`, `0.5`, a word."""
    if value is None:
        return "off"
    if isinstance(value, bool):
        return "true" if value else "false"
    return f"{value:.10g}" if isinstance(value, float) else str(value)


def write_number(count: float | None) -> str:
    """Return a whole number with thin spaces between thousands; - for None."""
    return "–" if count is None else f"{int(count):,}".replace(",", THIN)


def write_span(seconds: float | None) -> str:
    """Return a length of time: `850 ms`, `12 s`, `15 min`, `5 m 03 s`, `1 h 04 m`, `3 d 4 h`."""
    if seconds is None:
        return "–"
    if 0 < seconds < 1:
        return f"{int(seconds * 1000)} ms"
    whole = max(0, int(seconds))
    if whole < 60:
        return f"{whole} s"
    for unit, word in ((86_400, "d"), (3600, "h"), (60, "min")):
        if whole % unit == 0 and whole // unit < 60:
            return f"{whole // unit} {word}"
    if whole < 3600:
        return f"{whole // 60} m {whole % 60:02d} s"
    if whole < 86_400:
        return f"{whole // 3600} h {whole % 3600 // 60:02d} m"
    return f"{whole // 86_400} d {whole % 86_400 // 3600} h"


def write_hours(hours: float | None) -> str:
    """Return hours of devices: `1.4 h`, `12 h`, `4 608 h`; shorter ones as minutes."""
    if hours is None:
        return "–"
    if hours < 1:
        return f"{hours * 60:.1f} min" if hours < 1 / 6 else f"{hours * 60:.0f} min"
    return f"{hours:.1f} h" if hours < 10 else f"{write_number(hours)} h"


def write_dollars(dollars: float | None) -> str:
    """Return an amount of money: `$0.42`, `$3 911`."""
    if dollars is None:
        return "–"
    return f"${dollars:.2f}" if dollars < 100 else f"${write_number(dollars)}"


def write_age(moment: datetime | None, now: datetime) -> Markup:
    """Return how long ago a moment was, as `4 min ago`, with the moment itself for the pointer; the
    page's script writes that in the viewer's zone."""
    if moment is None:
        return Markup("–")
    seconds = (now - moment).total_seconds()
    far = int(abs(seconds))
    about = next(
        f"{far // unit} {word}"
        for unit, word in ((86_400, "d"), (3600, "h"), (60, "min"), (1, "s"))
        if far >= unit or unit == 1
    )
    said = "now" if far == 0 else f"in {about}" if seconds < 0 else f"{about} ago"
    exact = moment.astimezone(UTC).isoformat(timespec="milliseconds")
    return Markup('<time datetime="{0}" title="{0}">{1}</time>').format(exact, said)


def write_micros(moment: datetime) -> str:
    """Return a moment as an address has it: in microseconds since 1970."""
    return str((moment - _EPOCH) // timedelta(microseconds=1))


def read_moment(seconds: float | None) -> datetime | None:
    """Return the moment of Unix seconds."""
    return None if seconds is None else datetime.fromtimestamp(seconds, UTC)


def draw_line(
    values: Sequence[float | None],
    label: str,
    most: float | None = None,
    width: int = 120,
    limit: float | None = None,
) -> Markup:
    """Return a small picture of values over time, oldest first. most: the value at the top; None:
    the greatest one. limit: a value at which a second line is drawn, and which fits in."""
    known = [value for value in values if value is not None]
    if not known:
        return Markup("")
    top = most or max(*known, limit or 0.0) or 1.0
    if len(values) == 1:
        values = [*values, *values]  # a line of one value has a length, too
    step = width / (len(values) - 1)
    points = " ".join(
        f"{at * step:.1f},{22 - 20 * min(1.0, value / top):.1f}"
        for at, value in enumerate(values)
        if value is not None
    )
    across = Markup("")
    if limit is not None:
        y = 22 - 20 * min(1.0, limit / top)
        across = Markup('<path class="limit" d="M0 {y:.1f}H{w}"/>').format(y=y, w=width)
    return Markup(
        '<svg class="line" width="{w}" height="24" viewBox="0 0 {w} 24" role="img" '
        'aria-label="{label}">{across}<polyline points="{points}"/></svg>'
    ).format(w=width, label=label, points=points, across=across)
