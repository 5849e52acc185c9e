"""The health of hosts in PostgreSQL."""

from collections.abc import Sequence
from datetime import timedelta

import msgspec

from holdfast.core.health.blame import MAX_JOBS, HostStanding, SetAside, name_program
from holdfast.core.health.due import CheckState
from holdfast.core.records import HostCheckRecord
from holdfast.core.spec import JobSpec
from holdfast.errors import Stale
from holdfast.moves.registration import no_host
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, transacts
from holdfast.store.postgres.connection.session import Tx, to_json


class PostgresHealth(OnSession):
    """The checks of hosts, the ends of tasks on them, and the times they were set aside
    (asides)."""

    @transacts
    async def note_health(
        self,
        tx: Tx,
        host_id: str,
        incarnation: str,
        *,
        passed: int = 0,
        failed: int = 0,
        failures: Sequence[tuple[str, int]] = (),
        check: HostCheckRecord | None = None,
        now: Now = None,
    ) -> CheckState:
        """Add ends of tasks and, where `check` is given, the result of a check; return the facts
        for the host's next check.

        failures: (job, attempt) of tasks that failed by themselves. A check that comes again under
        its number changes nothing.

        Raises:
            NotFound: no such host. Stale: another incarnation of the host is the present one.
        """
        at = await tx.now(now)
        present = await tx.value("lock_host", id=host_id)
        if present is None:
            raise no_host(host_id)
        if present != incarnation:
            raise Stale(f"another incarnation of host {host_id} reports its health")
        if passed or failed:
            await tx.run("note_ends", host_id=host_id, at=at, passed=passed, failed=failed)
        if failures:
            jobs, attempts = zip(*failures, strict=True)
            await tx.run(
                "note_failures", host_id=host_id, at=at, jobs=list(jobs), attempts=list(attempts)
            )
        if check is not None:
            await tx.run(
                "insert_check",
                host_id=host_id,
                incarnation=incarnation,
                at=at,
                number=check.number,
                kind=check.kind,
                verdict=str(check.verdict),
                message=check.message,
                results=to_json(check.results),
                measured=to_json(check.measured),
            )
        row = await tx.one("read_check_state", id=host_id, incarnation=incarnation, now=at)
        return msgspec.convert(row, CheckState)

    async def list_checks(self, host_id: str, limit: int = 20) -> list[HostCheckRecord]:
        """Return the host's checks, newest first."""
        return await self.session.list_of(
            HostCheckRecord, "list_checks", host_id=host_id, limit=limit
        )

    @transacts
    async def read_standings(
        self, tx: Tx, window_seconds: float, *, now: Now = None
    ) -> list[HostStanding]:
        """Return the hosts with evidence against them, and the hosts that are set aside. A host
        that an operator released counts as set aside no more from this call on."""
        at = await tx.now(now)
        await tx.run("end_lifted_asides", now=at)
        since = at - timedelta(seconds=window_seconds)
        found = await tx.list_of(HostStanding, "read_standings", since=since, now=at, most=MAX_JOBS)
        jobs = sorted({job for standing in found for job in standing.jobs})
        programs = {
            row["id"]: name_program(row["project"], msgspec.convert(row["spec"], JobSpec))
            for row in (await tx.rows("read_programs", jobs=jobs) if jobs else ())
        }
        return [
            msgspec.structs.replace(
                standing, programs=tuple(programs.get(job, job) for job in standing.jobs)
            )
            for standing in found
        ]

    @transacts
    async def open_aside(self, tx: Tx, verdict: SetAside, *, now: Now = None) -> None:
        """Write that a host is about to be set aside, which means that it gets no work."""
        at = await tx.now(now)
        await tx.run(
            "open_aside",
            host_id=verdict.host_id,
            kind=verdict.kind,
            at=at,
            until=at + timedelta(seconds=verdict.seconds),
        )

    @transacts
    async def close_aside(self, tx: Tx, host_id: str, *, now: Now = None) -> None:
        """Write that a host which was set aside is released; the evidence against it counts no
        more."""
        await tx.run("close_aside", host_id=host_id, now=await tx.now(now))

    @transacts
    async def prune_health(self, tx: Tx, older_than_days: float, *, now: Now = None) -> int:
        """Delete checks, ends, failures and times set aside that are older than `older_than_days`;
        return how many rows."""
        before = await tx.now(now) - timedelta(days=older_than_days)
        deleted = [await tx.run(f"prune_{what}", before=before) for what in _PRUNED]
        return sum(deleted)


_PRUNED = ("checks", "ends", "failures", "asides")
