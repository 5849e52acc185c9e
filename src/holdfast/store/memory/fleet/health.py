"""The health of hosts in memory."""

from collections.abc import Sequence
from datetime import datetime, timedelta
from typing import Literal

import msgspec

from holdfast.core.health.blame import MAX_JOBS, HostStanding, SetAside, name_program
from holdfast.core.health.checks import CheckVerdict
from holdfast.core.health.due import CheckState
from holdfast.core.records import HostCheckRecord
from holdfast.core.states import HostState, Outcome
from holdfast.errors import Stale
from holdfast.moves.registration import no_host
from holdfast.store.memory.state import MemoryHost, MemoryState
from holdfast.store.port.clock import Now


class MemoryAside(msgspec.Struct, kw_only=True):
    """A time for which a host was set aside."""

    host_id: str
    kind: Literal["jobs", "checks"]
    until: datetime
    ended_at: datetime | None = None


class MemoryHealth:
    """`HealthStore` in memory."""

    def __init__(self, state: MemoryState) -> None:
        self.state = state
        self._ends: list[tuple[str, datetime, int, int]] = []
        self._failures: dict[tuple[str, str, int], datetime] = {}
        self._asides: list[MemoryAside] = []

    async def note_health(
        self,
        host_id: str,
        incarnation: str,
        *,
        passed: int = 0,
        failed: int = 0,
        failures: Sequence[tuple[str, int]] = (),
        check: HostCheckRecord | None = None,
        now: Now = None,
    ) -> CheckState:
        at = now or self.state.clock()
        host = self.state.hosts.get(host_id)
        if host is None:
            raise no_host(host_id)
        if host.incarnation != incarnation:
            raise Stale(f"another incarnation of host {host_id} reports its health")
        self._ends.append((host_id, at, passed, failed))
        for job_id, attempt in failures:
            self._failures.setdefault((host_id, job_id, attempt), at)
        if check is not None:
            kept = msgspec.structs.replace(check, incarnation=incarnation, at=at)
            self.state.checks.setdefault((host_id, check.number), kept)
        mine = self._checks_of(host_id)
        last = mine[0].at if mine else host.registered_at
        return CheckState(
            state=host.state,
            preflighted=any(c.kind == "preflight" and c.incarnation == incarnation for c in mine),
            last_check_seconds=(at - last).total_seconds(),
            failed_since=sum(
                of == host_id and (not mine or when > last)
                for (of, _, _), when in self._failures.items()
            ),
        )

    def _checks_of(self, host_id: str) -> list[HostCheckRecord]:
        mine = [check for (of, _), check in self.state.checks.items() if of == host_id]
        return sorted(mine, key=lambda check: check.at, reverse=True)

    async def list_checks(self, host_id: str, limit: int = 20) -> list[HostCheckRecord]:
        return self._checks_of(host_id)[:limit]

    async def read_standings(self, window_seconds: float, *, now: Now = None) -> list[HostStanding]:
        at = now or self.state.clock()
        for aside in self._asides:
            host = self.state.hosts.get(aside.host_id)
            if aside.ended_at is None and host and host.state is not HostState.QUARANTINED:
                aside.ended_at = at
        since = at - timedelta(seconds=window_seconds)
        standings = (self._stand(host, since, at) for host in self.state.hosts.values())
        return sorted((s for s in standings if s is not None), key=lambda s: s.host_id)

    def _stand(self, host: MemoryHost, since: datetime, at: datetime) -> HostStanding | None:
        asides = [aside for aside in self._asides if aside.host_id == host.id]
        open_one = next((aside for aside in asides if aside.ended_at is None), None)
        ended = [aside.ended_at for aside in asides if aside.ended_at is not None]
        jobs = self._find_against(host.id, max([since, *ended]))
        checks = [check for check in self._checks_of(host.id) if check.at > since]
        suspect = bool(jobs) or any(check.verdict is CheckVerdict.FAIL for check in checks)
        active, aside = host.state is HostState.ACTIVE, host.state is HostState.QUARANTINED
        if not ((active and suspect) or (aside and open_one is not None)):
            return None
        hour = since - timedelta(hours=1)
        mine = [row for row in self._ends if row[0] == host.id and row[1] > hour]
        beside = [h.state for h in self.state.hosts.values() if h.pool == host.pool]
        pool_aside = beside.count(HostState.QUARANTINED)
        return HostStanding(
            host_id=host.id,
            name=host.name,
            jobs=jobs,
            programs=tuple(self._name_program(job_id) for job_id in jobs),
            passed=sum(row[2] for row in mine),
            failed=sum(row[3] for row in mine),
            verdicts=tuple(check.verdict for check in checks[:5]),
            check_message=checks[0].message if checks else "",
            blames=sum(one.kind == "jobs" for one in asides),
            aside="" if open_one is None else open_one.kind,
            aside_left_seconds=(open_one.until - at).total_seconds() if open_one else 0.0,
            pool=host.pool,
            pool_hosts=pool_aside + beside.count(HostState.ACTIVE),
            pool_aside=pool_aside,
        )

    def _name_program(self, job_id: str) -> str:
        job = self.state.jobs.get(job_id)
        return job_id if job is None else name_program(job.row.project, job.spec)

    def _find_against(self, host_id: str, since: datetime) -> tuple[str, ...]:
        found = {
            job_id
            for (of, job_id, attempt), when in self._failures.items()
            if of == host_id and when > since and self._passed_elsewhere(host_id, job_id, attempt)
        }
        return tuple(sorted(found)[:MAX_JOBS])

    def _passed_elsewhere(self, host_id: str, job_id: str, attempt: int) -> bool:
        return any(
            later.number > attempt
            and later.outcome is Outcome.SUCCEEDED
            and host_id not in later.host_ids
            for later in self.state.attempts.get(job_id, ())
        )

    async def open_aside(self, verdict: SetAside, *, now: Now = None) -> None:
        at = now or self.state.clock()
        until = at + timedelta(seconds=verdict.seconds)
        self._asides = [
            aside
            for aside in self._asides
            if aside.host_id != verdict.host_id or aside.ended_at is not None
        ]
        self._asides.append(MemoryAside(host_id=verdict.host_id, kind=verdict.kind, until=until))

    async def close_aside(self, host_id: str, *, now: Now = None) -> None:
        for aside in self._asides:
            if aside.host_id == host_id and aside.ended_at is None:
                aside.ended_at = now or self.state.clock()

    async def prune_health(self, older_than_days: float, *, now: Now = None) -> int:
        before = (now or self.state.clock()) - timedelta(days=older_than_days)
        counts = (len(self.state.checks), len(self._ends), len(self._failures), len(self._asides))
        self.state.checks = {
            key: check for key, check in self.state.checks.items() if check.at >= before
        }
        self._ends = [row for row in self._ends if row[1] >= before]
        self._failures = {key: at for key, at in self._failures.items() if at >= before}
        self._asides = [a for a in self._asides if a.ended_at is None or a.ended_at >= before]
        left = (len(self.state.checks), len(self._ends), len(self._failures), len(self._asides))
        return sum(counts) - sum(left)
