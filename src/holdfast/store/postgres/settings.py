"""Settings, queues, projects and quotas in PostgreSQL."""

from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, Literal

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.placement.plan import QuotaLeft, Share
from holdfast.core.records import ProjectRecord, QueueRecord
from holdfast.core.report.depths import QueueDepth
from holdfast.core.report.money import PRICE, HostPrice, find_changes
from holdfast.core.settings.resolve import Value
from holdfast.errors import NotFound
from holdfast.moves import settings
from holdfast.moves.jobs.dispatch import Switches
from holdfast.moves.jobs.quotas import Quota, Use, check_quota, quota_left, read_quota, read_share
from holdfast.moves.registration import drain_jobs_for
from holdfast.moves.rows import NewEvent
from holdfast.moves.values import SettingsLayers
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Rows, Tx, to_json
from holdfast.store.postgres.moves import load_moves, write_events, write_moves
from holdfast.store.postgres.prices import write_prices


class PostgresSettings(OnSession):
    """Every layer of settings on record.

    A write merges `changes` into the layer and drops the names in `unset`. Where that changed
    anything, it increments the revision and writes an event. A bad value raises ValidationError.
    """

    async def read_settings(self) -> SettingsLayers:
        """Return every layer, from one revision or newer."""
        (row,) = await self.session.list_of(SettingsLayers, "read_settings")
        return row

    async def read_revision(self) -> int:
        """Return the revision of the settings, which grows with each change of any layer."""
        ((revision,),) = [row.values() for row in await self.session.rows("read_revision")]
        return int(revision)

    @transacts
    async def write_cluster_settings(
        self, tx: Tx, changes: Mapping[str, Value], unset: Sequence[str] = (), *, now: Now = None
    ) -> int:
        """Change the cluster's settings and return the revision. Event settings.changed."""
        checked = settings.check_changes(changes, unset, "cluster")
        return await write_cluster(tx, checked, unset, await tx.now(now))

    @transacts
    async def write_rules(self, tx: Tx, text: str, *, now: Now = None) -> int:
        """Replace the operators' rules (checked by the caller) and return the revision. Event
        settings.changed."""
        at = await tx.now(now)
        row = await _lock_cluster(tx)
        if row["rules"] == text:
            return int(row["settings_rev"])
        revision = int(await tx.value("write_rules", rules=text))
        await write_events(tx, [settings.rules_event()], at)
        return revision

    @reads
    async def list_queues(self, tx: Tx) -> list[QueueRecord]:
        """Return every queue, by name."""
        return await _read_queues(tx)

    @reads
    async def list_live_queues(self, tx: Tx) -> list[QueueRecord]:
        """Return every queue, by name, with its running jobs alone: to count a million that wait takes
        seconds."""
        return await _read_queues(tx, counted="count_live")

    @transacts
    async def note_queue_depths(self, tx: Tx, *, now: Now = None) -> None:
        """Note how many jobs are queued in each queue in this minute, and how old the oldest is."""
        await tx.run("note_queue_depths", now=now)
        await tx.run("prune_queue_depths", now=now)

    @reads
    async def read_queue_depths(self, tx: Tx, since: datetime, step: int) -> list[QueueDepth]:
        """Return how full each queue was from `since` on, in stretches of `step` seconds."""
        return await tx.list_of(QueueDepth, "read_queue_depths", since=since, step=step)

    @reads
    async def get_queue(self, tx: Tx, name: str) -> QueueRecord:
        """Return a queue. Raises NotFound."""
        for queue in await _read_queues(tx):
            if queue.name == name:
                return queue
        raise settings.no_queue(name)

    async def put_queue(
        self, name: str, changes: Mapping[str, Value], unset: Sequence[str] = (), *, now: Now = None
    ) -> QueueRecord:
        """Create or change a queue."""
        await self.session.transact(
            lambda tx: _put_layer(tx, "queue", name, changes, unset, settings.queue_event, now)
        )
        # Counting a million jobs takes a while, so no lock is held meanwhile.
        return await self.get_queue(name)

    @transacts
    async def delete_queue(self, tx: Tx, name: str, *, now: Now = None) -> None:
        """Delete a queue. Raises NotFound, Conflict while unfinished jobs are in it."""
        at = await tx.now(now)
        if await tx.one("lock_queue_away", name=name) is None:
            raise settings.no_queue(name)
        if await tx.value("has_unfinished", name=name):
            raise settings.queue_in_use(name)
        await tx.run("delete_queue", name=name)
        await tx.one("bump_revision")
        await write_events(tx, [settings.deleted_event(name)], at)

    @transacts
    async def pause_queue(
        self, tx: Tx, name: str, reason: str, *, hard: bool, now: Now = None
    ) -> list[str]:
        """Stop new starts from the queue; `hard` also drains its running jobs (cause preempted,
        operator stop). Returns the jobs that began to drain. Raises NotFound."""
        at = await tx.now(now)
        row = await tx.one("lock_queue", name=name)
        if row is None:
            raise settings.no_queue(name)
        if (row["paused_at"] is not None, row["paused_reason"], row["hard"]) != (
            True,
            reason,
            hard,
        ):
            await tx.run("pause_queue", name=name, reason=reason, hard=hard, now=at)
            await write_events(tx, [settings.paused_event(name, reason, hard)], at)
        if not hard:
            return []
        found = await tx.rows("running_in_queue", name=name)
        m = await load_moves(tx, [row["id"] for row in found], at)
        drained = drain_jobs_for(m, Cause.PREEMPTED, settings.pause_reason(name, reason), None)
        await write_moves(tx, m)
        return drained

    @transacts
    async def resume_queue(self, tx: Tx, name: str, *, now: Now = None) -> None:
        """Allow new starts again. Raises NotFound."""
        at = await tx.now(now)
        row = await tx.one("lock_queue", name=name)
        if row is None:
            raise settings.no_queue(name)
        if row["paused_at"] is not None:
            await tx.run("resume_queue", name=name)
            await write_events(tx, [settings.resumed_event(name)], at)

    async def list_projects(self) -> list[ProjectRecord]:
        """Return, by name, projects with settings of their own and projects of unfinished jobs."""
        return await self.session.single(lambda tx: _read_projects(tx, None))

    @reads
    async def list_live_projects(
        self, tx: Tx, names: Collection[str] | None = None
    ) -> list[ProjectRecord]:
        """Return the projects with settings of their own or with live jobs, and those of `names`, else
        those with queued jobs. Jobs that wait are not counted, as in `list_live_queues`."""
        if names is None:
            names = {row["name"] for row in await tx.rows("list_queued_projects")}
        kept, live = await tx.many(
            ("read_projects", None), ("running_of_projects", {"names": None})
        )
        own, use = {row["name"]: row for row in kept}, {row["project"]: row for row in live}
        every = sorted({*own, *use, *names})
        return [_make_project(name, own.get(name, {}), use.get(name, {}), 0) for name in every]

    async def get_project(self, name: str) -> ProjectRecord:
        """Return a project; a name that was never used is an empty project."""
        return await self.session.single(lambda tx: _read_project(tx, name))

    @transacts
    async def put_project(
        self,
        tx: Tx,
        name: str,
        changes: Mapping[str, Value],
        unset: Sequence[str] = (),
        *,
        now: Now = None,
    ) -> ProjectRecord:
        """Create or change a project. Event project.changed."""
        await _put_layer(tx, "project", name, changes, unset, settings.project_event, now)
        return await _read_project(tx, name)

    @transacts
    async def delete_project(self, tx: Tx, name: str, *, now: Now = None) -> None:
        """Forget a project's settings. Raises NotFound where it has none, Conflict while unfinished
        jobs are in it."""
        at = await tx.now(now)
        if await tx.one("lock_project", name=name) is None:
            raise settings.no_project(name)
        if await tx.value("project_in_use", name=name):
            raise settings.project_in_use(name)
        await tx.run("delete_project", name=name)
        await tx.one("bump_revision")
        await write_events(tx, [settings.forgotten_event(name)], at)


