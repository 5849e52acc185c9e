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
    """What tasks wrote, and what was found of them before a kill."""

    async def append_logs(
        self, host_id: str, appends: Sequence[LogAppend], *, now: Now = None
    ) -> list[int | None]:
        """Store bytes of streams of tasks this host ran, in their order and in one transaction; of
        each stream the head (1/8) and the tail of `keep_bytes` are kept. Idempotent by offset.
        Returns each stream's size after it, None where no attempt of that job and epoch ran on this
        host."""

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
        """Return which hosts wrote a stream, oldest first: the rank's first, and each replacement."""

    async def ask_log_read(self, host_id: str, order: LogReadOrder, *, now: Now = None) -> None:
        """Write down that a reader waits for bytes from a host; reads that were left unfinished
        for `LOG_READ_SECONDS` go."""

    async def list_log_reads(self, host_id: str) -> list[LogReadOrder]:
        """Return the reads that this host has not answered, oldest first; few at a time."""

    async def answer_log_reads(self, host_id: str, answers: Sequence[LogReadAnswer]) -> None:
        """Keep a host's answers for their readers; one that no reader waits for is dropped."""

    async def take_log_read(self, read_id: str, *, give_up: bool = False) -> LogReadAnswer | None:
        """Return the answer and forget the read; None while there is none. give_up: forget it
        without an answer, too."""

    async def put_forensics(self, host_id: str, forensics: Forensics, *, now: Now = None) -> None:
        """Write forensics. Raises Stale when no attempt of that job and epoch ran on this host."""

    async def get_forensics(
        self, job_id: str, attempt: int | None = None
    ) -> list[tuple[int, Forensics]]:
        """Return (attempt number, forensics), oldest first."""
