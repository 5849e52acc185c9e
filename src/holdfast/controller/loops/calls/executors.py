"""Calls that wait → executors, submitted as jobs; admission places them like any other job.

The number is decided by `core.calls.plan`. A round writes under the lead (LEAD-3) and reads anew
which executors live, so neither a killed leader nor two of them start the same executor twice.
"""

import logging
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence

from holdfast.controller.calls.why import LIVE, count_failures
from holdfast.controller.loops.loop import Loop, Summary
from holdfast.controller.runtime.auth import make_new_id
from holdfast.controller.runtime.settings import Settings
from holdfast.core.calls.executors import APP, is_ahead, is_lent, make_executor_spec, read_family
from holdfast.core.calls.plan import (
    DOUBLING_SECONDS,
    CallsNeed,
    FamilyPlan,
    FamilyState,
    plan_executors,
)
from holdfast.core.calls.rooms import find_room
from holdfast.core.calls.values import Family
from holdfast.core.records import HostRecord, JobRecord
from holdfast.core.states import JobState
from holdfast.errors import Conflict, NotFound, QuotaExceeded, ValidationError
from holdfast.moves.values import JobFilter, NewJob
from holdfast.store.postgres.calls.values import BusyCall, Feed

log = logging.getLogger("holdfast.loops")
MAX_EXECUTORS = 10_000
MAX_ENDED = 20
MOST_LENT = 64
"""The most executors without a slot of their own per host, because each is a process."""
WITHDRAWN = "no call waits for it any more"


