"""What both clients do with checkpoints. Bytes are streamed: a checkpoint may be larger than
memory."""

from __future__ import annotations

import hashlib
import os
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import IO, Any, Protocol, TypeVar

from holdfast.client.calls import Call, Page, _nothing, _part, _query, _reader
from holdfast.client.http_library import httpx
from holdfast.client.locate import Place
from holdfast.client.transport import LOST, refuse, unreachable
from holdfast.core.records import CheckpointRecord
from holdfast.errors import HoldfastError

T = TypeVar("T")
PIECE_BYTES = 1 << 20
_RECORD = _reader(CheckpointRecord)


def list_checkpoints(job_id: str) -> Call[Page[CheckpointRecord]]:
    """What is kept."""
    return Call("GET", f"/v1/jobs/{_part(job_id)}/checkpoints", _reader(Page[CheckpointRecord]))


def delete_checkpoints(job_id: str, rank: int | None, number: int | None) -> Call[None]:
    """Not repeatable: the second would find nothing."""
    path = f"/v1/jobs/{_part(job_id)}/checkpoints"
    return Call("DELETE", path, _nothing, _query(rank=rank, number=number), repeatable=False)


def _place_of(job_id: str, **query: Any) -> dict[str, Any]:
    return {"url": f"/v1/jobs/{_part(job_id)}/checkpoint", "params": _query(**query)}


class Download:
    """Where a checkpoint's bytes go: a file beside the one wanted, put in its place when all of
    them are there."""

    def __init__(self, to: str | os.PathLike[str], expected: str | None) -> None:
        self.path = Path(to).absolute()
        self._part = self.path.with_name(f".{self.path.name}.{os.getpid()}.part")
        self._expected = expected
        self._hash = hashlib.sha256()
        self._file: IO[bytes] = open(self._part, "xb")  # noqa: SIM115 - closed by `end`

    def add(self, piece: bytes) -> None:
        """More bytes. Raises OSError."""
        self._file.write(piece)
        self._hash.update(piece)

    def end(self, *, whole: bool) -> None:
        """Put the file in its place, or away. Raises HoldfastError where the bytes are not those on
        record."""
        self._file.close()
        try:
            if whole and self._expected is not None and self._hash.hexdigest() != self._expected:
                raise HoldfastError(
                    "the bytes that came have another checksum than the checkpoint on record "
                    f"({self._expected})",
                    code="checksum_mismatch",
                )
            if whole:
                os.replace(self._part, self.path)
        finally:
            self._part.unlink(missing_ok=True)


@contextmanager
def _receiving(to: str | os.PathLike[str], answer: httpx.Response) -> Iterator[Download]:
    download = Download(to, answer.headers.get("holdfast-sha256"))
    whole = False
    try:
        yield download
        whole = True
    finally:
        download.end(whole=whole)


def _say_length(path: Path) -> dict[str, str]:
    return {"Content-Length": str(path.stat().st_size), "Content-Type": "application/octet-stream"}


def read_pieces(path: Path) -> Iterator[bytes]:
    """A file, a piece at a time. Raises OSError."""
    with path.open("rb") as file:
        while piece := file.read(PIECE_BYTES):
            yield piece


class _Sends(Protocol):
    place: Place
    _http: httpx.Client

    def call(self, call: Call[T]) -> T: ...

    def pages(self, call: Call[Page[T]]) -> Iterator[T]: ...


class _AsyncSends(Protocol):
    place: Place
    _http: httpx.AsyncClient

    async def call(self, call: Call[T]) -> T: ...

    def pages(self, call: Call[Page[T]]) -> AsyncIterator[T]: ...


