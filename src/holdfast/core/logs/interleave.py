"""The order in which the chunks of many streams are shown: by the time at which they came. Pure."""

from collections.abc import Sequence
from datetime import datetime
from typing import Protocol, TypeVar


class TimedChunk(Protocol):
    """A chunk of a stream."""

    @property
    def at(self) -> datetime:
        """Return the time at which the controller was given it."""


K = TypeVar("K", bound=TimedChunk)


def interleave(streams: Sequence[Sequence[K]], limit: int) -> list[tuple[int, K]]:
    """Return the chunks of all streams by time, each with the number of its stream; chunks of one time
    in the order of the streams.

    streams: the first chunks of each, in order; one with `limit` of them may have more. Chunks that
    came after the last known one of such a stream are left out, because more may come before them.
    """
    more = [chunks[-1].at for chunks in streams if len(chunks) >= limit]
    horizon = min(more, default=None)
    found = [
        (chunk.at, number, place, chunk)
        for number, chunks in enumerate(streams)
        for place, chunk in enumerate(chunks)
        if horizon is None or chunk.at <= horizon
    ]
    found.sort(key=lambda one: one[:3])
    return [(number, chunk) for _, number, _, chunk in found]
