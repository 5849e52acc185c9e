"""A line of a log as a reason shows it.

Apart from the patterns, which take 14 ms to compile, so that reading rules over the API is quick.
"""

import re

MAX_LINE_CHARS = 300

NOISE = re.compile(
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
    return NOISE.sub("", text[begin:stop]).strip()