class ExecutorsLoop(Loop):
    """Starts and withdraws executors. Wakes when calls are submitted, and every two seconds."""

    name = "executors"
    topic = "executors"
    by_look = True
    interval_seconds = 2.0

    async def run_once(self) -> Summary:
        controller = self._controller
        store = controller.store
        settings = await controller.settings.current()
        feeds = await store.calls.read_feeds()
        ahead = int(settings.number("executors_ahead"))
        live = await store.jobs.list_jobs(
            JobFilter(states=LIVE, executors="only", limit=MAX_EXECUTORS)
        )
        self._show(live)
        if not feeds and not live and not ahead:
            return {}
        # Without calls there is nothing to place, and hosts may be many.
        hosts = await store.hosts.list_hosts() if feeds or ahead else []
        needs = self._find_needs(feeds, live, _list_apps(hosts) if ahead else ())
        pools = [pool.spec for pool in await store.fleet.list_pools() if pool.deleted_at is None]
        rooms = {
            need.family.name: find_room(
                need.family, hosts, pools, _find_most(settings, need.family.queue)
            )
            for need in needs
        }
        busy = await store.calls.read_busy() if live else []
        states = await self._find_states(needs, live, feeds, busy)
        waiting = min(sum(bool(b.waits_for) for b in busy), MOST_LENT * len(hosts))
        lendable = max(0, waiting - sum(is_lent(job.spec) for job in live))
        submitted = withdrawn = 0
        for plan in plan_executors(needs, states, rooms, ahead, lendable):
            submitted += await self._submit(plan)
            withdrawn += await self._withdraw(plan, live)
        if submitted or withdrawn:
            controller.poke("admit", "events")
        counts = {"submitted": submitted, "withdrawn": withdrawn}
        return {name: count for name, count in counts.items() if count}

    def rest(self) -> None:
        self._show(())

    def _find_needs(
        self, feeds: Sequence[Feed], live: Sequence[JobRecord], apps: Iterable[str]
    ) -> list[CallsNeed]:
        """Return the need of each family with waiting calls, with executors, or with executors to
        be kept ahead of calls."""
        kept = [Family(app=app, queue="cpu") for app in apps]
        known = {job.spec.executor: read_family(job.spec, job.queue) for job in live}
        known |= {family.name: family for family in kept}
        known |= {feed.family.name: feed.family for feed in feeds}
        ready: Counter[str] = Counter()
        oldest: dict[str, float] = {}
        for feed in feeds:
            name = feed.family.name
            ready[name] += feed.ready
            oldest[name] = max(oldest.get(name, 0.0), feed.head_age_seconds)
        calls = self._controller.calls
        return [
            CallsNeed(
                family=family,
                ready=ready[name],
                head_age_seconds=oldest.get(name, 0.0),
                mean_seconds=calls.mean_seconds(name),
            )
            for name, family in known.items()
        ]

    async def _find_states(
        self,
        needs: Sequence[CallsNeed],
        live: Sequence[JobRecord],
        feeds: Sequence[Feed],
        busy: Sequence[BusyCall],
    ) -> dict[str, FamilyState]:
        store = self._controller.store
        mine: dict[str, list[JobRecord]] = {}
        for job in live:
            mine.setdefault(job.spec.executor, []).append(job)
        states = {}
        for need in needs:
            name = need.family.name
            jobs = mine.get(name, [])
            counts = Counter(job.state for job in jobs)
            failures, failed_seconds = 0, float("inf")
            if need.ready and not counts[JobState.RUNNING]:
                ended = await store.jobs.list_jobs(
                    JobFilter(
                        states=(JobState.SUCCEEDED, JobState.FAILED, JobState.CANCELLED),
                        executors="only",
                        family=name,
                        limit=MAX_ENDED,
                    )
                )
                failures = count_failures(ended)
                if failures and ended[0].ended_at is not None:
                    now = await store.now()
                    failed_seconds = (now - ended[0].ended_at).total_seconds()
            waiting = [feed for feed in feeds if feed.family.name == name]
            narrow = self._controller.calls.count_narrow(name, waiting)
            late = need.head_age_seconds > DOUBLING_SECONDS
            taken = {call.job_id for call in busy if call.waits_for or late}
            narrow += sum(job.id in taken for job in jobs)
            states[name] = FamilyState(
                running=counts[JobState.RUNNING] + counts[JobState.DRAINING],
                starting=counts[JobState.RESERVED],
                queued=counts[JobState.QUEUED] + counts[JobState.WAITING],
                ahead=sum(is_ahead(job.spec) for job in jobs),
                lent=sum(is_lent(job.spec) for job in jobs),
                narrow=min(counts[JobState.RUNNING], narrow),
                failures=failures,
                failed_seconds=failed_seconds,
            )
        return states

    async def _submit(self, plan: FamilyPlan) -> int:
        """Submit the executors of one plan, and keep the reason of a refusal for `why`."""
        name, refusals = plan.family.name, self._controller.calls.refusals
        specs = [
            *(make_executor_spec(plan.family, ahead=True) for _ in range(plan.ahead)),
            *(make_executor_spec(plan.family) for _ in range(plan.submit)),
            *(make_executor_spec(plan.family, lent=True) for _ in range(plan.lent)),
        ]
        jobs = [NewJob(id=make_new_id(), spec=spec, queue=plan.family.queue) for spec in specs]
        if not jobs:
            return 0
        try:
            await self._controller.store.jobs.submit_jobs(jobs)
        except (QuotaExceeded, ValidationError, Conflict) as error:
            if refusals.get(name) != error.message:
                log.warning("executors of family %s were refused: %s", name, error.message)
            refusals[name] = error.message
            return 0
        refusals.pop(name, None)
        return len(jobs)

    async def _withdraw(self, plan: FamilyPlan, live: Sequence[JobRecord]) -> int:
        """Cancel executors without a place, the most recently submitted first."""
        queued = [
            job
            for job in live  # the newest first
            if job.spec.executor == plan.family.name and job.state is JobState.QUEUED
        ]
        for job in queued[: plan.withdraw]:
            try:
                await self._controller.store.jobs.cancel_job(job.id, WITHDRAWN)
            except NotFound:
                continue
        return min(plan.withdraw, len(queued))

    def _show(self, live: Sequence[JobRecord]) -> None:
        gauge = self._controller.metrics.calls.executors
        gauge.clear()
        counts = Counter((job.spec.executor, str(job.state)) for job in live)
        for (family, state), count in counts.items():
            gauge.labels(family, state).set(count)


def _list_apps(hosts: Sequence[HostRecord]) -> Mapping[str, None]:
    """Return the apps that live hosts list."""
    return dict.fromkeys(
        label.removeprefix(APP)
        for host in hosts
        for label, value in host.able_labels.items()
        if label.startswith(APP) and value == "yes"
    )


def _find_most(settings: Settings, queue: str) -> int | None:
    most = settings.value("executors_max", queue)
    return most if isinstance(most, int) else None
