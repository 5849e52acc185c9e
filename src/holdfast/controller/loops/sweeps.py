"""The sweeps: leases that lapsed, reservations that no host claimed, dead hosts, old history."""

import logging
from collections.abc import Sequence
from datetime import timedelta

from holdfast.controller.loops.loop import Loop, Summary, prune_history
from holdfast.controller.runtime.auth import REVOKED
from holdfast.controller.runtime.settings import Settings
from holdfast.core.causes import Cause
from holdfast.core.placement.ranks import name_places
from holdfast.core.records import HostRecord, JobRecord, TaskRecord
from holdfast.core.states import TaskState
from holdfast.errors import NotFound
from holdfast.moves.values import JobFilter, Reserved

log = logging.getLogger("holdfast.loops")


class StampsLoop(Loop):
    """Stamps the time, which shows that renewals can be written (LEASE-6), and watches for steps of
    the database's clock (LEASE-5)."""

    name = "stamps"
    interval_seconds = 2.0

    async def run_once(self) -> Summary:
        await self._controller.leadership.read_time()
        return {}


class LeasesLoop(Loop):
    """Leases that lapsed in silence → the task is lost and its job drains."""

    name = "leases"
    by_look = True
    interval_seconds = 2.0

    async def run_once(self) -> Summary:
        controller = self._controller
        await controller.leadership.read_time()
        since = controller.leadership.since
        if since is None:
            return {}
        jobs = await controller.store.leases.lapse_leases(since)
        for job_id in jobs:
            text = "a lease lapsed: its host was silent for the whole of it"
            log.warning(text, extra={"job": job_id})
        if jobs:
            controller.poke("drain", "members", "events")
        return {"lapsed": len(jobs)} if jobs else {}


class SessionsLoop(Loop):
    """Sessions whose attempts are over and whose hosts did not say so → ended. Sessions whose token
    is over, or that are switched off, and that have no link whose check ends them → ended within
    5 s, by an order to their host."""

    name = "sessions"
    topic = REVOKED
    by_look = True
    interval_seconds = 2.0

    async def run_once(self) -> Summary:
        controller = self._controller
        settings = await controller.settings.current()
        closed = [name for name in settings.projects if not settings.allow_sessions(name)]
        hosts = await controller.store.sessions.end_barred_sessions(
            closed, all_closed=not settings.allow_sessions("")
        )
        count = len(hosts) + await controller.store.sessions.end_lost_sessions()
        if count:
            controller.poke("events", *(f"host:{host_id}" for host_id in hosts))
        return {"ended": count} if count else {}


class ReservationsLoop(Loop):
    """Reservations that their hosts never claimed → queued again; starts that take too long, or
    whose host has fallen silent → a drain."""

    name = "reservations"
    by_look = True
    interval_seconds = 5.0

    async def run_once(self) -> Summary:
        controller = self._controller
        settings = await controller.settings.current()
        seconds = settings.number("reservation_seconds")
        jobs = await controller.store.admission.expire_reservations(seconds)
        reserved = await controller.store.admission.list_reserved()
        late = await self._stop_late_starts(reserved, settings)
        late += await self._stop_silent_starts(reserved, seconds)
        if jobs or late:
            controller.poke("admit", "drain", "events")
        return {"expired": len(jobs), "late": late} if jobs or late else {}

    async def _stop_late_starts(self, reserved: Sequence[Reserved], settings: Settings) -> int:
        """Drain jobs whose start has taken longer than the limit of a first start, or of a
        restart."""
        late = 0
        for found in reserved:
            job, name = found.job, found.start_limit
            limit = settings.start_limit(name, job.queue, job.spec)
            if found.seconds <= limit:
                continue
            name += " with setup_seconds" * job.spec.makes_environment
            reason = f"not every task ran within {limit:g} s of the reservation ({name})"
            reason += await self._name_late(job.id)
            member = f"it did not start within {limit:g} s ({name})"
            late += await self._stop_start(job, reason, member)
        return late

    async def _stop_silent_starts(self, reserved: Sequence[Reserved], seconds: float) -> int:
        """Drain gangs whose start waits for a host that has been silent for `seconds`. The silent
        host's rank is placed again when its lease is over, and the other ranks free their devices
        now."""
        controller, store = self._controller, self._controller.store
        now = await controller.leadership.read_time()
        since = controller.leadership.hears_since  # the controller's own silence is no host's
        before = now - timedelta(seconds=seconds)
        gangs = [found.job for found in reserved if found.job.tasks > 1 and found.seconds > seconds]
        if not gangs or since is None or since > before:
            return 0
        hosts = await store.hosts.list_hosts()
        silent = {h.id for h in hosts if h.heartbeat_at is not None and h.heartbeat_at < before}
        late = 0
        for job in gangs if silent else ():
            tasks = await store.jobs.list_tasks(job.id)
            waited = [t for t in tasks if _awaits_start(t) and t.barrier and t.host_id in silent]
            if not waited:
                continue
            names = name_places((t.rank, t.host_name) for t in waited)
            text = f"had not started, and no word came from there for {seconds:g} s"
            member = f"it {text} (reservation_seconds)"
            late += await self._stop_start(
                job, f"{names} {text} (reservation_seconds)", member, {t.rank for t in waited}
            )
        return late

    async def _stop_start(
        self, job: JobRecord, reason: str, member_reason: str, ranks: set[int] | None = None
    ) -> int:
        """Stop the start of `ranks` (None: of all that wait): only these members where the job's
        script runs, else by a drain of the job. Returns 1 where a drain began."""
        if job.spec.supervised and await self._stop_late_members(job.id, member_reason, ranks):
            return 0
        store = self._controller.store.jobs
        return int(await store.drain_job(job.id, Cause.START_TIMEOUT, reason, epoch=job.epoch))

    async def _name_late(self, job_id: str) -> str:
        tasks = await self._controller.store.jobs.list_tasks(job_id)
        late = [(task.rank, task.host_name) for task in tasks if _awaits_start(task)]
        return f": {name_places(late)} had not started" if late and len(tasks) > 1 else ""

    async def _stop_late_members(self, job_id: str, reason: str, ranks: set[int] | None) -> bool:
        """Give the late members of a supervised job other hosts (MEMBER-1). Returns False where the
        job's script does not run. ranks: the late ranks; None for all that wait."""
        store = self._controller.store
        tasks = await store.jobs.list_tasks(job_id)
        if not any(task.rank == 0 and task.state is TaskState.RUNNING for task in tasks):
            return False
        for task in tasks:
            late = _awaits_start(task) and (ranks is None or task.rank in ranks)
            if late and await store.members.stop_member(task.key, Cause.START_TIMEOUT, reason):
                self._controller.poke(f"host:{task.host_id}", "members", "events")
        return True


