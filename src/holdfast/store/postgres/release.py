"""Waiting jobs in PostgreSQL whose time has come: start times, and the dispatch of retries."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from functools import partial

from holdfast.core.settings.resolve import Value
from holdfast.moves import dispatch
from holdfast.moves.requests import DUE
from holdfast.store.port.store import Released
from holdfast.store.postgres.connection.session import Session, Tx
from holdfast.store.postgres.moves import load_moves, write_moves

RELEASE_BATCH = 1000


class ReleasePart:
    """The part of the store that lets waiting jobs go."""

    session: Session
    environment: Mapping[str, Value]

    async def release_due(
        self, retry_limit: int | None = None, *, now: datetime | None = None
    ) -> Released:
        """See `Store.release_due`."""
        held_projects = await self.session.single(lambda tx: self._look(tx, now))
        done, more = Released(), held_projects is not None
        while more:
            rest = None if retry_limit is None else max(0, retry_limit - done.retries)
            found, more = await self.session.transact(
                partial(self._release, held_projects or [], rest, now)
            )
            done = Released(
                started=done.started + found.started,
                retries=done.retries + found.retries,
                held=done.held + found.held,
                left=found.left,
            )
        return done

    async def _look(self, tx: Tx, now: datetime | None) -> list[str] | None:
        """The projects of retries that are held; None where there is nothing to do."""
        row = await tx.one("look_due", {"now": now})
        if row is None:
            return None
        held: list[str] = row["held"]
        switches = dispatch.Switches(row["cluster"], self.environment, row["off"])
        if (
            row["starts"]
            or row["retries"]
            or any(switches.held_by(project) is None for project in held)
        ):
            return held
        return None

    async def _release(
        self, held_projects: Sequence[str], limit: int | None, now: datetime | None, tx: Tx
    ) -> tuple[Released, bool]:
        """One batch of each kind, and whether there may be more."""
        at = await tx.now(now)
        (cluster,), rows = await tx.many(("share_switch", None), ("list_switched_off", None))
        switches = dispatch.Switches(
            cluster["settings"], self.environment, [row["name"] for row in rows]
        )
        off, free = switches.projects_off, [p for p in held_projects if switches.held_by(p) is None]
        batch = RELEASE_BATCH if limit is None else min(limit, RELEASE_BATCH)
        started, *found = await tx.many(
            ("release_starts", {"now": at, "limit": RELEASE_BATCH, "reason": DUE}),
            (
                "find_due_held",
                {
                    "now": at,
                    "limit": RELEASE_BATCH,
                    "everywhere": switches.everywhere is not None,
                    "off": off,
                },
            ),
            ("find_resumed", {"projects": free, "limit": RELEASE_BATCH}),
            (
                "find_due_retries",
                {"now": at, "limit": batch if switches.everywhere is None else 0, "off": off},
            ),
        )
        held, resumed, due = ([row["id"] for row in rows] for rows in found)
        m = await load_moves(tx, [*held, *resumed, *due], at)
        for job in (m.jobs[job_id] for job_id in held):
            dispatch.hold_due(m, job, switches.held_by(job.project) or "a kill switch")
        for job_id in resumed:
            dispatch.resume_retry(m, m.jobs[job_id])
        for job_id in due:
            dispatch.dispatch_retry(m, m.jobs[job_id])
        await write_moves(tx, m)
        spent = limit is not None and len(due) >= limit
        left = (
            spent
            and switches.everywhere is None
            and bool(await tx.value("retries_left", {"now": at, "off": off}))
        )
        (count,) = started[0].values()
        full = (
            max(count, len(held)) >= RELEASE_BATCH
            or (len(due) >= batch and not spent)
            or bool(resumed)
        )
        return Released(started=count, retries=len(due), held=len(held), left=left), full
