"""The outputs of attempts: what a job asks for, and what is kept. Pure.

OUT-1  A job is `succeeded` when its process ended. Its outputs have a state of their own, for each
       rank of each attempt, and neither waits for the other: devices are free, and the next attempt
       starts, while outputs are collected.
OUT-2  Outputs are complete when everything below the asked names is kept, partial when something
       was left out (each with why) or the host was lost after it had sent a part, and lost when
       nothing came.
"""

from collections.abc import Sequence
from datetime import datetime

import msgspec

from holdfast.core.states import OutputsState
from holdfast.errors import ValidationError

MAX_OUTPUTS = 64
MAX_FILES = 100_000
MAX_LEFT = 1000
ROUND_SECONDS = 60.0


class LeftOut(msgspec.Struct, frozen=True, array_like=True):
    """A name that is not among the kept outputs, and why."""

    path: str
    why: str


class OutputsRecord(msgspec.Struct, frozen=True, kw_only=True):
    """The outputs of one rank of an attempt.

    digest: the bundle with their bytes; "" where nothing is kept, also after they expired. files,
    bytes: the number and size of the kept files. left_out: names that are not kept, with the
    reasons; left_more: the number of further such names. reason: why the outputs are not complete.
    updated_at: the time of the last report on them; None where no report came.
    """

    job_id: str
    attempt: int
    rank: int
    state: OutputsState
    host: str = ""
    digest: str = ""
    files: int = 0
    bytes: int = 0
    left_out: list[LeftOut] = []
    left_more: int = 0
    reason: str = ""
    updated_at: datetime | None = None
    expired_at: datetime | None = None


class OutputFile(msgspec.Struct, frozen=True, kw_only=True):
    """One file, folder or link of kept outputs. sha256: of a file of up to 16 MiB; a larger one has
    the SHA-256 of each piece of 8 MiB in `pieces`."""

    path: str
    kind: str
    bits: int
    size: int = 0
    sha256: str = ""
    pieces: list[str] = []
    target: str = ""


def check_outputs(words: Sequence[str]) -> None:
    """Check the names that a job keeps. Raises ValidationError."""
    for word in words:
        parts = word.split("/")
        if word.startswith("/") or ".." in parts or "\0" in word or not word.strip("./"):
            raise ValidationError(
                f"outputs {word!r} is no name below the job's folder; write a file or folder as out/, "
                "without a leading / and without `..`",
                field="outputs",
            )


def settle_state(*, left: bool, reason: str) -> OutputsState:
    """Return the state of outputs whose collection has ended (OUT-2)."""
    return OutputsState.PARTIAL if left or reason else OutputsState.COMPLETE
