"""Logs and forensics of tasks."""

from collections.abc import Sequence
from typing import Protocol

from holdfast.core.records import LogChunk, LogStreamRecord
from holdfast.moves.values import LogAppend
from holdfast.store.port.clock import Now
from holdfast.wire.agent import Forensics


class LogStore(Protocol):
    """What tasks wrote, and what was found of them before a kill."""

    async def append_logs(self, host_id: str, appends: Sequence[LogAppend]) -> list[int | None]:
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

    async def put_forensics(self, host_id: str, forensics: Forensics, *, now: Now = None) -> None:
        """Write forensics. Raises Stale when no attempt of that job and epoch ran on this host."""

    async def get_forensics(
        self, job_id: str, attempt: int | None = None
    ) -> list[tuple[int, Forensics]]:
        """Return (attempt number, forensics), oldest first."""