async def write_cluster(
    tx: Tx, checked: Mapping[str, Value], unset: Sequence[str], at: datetime, *, priced: bool = True
) -> int:
    """Write checked settings of the cluster, and return the revision. priced: a price among them holds
    from now on; False where the caller writes from when on it does."""
    row = await _lock_cluster(tx)
    merged = settings.merge_layer(row["settings"], checked, unset)
    if merged == row["settings"]:
        return int(row["settings_rev"])
    revision = int(await tx.value("write_cluster", changes=to_json(checked), unset=list(unset)))
    await write_events(tx, [settings.settings_event(checked, unset)], at)
    old, new = (
        msgspec.convert({"host": "", PRICE: of.get(PRICE)}, HostPrice)
        for of in (row["settings"], merged)
    )
    if priced:
        await write_prices(tx, find_changes({"": old}, [new], at), at)
    return revision


async def _lock_cluster(tx: Tx) -> dict[str, Any]:
    row = await tx.one("lock_cluster")
    if row is None:
        raise NotFound("the cluster's row is gone from the database; restore a backup")
    return row


async def _put_layer(
    tx: Tx,
    level: Literal["queue", "project"],
    name: str,
    changes: Mapping[str, Value],
    unset: Sequence[str],
    make_event: Callable[..., NewEvent],
    now: Now,
) -> None:
    checked = settings.check_changes(changes, unset, level)
    at = await tx.now(now)
    row = await tx.one(f"lock_{level}", name=name)
    if level == "queue":
        checked = settings.fill_queue(name, checked, created=row is None)
    if row is None or settings.merge_layer(row["settings"], checked, unset) != row["settings"]:
        given = {"changes": to_json(checked), "unset": list(unset)}
        await tx.one(f"put_{level}", name=name, **given, now=at)
        await tx.one("bump_revision")
        await write_events(tx, [make_event(name, checked, unset, created=row is None)], at)


