"""The jobs that another may replace, because it is more important or within its project's share:
and among these the jobs whose stop costs least.

COST-1  The most important of the jobs that are stopped is as unimportant as possible, because a
        stopped job that is more important than a spared one would stop that one in its turn, and
        both would lose their work. Of the sets that are equal in this, the one is chosen that loses
        the fewest GPU-seconds (UNSAVED-1), then the fewest CPU slot seconds, then the one of the
        fewest, least important and youngest jobs.

Few jobs are searched by trying; many greedily, and those that turn out superfluous are let off.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import combinations
from math import comb, fsum

from holdfast.core.placement.holds import DRAIN_SECONDS, Amount, Holds, give
from holdfast.core.placement.room import count_fitting
from holdfast.core.placement.shares import Shares
from holdfast.core.placement.types import Candidate, RunningTask
from holdfast.core.placement.unsaved import find_ran

MAX_VICTIMS = 256
"""Most running jobs that a preemption considers: the least important that lose least."""
MAX_TRIES = 1000
"""Most sets of one size that are tried before the greedy search takes over."""


class Ground:
    """The room for a job once every task that is being stopped has ended, without the room that is
    held back for other jobs."""

    def __init__(self, job: Candidate, holds: Holds) -> None:
        self._job = job
        self._holds = holds
        state = {host.host_id: host.amount() for host in holds.room.serving(job)}
        for task in holds.running:
            if holds.release_at(task) <= DRAIN_SECONDS:
                give(state, task)
        self._open: dict[str, list[tuple[Amount, float]]] = {
            i: holds.look_from(job, DRAIN_SECONDS, amount, i) for i, amount in state.items()
        }
        self._counts = dict.fromkeys(self._open, 0)
        self.total = 0
        for host_id in self._open:
            self._count(host_id)

    @property
    def fits(self) -> bool:
        """Return whether all tasks of the job find room."""
        return self.total >= self._job.tasks

    def touches(self, tasks: Iterable[RunningTask]) -> bool:
        """Return whether one of the tasks is on a host that the job could use."""
        return any(task.host_id in self._open for task in tasks)

    def hosts(self) -> list[str]:
        """Return the ids of the hosts that the job could use."""
        return list(self._open)

    def count_on(self, host_id: str) -> int:
        """Return how many tasks of the job fit on one host."""
        return self._counts[host_id]

    def free(self, tasks: Iterable[RunningTask], sign: int = 1) -> None:
        """Add the room of these tasks to the free room; with sign -1, subtract it again."""
        touched = set()
        for task in tasks:
            release = self._holds.release_at(task)
            for amount, until in self._open.get(task.host_id, ()):
                if release > until:  # else this amount counts the task's end already
                    amount[0] += sign * task.cpu_slots
                    amount[1] += sign * task.memory_bytes
                    amount[2] += sign * task.devices
                    touched.add(task.host_id)
        for host_id in touched:
            self._count(host_id)

    def gain(self, tasks: Sequence[RunningTask]) -> int:
        """Return how many more tasks of the job would fit if these tasks ended."""
        before = self.total
        self.free(tasks)
        gain = self.total - before
        self.free(tasks, -1)
        return gain

    def _count(self, host_id: str) -> None:
        job = self._job
        found = min(count_fitting(job, amount, job.tasks) for amount, _ in self._open[host_id])
        self.total += found - self._counts[host_id]
        self._counts[host_id] = found


Permits = Callable[[Iterable[str]], bool]
"""(jobs) → whether all of them together may be stopped."""


def find_victims(
    job: Candidate, ground: Ground, holds: Holds, shares: Shares | None = None
) -> tuple[str, ...]:
    """Return the jobs to preempt so that `job` fits, those that cost least (COST-1); none where no
    preemption makes it fit.

    shares: where projects have shares, a job beyond its project's share takes no room within
    another project's share, because that project would reclaim it at once.
    """
    search = _Search(job, ground, holds)
    permits: Permits = _permit_all
    if shares and not shares.owns(job):
        permits = partial(shares.spare, job)
    eligible = [
        victim
        for victim, tasks in search.by_job.items()
        if tasks[0].priority < job.priority and all(task.preemptible for task in tasks)
    ]
    return search.find(eligible, permits)


def find_reclaims(job: Candidate, ground: Ground, holds: Holds, shares: Shares) -> tuple[str, ...]:
    """Return the jobs that give back room which their projects borrowed, so that `job` fits
    (SHARE-2, SHARE-3); none where `job` would not fit even then. The jobs belong to as few projects
    as possible, the oldest loans first."""
    search = _Search(job, ground, holds)
    permits = partial(shares.spare, job)
    by_project: dict[str, list[str]] = {}
    for victim, tasks in search.by_job.items():
        if all(task.stoppable for task in tasks) and permits([victim]):
            by_project.setdefault(tasks[0].project, []).append(victim)
    eligible: list[str] = []
    for project in shares.order_borrowers(job, holds.running):
        if project in by_project:
            eligible += by_project[project]
            found = search.find(eligible, permits)
            if found:
                return found
    return ()


def _permit_all(victims: Iterable[str]) -> bool:
    return True


_Cost = tuple[int, float, float, int, list[int], float]
"""Of a set: its highest priority, its lost GPU-seconds and CPU slot seconds, its size, its
priorities, and how long its jobs ran together."""


class _Search:
    """The search for jobs whose ends make room for a more important job."""

    def __init__(self, job: Candidate, ground: Ground, holds: Holds) -> None:
        self.ground = ground
        self._losses = holds.losses
        self.by_job: dict[str, list[RunningTask]] = {}
        for task in holds.running:
            self.by_job.setdefault(task.job_id, []).append(task)
        for job_id, tasks in list(self.by_job.items()):
            stops = holds.is_draining(job_id) or any(task.draining for task in tasks)
            if stops or not ground.touches(tasks):
                del self.by_job[job_id]

    def find(self, eligible: Iterable[str], permits: Permits) -> tuple[str, ...]:
        """Return the cheapest permitted set of `eligible` jobs whose ends make room, or none."""
        ground, by_job = self.ground, self.by_job
        order = sorted(eligible, key=lambda i: (by_job[i][0].priority, self._key(i)))
        order = order[:MAX_VICTIMS]
        if ground.fits or not self._make_room(order):
            return ()
        for level in sorted({by_job[victim][0].priority for victim in order}):
            mine = [victim for victim in order if by_job[victim][0].priority <= level]
            if self._make_room(mine):
                found = self._find_cheapest(sorted(mine, key=self._key), permits)
                if found:
                    return found
        return ()

    def _make_room(self, victims: Iterable[str]) -> bool:
        """Return whether the ends of these jobs together make room."""
        tasks = [task for victim in victims for task in self.by_job[victim]]
        self.ground.free(tasks)
        enough = self.ground.fits
        self.ground.free(tasks, -1)
        return enough

    def _find_cheapest(self, order: Sequence[str], permits: Permits) -> tuple[str, ...]:
        """Return the cheapest set of the jobs in `order`, which together make room. order: what
        loses least first."""
        best: tuple[str, ...] = ()
        cost: _Cost | None = None
        for size in range(1, len(order) + 1):
            # No set of this size or a larger one costs less than the first jobs of the order.
            if cost is not None and self._cost(order[:size])[1:4] >= cost[1:4]:
                return best
            if comb(len(order), size) > MAX_TRIES:
                break
            for victims in combinations(order, size):
                mine = self._cost(victims)
                worse = cost is not None and mine >= cost
                if not worse and permits(victims) and self._make_room(victims):
                    best, cost = victims, mine
        else:
            return best
        greedy = self._choose_greedily(order, permits)
        return greedy if greedy and (cost is None or self._cost(greedy) < cost) else best

    def _key(self, victim: str) -> tuple[float, float, int, float, str]:
        """Return a job's place in the order of what is stopped first, among jobs of one level."""
        loss, tasks = self._losses[victim], self.by_job[victim]
        lost = loss.gpu_seconds, loss.cpu_slot_seconds
        return (*lost, tasks[0].priority, find_ran(tasks), victim)

    def _cost(self, victims: Sequence[str]) -> _Cost:
        """Return the cost of a set to compare by (COST-1)."""
        losses = [self._losses[victim] for victim in victims]
        mine = [self.by_job[victim] for victim in victims]
        priorities = sorted((tasks[0].priority for tasks in mine), reverse=True)
        return (
            priorities[0],
            round(fsum(loss.gpu_seconds for loss in losses), 3),
            round(fsum(loss.cpu_slot_seconds for loss in losses), 3),
            len(victims),
            priorities,
            fsum(find_ran(tasks) for tasks in mine),
        )

    def _choose_greedily(self, order: Sequence[str], permits: Permits) -> tuple[str, ...]:
        """Choose jobs one by one, each time the one that loses least for the room it makes."""
        ground, by_job = self.ground, self.by_job
        left: list[str] = list(order)
        chosen: list[str] = []
        while not ground.fits and left:
            left = [victim for victim in left if permits([*chosen, victim])]
            gains = {victim: ground.gain(by_job[victim]) for victim in left}
            helpful = [victim for victim in left if gains[victim] > 0]
            # Where no single job's end helps, a host may need all of its several jobs to end.
            if helpful:
                victims = [min(helpful, key=lambda i: self._price(i, gains[i]))]
            else:
                victims = _share_a_host(ground, left, by_job)
            if not victims or not permits([*chosen, *victims]):
                break
            for victim in victims:
                left.remove(victim)
                chosen.append(victim)
                ground.free(by_job[victim])
        if not ground.fits:
            for victim in chosen:
                ground.free(by_job[victim], -1)
            return ()
        # Later choices may have made earlier ones superfluous: spare what loses most first.
        kept = list(chosen)
        for victim in sorted(chosen, key=self._key, reverse=True):
            ground.free(by_job[victim], -1)
            if ground.fits:
                kept.remove(victim)
            else:
                ground.free(by_job[victim])
        for victim in kept:
            ground.free(by_job[victim], -1)
        return tuple(kept)

    def _price(self, victim: str, gain: int) -> tuple[float, float, int, int, float, str]:
        """Return what a job loses for each task that finds room by its end."""
        gpu_seconds, cpu_slot_seconds, priority, ran, name = self._key(victim)
        return gpu_seconds / gain, cpu_slot_seconds / gain, -gain, priority, ran, name


def _share_a_host(
    ground: Ground, left: Sequence[str], by_job: dict[str, list[RunningTask]]
) -> list[str]:
    """Return the fewest jobs, in order, whose ends together make one more task fit on some host."""
    here: dict[str, list[str]] = {}
    for victim in left:
        for host_id in {task.host_id for task in by_job[victim]}:
            here.setdefault(host_id, []).append(victim)
    best: list[str] = []
    for host_id in ground.hosts():
        going: list[str] = []
        before = ground.count_on(host_id)
        for victim in here.get(host_id, ()):
            going.append(victim)
            ground.free(by_job[victim])
            if ground.count_on(host_id) > before:
                if not best or len(going) < len(best):
                    best = list(going)
                break
        for victim in going:
            ground.free(by_job[victim], -1)
    return best
