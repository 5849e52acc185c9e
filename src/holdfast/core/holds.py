"""Room held back for jobs that were passed over (EASY back-fill), and whom a more important job may take it from.

The rule is the one of EASY back-filling (Lifka 1995): for a job that does not fit, find the earliest time at which the
ends known by then make room for it, and on which hosts; until then others may use that room only if they end by that
time, and whatever is to spare on those hosts for longer.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence

from holdfast.core.placement_types import Candidate, RunningTask, TaskPlacement
from holdfast.core.room import HostRoom, Room, choose_pack, choose_spread, count_fitting

DRAIN_SECONDS = 60.0
"""How soon a task that is being stopped is taken to have gone."""
MAX_VICTIMS = 256
"""Running jobs looked at when somebody could be preempted: the least important and youngest."""

Amount = list[int]
"""[cpu slots, memory bytes, devices]."""


class Holds:
    """What is held back, for whom and until when, while a plan is made."""

    def __init__(self, room: Room, running: Sequence[RunningTask]) -> None:
        self._room = room
        self._running = running
        self._draining = {task.job_id for task in running if task.draining}
        self._holds: list[_Hold] = []

    def __len__(self) -> int:
        return len(self._holds)

    def allow(self, host: HostRoom, job: Candidate, tasks: int) -> int:
        """How many of `tasks` of the job may be placed on the host, for all that is held back there."""
        for hold in self._holds:
            spare = hold.spare.get(host.host_id)
            if spare is not None and not hold.ends_in_time(job):
                tasks = min(tasks, count_fitting(job, spare, tasks))
        return tasks

    def take(self, job: Candidate, tasks: Iterable[TaskPlacement]) -> None:
        """Note that a job was placed: what outlives a hold uses up what it has to spare."""
        for hold in self._holds:
            if hold.ends_in_time(job):
                continue
            for task in tasks:
                spare = hold.spare.get(task.host_id)
                if spare is not None:
                    spare[0] -= job.cpu_slots
                    spare[1] -= job.memory_bytes
                    spare[2] -= job.gpus

    def expect_drain(self, victims: Iterable[str]) -> None:
        """These jobs are about to be stopped."""
        self._draining.update(victims)

    def fits_when_drained(self, job: Candidate) -> bool:
        """Whether the job fits once everything that is being stopped has gone."""
        state = self._after(task for task in self._running if task.job_id in self._draining)
        return _choose(job, self._room.serving(job), state, self) is not None

    def hold(self, job: Candidate, *, waited: bool) -> str | None:
        """Hold room back for a job that does not fit now, and say so; None where nothing can be held for it.

        A job that has not waited for long has room held only when what is being stopped makes it fit.
        """
        serving = self._room.serving(job)
        state = self._after(())
        for at, tasks in self._releases():
            for task in tasks:
                _give(state, task)
            chosen = _choose(job, serving, state, self)
            if chosen is None:
                continue
            if not waited and at > DRAIN_SECONDS:
                return None
            self._holds.append(_Hold(job, at, chosen, state))
            return _say(job, at, chosen)
        return None

    def _after(self, tasks: Iterable[RunningTask]) -> dict[str, Amount]:
        state = {h.host_id: [h.cpu_slots, h.memory_bytes, len(h.devices)] for h in self._room.hosts}
        for task in tasks:
            _give(state, task)
        return state

    def _releases(self) -> list[tuple[float, list[RunningTask]]]:
        """When room is given back, soonest first; what has no limit, at infinity."""
        by_time: dict[float, list[RunningTask]] = {}
        for task in self._running:
            if task.job_id in self._draining:
                at = DRAIN_SECONDS
            else:
                at = math.inf if task.ends_in_seconds is None else max(0.0, task.ends_in_seconds)
            by_time.setdefault(at, []).append(task)
        return sorted(by_time.items(), key=lambda item: item[0])


class _Hold:
    """Room of some hosts from `at` seconds on: `spare` is what the job leaves of them then."""

    def __init__(
        self, job: Candidate, at: float, chosen: Sequence[tuple[HostRoom, int]], state: dict[str, Amount]
    ) -> None:
        self.at = at
        self.spare: dict[str, Amount] = {}
        for host, count in chosen:
            cpu_slots, memory_bytes, devices = state[host.host_id]
            self.spare[host.host_id] = [
                cpu_slots - count * job.cpu_slots, memory_bytes - count * job.memory_bytes, devices - count * job.gpus,
            ]  # fmt: skip

    def ends_in_time(self, job: Candidate) -> bool:
        return job.time_limit_seconds is not None and job.time_limit_seconds <= self.at < math.inf


def find_victims(job: Candidate, room: Room, running: Sequence[RunningTask], taken: set[str]) -> tuple[str, ...]:
    """The jobs to preempt so that `job` fits: few, of low priority, and young; empty where nobody's going would do.

    Greedy by how much of the job each one's going makes fit, then whoever turns out not to be needed is let off.
    """
    by_job: dict[str, list[RunningTask]] = {}
    for task in running:
        if task.preemptible and not task.draining and task.priority < job.priority and task.job_id not in taken:
            by_job.setdefault(task.job_id, []).append(task)
    order = sorted(by_job, key=lambda i: (by_job[i][0].priority, max(t.ran_seconds for t in by_job[i]), i))[
        :MAX_VICTIMS
    ]
    serving = room.serving(job)
    state = {h.host_id: [h.cpu_slots, h.memory_bytes, len(h.devices)] for h in serving}
    for task in running:
        if task.draining or task.job_id in taken:
            _give(state, task)
    chosen: list[str] = []
    while _count(job, state) < job.tasks:
        gains = [(_gain(job, state, by_job[i]), i) for i in order if i not in chosen]
        best = max((gain for gain, _ in gains), default=0)
        if best <= 0:
            # Nobody's going helps alone, but a host that is shared by several may need them all.
            best_pair = _by_host(job, state, [i for i in order if i not in chosen], by_job)
            if not best_pair:
                return ()
            victims = best_pair
        else:
            victims = [next(i for gain, i in gains if gain == best)]
        for victim in victims:
            chosen.append(victim)
            for task in by_job[victim]:
                _give(state, task)
    return tuple(_let_off(job, state, chosen, by_job))


def _by_host(
    job: Candidate, state: dict[str, Amount], order: Sequence[str], by_job: dict[str, list[RunningTask]]
) -> list[str]:
    """The fewest jobs, in order, whose going together makes one more task fit on some host."""
    best: list[str] = []
    for host_id, amount in state.items():
        here = list(amount)
        going: list[str] = []
        before = count_fitting(job, here, job.tasks)
        for victim in order:
            mine = [t for t in by_job[victim] if t.host_id == host_id]
            if not mine:
                continue
            going.append(victim)
            for task in mine:
                _give({host_id: here}, task)
            if count_fitting(job, here, job.tasks) > before:
                if not best or len(going) < len(best):
                    best = going
                break
    return best


def _let_off(
    job: Candidate, state: dict[str, Amount], chosen: Sequence[str], by_job: dict[str, list[RunningTask]]
) -> list[str]:
    """`chosen` without those the job fits without; the most important and oldest are let off first."""
    kept = list(chosen)
    for victim in sorted(chosen, key=lambda i: (-by_job[i][0].priority, -max(t.ran_seconds for t in by_job[i]))):
        for task in by_job[victim]:
            _give(state, task, -1)
        if _count(job, state) >= job.tasks:
            kept.remove(victim)
        else:
            for task in by_job[victim]:
                _give(state, task)
    return kept


def _gain(job: Candidate, state: dict[str, Amount], tasks: Sequence[RunningTask]) -> int:
    """How many more of the job's tasks fit when these have gone."""
    gain = 0
    for host_id in {task.host_id for task in tasks}:
        if host_id not in state:
            continue
        before = state[host_id]
        after = list(before)
        for task in tasks:
            if task.host_id == host_id:
                _give({host_id: after}, task)
        gain += count_fitting(job, after, job.tasks) - count_fitting(job, before, job.tasks)
    return gain


