"""Settings, queues and projects in memory."""

from collections.abc import Iterable, Mapping, Sequence

from holdfast.core.causes import Cause
from holdfast.core.placement.types import QuotaLeft
from holdfast.core.records import ProjectRecord, QueueRecord, shared_fields
from holdfast.core.settings.resolve import Value
from holdfast.core.states import JobState
from holdfast.moves import settings
from holdfast.moves.jobs import quotas
from holdfast.moves.jobs.dispatch import SWITCH, Switches
from holdfast.moves.registration import drain_jobs_for
from holdfast.moves.values import SettingsLayers
from holdfast.store.clock import Now
from tests.model.state import UNFINISHED, InMemory, MemoryProject, MemoryQueue, MemoryState


class MemorySettings(InMemory):
    """`PostgresSettings` in the model."""

    async def read_settings(self) -> SettingsLayers:
        s = self.state
        return SettingsLayers(
            revision=s.settings_rev,
            cluster=dict(s.settings),
            rules="",
            queues={q.name: dict(q.settings) for q in s.queues.values()},
            projects={p.name: dict(p.settings) for p in s.projects.values()},
        )

    async def write_cluster_settings(
        self, changes: Mapping[str, Value], unset: Sequence[str] = (), *, now: Now = None
    ) -> int:
        checked = settings.check_changes(changes, unset, "cluster")
        merged = settings.merge_layer(self.state.settings, checked, unset)
        if merged != self.state.settings:
            self.state.settings = merged
            self.state.settings_rev += 1
            self.state.log([settings.settings_event(checked, unset)], self.state.at(now))
        return self.state.settings_rev

    def _queue(self, name: str) -> MemoryQueue:
        if name not in self.state.queues:
            raise settings.no_queue(name)
        return self.state.queues[name]

    async def put_queue(
        self, name: str, changes: Mapping[str, Value], unset: Sequence[str] = (), *, now: Now = None
    ) -> QueueRecord:
        checked = settings.check_changes(changes, unset, "queue")
        at, queue = self.state.at(now), self.state.queues.get(name)
        checked = settings.fill_queue(name, checked, created=queue is None)
        before = {} if queue is None else queue.settings
        merged = settings.merge_layer(before, checked, unset)
        if queue is None or merged != before:
            created = queue is None
            queue = queue or MemoryQueue(name=name, settings={}, created_at=at)
            queue.settings = merged
            self.state.queues[name] = queue
            self.state.settings_rev += 1
            self.state.log([settings.queue_event(name, checked, unset, created=created)], at)
        return QueueRecord(**shared_fields(queue, QueueRecord) | self._count_jobs(name))

    def _count_jobs(self, queue: str) -> dict[str, int]:
        counts = dict.fromkeys(("waiting", "queued", "running"), 0)
        for state in UNFINISHED:
            word = state.value if state.value in counts else "running"
            jobs = (self.state.jobs[job_id] for job_id in self.state.by_state[state])
            counts[word] += sum(job.row.queue == queue for job in jobs)
        return counts

    async def pause_queue(
        self, name: str, reason: str, *, hard: bool, now: Now = None
    ) -> list[str]:
        at, queue = self.state.at(now), self._queue(name)
        if (queue.paused_at is not None, queue.paused_reason, queue.hard) != (True, reason, hard):
            queue.paused_at, queue.paused_reason, queue.hard = queue.paused_at or at, reason, hard
            self.state.log([settings.paused_event(name, reason, hard)], at)
        if not hard:
            return []
        running = [*self.state.by_state[JobState.RESERVED], *self.state.by_state[JobState.RUNNING]]
        m = self.state.load([i for i in running if self.state.jobs[i].row.queue == name], at)
        drained = drain_jobs_for(m, Cause.PREEMPTED, settings.pause_reason(name, reason), None)
        self.state.commit(m)
        return drained

    async def resume_queue(self, name: str, *, now: Now = None) -> None:
        queue = self._queue(name)
        if queue.paused_at is not None:
            queue.paused_at, queue.paused_reason, queue.hard = None, "", False
            self.state.log([settings.resumed_event(name)], self.state.at(now))

    def _project(self, name: str) -> ProjectRecord:
        found, use = self.state.projects.get(name), self.state.use_of(name)
        return ProjectRecord(
            name=name,
            settings={} if found is None else dict(found.settings),
            running=use.running_jobs,
            gpus=use.running_gpus,
            cpu_slots=use.running_cpu_slots,
            unfinished=use.jobs,
            created_at=None if found is None else found.created_at,
        )

    async def put_project(
        self, name: str, changes: Mapping[str, Value], unset: Sequence[str] = (), *, now: Now = None
    ) -> ProjectRecord:
        checked = settings.check_changes(changes, unset, "project")
        s, at = self.state, self.state.at(now)
        project = s.projects.get(name)
        before = {} if project is None else project.settings
        merged = settings.merge_layer(before, checked, unset)
        if project is None or merged != before:
            created = None if project is None else project.created_at
            s.projects[name] = MemoryProject(name=name, settings=merged, created_at=created or at)
            s.settings_rev += 1
            s.log([settings.project_event(name, checked, unset, created=project is None)], at)
        return self._project(name)


def quotas_left(
    s: MemoryState, environment: Mapping[str, Value], projects: Iterable[str]
) -> dict[str, QuotaLeft]:
    """Return the rest of the quota of each of `projects` that has one (QUOTA-2)."""
    left = {}
    below = [("cluster", s.settings), ("environment", environment)]
    for name in projects:
        found = s.projects.get(name)
        quota = quotas.read_quota({} if found is None else found.settings, below)
        if quota is not None:
            left[name] = quotas.quota_left(quota, s.use_of(name))
    return left


def read_switches(state: MemoryState, environment: Mapping[str, Value]) -> Switches:
    """Return the kill switches as they stand."""
    off = [p.name for p in state.projects.values() if p.settings.get(SWITCH) is False]
    return Switches(state.settings, environment, off)
