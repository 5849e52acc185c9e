"""Arrays in memory."""

from collections.abc import Collection, Mapping

from holdfast.core.arrays.arrays import IN_LINE, find_state, make_member, say_array, say_indices
from holdfast.core.arrays.records import ArrayRecord
from holdfast.core.causes import Cause
from holdfast.core.settings.resolve import Value
from holdfast.core.states import JobState
from holdfast.moves import arrays
from holdfast.moves.jobs import requests
from holdfast.moves.rows import PARKED, NewEvent
from holdfast.moves.values import Advanced, ArrayFilter, ArraySubmitted, NewArray, NewJob
from holdfast.store.memory.dependencies import (
    count_members,
    find_parents,
    say_waits,
    write_dependencies,
)
from holdfast.store.memory.jobs.jobs import check_quotas, insert_job
from holdfast.store.memory.state import InMemory, MemoryArray, MemoryState
from holdfast.store.port.clock import Now

FIRST = 1000


class MemoryArrays(InMemory):
    """`ArrayStore` in memory."""

    def __init__(self, state: MemoryState, environment: Mapping[str, Value]) -> None:
        super().__init__(state)
        self.environment = environment

    async def submit_array(self, array: NewArray, *, now: Now = None) -> ArraySubmitted:
        s, at, spec = self.state, self.state.at(now), array.spec
        for known in s.arrays.values():
            key = spec.idempotency_key
            same_key = key is not None and (known.spec.project, known.spec.idempotency_key) == (
                spec.project,
                key,
            )
            if known.id == array.id or same_key:
                if known.digest != array.digest:
                    raise arrays.refuse_array(self._record(known), array)
                return ArraySubmitted(array=self._record(known), created=False)
        held = say_waits(spec, find_parents(s, [spec])) if spec.after else ""
        if array.queue not in s.queues:
            raise requests.refuse_queue(array.queue)
        size = len(array.members)
        check_quotas(s, self.environment, [(spec.project, spec.gpus * spec.tasks)] * size)
        s.arrays[array.id] = MemoryArray(
            id=array.id,
            spec=spec,
            queue=array.queue,
            owner=array.owner,
            digest=array.digest,
            indices=say_indices([m.index for m in array.members]),
            size=size,
            at_once=array.at_once,
            held=held,
            created_at=at,
            member_ids=array.member_ids,
        )
        lined = bool(held) or array.at_once is not None
        turn = held or arrays.say_turn(spec.title, array.at_once)
        for member, job_id in zip(array.members, array.member_ids, strict=True):
            own = make_member(spec, array.id, size, member)
            insert_job(
                s,
                NewJob(id=job_id, spec=own, queue=array.queue, owner=array.owner),
                array.digest,
                at,
                wait_cause=IN_LINE if lined else None,
                reason=turn if lined else "",
                array=(array.id, member.index),
                limited=array.at_once is not None,
            )
        event = NewEvent(
            kind="array.submitted",
            queue=array.queue,
            project=spec.project,
            message=f"array {array.id} ({spec.title}) of {size} jobs",
            data={"array": array.id, "name": spec.title, "owner": array.owner, "size": size},
        )
        s.log([event], at)
        if spec.after:
            write_dependencies(s, {array.id: spec}, at)
        await self.advance_arrays(FIRST, only=array.id, now=at)
        return ArraySubmitted(array=self._record(s.arrays[array.id]), created=True)

    def _find(self, array_id: str) -> MemoryArray:
        array = self.state.arrays.get(array_id)
        if array is None:
            raise requests.no_array(array_id)
        return array

    async def get_array(self, array_id: str) -> ArrayRecord:
        return self._record(self._find(array_id))

    def _record(self, array: MemoryArray) -> ArrayRecord:
        s, counts, active = self.state, count_members(self.state, array), self._count_active(array)
        failed = [s.jobs[i].row.array_index for i in self._members(array, JobState.FAILED)]
        held = array.held
        if array.cancel_reason is not None:
            held = f"it is being cancelled: {array.cancel_reason}"
        return ArrayRecord(
            id=array.id,
            name=array.spec.title,
            project=array.spec.project,
            queue=array.queue,
            owner=array.owner,
            state=find_state(counts),
            reason=say_array(counts, array.at_once, active, held),
            spec=array.spec.without_secrets(),
            indices=array.indices,
            size=array.size,
            at_once=array.at_once,
            counts=counts,
            active=active,
            failed=say_indices([n for n in failed if n is not None][:1000]),
            created_at=array.created_at,
        )

    def _members(self, array: MemoryArray, *states: JobState) -> list[str]:
        jobs = self.state.jobs
        known = [i for i in array.member_ids if i in jobs]
        return [i for i in known if not states or jobs[i].row.state in states]

    def _count_active(self, array: MemoryArray) -> int:
        rows = [self.state.jobs[i].row for i in self._members(array)]
        return sum(not r.state.terminal and r.wait_cause not in (IN_LINE, PARKED) for r in rows)

    async def list_arrays(self, filter: ArrayFilter) -> list[ArrayRecord]:
        found = []
        for array_id in sorted(self.state.arrays, reverse=True):
            array = self.state.arrays[array_id]
            states = [JobState(state) for state in filter.states]
            if (
                filter.queue in (None, array.queue)
                and filter.project in (None, array.spec.project)
                and filter.owner in (None, array.owner)
                and filter.name in (None, array.spec.title)
                and array_id.startswith(filter.prefix or "")
                and (filter.before is None or array_id < filter.before)
                and (not states or self._members(array, *states))
            ):
                found.append(self._record(array))
        return found[: filter.limit]

    async def find_members(self, array_id: str, indices: Collection[int]) -> dict[int, str]:
        array = self.state.arrays.get(array_id)
        members = [] if array is None else self._members(array)
        found = {self.state.jobs[i].row.array_index: i for i in members}
        return {n: i for n, i in found.items() if n is not None and n in indices}

    async def cancel_array(
        self, array_id: str, reason: str, *, hard: bool = False, now: Now = None
    ) -> ArrayRecord:
        array = self._find(array_id)
        if not find_state(count_members(self.state, array)).terminal:
            array.cancel_reason, array.cancel_cause = reason, Cause.USER_CANCELLED
            array.held, array.cancel_hard = "", hard
        return self._record(array)

    async def retry_array(self, array_id: str, reason: str, *, now: Now = None) -> int:
        s, array = self.state, self._find(array_id)
        if array.cancel_reason is not None:
            raise arrays.refuse_retry(array_id)
        failed = self._members(array, JobState.FAILED)
        spec = array.spec
        check_quotas(s, self.environment, [(spec.project, spec.gpus * spec.tasks)] * len(failed))
        m = s.load(failed, s.at(now))
        for job in m.jobs.values():
            requests.revive(m, job, reason, made=None)
        s.commit(m)
        return len(failed)

    async def advance_arrays(
        self, limit: int = 500, *, only: str | None = None, now: Now = None
    ) -> Advanced:
        s, released, cancelled, left = self.state, 0, 0, False
        for array in s.arrays.values():
            if only not in (None, array.id):
                continue
            if array.cancel_reason is not None:
                count = self._cancel_some(array, limit, now)
                cancelled += count
                left = left or count > 0
            elif not array.held:
                room = limit
                if array.at_once is not None:
                    room = min(limit, max(0, array.at_once - self._count_active(array)))
                rows = [s.jobs[i].row for i in self._members(array, JobState.WAITING)]
                line = sorted((r.array_index or 0, r.id) for r in rows if r.wait_cause == IN_LINE)
                m = s.load([job_id for _, job_id in line[:room]], s.at(now))
                released += arrays.release_in_line(m)
                s.commit(m)
                left = left or len(m.jobs) == limit
        return Advanced(released=released, cancelled=cancelled, left=left)

    def _cancel_some(self, array: MemoryArray, limit: int, now: Now) -> int:
        s, reason = self.state, array.cancel_reason or ""
        rows = [s.jobs[i].row for i in self._members(array)]
        found = sorted(
            row.id
            for row in rows
            if not row.state.terminal
            and not (
                row.drain_cause is Cause.USER_CANCELLED
                and (row.drain_hard or not array.cancel_hard)
            )
        )[:limit]
        if not found:
            array.cancel_reason, array.cancel_hard = None, False
            return 0
        m = s.load(found, s.at(now))
        arrays.cancel_members(m, reason, array.cancel_cause, hard=array.cancel_hard)
        s.commit(m)
        return len(found)
