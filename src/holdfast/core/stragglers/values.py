"""A rank's pace as an agent tells it, and findings about a gang."""

from enum import StrEnum
from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.bounds import Count, Elapsed, Large

MAX_BLOCKS = 8
"""Blocks in one report; older ones are left out."""


class PaceBlock(msgspec.Struct, frozen=True, array_like=True, gc=False, omit_defaults=True):
    """A few neighbouring steps of one rank, as medians.

    last_step, steps: the last step, and how many there are. seconds: the time of a step.
    age_seconds: the time since the beat of the last step. own_seconds: the time of a step without
    the time that the rank waited for others, where the job tells that. cpu_seconds: the time in
    which its first process used a processor, or was ready to, a step.
    """

    last_step: Large
    steps: Count
    seconds: Elapsed
    age_seconds: Elapsed = 0.0
    own_seconds: Elapsed | None = None
    cpu_seconds: Elapsed | None = None


PaceText = Annotated[str, Meta(max_length=2048)]
"""The blocks of a rank's report as JSON in a text, which a sync only copies: they are read where
they are judged, beside the sync, because those of fast jobs took 3 % of it."""
_PACE = msgspec.json.Decoder(Annotated[list[PaceBlock], Meta(max_length=MAX_BLOCKS)])


def write_pace(blocks: list[PaceBlock]) -> str:
    """Return a rank's blocks as a text; "" for none."""
    return msgspec.json.encode(blocks).decode() if blocks else ""


def read_pace(text: str) -> list[PaceBlock]:
    """Return the blocks of a text. Raises one of `UNREADABLE`."""
    return _PACE.decode(text) if text else []


class PaceMeasure(StrEnum):
    """The measures by which ranks are compared, in the order of how much they prove."""

    OWN = "own"  # the step without the wait that the job measured
    STEP = "step"  # the whole step: tells where ranks do not wait for each other
    CPU = "cpu"  # processor time of a step
    ARRIVAL = "arrival"  # how long after the others the rank's beat came


class SlowRank(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that is slow by itself. ratio: its time by its time of a step that is not spent waiting, over that
    of the others. since_step: the step from which on it was seen slow. seconds: what the measure says
    of a step of its own; others_seconds: of the others. step_seconds: the whole step."""

    rank: int
    measure: PaceMeasure
    ratio: float
    since_step: int
    at_step: int
    seconds: float
    others_seconds: float
    step_seconds: float


class Steady(msgspec.Struct, frozen=True, kw_only=True):
    """A rank that was slow and keeps up again."""

    rank: int
    at_step: int


class GangSlowed(msgspec.Struct, frozen=True, kw_only=True):
    """The whole gang became slower, and no rank stands out."""

    ratio: float
    since_step: int
    at_step: int
    before_seconds: float
    step_seconds: float


Finding = SlowRank | Steady | GangSlowed