def _count(job: Candidate, state: dict[str, Amount]) -> int:
    return sum(count_fitting(job, amount, job.tasks) for amount in state.values())


def _give(state: dict[str, Amount], task: RunningTask, sign: int = 1) -> None:
    amount = state.get(task.host_id)
    if amount is not None:
        amount[0] += sign * task.cpu_slots
        amount[1] += sign * task.memory_bytes
        amount[2] += sign * task.devices


def _choose(
    job: Candidate, serving: Sequence[HostRoom], state: dict[str, Amount], holds: Holds
) -> list[tuple[HostRoom, int]] | None:
    """Where the job would go with the room of `state`, what is held for others left alone."""
    fitting = []
    for host in serving:
        count = count_fitting(job, state[host.host_id], job.tasks)
        count = holds.allow(host, job, count) if count else 0
        if count:
            fitting.append((count, host))
    if sum(count for count, _ in fitting) < job.tasks:
        return None
    return (choose_spread if job.placement == "spread" else choose_pack)(job.tasks, fitting)


def _say(job: Candidate, at: float, chosen: Sequence[tuple[HostRoom, int]]) -> str:
    names = ", ".join(host.capacity.name for host, _ in chosen[:3]) + (
        f" and {len(chosen) - 3} more" if len(chosen) > 3 else ""
    )
    when = "when work without a time limit ends there" if math.isinf(at) else f"in {at:.0f} s at the latest"
    return f"room is held back for it on {names}: it fits {when}"