async def _read_queues(tx: Tx, *, counted: str = "count_jobs") -> list[QueueRecord]:
    counts: dict[str, dict[str, int]] = {}
    for row in await tx.rows(counted):
        state = row["state"] if row["state"] in ("waiting", "queued") else "running"
        of = counts.setdefault(row["queue"], {})
        of[state] = of.get(state, 0) + row["count"]
    return [
        msgspec.convert(row | counts.get(row["name"], {}), QueueRecord)
        for row in await tx.rows("read_queues")
    ]


async def _read_projects(tx: Tx, names: Sequence[str] | None) -> list[ProjectRecord]:
    kept, used = await tx.many(("read_projects", None), ("use_of_projects", {"names": names}))
    own = {row["name"]: row for row in kept if names is None or row["name"] in names}
    use = {row["project"]: row for row in used}
    every = sorted(own.keys() | use.keys() | set(names or ()))
    return [
        _make_project(name, own.get(name, {}), of := use.get(name, {}), of.get("jobs", 0))
        for name in every
    ]


def _make_project(
    name: str, own: Mapping[str, Any], use: Mapping[str, Any], unfinished: int
) -> ProjectRecord:
    """Return a project. own: its row, empty without one. use: its live jobs, empty without any."""
    return ProjectRecord(
        name=name,
        settings=own.get("settings", {}),
        running=use.get("running_jobs", 0),
        gpus=use.get("running_gpus", 0),
        cpu_slots=use.get("running_cpu_slots", 0),
        unfinished=unfinished,
        created_at=own.get("created_at"),
        spent_month=own.get("spent_month", ""),
        spent_usd=own.get("spent_usd", 0.0),
        held=own.get("held", ""),
    )


async def _read_project(tx: Tx, name: str) -> ProjectRecord:
    (found,) = await _read_projects(tx, [name])
    return found


