"""The counter in a program's output: a bar, a share of steps, or the number of a step.

COUNTER-1  A counter that reached its end says nothing of what follows: the program may serve now, or
           save.
"""

from __future__ import annotations

import re

import msgspec

LOOKED_BYTES = 4096
"""So much of the end of an output is looked at."""

_SHARE = rb"(?<![\d/.:])(\d{1,12})\s?/\s?(\d{1,12})(?![\d/.:])"
_PERCENT = rb"(?<![\d.])(\d{1,3}(?:\.\d{1,4})?)\s?%"
_STEP = rb"(?i:\b(?:global[_ ]?step|step|steps|iteration|iter|epoch|batch)\b)\W{0,3}(\d{1,12})"
_COUNTER = re.compile(b"|".join((_SHARE, _PERCENT, _STEP)))


class PrintedCounter(msgspec.Struct, frozen=True):
    """The counters of the last line that has any. mark: a number that differs where the counters
    differ. ended: one of the counters reached its end, and none of them goes on."""

    mark: int
    ended: bool


def find_counter(text: bytes) -> PrintedCounter | None:
    """Return the counters of the last line of an output that has any, None where none has. A bar that
    is drawn over itself is a line each time."""
    for line in reversed(re.split(rb"[\r\n]+", text[-LOOKED_BYTES:])):
        values: list[bytes] = []
        open_ends = ends = 0
        for done, total, percent, step in _COUNTER.findall(line):
            if total and int(done) > int(total):
                continue  # no share of anything
            values += [value for value in (done, total, percent, step) if value]
            if step:
                open_ends += 1
            elif total:
                ends, open_ends = ends + (done == total), open_ends + (done != total)
            else:
                ends, open_ends = ends + (float(percent) >= 100), open_ends + (float(percent) < 100)
        if values:
            return PrintedCounter(hash(tuple(values)), ends > 0 and open_ends == 0)
    return None
