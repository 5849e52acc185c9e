"""Logs and forensics of tasks."""

from collections.abc import Sequence
from typing import Protocol

from holdfast.core.logs.plan import LogLife
from holdfast.core.records import LogChunk, LogStreamRecord
from holdfast.moves.values import LogAppend
from holdfast.store.port.clock import Now
from holdfast.wire.agent import Forensics, LogReadAnswer, LogReadOrder

LOG_READ_SECONDS = 120.0


class LogStore(Protocol):
    """The output of tasks, and the evidence gathered before a kill."""

    async def append_logs(
        self, host_id: str, appends: Sequence[LogAppend], *, now: Now = None
    ) -> list[int | None]:
        """Write bytes of streams of tasks that this host ran, in their order and in one
        transaction. `keep_bytes` of each stream are kept: 1/8 at its head, the rest at its tail. A
        repeat of bytes at an offset changes nothing. Return each stream's size afterwards, None
        where no attempt of that job and epoch ran on this host."""

    async def list_log_streams(
        self, job_id: str, attempt: int | None = None
    ) -> list[LogStreamRecord]:
        """Return the streams of a job, or of one attempt."""

    async def read_log(
        self,
        job_id: str,
        attempt: int,
        rank: int,
        stream: str,
        offset: int,
        *,
        limit_bytes: int = 1 << 20,
    ) -> list[LogChunk]:
        """Return bytes from `offset` on, trimmed to start there; a jump in offsets is a gap."""

    async def list_log_lives(
        self, job_id: str, attempt: int, rank: int, stream: str
    ) -> list[LogLife]:
        """Return the processes that wrote a stream, oldest first: the rank's first, and each
        replacement, with their hosts."""

    async def ask_log_read(self, host_id: str, order: LogReadOrder, *, now: Now = None) -> None:
        """Write a reader's request for bytes from a host; drop requests that are older than
        `LOG_READ_SECONDS`."""

    async def list_log_reads(self, host_id: str) -> list[LogReadOrder]:
        """Return the requests that this host has not answered, oldest first; few at a time."""

    async def answer_log_reads(self, host_id: str, answers: Sequence[LogReadAnswer]) -> None:
        """Write a host's answers for their readers; drop those that no reader waits for."""

    async def take_log_read(self, read_id: str, *, give_up: bool = False) -> LogReadAnswer | None:
        """Return the answer to a request and delete both; None while there is no answer. give_up:
        delete the request even without an answer."""

    async def put_forensics(self, host_id: str, forensics: Forensics) -> None:
        """Write forensics. Raises Stale when no attempt of that job and epoch ran on this host."""

    async def get_forensics(
        self, job_id: str, attempt: int | None = None
    ) -> list[tuple[int, Forensics]]:
        """Return (attempt number, forensics), oldest first."""
