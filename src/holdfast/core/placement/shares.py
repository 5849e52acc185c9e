"""Shares of projects: the room that is a project's own, that it borrows, and that it must give
back. Pure.

SHARE-1  A project may use more than its share (it *borrows*) while others leave room idle. A job
         within its project's share goes before every job that borrows.
SHARE-2  Borrowed room is given back when a job within its own project's share needs it, and only if
         that job then really fits. No job is stopped whose project would be left with less than its
         share, so projects never take turns in stopping each other.
SHARE-3  The project that has borrowed for the longest gives back first, and of its jobs the fewest,
         least important, with the least work lost.
"""

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from holdfast.core.placement.types import Candidate, RunningTask, Share

_Loan = tuple[str, bool]
"""A project, and whether GPUs (True) or CPU slots are counted; a job with GPUs counts by these."""


class Shares:
    """The resources that projects hold, beside their shares, while a plan is made."""

    def __init__(self, shares: Mapping[str, Share], running: Sequence[RunningTask]) -> None:
        self._own: dict[_Loan, int] = {}
        self._held: Counter[_Loan] = Counter()
        for project, share in shares.items():
            self._own[project, True], self._own[project, False] = share.gpus, share.cpu_slots
            self._held[project, True] += share.held_gpus
            self._held[project, False] += share.held_cpu_slots
        self._borrow = {loan for loan, held in self._held.items() if held > self._own.get(loan, 0)}
        self._sizes: dict[str, Counter[_Loan]] = {}
        self._stays: Counter[_Loan] = Counter()
        self._note_running(running)

    def __bool__(self) -> bool:
        return bool(self._own)

    def owns(self, job: Candidate) -> bool:
        """Return whether the job would be within its project's share."""
        loan, size = (job.project, job.gpus > 0), _size_of(job)
        return self._held[loan] + size <= self._own.get(loan, 0)

    def count_job(self, job: Candidate) -> None:
        """Count a job that starts, or that room is being made for."""
        if self._own:
            self._held[job.project, job.gpus > 0] += _size_of(job)

    def may_reclaim(self, job: Candidate) -> bool:
        """Return whether the job is within its project's share while another project borrows, or
        borrowed until its job was ordered to stop in this plan."""
        borrowed = any(project != job.project for project, _ in self._borrow)
        return borrowed and self.owns(job)

    def spare(self, job: Candidate, victims: Iterable[str]) -> bool:
        """Return whether every other project keeps its share when these jobs are stopped
        (SHARE-2)."""
        going: Counter[_Loan] = Counter()
        for victim in victims:
            going.update(self._sizes[victim])
        return all(
            self._stays[loan] - size >= self._own.get(loan, 0)
            for loan, size in going.items()
            if loan[0] != job.project
        )

    def order_borrowers(self, job: Candidate, tasks: Iterable[RunningTask]) -> list[str]:
        """Return the other projects that borrow, the oldest loan first. A project's oldest jobs
        fill its own share; its loan is as old as the first job beyond the share."""
        runs: dict[_Loan, dict[str, float]] = {}
        for task in tasks:
            if task.project != job.project and not task.draining:
                since = runs.setdefault((task.project, task.devices > 0), {})
                since[task.job_id] = max(task.ran_seconds, since.get(task.job_id, 0.0))
        ages: dict[str, float] = {}
        for loan, since in runs.items():
            left = self._own.get(loan, 0)
            for ran, job_id in sorted(((ran, i) for i, ran in since.items()), reverse=True):
                left -= self._sizes[job_id][loan]
                if left < 0:
                    ages[loan[0]] = max(ran, ages.get(loan[0], 0.0))
                    break
        return sorted(ages, key=lambda project: (-ages[project], project))

    def _note_running(self, running: Sequence[RunningTask]) -> None:
        """Count the room of each job, and the room that each project keeps once the jobs that are
        being stopped have ended."""
        for task in running:
            loan = (task.project, task.devices > 0)
            size = task.devices or task.cpu_slots
            self._sizes.setdefault(task.job_id, Counter())[loan] += size
            if not task.draining:
                self._stays[loan] += size

    def expect_drain(self, victims: Iterable[str]) -> None:
        """Note that these jobs are about to be stopped, so that their projects keep less."""
        for victim in victims:
            self._stays.subtract(self._sizes[victim])


def _size_of(job: Candidate) -> int:
    return (job.gpus or job.cpu_slots) * job.tasks
