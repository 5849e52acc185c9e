"""Room held back for jobs that were passed over (EASY back-fill).

The rule is the one of EASY back-filling (Lifka 1995), for several jobs instead of the first alone:
for a job that does not fit, find the earliest time at which the ends known by then make room for
it, and on which hosts; until then others may use that room only if they end by that time, and the
spare room on those hosts for longer. An end is known by a time limit, or by how long a job is
expected to take. An expectation may be wrong: a job that overruns it goes on, and the holds are
planned anew with the end that is expected then.
"""

from __future__ import annotations

import math
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Sequence
from functools import cached_property

from holdfast.core.placement.ranks import say_names
from holdfast.core.placement.room import Chosen, HostRoom, Room, choose_hosts, count_fitting
from holdfast.core.placement.types import Candidate, RunningTask, TaskPlacement
from holdfast.core.placement.unsaved import UnsavedWork, weigh_jobs

DRAIN_SECONDS = 60.0
"""The time within which a task that is being stopped is expected to have ended. With a notice it is
over when that is, so that a short job that uses its room meanwhile ends by then (EVICT-1)."""

Amount = list[int]
"""[cpu slots, memory bytes, devices]."""


class Holds:
    """The room that is held back while a plan is made."""

    def __init__(self, room: Room, running: Sequence[RunningTask]) -> None:
        self.room = room
        self.running = running
        self._draining = {task.job_id for task in running if task.draining}
        self._holds: list[_Hold] = []

    def __len__(self) -> int:
        return len(self._holds)

    @cached_property
    def losses(self) -> dict[str, UnsavedWork]:
        """Return job id → what each running job would lose if it were stopped."""
        return weigh_jobs(self.running)

    def allow(self, host: HostRoom, job: Candidate, tasks: int) -> int:
        """Return how many of `tasks` of the job the holds leave room for on the host now."""
        for hold in self._holds:
            spare = hold.spare.get(host.host_id)
            if spare is not None and not hold.sees_end_of(job, 0.0):
                tasks = min(tasks, count_fitting(job, spare, tasks))
        return tasks

    def use_spare(self, job: Candidate, tasks: Iterable[TaskPlacement]) -> None:
        """Note a placement: a job that outlives a hold uses up its spare room."""
        outlived = [hold for hold in self._holds if not hold.sees_end_of(job, 0.0)]
        if outlived:
            for task in tasks:
                for hold in outlived:
                    hold.use(task.host_id, job, task.count)

    def expect_drain(self, victims: Iterable[str]) -> None:
        """Note that these jobs are about to be stopped, so that their room is free soon."""
        self._draining.update(victims)

    def is_draining(self, job_id: str) -> bool:
        """Return whether the job is being stopped, or will be by this plan."""
        return job_id in self._draining

    def release_at(self, task: RunningTask) -> float:
        """Return in how many seconds, at the latest, the task's room is free again; infinity where
        that is not known."""
        if task.job_id in self._draining:
            left = task.notice_left_seconds
            return DRAIN_SECONDS if left is None else min(DRAIN_SECONDS, left)
        return math.inf if task.ends_in_seconds is None else max(0.0, task.ends_in_seconds)

    def look_from(
        self, job: Candidate, at: float, amount: Amount, host_id: str
    ) -> list[tuple[Amount, float]]:
        """Return the amounts that the job may use of the `amount` free on a host from `at` seconds
        on.

        The least of them is the limit. Each comes with the time up to which it counts ends.
        """
        held = [hold for hold in self._holds if hold.at <= at and host_id in hold.need]
        mine = [free - sum(hold.need[host_id][i] for hold in held) for i, free in enumerate(amount)]
        later = [
            (list(hold.spare[host_id]), hold.at)
            for hold in self._holds
            if hold.at > at and host_id in hold.spare and not hold.sees_end_of(job, at)
        ]
        return [(mine, at), *later]

    def hold(self, job: Candidate, *, waited: bool) -> str | int:
        """Hold room back for a job that does not fit now, and return a sentence about it; where no
        room can be held, return how many of its tasks would fit at best.

        A job that has not waited for long has room held only where stopping jobs make it fit.
        """
        releases = self._releases()
        if not releases:
            return 0
        serving = {host.host_id: host for host in self.room.serving(job)}
        state = {i: host.amount() for i, host in serving.items()}
        counts = dict.fromkeys(serving, 0)
        total, best, looked = 0, 0, (-1, -1)
        edges = self._edges(job)
        for at, tasks in releases:
            if not waited and at > DRAIN_SECONDS:
                return best
            for task in tasks:
                give(state, task)
            # Holds for other jobs change only at their edges; between two edges only hosts on which
            # a task ends have to be counted again.
            edge = (bisect_left(edges, at), bisect_right(edges, at))
            left = {t.host_id for t in tasks if t.host_id in serving}
            again, looked = serving if edge != looked else left, edge
            for host_id in again:
                amounts = self.look_from(job, at, state[host_id], host_id)
                found = min(count_fitting(job, amount, job.tasks) for amount, _ in amounts)
                total += found - counts[host_id]
                counts[host_id] = found
            if total >= job.tasks:
                fitting = [(counts[i], host) for i, host in serving.items() if counts[i]]
                chosen = choose_hosts(job, fitting)
                assert chosen is not None
                self._add(job, at, chosen, state)
                return self._say(at, chosen)
            best = max(best, total)
        return best

    def _add(self, job: Candidate, at: float, chosen: Chosen, state: dict[str, Amount]) -> None:
        need = {
            host.host_id: [count * job.cpu_slots, count * job.memory_bytes, count * job.gpus]
            for host, count in chosen
        }
        spare: dict[str, Amount] = {}
        for i, mine in need.items():
            free = self.look_from(job, at, state[i], i)[0][0]
            spare[i] = [had - takes for had, takes in zip(free, mine, strict=True)]
        for hold in self._holds:
            if hold.at > at and not hold.sees_end_of(job, at):
                for host, count in chosen:
                    hold.use(host.host_id, job, count)
        self._holds.append(_Hold(at, need, spare))

    def _edges(self, job: Candidate) -> list[float]:
        """Return the times at which the room that is held for other jobs changes for this job."""
        limit = job.span_seconds
        times = {hold.at for hold in self._holds}
        if limit is not None:
            times |= {at - limit for at in times if at < math.inf}
        return sorted(times)

    def _releases(self) -> list[tuple[float, list[RunningTask]]]:
        """Return the times at which running tasks end, with these tasks, soonest first; infinity
        for tasks whose end is not known."""
        by_time: dict[float, list[RunningTask]] = {}
        for task in self.running:
            by_time.setdefault(self.release_at(task), []).append(task)
        return sorted(by_time.items(), key=lambda item: item[0])

    def _say(self, at: float, chosen: Chosen) -> str:
        names = say_names((host.capacity.name for host, _ in chosen), 3)
        places = {host.host_id for host, _ in chosen}
        stopping = [t for t in self.running if t.job_id in self._draining]
        going = dict.fromkeys(t.job_id for t in stopping if t.host_id in places)
        if math.isinf(at):
            when = "when work ends there of which nothing tells how long it takes"
        elif going and any(self.release_at(task) == at for task in stopping):
            be = "has" if len(going) == 1 else "have"
            when = f"when {say_names(going, 3)} {be} stopped there"
        elif any(
            t.foretold and t.host_id in places and self.release_at(t) <= at for t in self.running
        ):
            when = f"in about {at:.0f} s, if what runs there takes as long as expected"
        else:
            when = f"in {at:.0f} s at the latest"
        return f"room is held back for it on {names}: it fits {when}"


