"""Arrays: one submission, many jobs that differ by an index or by parameters.

ARRAY-1  No more members of an array run, are queued, or wait for a retry at once than it allows. The
         others wait in line, outside of the queue, so that a long array hides no other job.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence

import msgspec

from holdfast.core.arrays.lines import (
    SURE,
    fill_line,
    fill_words,
    find_line,
    find_places,
    name_variable,
    quote_value,
)
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState
from holdfast.errors import ValidationError

MAX_MEMBERS = 100_000
MAX_INDEX = 2**31 - 1
IN_LINE = "array"
"""The reason kept on a member that waits for its turn (ARRAY-1) before its first attempt."""

Param = str | int | float | bool
_RANGE = re.compile(r"(\d{1,10})(?:-(\d{1,10})(?::(\d{1,10}))?)?")


class Member(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One job of an array. index: its number in the array; params: its values, in a sweep only."""

    index: int
    params: dict[str, Param] = {}


def parse_indices(text: str) -> tuple[tuple[int, ...], int | None]:
    """Read `0-999%50`, `1,3,5-9` or `0-100:10`: return the indices in order, and how many members
    may run at once (None: no limit).

    Raises:
        ValidationError: the text cannot be read; the message says why and how to write it.
    """
    words, percent, most = text.partition("%")
    at_once = None
    if percent:
        if not re.fullmatch(r"\d{1,7}", most) or int(most) < 1:
            raise _refuse(text, f"after % stands how many run at once, and {most!r} is no number")
        at_once = int(most)
    found: dict[int, None] = {}
    for word in words.split(","):
        match = _RANGE.fullmatch(word.strip())
        if match is None:
            raise _refuse(text, f"{word!r} is neither a number nor a range")
        first, last, step = int(match[1]), int(match[2] or match[1]), int(match[3] or 1)
        if last < first or step < 1 or last > MAX_INDEX:
            raise _refuse(text, f"{word!r} goes nowhere")
        if (last - first) // step + 1 + len(found) > MAX_MEMBERS:
            raise ValidationError(too_many(), field="array")
        before = len(found)
        found |= dict.fromkeys(range(first, last + 1, step))
        if len(found) - before != (last - first) // step + 1:
            raise _refuse(text, f"{word!r} names an index that stands there already")
    return tuple(sorted(found)), at_once


def _refuse(text: str, why: str) -> ValidationError:
    return ValidationError(
        f"--array {text[:80]!r}: {why}; write 0-999, 0-999%50 or 1,3,5-9", field="array"
    )


def too_many() -> str:
    """Return the sentence for an array that is too large."""
    return f"an array has at most {MAX_MEMBERS} jobs; submit several, one --after the other"


def say_indices(indices: Sequence[int]) -> str:
    """Write indices, in order, as short as they can be read: `0-9,12`."""
    words: list[str] = []
    start = 0
    for n in range(1, len(indices) + 1):
        if n == len(indices) or indices[n] != indices[n - 1] + 1:
            first, last = indices[start], indices[n - 1]
            words.append(str(first) if first == last else f"{first}-{last}")
            start = n
    return ",".join(words)


def make_member(spec: JobSpec, array_id: str, size: int, member: Member) -> JobSpec:
    """Return the spec of one member: a name with its index, its variables, and its parameters in the
    place of `{name}` in the command."""
    env = {
        "HOLDFAST_ARRAY_ID": array_id,
        "HOLDFAST_ARRAY_INDEX": str(member.index),
        "HOLDFAST_ARRAY_SIZE": str(size),
    }
    words = {name: say_param(value) for name, value in member.params.items()}
    env |= {name_variable(name): word for name, word in words.items()}
    return msgspec.structs.replace(
        spec,
        name=f"{spec.title[:110]}[{member.index}]",
        argv=fill_words(spec.argv, words),
        shell=None if spec.shell is None else fill_line(spec.shell, words),
        env={**spec.env, **env},
        after=(),
        idempotency_key=None,
    )


def check_values(spec: JobSpec, members: Sequence[Member]) -> None:
    """Raise ValidationError where a value of a parameter cannot be put into its command (WORD-1)."""
    at = find_line(spec.argv)
    line = spec.shell or ("" if at is None else spec.argv[at])
    places = [place for place in find_places(line) if place.quote not in SURE]
    for name in {place.name for place in places}:
        values = {say_param(m.params[name]) for m in members if name in m.params}
        for value in sorted(values):
            quote_value(next(place for place in places if place.name == name), value)


def say_param(value: Param) -> str:
    """Return a parameter as a program reads it: numbers as TOML writes them, true and false."""
    if isinstance(value, bool):
        return "true" if value else "false"
    return value if isinstance(value, str) else repr(value)


def find_state(counts: Mapping[str, int]) -> JobState:
    """Return the state of a whole array: the furthest state of its unfinished members, or, when all
    have ended, the worst of their ends. counts: members by state."""
    order = ("draining", "running", "reserved", "queued", "waiting", "failed", "cancelled")
    found = next((word for word in order if counts.get(word)), "succeeded")
    if found in ("draining", "reserved"):
        found = "running"
    return JobState(found)


def say_array(counts: Mapping[str, int], at_once: int | None, active: int, held: str) -> str:
    """Return the progress of an array as a sentence.

    counts: members by state. active: number of members that count against `at_once`. held: the
    reason why the whole array waits, empty where it does not.
    """
    size = sum(counts.values())
    done = sum(counts.get(word, 0) for word in ("succeeded", "failed", "cancelled"))
    if held:
        return held
    said = f"{done} of {size} have ended"
    if counts.get("failed"):
        said += f", {counts['failed']} of them failed"
    if at_once is not None and done < size:
        said += f"; it runs {active} of its {at_once} at once"
    return said