def _awaits_start(task: TaskRecord) -> bool:
    return task.state is TaskState.RESERVED


class HostDrainsLoop(Loop):
    """Hosts being drained whose deadline has come → the tasks still running there are stopped, at
    no charge."""

    name = "host_drains"
    by_look = True
    interval_seconds = 2.0

    async def run_once(self) -> Summary:
        controller = self._controller
        drained = await controller.store.hosts.drain_due_hosts()
        for host_id, jobs in drained.items():
            text = "the deadline of a host's drain has come; %d jobs are stopped"
            log.info(text, len(jobs), extra={"host": host_id})
        if drained:
            hosts = [f"host:{host_id}" for host_id in drained]
            controller.poke("drain", "members", "events", *hosts)
        return {"drained": sorted(drained)} if drained else {}


class ChildrenLoop(Loop):
    """Jobs whose parent was cancelled → cancelled, unless they are detached."""

    name = "children"
    topic = "children"
    by_look = True
    interval_seconds = 5.0

    async def run_once(self) -> Summary:
        controller = self._controller
        left = await controller.store.jobs.list_left_children()
        for job_id, parent in left:
            reason = f"its parent, job {parent}, was cancelled"
            job = await controller.store.jobs.cancel_job(job_id, reason)
            controller.poke_hosts_of(job.id)
        if left:
            controller.poke("drain", "admit", "children", "events")
        return {"cancelled": len(left)} if left else {}


class DeadHostsLoop(Loop):
    """Hosts with running work and no heartbeat → flagged once, and logged with the operator's next
    step."""

    name = "dead_hosts"
    by_look = True
    interval_seconds = 5.0

    async def run_once(self) -> Summary:
        controller = self._controller
        settings = await controller.settings.current()
        self._pace(settings)
        now = await controller.leadership.read_time()
        since = controller.leadership.hears_since  # the controller's own silence is no host's
        if since is None:
            return {}
        seconds = settings.number("dead_host_seconds")
        hosts = await controller.store.hosts.sweep_dead_hosts(seconds, since, now=now)
        for host in hosts:
            await self._tell(host)
        if hosts:
            controller.poke("events")
        return {"flagged": [host.name for host in hosts]} if hosts else {}

    def rest(self) -> None:
        if (known := self._controller.settings.known) is not None:
            self._pace(known)

    def _pace(self, settings: Settings) -> None:
        self.interval_seconds = settings.number("dead_host_sweep_seconds")

    async def _tell(self, host: HostRecord) -> None:
        store = self._controller.store
        try:
            jobs = [
                job.id
                for job in await store.jobs.list_jobs(JobFilter(host_ids=(host.id,), limit=10))
            ]
        except NotFound:
            jobs = []
        age = "never"
        if host.heartbeat_at is not None:
            age = f"{(await store.now() - host.heartbeat_at).total_seconds():.0f} s ago"
        log.error(
            "DEAD HOST %s (%s, %s): last heartbeat %s, %d tasks under lease there, jobs %s. "
            "They are placed again when their leases lapse. If the machine is gone, say so and "
            "they move at once: holdfast hosts terminate %s. If it lives, restart its agent: a "
            "running guardian keeps the jobs.",
            host.name,
            host.id,
            f"pool {host.pool}" if host.pool else "no pool",
            age,
            host.running,
            ", ".join(jobs) or "(none listed)",
            host.name,
            extra={"host": host.id},
        )


class PruneLoop(Loop):
    """Ended jobs and call sets, machines that are gone and runs of schedules, older than
    `history_days` → deleted, in small batches."""

    name = "prune"
    interval_seconds = 600.0

    async def run_once(self) -> Summary:
        store = self._controller.store
        jobs = await prune_history(self._controller, store.jobs.prune)
        hosts = await prune_history(self._controller, store.fleet.prune_fleet)
        sets = await prune_history(self._controller, store.calls.prune_sets)
        runs = await prune_history(self._controller, store.schedules.prune_runs)
        deleted = sum(found.get("deleted", 0) for found in (jobs, hosts, sets, runs))
        return {"deleted": deleted} if deleted else {}


class OutputsLoop(Loop):
    """Outputs that a lost host still has → settled as partial or lost; outputs that are older than
    `outputs_keep_days` → let go."""

    name = "outputs"
    by_look = True
    interval_seconds = 5.0

    async def run_once(self) -> Summary:
        controller = self._controller
        settings, store = await controller.settings.current(), controller.store.outputs
        settled = await store.settle_outputs(settings.number("outputs_lost_seconds"))
        for job_id in settled:
            controller.poke(f"outputs:{job_id}")
        expired = await store.expire_outputs(settings.number("outputs_keep_days") * 86_400)
        return {"settled": settled, "expired": expired} if settled or expired else {}
