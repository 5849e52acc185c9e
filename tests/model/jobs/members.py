"""Supervised jobs in memory: their fallen members, and the places of replacements."""

from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from datetime import datetime

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.endings.replace import Replacement
from holdfast.core.ids import TaskKey
from holdfast.core.placement.plan import Candidate, JobPlacement
from holdfast.core.states import TaskState
from holdfast.moves.jobs import members
from holdfast.moves.jobs.room import RoomCheck
from holdfast.moves.rows import TaskRow
from holdfast.moves.values import DueMember
from holdfast.store.clock import Now
from tests.model.hosts import quarantine_host
from tests.model.jobs.candidates import candidate_of
from tests.model.state import InMemory


class MemoryMembers(InMemory):
    """`PostgresMembers` in the model."""

    def _tasks(self) -> Iterator[TaskRow]:
        for state in members.GOING_ON:
            for job_id in sorted(self.state.by_state[state]):
                yield from (task for _, task in sorted(self.state.tasks.get(job_id, {}).items()))

    async def list_members(self, limit: int, *, now: Now = None) -> list[DueMember]:
        s, at, found = self.state, self.state.at(now), []
        for task in sorted(
            self._tasks(), key=lambda t: (t.state is TaskState.RESERVED, t.job_id, t.rank)
        ):
            starting = task.state is TaskState.RESERVED and task.replaced > 0
            if task.state in members.FALLEN or starting:
                since = (task.reserved_at if starting else task.ended_at) or at
                found.append(
                    DueMember(
                        job=s.job_record(task.job_id),
                        task=s.task_record(task),
                        fallen=not starting,
                        seconds=max(0.0, (at - since).total_seconds()),
                    )
                )
        return found[:limit]

    def list_blocked(self, at: datetime, limit: int) -> list[Candidate]:
        """Return members that wait for another host and whose time has come, those of the most
        important jobs first, at most `limit` of each job."""
        s = self.state
        waiting = [
            t
            for t in self._tasks()
            if t.state is TaskState.BLOCKED and t.ready_at is not None and t.ready_at <= at
        ]
        waiting.sort(key=lambda t: (-s.jobs[t.job_id].priority, s.jobs[t.job_id].ord, t.rank))
        taken: Counter[str] = Counter()
        found = []
        for task in waiting:
            taken[task.job_id] += 1
            if taken[task.job_id] <= limit:
                found.append(self._candidate(task, at))
        return found

    def _candidate(self, task: TaskRow, at: datetime) -> Candidate:
        s, job = self.state, self.state.jobs[task.job_id]
        peers = sorted(
            {t.host_id for t in s.tasks[task.job_id].values() if t.state.holds_lease and t.host_id}
        )
        earlier = [
            r.host_id
            for r in s.replacements
            if (r.job_id, r.rank, r.attempt) == (task.job_id, task.rank, task.attempt)
        ]
        first = s.attempts[task.job_id][-1].host_ids[task.rank]
        avoided = members.list_avoided(job.row.avoid_hosts, first, sorted(set(earlier)), peers)
        return msgspec.structs.replace(
            candidate_of(job, at),
            member=task.rank,
            tasks=1,
            gpus=task.gpus,
            cpu_slots=task.cpu_slots,
            memory_bytes=task.memory_bytes,
            avoid_hosts=avoided,
            barred_hosts=job.row.barred_hosts,
            waited_seconds=max(0.0, (at - (task.ready_at or at)).total_seconds()),
        )

    async def replace_members(
        self, plans: Sequence[tuple[TaskKey, Replacement]], *, now: Now = None
    ) -> list[TaskKey]:
        s, at = self.state, self.state.at(now)
        m = s.load([key.job_id for key, _ in plans], at)
        done, suspects = members.replace_members(m, plans)
        s.commit(m)
        for host_id, reason in sorted(suspects.items()):
            quarantine_host(s, s.hosts[host_id], reason, at)
        return done

    async def stop_member(
        self, key: TaskKey, cause: Cause, reason: str, *, now: Now = None
    ) -> bool:
        m = self.state.load([key.job_id], self.state.at(now))
        job = m.jobs.get(key.job_id)
        task = None if job is None else m.tasks[job.id].get(key.rank)
        if (
            job is None
            or task is None
            or task.epoch != key.epoch
            or not members.may_stop(job, task)
        ):
            return False
        members.stop_member(m, job, task, cause, reason)
        self.state.commit(m)
        return True

    async def seat_members(
        self, placements: Sequence[JobPlacement], ttls: Mapping[str, float], *, now: Now = None
    ) -> list[str]:
        s = self.state
        ids = {t.host_id for p in placements for t in p.tasks}
        capacity = [s.capacity(h) for h in s.hosts.values() if h.id in ids and h.takes_work]
        room, names = RoomCheck(capacity), {host.host_id: host.name for host in capacity}
        m = s.load([p.job_id for p in placements], s.at(now))
        seated = []
        for placement in members.join_placements(placements):
            job = m.jobs.get(placement.job_id)
            if job is not None and members.may_seat(m, job, placement, room):
                members.seat_members(m, job, placement, ttls[job.id], names)
                seated.append(job.id)
        s.commit(m)
        return seated

    async def release_members(self, reservation_seconds: float, *, now: Now = None) -> list[str]:
        s, at = self.state, self.state.at(now)
        before = members.asked_before(at, reservation_seconds)
        m = s.load({task.job_id for task in self._tasks()}, at)
        released = [job.id for job in m.jobs.values() if members.release_unoffered(m, job, before)]
        s.commit(m)
        return released
