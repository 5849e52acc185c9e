"""Checkpoints: list, fetch, leave and forget them."""

from __future__ import annotations

import os
from collections.abc import AsyncIterator
from pathlib import Path

from holdfast.client.asynchronous.connection import AsyncRestConnection
from holdfast.client.calls import delete, get_pages, path_of, query_of, read_as
from holdfast.client.download import PIECE_BYTES, describe_file, read_pieces, receive
from holdfast.client.transport import LOST, refuse, unreachable
from holdfast.core.records import CheckpointRecord


class AsyncCheckpointMethods(AsyncRestConnection):
    """The client's methods about checkpoints. Their bytes are streamed."""

    async def checkpoints(self, job_id: str) -> list[CheckpointRecord]:
        """Return the checkpoints that are kept of the job's tasks, by rank and number."""
        return await self._list(get_pages(path_of("jobs", job_id, "checkpoints"), CheckpointRecord))

    async def get_checkpoint(
        self, job_id: str, to: str | os.PathLike[str], *, rank: int = 0, number: int | None = None
    ) -> None:
        """Write the rank's newest checkpoint, or the one of that number, into the file `to`.

        The file is written whole or not at all.

        Raises:
            NotFound: there is none.
            OSError: the file cannot be written.
        """
        path, query = path_of("jobs", job_id, "checkpoint"), query_of(rank=rank, number=number)
        try:
            async with self._http.stream("GET", path, params=query) as answer:
                if answer.status_code >= 300:
                    raise refuse(self.place, answer.status_code, await answer.aread())
                with receive(to, answer.headers) as download:
                    async for piece in answer.aiter_raw(PIECE_BYTES):
                        download.add(piece)
        except LOST as error:
            raise unreachable(self.place, error) from error

    async def put_checkpoint(
        self,
        job_id: str,
        path: str | os.PathLike[str],
        *,
        rank: int = 0,
        epoch: int | None = None,
        step: int | None = None,
    ) -> CheckpointRecord:
        """Leave the file at `path` for the next attempt of a rank.

        `epoch` is that of the running attempt, if there is one.

        Raises:
            Conflict: an attempt is running and `epoch` is another's, or was not given; or the job
                has succeeded.
            TooLarge: it is over the limit of the job's queue.
        """
        file, query = Path(path), query_of(rank=rank, epoch=epoch, step=step)
        url, headers = path_of("jobs", job_id, "checkpoint"), describe_file(file)

        async def pieces() -> AsyncIterator[bytes]:
            for piece in read_pieces(file):
                yield piece

        try:
            answer = await self._http.put(url, params=query, content=pieces(), headers=headers)
        except LOST as error:
            raise unreachable(self.place, error) from error
        if answer.status_code >= 300:
            raise refuse(self.place, answer.status_code, answer.content)
        return read_as(CheckpointRecord)(answer.content)

    async def delete_checkpoints(
        self, job_id: str, *, rank: int | None = None, number: int | None = None
    ) -> None:
        """Forget a job's checkpoints, those of one rank, or one. Raises NotFound for none."""
        await self.call(delete(path_of("jobs", job_id, "checkpoints"), rank=rank, number=number))
