"""Dependencies: jobs that wait for the ends of other jobs (`submit --after JOB[:ok|any|failed]`).

AFTER-1  A job waits until each of its parents has ended as it wants. Where a parent ends otherwise,
         the job is cancelled, which is an end for its own dependants in turn.
AFTER-2  A parent exists before its dependants do, so no circle can be written.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from enum import StrEnum

import msgspec

from holdfast.core.states import JobState
from holdfast.errors import ValidationError

MAX_PARENTS = 1000
AFTER_PATTERN = r"^[0-9A-Za-z-]{1,64}(:(ok|any|failed))?$(?!\n)"


class Wants(StrEnum):
    """The end of its parent for which a job waits."""

    OK = "ok"
    ANY = "any"
    FAILED = "failed"


class Dependency(msgspec.Struct, frozen=True, order=True):
    """One end that a job waits for."""

    parent: str
    wants: Wants = Wants.OK


class ParentEnd(msgspec.Struct, frozen=True):
    """The end of a parent. name: the name that its submitter gave it."""

    name: str
    state: JobState


SAID: Mapping[Wants, str] = {Wants.OK: "to succeed", Wants.ANY: "to end", Wants.FAILED: "to fail"}


def parse_after(text: str) -> Dependency:
    """Read `JOB`, `JOB:ok`, `JOB:any` or `JOB:failed`. Raises ValidationError on another word."""
    parent, colon, word = text.partition(":")
    if not colon:
        return Dependency(parent)
    try:
        return Dependency(parent, Wants(word))
    except ValueError:
        raise ValidationError(
            f"after {text!r}: a job waits for another to end ok, any or failed, as in "
            f"{parent}:any; {word!r} is none of these",
            field="after",
        ) from None


def parse_all(after: Iterable[str]) -> tuple[Dependency, ...]:
    """Read every `after` of a job. Raises ValidationError where a parent is named twice."""
    found: dict[str, Dependency] = {}
    for text in after:
        one = parse_after(text)
        if one.parent in found:
            raise ValidationError(f"after: job {one.parent} is named twice", field="after")
        found[one.parent] = one
    return tuple(found.values())


def is_met(wants: Wants, end: JobState) -> bool:
    """Return whether a parent's end is the one that its dependant waits for. A cancelled parent has
    not failed."""
    if wants is Wants.ANY:
        return True
    return end is (JobState.SUCCEEDED if wants is Wants.OK else JobState.FAILED)


def say_wait(dependencies: Iterable[Dependency], names: Mapping[str, str], start: bool) -> str:
    """Return the sentence that tells of a job that waits for its parents.

    names: the parents' names by id. start: the job waits for its start time afterwards.
    """
    said = [f"{say_name(d.parent, names.get(d.parent, ''))} {SAID[d.wants]}" for d in dependencies]
    shown = said if len(said) <= 3 else [*said[:2], f"{len(said) - 2} others to end"]
    then = ", and then for its start time" if start else ""
    return f"waits for {' and for '.join(shown)}{then}"


def say_broken(parent: str, wants: Wants, end: ParentEnd) -> str:
    """Return the sentence that tells of a job that can no longer start, because a parent ended otherwise."""
    how = "was cancelled" if end.state is JobState.CANCELLED else str(end.state)
    waited = f"this job waited for it {SAID[wants]}"
    return f"{say_name(parent, end.name)} {how}, and {waited}"


def say_name(job_id: str, name: str) -> str:
    """Return how a sentence names a job: by its id, and by the name that people gave it."""
    name = re.sub(r"[\x00-\x1f\x7f]+", " ", name)
    return f"job {job_id} ({name})" if name else f"job {job_id}"
