"""Arrays as words name them, and the words for how far they are."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from holdfast.client.jobs import finding

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.core.arrays.records import ArrayRecord
    from holdfast.core.records import JobRecord

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


def find_array(client: Client, word: str) -> ArrayRecord | None:
    """Return the array that a word names by its id, the beginning of its id, or its name; None where
    no array has it. Raises ValidationError where several have."""
    return client.perform(lambda: finding.find_array(word))


def say_counts(counts: Mapping[str, int]) -> str:
    """Return the members by state: `running 50, waiting 940`."""
    return ", ".join(f"{state} {counts[state]}" for state in _ORDER if counts.get(state))


def say_progress(array: ArrayRecord) -> str:
    """Return how many members have ended, of how many."""
    ended = sum(array.counts.get(state, 0) for state in ("succeeded", "failed", "cancelled"))
    return f"{ended}/{array.size}"


def say_parameters(job: JobRecord) -> str:
    """Return the parameters of a sweep's member: `lr=0.1 seed=2`; empty for any other job."""
    head = "HOLDFAST_PARAM_"
    return " ".join(
        f"{name.removeprefix(head).lower()}={value}"
        for name, value in job.spec.env.items()
        if name.startswith(head)
    )
