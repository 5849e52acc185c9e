"""Bounds of the numbers that come over a wire, so that no sum, clock or column overflows.

A decoder refuses a number outside of them, with its field's name, before anything counts with it.
NaN and infinity are outside of each. `tests/unit/wire/test_bounds.py` looks for a number without
bounds in every message.
"""

from typing import Annotated, TypeVar

import msgspec
from msgspec import Meta

UNREADABLE = (msgspec.MsgspecError, UnicodeDecodeError, RecursionError)
"""The errors that msgspec raises for bytes that are no message; not all of them are its own."""
MAX_COUNT = 2**31 - 1  # the largest `integer` of the database
MAX_LARGE = 2**62  # two of them fit a `bigint`
MAX_DISK_BYTES = 2**63 - 1  # the size that file systems without a limit report
MAX_MEMORY_BYTES = 1 << 50  # of one device or host; a thousand of them fit a `bigint`
MAX_SECONDS = 100 * 366 * 86_400.0  # so long before today is still a valid date
MAX_FIGURE = 1e15
NAN_BEATS = 3
"""After so many losses in a row that are NaN or infinite, the job's owner is told."""

Count = Annotated[int, Meta(ge=0, le=MAX_COUNT)]
"""A count or a small number: ranks, attempts, devices, process ids."""
Whole = Annotated[int, Meta(ge=-MAX_COUNT, le=MAX_COUNT)]
"""A count that may be below zero: exit statuses, and -1 for none."""
Large = Annotated[int, Meta(ge=0, le=MAX_LARGE)]
"""A number that grows without end: epochs, revisions, offsets, sequence numbers, bytes of a
disk."""
MemoryBytes = Annotated[int, Meta(ge=0, le=MAX_MEMORY_BYTES)]
"""Memory of a device or a host."""
DiskBytes = Annotated[int, Meta(ge=0, le=MAX_DISK_BYTES)]
"""Room on a disk."""
Elapsed = Annotated[float, Meta(ge=0, le=MAX_SECONDS)]
"""Seconds that passed, or may pass."""
Instant = Annotated[float, Meta(ge=-MAX_FIGURE, le=MAX_FIGURE)]
"""Seconds of a clock."""
Figure = Annotated[float, Meta(ge=-MAX_FIGURE, le=MAX_FIGURE)]
"""A measured value."""
Reading = str | bool | Annotated[int, Meta(ge=-MAX_LARGE, le=MAX_LARGE)] | Figure | None
"""One value of the evidence that a verdict rests on."""


N = TypeVar("N", int, float)


def within(value: N | None, low: float, high: float) -> N | None:
    """Return a value that a driver or the kernel reported, None where it is impossible, because an
    impossible value is how they say "not known" (2**64 - 1 bytes, NaN per cent)."""
    return value if value is not None and low <= value <= high else None
