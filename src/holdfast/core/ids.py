"""Identifiers, made from a time and entropy that the caller gives, and the keys of tasks."""

from __future__ import annotations

import re
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.bounds import Count, Large

_ALPHABET = "0123456789abcdefghjkmnpqrstvwxyz"  # Crockford's base 32, lower case: no i, l, o, u
_TIME_CHARS = 9  # 45 bits of milliseconds: until the year 3084
_ENTROPY_CHARS = 11  # 55 bits
ENTROPY_BITS = 5 * _ENTROPY_CHARS
ID_PATTERN = re.compile(r"[0-9a-hjkmnp-tv-z]{20}")
PREFIX_PATTERN = re.compile(r"[0-9a-hjkmnp-tv-z]{1,20}")


def _base32(value: int, width: int) -> str:
    digits = []
    for _ in range(width):
        digits.append(_ALPHABET[value & 31])
        value >>= 5
    return "".join(reversed(digits))


LEAST_TAIL_CHARS = 4


def ends_id(word: str) -> bool:
    """Return whether a word may be the end of an id. People may name a job by the end of its id,
    because ids begin with the time, so those of one hour begin alike."""
    return len(word) >= LEAST_TAIL_CHARS and PREFIX_PATTERN.fullmatch(word) is not None


def make_id(now_ms: int, entropy: int) -> str:
    """Return 20 characters that sort by time: `now_ms` (Unix), then `entropy` (55 bits)."""
    low = entropy & ((1 << ENTROPY_BITS) - 1)
    return _base32(now_ms, _TIME_CHARS) + _base32(low, _ENTROPY_CHARS)


class TaskKey(msgspec.Struct, frozen=True, order=True, array_like=True, gc=False):
    """The name of one rank of a job under one epoch, which every report carries (FENCE-1)."""

    job_id: Annotated[str, Meta(max_length=128)]
    rank: Count
    epoch: Large

    def __str__(self) -> str:
        return f"{self.job_id}:{self.rank}:{self.epoch}"

    @classmethod
    def parse(cls, text: str) -> TaskKey:
        """Return the id that `str()` wrote. Raises ValueError on any other text."""
        job_id, rank, epoch = text.split(":")
        return cls(job_id, int(rank), int(epoch))