class _Hold:
    """Room held back for one job from `at` seconds on. need: the job's amount by host id. spare:
    the amount that is then left on these hosts for others."""

    def __init__(self, at: float, need: dict[str, Amount], spare: dict[str, Amount]) -> None:
        self.at = at
        self.need = need
        self.spare = spare

    def sees_end_of(self, job: Candidate, starts_in: float) -> bool:
        """Return whether the job will have ended when the held room is needed, if the job starts in
        `starts_in` seconds."""
        limit = job.span_seconds
        return limit is not None and starts_in + limit <= self.at < math.inf

    def use(self, host_id: str, job: Candidate, tasks: int) -> None:
        spare = self.spare.get(host_id)
        if spare is not None:
            spare[0] -= tasks * job.cpu_slots
            spare[1] -= tasks * job.memory_bytes
            spare[2] -= tasks * job.gpus


LEAST_OVERRUN_SECONDS = 60.0


def foretell_end(
    ran_seconds: float, limit_seconds: float | None, expected_seconds: float | None
) -> tuple[float | None, bool]:
    """Return in how many seconds a task ends (None: not known), and whether that is an expectation
    only.

    A task that has overrun its expectation is expected to run on for as long as it has overrun it:
    so the end is never now, and what is started until then is never much too long.
    """
    limit = None if limit_seconds is None else max(0.0, limit_seconds - ran_seconds)
    if expected_seconds is None:
        return limit, False
    overrun = max(ran_seconds - expected_seconds, LEAST_OVERRUN_SECONDS)
    left = expected_seconds - ran_seconds
    end = left if left > 0 else overrun
    return (limit, False) if limit is not None and limit <= end else (end, True)


def give(state: dict[str, Amount], task: RunningTask) -> None:
    """Add the task's room to the free room of its host in `state`."""
    amount = state.get(task.host_id)
    if amount is not None:
        amount[0] += task.cpu_slots
        amount[1] += task.memory_bytes
        amount[2] += task.devices
