"""Arrays as words name them, and the words for how far they are."""

from __future__ import annotations

import itertools
import re
from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.errors import NotFound, ValidationError

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.core.series.records import ArrayRecord

_MEMBER = re.compile(r"(.+)\[(\d{1,10})\]")
_ORDER = (
    "running",
    "reserved",
    "draining",
    "queued",
    "waiting",
    "succeeded",
    "failed",
    "cancelled",
)


def find_member(client: Client, word: str) -> str | None:
    """Return the id of the job that `ARRAY[7]` names, None for a word of another form.

    Raises:
        NotFound: there is no such array, or no such index in it.
    """
    match = _MEMBER.fullmatch(word)
    array = None if match is None else find_array(client, match[1])
    if match is None or array is None:
        return None
    return client.job(f"{array.id}[{int(match[2])}]").id


def find_array(client: Client, word: str) -> ArrayRecord | None:
    """Return the array that a word names by its id, the beginning of it, or its name; None where none
    does. Raises ValidationError where several do."""
    from holdfast.core.ids import ID_PATTERN, PREFIX_PATTERN

    if word in ("", ".", "..", "@last"):
        return None
    if ID_PATTERN.fullmatch(word):
        try:
            return client.array(word)
        except NotFound:
            return None
    found = {a.id: a for a in itertools.islice(client.arrays(name=word, page_size=2), 2)}
    if not found and PREFIX_PATTERN.fullmatch(word):
        found = {a.id: a for a in itertools.islice(client.arrays(prefix=word, page_size=2), 2)}
    if len(found) > 1:
        ids = ", ".join(found)
        raise ValidationError(
            f"{word!r} names several arrays: {ids}, …; give one of these ids", code="ambiguous_job"
        )
    return next(iter(found.values()), None)


def say_counts(counts: Mapping[str, int]) -> str:
    """Return the members by state: `running 50, waiting 940`."""
    return ", ".join(f"{state} {counts[state]}" for state in _ORDER if counts.get(state))


def say_progress(array: ArrayRecord) -> str:
    """Return how many members have ended, of how many."""
    ended = sum(array.counts.get(state, 0) for state in ("succeeded", "failed", "cancelled"))
    return f"{ended}/{array.size}"
