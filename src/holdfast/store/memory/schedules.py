"""Schedules in memory."""

from datetime import datetime, timedelta
from typing import Any

import msgspec

from holdfast.core.arrays.records import ScheduleRecord, ScheduleRunRecord
from holdfast.moves.jobs import requests
from holdfast.moves.schedules import hide_secrets, no_schedule, run_event, schedule_event
from holdfast.moves.values import DueSchedule, NewSchedule, ScheduledRuns
from holdfast.store.memory.jobs.jobs import MemoryJobs
from holdfast.store.memory.state import InMemory, MemorySchedule, MemoryState
from holdfast.store.port.clock import Now


class MemorySchedules(InMemory):
    """`ScheduleStore` in memory."""

    def __init__(self, state: MemoryState, jobs: MemoryJobs) -> None:
        super().__init__(state)
        self._jobs = jobs

    def _find(self, name: str) -> MemorySchedule:
        found = self.state.schedules.get(name)
        if found is None:
            raise no_schedule(name)
        return found

    def _record(self, schedule: MemorySchedule) -> ScheduleRecord:
        record = schedule.record
        job = self.state.jobs.get(record.last_job_id or "")
        return msgspec.structs.replace(record, last_state=job.row.state if job else None)

    def _change(self, name: str, **fields: Any) -> ScheduleRecord:
        schedule = self._find(name)
        schedule.record = msgspec.structs.replace(schedule.record, **fields)
        return self._record(schedule)

    def _tell(self, what: str, record: ScheduleRecord, at: datetime, reason: str = "") -> None:
        text = f"schedule {record.name} was {what}" + (f": {reason}" if reason else "")
        event = schedule_event(what, record.name, record.project, record.queue, text)
        self.state.log([event], at)

    async def put_schedule(self, schedule: NewSchedule, *, now: Now = None) -> ScheduleRecord:
        s, at, spec = self.state, self.state.at(now), schedule.spec
        if schedule.queue not in s.queues:
            raise requests.refuse_queue(schedule.queue)
        before = s.schedules.get(schedule.name)
        fields: dict[str, Any] = {
            "spec": hide_secrets(spec), "project": spec.job.project, "queue": schedule.queue,
            "owner": (before and before.record.owner) or schedule.owner,
        }  # fmt: skip
        if before is None or before.record.spec.timing != spec.timing:
            fields |= {"anchor": at, "next_at": schedule.next_at}
        if before is None:
            record = ScheduleRecord(id=schedule.id, name=schedule.name, created_at=at, **fields)
            s.schedules[schedule.name] = MemorySchedule(record=record)
        else:
            self._change(schedule.name, **fields)
        s.schedules[schedule.name].secrets = dict(spec.job.secrets)
        made = self._record(s.schedules[schedule.name])
        self._tell("created" if before is None else "changed", made, at)
        return made

    async def get_schedule(self, name: str) -> ScheduleRecord:
        return self._record(self._find(name))

    async def read_secrets(self, name: str) -> dict[str, str]:
        return self._find(name).secrets

    async def list_schedules(self) -> list[ScheduleRecord]:
        return [self._record(s) for _, s in sorted(self.state.schedules.items())]

    async def delete_schedule(self, name: str, *, now: Now = None) -> None:
        record = self._find(name).record
        del self.state.schedules[name]
        self._tell("deleted", record, self.state.at(now))

    async def pause_schedule(self, name: str, reason: str, *, now: Now = None) -> ScheduleRecord:
        at, before = self.state.at(now), self._find(name).record
        if before.paused_at is None:
            self._tell("paused", before, at, reason)
        return self._change(name, paused_at=before.paused_at or at, paused_reason=reason)

    async def resume_schedule(
        self, name: str, next_at: datetime, *, now: Now = None
    ) -> ScheduleRecord:
        before = self._find(name).record
        if before.paused_at is None:
            return await self.get_schedule(name)
        self._tell("resumed", before, self.state.at(now))
        return self._change(name, paused_at=None, paused_reason="", next_at=next_at)

    async def list_due(self, limit: int = 100, *, now: Now = None) -> list[DueSchedule]:
        at = self.state.at(now)
        due = [
            s
            for s in self.state.schedules.values()
            if s.record.paused_at is None and s.record.next_at <= at
        ]
        due.sort(key=lambda s: s.record.next_at)
        return [DueSchedule(schedule=self._record(s), secrets=s.secrets) for s in due[:limit]]

    async def write_runs(self, runs: ScheduledRuns, *, now: Now = None) -> bool:
        s, at = self.state, self.state.at(now)
        found = [x for x in s.schedules.values() if x.record.id == runs.schedule_id]
        if not found:
            return False
        (schedule,) = found
        record = schedule.record
        if runs.expected is not None and (record.paused_at or record.next_at != runs.expected):
            return False
        jobs = [run.job for run in runs.runs if run.job is not None]
        for job in jobs:  # one by one, because each may wait for the one before
            await self._jobs.submit_jobs([job], now=at)
        if runs.cancel is not None and runs.cancel in s.jobs:
            text = f"schedule {record.name} starts its next run"
            await self._jobs.cancel_job(runs.cancel, text, now=at)
        row = {"name": record.name, "project": record.project, "queue": record.queue}
        for run in runs.runs:
            schedule.runs[run.due_at] = ScheduleRunRecord(
                due_at=run.due_at,
                at=at,
                outcome=run.outcome,
                reason=run.reason,
                job_id=run.job.id if run.job else None,
            )
        s.log([run_event(row, run) for run in runs.runs], at)
        fields: dict[str, Any] = {"next_at": runs.next_at or record.next_at}
        if runs.runs:
            last = runs.runs[-1]
            fields |= {"last_at": at, "last_outcome": last.outcome, "last_reason": last.reason}
        if jobs:
            fields["last_job_id"] = jobs[-1].id
        self._change(record.name, **fields)
        return True

    async def list_runs(self, name: str, *, limit: int = 100) -> list[ScheduleRunRecord]:
        runs = self._find(name).runs
        return [runs[due_at] for due_at in sorted(runs, reverse=True)][:limit]

    async def prune_runs(self, history_days: float, *, now: Now = None) -> int:
        before = self.state.at(now) - timedelta(days=history_days)
        count = 0
        for schedule in self.state.schedules.values():
            kept = {due: run for due, run in schedule.runs.items() if run.at >= before}
            count += len(schedule.runs) - len(kept)
            schedule.runs = kept
        return count
