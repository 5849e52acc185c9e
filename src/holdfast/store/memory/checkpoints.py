"""Checkpoints of the memory store: the rows."""

from collections.abc import Callable, Collection, Sequence
from datetime import datetime

from holdfast.core.ids import TaskKey
from holdfast.core.records import CheckpointRecord
from holdfast.core.states import JobState
from holdfast.moves import checkpoints
from holdfast.moves.checkpoints import CheckpointAdded, NewCheckpoint
from holdfast.moves.jobs.requests import no_job
from holdfast.moves.rows import clamp_count, clean_text
from holdfast.store.memory.state import InMemory, MemoryCheckpoint
from holdfast.store.port.clock import Now


class MemoryCheckpoints(InMemory):
    """`CheckpointStore` in memory."""

    async def check_checkpoint(self, host_id: str, incarnation: str, key: TaskKey) -> int:
        task = self.state.task_for(key)
        job = self.state.jobs.get(key.job_id)
        if (
            task is None
            or job is None
            or job.row.state not in checkpoints.LIVE
            or (task.host_id, task.incarnation) != (host_id, incarnation)
            or task.offered_at is None
        ):
            raise checkpoints.refuse_task(key, host_id)
        return task.attempt

    async def add_checkpoint(
        self,
        host_id: str,
        incarnation: str,
        key: TaskKey,
        new: NewCheckpoint,
        keep: int,
        *,
        now: Now = None,
    ) -> CheckpointAdded:
        return self._add(
            key, await self.check_checkpoint(host_id, incarnation, key), new, keep, now
        )

    async def put_checkpoint(
        self,
        job_id: str,
        rank: int,
        epoch: int | None,
        new: NewCheckpoint,
        keep: int,
        *,
        now: Now = None,
    ) -> CheckpointAdded:
        if job_id not in self.state.jobs:
            raise no_job(job_id)
        row = self.state.jobs[job_id].row
        task = self.state.tasks.get(job_id, {}).get(rank)
        present = row.epoch if task is None else task.epoch  # a supervised job's member has its own
        checkpoints.check_by_hand(
            job_id,
            rank,
            epoch,
            state=row.state,
            now=present,
            attempts=row.attempts,
            tasks=row.tasks,
        )
        return self._add(TaskKey(job_id, rank, present), row.attempts, new, keep, now)

    def _add(
        self, key: TaskKey, attempt: int, new: NewCheckpoint, keep: int, now: datetime | None
    ) -> CheckpointAdded:
        kept = self.state.checkpoints.setdefault((key.job_id, key.rank), [])
        newest = kept[-1].record if kept else None
        if newest is not None and checkpoints.is_repeat(newest, key.epoch, new):
            return CheckpointAdded(record=newest, dropped=(new.blob,))
        record = CheckpointRecord(
            job_id=key.job_id,
            rank=key.rank,
            number=1 if newest is None else newest.number + 1,
            epoch=key.epoch,
            attempt=attempt,
            step=clamp_count(new.step),
            size=new.size,
            sha256=new.sha256.hex(),
            created_at=self.state.at(now),
        )
        kept.append(MemoryCheckpoint(record, new.blob))
        dropped = tuple(old.blob for old in kept[:-keep])
        del kept[:-keep]
        return CheckpointAdded(record=record, dropped=dropped)

    async def list_checkpoints(self, job_id: str) -> list[CheckpointRecord]:
        return [
            one.record
            for place, kept in sorted(self.state.checkpoints.items())
            if place[0] == job_id
            for one in kept
        ]

    async def find_checkpoint(
        self, job_id: str, rank: int, *, number: int | None = None, epoch: int | None = None
    ) -> tuple[CheckpointRecord, str]:
        for one in reversed(self.state.checkpoints.get((job_id, rank), [])):
            if number in (None, one.record.number) and epoch in (None, one.record.epoch):
                return one.record, one.blob
        raise checkpoints.no_checkpoint(job_id, rank, number, epoch)

    async def find_newest_checkpoints(
        self, ranks: Collection[tuple[str, int]]
    ) -> dict[tuple[str, int], CheckpointRecord]:
        return {
            place: self.state.checkpoints[place][-1].record
            for place in ranks
            if self.state.checkpoints.get(place)
        }

    async def skip_checkpoint(
        self,
        host_id: str,
        incarnation: str,
        key: TaskKey,
        number: int,
        reason: str,
        *,
        now: Now = None,
    ) -> CheckpointRecord:
        attempt = await self.check_checkpoint(host_id, incarnation, key)
        kept = [one.record for one in self.state.checkpoints.get((key.job_id, key.rank), [])]
        older = next((record for record in reversed(kept) if record.number < number), None)
        if older is None:
            raise checkpoints.no_older(key.job_id, key.rank, number)
        job = self.state.jobs[key.job_id].row
        event = checkpoints.skipped_event(
            host_id, key, attempt, job.queue, job.project, number, older, clean_text(reason)
        )
        told = [
            (e.job_id, e.epoch, e.rank, e.data.get("number"))
            for e in self.state.events
            if e.kind == checkpoints.SKIPPED
        ]
        if (key.job_id, key.epoch, key.rank, number) not in told:
            self.state.log([event], self.state.at(now))
        return older

    async def delete_checkpoints(
        self, job_id: str, *, rank: int | None = None, number: int | None = None
    ) -> tuple[str, ...]:
        return self._drop(
            lambda one: (
                one.record.job_id == job_id
                and rank in (None, one.record.rank)
                and number in (None, one.record.number)
            )
        )

    async def find_unneeded_blobs(self, *, limit: int = 1000) -> tuple[str, ...]:
        jobs, found = self.state.jobs, []
        for (job_id, _), kept in self.state.checkpoints.items():
            if job_id not in jobs or jobs[job_id].row.state is JobState.SUCCEEDED:
                found += [one.blob for one in kept]
        return tuple(found[:limit])

    async def forget_blobs(self, names: Sequence[str]) -> None:
        unneeded = set(names)
        self._drop(lambda one: one.blob in unneeded)

    def _drop(self, unwanted: Callable[[MemoryCheckpoint], bool]) -> tuple[str, ...]:
        dropped: list[str] = []
        for place, kept in list(self.state.checkpoints.items()):
            dropped += [one.blob for one in kept if unwanted(one)]
            self.state.checkpoints[place] = [one for one in kept if not unwanted(one)]
            if not self.state.checkpoints[place]:
                del self.state.checkpoints[place]
        return tuple(dropped)

    async def find_inputs(self, hashes: Sequence[str]) -> set[str]:
        state = self.state
        specs = [job.spec for job in state.jobs.values()]
        specs += [array.spec for array in state.arrays.values()]
        specs += [schedule.record.spec.job for schedule in state.schedules.values()]
        return {spec.stdin for spec in specs if spec.stdin is not None} & set(hashes)

    async def find_known_blobs(self, names: Sequence[str]) -> set[str]:
        named = {one.blob for kept in self.state.checkpoints.values() for one in kept}
        return {
            name for name in names if name in named or name.partition("/")[0] not in self.state.jobs
        }