class CheckpointMethods:
    """The blocking client's part."""

    def checkpoints(self: _Sends, job_id: str) -> list[CheckpointRecord]:
        """What is kept of what the job's tasks saved, by rank and number."""
        return list(self.pages(list_checkpoints(job_id)))

    def get_checkpoint(
        self: _Sends,
        job_id: str,
        to: str | os.PathLike[str],
        *,
        rank: int = 0,
        number: int | None = None,
    ) -> None:
        """Write a checkpoint into the file `to`, whole or not at all: the newest of the rank, or
        the one of that number.

        Raises:
            NotFound: there is none.
            OSError: the file cannot be written.
        """
        try:
            with self._http.stream("GET", **_place_of(job_id, rank=rank, number=number)) as answer:
                if answer.status_code >= 300:
                    raise refuse(self.place, answer.status_code, answer.read())
                with _receiving(to, answer) as download:
                    for piece in answer.iter_raw(PIECE_BYTES):
                        download.add(piece)
        except LOST as error:
            raise unreachable(self.place, error) from error

    def put_checkpoint(
        self: _Sends,
        job_id: str,
        path: str | os.PathLike[str],
        *,
        rank: int = 0,
        epoch: int | None = None,
        step: int | None = None,
    ) -> CheckpointRecord:
        """Leave the file at `path` for the next attempt of a rank. `epoch`: of the attempt that is
        on, where one is.

        Raises:
            Conflict: an attempt is on and `epoch` is another's, or was not given; or the job has
            succeeded.
            TooLarge: it is over the limit of the job's queue.
        """
        where, file = _place_of(job_id, rank=rank, epoch=epoch, step=step), Path(path)
        headers = _say_length(file)
        try:
            answer = self._http.put(**where, content=read_pieces(file), headers=headers)
        except LOST as error:
            raise unreachable(self.place, error) from error
        if answer.status_code >= 300:
            raise refuse(self.place, answer.status_code, answer.content)
        found: CheckpointRecord = _RECORD(answer.content)
        return found

    def delete_checkpoints(
        self: _Sends, job_id: str, *, rank: int | None = None, number: int | None = None
    ) -> None:
        """Forget those of a job, of one rank, or one. Raises NotFound where there is none."""
        self.call(delete_checkpoints(job_id, rank, number))


class AsyncCheckpointMethods:
    """The asynchronous client's part."""

    async def checkpoints(self: _AsyncSends, job_id: str) -> list[CheckpointRecord]:
        """What is kept of what the job's tasks saved, by rank and number."""
        return [found async for found in self.pages(list_checkpoints(job_id))]

    async def get_checkpoint(
        self: _AsyncSends,
        job_id: str,
        to: str | os.PathLike[str],
        *,
        rank: int = 0,
        number: int | None = None,
    ) -> None:
        """As the blocking client's."""
        try:
            async with self._http.stream(
                "GET", **_place_of(job_id, rank=rank, number=number)
            ) as answer:
                if answer.status_code >= 300:
                    raise refuse(self.place, answer.status_code, await answer.aread())
                with _receiving(to, answer) as download:
                    async for piece in answer.aiter_raw(PIECE_BYTES):
                        download.add(piece)
        except LOST as error:
            raise unreachable(self.place, error) from error

    async def put_checkpoint(
        self: _AsyncSends,
        job_id: str,
        path: str | os.PathLike[str],
        *,
        rank: int = 0,
        epoch: int | None = None,
        step: int | None = None,
    ) -> CheckpointRecord:
        """As the blocking client's."""
        where, file = _place_of(job_id, rank=rank, epoch=epoch, step=step), Path(path)
        headers = _say_length(file)

        async def pieces() -> AsyncIterator[bytes]:
            for piece in read_pieces(file):
                yield piece

        try:
            answer = await self._http.put(**where, content=pieces(), headers=headers)
        except LOST as error:
            raise unreachable(self.place, error) from error
        if answer.status_code >= 300:
            raise refuse(self.place, answer.status_code, answer.content)
        found: CheckpointRecord = _RECORD(answer.content)
        return found

    async def delete_checkpoints(
        self: _AsyncSends, job_id: str, *, rank: int | None = None, number: int | None = None
    ) -> None:
        """As the blocking client's."""
        await self.call(delete_checkpoints(job_id, rank, number))
