"""Schedules of jobs."""

from datetime import datetime
from typing import Protocol

from holdfast.core.arrays.records import ScheduleRecord, ScheduleRunRecord
from holdfast.moves.values import DueSchedule, NewSchedule, ScheduledRuns
from holdfast.store.port.clock import Now


class ScheduleStore(Protocol):
    """Schedules and their runs."""

    async def put_schedule(self, schedule: NewSchedule, *, now: Now = None) -> ScheduleRecord:
        """Make a schedule, or change the one of that name, which keeps its id and its runs. Its
        next time and its anchor change only where its timing does."""

    async def get_schedule(self, name: str) -> ScheduleRecord:
        """Return a schedule. Raises NotFound."""

    async def read_secrets(self, name: str) -> dict[str, str]:
        """Return the secrets of a schedule's job. Raises NotFound."""

    async def list_schedules(self) -> list[ScheduleRecord]:
        """Return all schedules by name."""

    async def delete_schedule(self, name: str, *, now: Now = None) -> None:
        """Forget a schedule and its runs; their jobs stay. Raises NotFound."""

    async def pause_schedule(self, name: str, reason: str, *, now: Now = None) -> ScheduleRecord:
        """Pause a schedule, so that it makes no runs until it is resumed. Raises NotFound."""

    async def resume_schedule(
        self, name: str, next_at: datetime, *, now: Now = None
    ) -> ScheduleRecord:
        """Resume a schedule, from `next_at` on; the times of the pause are not caught up. Raises
        NotFound."""

    async def list_due(self, limit: int = 100, *, now: Now = None) -> list[DueSchedule]:
        """Return schedules whose time has come, the longest due first."""

    async def write_runs(self, runs: ScheduledRuns, *, now: Now = None) -> bool:
        """Write runs, submit their jobs, and set the next time, in one transaction (TIME-1).

        Returns False, and changes nothing, where the schedule is gone or paused, or has another
        next time than was expected.

        Raises:
            ValidationError, QuotaExceeded, Conflict: as `submit_jobs`; nothing is written.
        """

    async def list_runs(self, name: str, *, limit: int = 100) -> list[ScheduleRunRecord]:
        """Return a schedule's runs, newest first. Raises NotFound."""

    async def prune_runs(self, history_days: float, *, now: Now = None) -> int:
        """Delete runs that are older than that; return how many."""
