"""A line of a log as a reason shows it.

Apart from the patterns, which take 14 ms to compile, so that reading rules over the API is quick.
"""

import re

MAX_LINE_CHARS = 300

_NOISE = re.compile(
    r"\x1b\[[0-9;?]*[ -/]*[@-~]|[\x00-\x08\x0b-\x1f\x7f-\x9f\u200e\u200f\u202a-\u202e\u2066-\u2069]"
)


def cut_line(text: str, start: int, end: int) -> str:
    """Return the line around [start, end), printable, at most `MAX_LINE_CHARS` long."""
    begin = text.rfind("\n", 0, start) + 1
    stop = text.find("\n", max(start, end - 1))
    stop = len(text) if stop < 0 else stop
    if stop - begin > MAX_LINE_CHARS:  # keep what matched in sight
        begin = max(begin, min(start - 40, stop - MAX_LINE_CHARS))
        stop = min(stop, begin + MAX_LINE_CHARS)
    return _NOISE.sub("", text[begin:stop]).strip()


_TRACEBACK = "Traceback (most recent call last):"
_REFUSED = re.compile(
    r"(?m:^(?:(?:SyntaxError|IndentationError|TabError): |\S{0,200}python[\d.]{0,6}: "
    r"(?:can't open file|No module named|Error while finding)).*$)"
)
_EXCEPTION = re.compile(r"[A-Za-z_][\w.]{0,200}(?::\s|:?$)")


def find_exception(text: str) -> str | None:
    """Return the last line of the last Python traceback in a log, such as "ValueError: too small", or
    what Python says of a program that it cannot run at all.

    A launcher may begin each line with a rank, as in `[rank0]: Traceback …`.
    """
    at = text.rfind(_TRACEBACK)
    if at < 0:
        *_, refused = [None, *_REFUSED.findall(text)]
        return None if refused is None else cut_line(refused, 0, len(refused))
    begin = text.rfind("\n", 0, at) + 1
    before = text[begin:at]
    for line in text[at:].splitlines()[1:]:
        own = _NOISE.sub("", line.removeprefix(before))
        if own[:1].isspace() or not own:
            continue
        return cut_line(own, 0, len(own)) if _EXCEPTION.match(own) else None
    return None


def say_bytes(count: int) -> str:
    """Return an amount of memory in its natural unit: `4096 bytes`, `512 MiB`, `1.5 GiB`."""
    if count < 1 << 20:
        return f"{count} bytes"
    return f"{count >> 20} MiB" if count < 10 << 30 else f"{count / (1 << 30):.4g} GiB"
