"""Outputs: what the attempts of a job left."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from typing import TYPE_CHECKING

from holdfast.client.late import LateModule, on_outputs
from holdfast.client.rest import RestCall, ask
from holdfast.client.scripts import Script, Sleep, gives_one, runs, take_answer
from holdfast.core.data.outputs import OutputFile, OutputsRecord

if TYPE_CHECKING:
    from holdfast.client.data import outputs as fetching
else:
    fetching = LateModule("holdfast.client.data.outputs")

_PAUSES_SECONDS = (0.05, 2.0)


class OutputMethods:
    """The client's methods about outputs."""

    @gives_one
    def outputs(
        self, job_id: str, *, attempt: int | None = None, rank: int | None = None
    ) -> RestCall[list[OutputsRecord]]:
        """Return the outputs of the job's attempts, by attempt and rank."""
        return ask(on_outputs.LIST_OUTPUTS, job_id, attempt=attempt, rank=rank)

    @gives_one
    def output_files(self, job_id: str, attempt: int, rank: int = 0) -> RestCall[list[OutputFile]]:
        """Return the files that one rank of an attempt left, with sizes and digests."""

        return ask(on_outputs.LIST_OUTPUT_FILES, job_id, str(attempt), str(rank))

    @runs
    def wait_outputs(
        self, job_id: str, *, attempt: int | None = None, timeout_seconds: float | None = None
    ) -> Script[list[OutputsRecord]]:
        """Wait until the outputs of an attempt, by default of the last, are no longer collected;
        return them. Raises TimeoutError."""
        return (yield from wait_for_outputs(job_id, attempt, timeout_seconds))

    @runs
    def get_outputs(
        self,
        job_id: str,
        to: str | os.PathLike[str],
        *,
        attempt: int | None = None,
        rank: int = 0,
        names: Sequence[str] = (),
        strip: bool = False,
    ) -> Script[fetching.Fetched]:
        """Write the outputs of one rank below the folder `to`, those of the last attempt that kept
        some by default. names: only these. strip: without the folders in front of the names, as `cp`.

        Raises:
            NotFound: nothing is kept.
            OSError: a file cannot be written.
        """
        if attempt is None:
            found = yield from take_answer(_list_of(job_id, None, rank))
            kept = [record.attempt for record in found if record.digest]
            attempt = max(kept or [record.attempt for record in found], default=1)
        return (yield from fetching.fetch_outputs(job_id, to, attempt, rank, names, strip=strip))


def _list_of(job_id: str, attempt: int | None, rank: int | None) -> RestCall[list[OutputsRecord]]:

    return ask(on_outputs.LIST_OUTPUTS, job_id, attempt=attempt, rank=rank)


def wait_for_outputs(
    job_id: str, attempt: int | None, timeout_seconds: float | None
) -> Script[list[OutputsRecord]]:
    """Ask for the outputs of an attempt, ever more rarely, until they are settled; return them.
    Raises TimeoutError."""
    until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    pause, longest = _PAUSES_SECONDS
    while True:
        found = yield from take_answer(_list_of(job_id, attempt, None))
        last = max((record.attempt for record in found), default=0)
        mine = [record for record in found if record.attempt == last]
        if all(record.state.settled for record in mine):
            return mine
        left = pause if until is None else until - time.monotonic()
        if left <= 0:
            raise TimeoutError(
                f"the outputs of job {job_id} are still collected after {timeout_seconds:g} s"
            )
        yield Sleep(min(pause, left))
        pause = min(pause * 1.5, longest)