async def read_quotas(
    tx: Tx, names: Collection[str], environment: Mapping[str, Value]
) -> dict[str, Quota]:
    """Return project → quota in force, for the projects among `names` that have a quota."""
    row = await tx.one("read_quota_layers", names=sorted(names))
    if row is None:
        return {}
    below = [("cluster", row["cluster"]), ("environment", environment)]
    own, held = row["projects"], row["held"]
    found = {
        name: read_quota(own.get(name, {}), below, held.get(name, "")) for name in sorted(names)
    }
    return {name: quota for name, quota in found.items() if quota is not None}


async def read_quotas_left(tx: Tx, quotas: Mapping[str, Quota]) -> dict[str, QuotaLeft]:
    """Return the rest of each project's quota (QUOTA-2)."""
    rows = await tx.rows("running_of_projects", names=list(quotas)) if quotas else []
    use = {row.pop("project"): Use(**row) for row in rows}
    return {name: quota_left(quota, use.get(name, Use())) for name, quota in quotas.items()}


async def read_shares(tx: Tx, environment: Mapping[str, Value]) -> dict[str, Share]:
    """Return the shares of all projects that have queued or live jobs."""
    used, queued = await tx.many(
        ("running_of_projects", {"names": None}), ("list_queued_projects", None)
    )
    use = {row.pop("project"): Use(**row) for row in used}
    names = sorted(use.keys() | {row["name"] for row in queued})
    row = await tx.one("read_quota_layers", names=names)
    if row is None:
        return {}
    below, own = [("cluster", row["cluster"]), ("environment", environment)], row["projects"]
    return {name: read_share(own.get(name, {}), below, use.get(name, Use())) for name in names}


async def lock_quotas(tx: Tx, names: Collection[str]) -> None:
    """Lock the quotas of the projects, so that no other transaction counts against them meanwhile
    (QUOTA-1)."""
    await tx.rows("lock_quota", names=sorted(names))


async def check_quotas(
    tx: Tx,
    asked: Sequence[tuple[str, int]],
    environment: Mapping[str, Value],
    *,
    written: Sequence[str],
) -> None:
    """Check the hard quotas for new jobs (QUOTA-1). Raises QuotaExceeded.

    asked: (project, GPUs) of each job. written: ids of the jobs that this transaction has written
    already, which are not counted twice.
    """
    limits = await hold_quotas(tx, {project for project, _ in asked}, environment, written=written)
    for name, (quota, use) in limits.items():
        check_quota(name, quota, use, [gpus for project, gpus in asked if project == name])


async def hold_quotas(
    tx: Tx,
    projects: Collection[str],
    environment: Mapping[str, Value],
    *,
    written: Sequence[str] = (),
) -> dict[str, tuple[Quota, Use]]:
    """Return the quotas in force with their use, and lock the projects with hard ones (QUOTA-1).
    The use is read for hard quotas only, without the jobs `written` by this transaction."""
    quotas = await read_quotas(tx, projects, environment)
    hard = [name for name, quota in quotas.items() if quota.hard]
    if hard:
        await lock_quotas(tx, hard)
    limits = {}
    for name, quota in quotas.items():
        use = Use()
        if quota.hard:
            use = Use(**(await tx.one("unfinished_of_project", name=name, but=list(written)) or {}))
        limits[name] = (quota, use)
    return limits


ASK_SWITCHES: tuple[tuple[str, None], ...] = (("share_switch", None), ("list_switched_off", None))
"""The queries for the kill switches. They lock: a change of a switch waits for this transaction, or
this transaction for the change (RETRY-6)."""


async def read_switches(tx: Tx, environment: Mapping[str, Value]) -> Switches:
    """Return the kill switches (`ASK_SWITCHES`)."""
    return take_switches(environment, *await tx.many(*ASK_SWITCHES))


def take_switches(environment: Mapping[str, Value], found: Rows, off: Rows) -> Switches:
    """Return the kill switches from the rows of `ASK_SWITCHES`."""
    (cluster,) = found
    return Switches(cluster["settings"], environment, [row["name"] for row in off])
