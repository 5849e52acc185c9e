"""Checkpoints: list, fetch, leave and forget them."""

import os
from pathlib import Path

from holdfast.client.late import on_jobs
from holdfast.client.rest import PageCall, RestCall, ask, path_to, query_of, read_as
from holdfast.client.scripts import FetchFile, Script, SendFile, gives_list, gives_one, runs
from holdfast.core.records import CheckpointRecord


class CheckpointMethods:
    """The client's methods about checkpoints. Their bytes are streamed."""

    @gives_list
    def checkpoints(self, job_id: str) -> PageCall[CheckpointRecord]:
        """Return the checkpoints that are kept of the job's tasks, by rank and number."""
        return ask(on_jobs.LIST_CHECKPOINTS, job_id)

    @runs
    def get_checkpoint(
        self, job_id: str, to: str | os.PathLike[str], *, rank: int = 0, number: int | None = None
    ) -> Script[None]:
        """Write the rank's newest checkpoint, or the one with that number, into the file `to`.

        The file is written whole or not at all.

        Raises:
            NotFound: there is no such checkpoint.
            OSError: the file cannot be written.
        """
        path = path_to(on_jobs.PUT_CHECKPOINT, job_id)
        yield FetchFile(path, query_of(rank=rank, number=number), to)

    @runs
    def put_checkpoint(
        self,
        job_id: str,
        path: str | os.PathLike[str],
        *,
        rank: int = 0,
        epoch: int | None = None,
        step: int | None = None,
    ) -> Script[CheckpointRecord]:
        """Leave the file at `path` as a checkpoint for the next attempt of a rank.

        epoch: the epoch of the running attempt, if there is one.

        Raises:
            Conflict: an attempt is running and `epoch` is another's, or was not given; or the job
            has succeeded.
            TooLarge: the file is over the limit of the job's queue.
        """
        query = query_of(rank=rank, epoch=epoch, step=step)
        answer = yield SendFile(path_to(on_jobs.PUT_CHECKPOINT, job_id), query, Path(path))
        return read_as(CheckpointRecord)(answer)

    @gives_one
    def delete_checkpoints(
        self, job_id: str, *, rank: int | None = None, number: int | None = None
    ) -> RestCall[None]:
        """Forget a job's checkpoints, those of one rank, or one. Raises NotFound where there is
        none."""
        return ask(on_jobs.DELETE_CHECKPOINTS, job_id, rank=rank, number=number)
