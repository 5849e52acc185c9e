"""Projects in PostgreSQL: their settings, what they use, and their quotas."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

from holdfast.core.placement.plan import QuotaLeft
from holdfast.core.records import ProjectRecord
from holdfast.core.settings.resolve import Value
from holdfast.moves.changes import (
    check_changes,
    forgotten_event,
    merge_layer,
    no_project,
    project_event,
    project_in_use,
)
from holdfast.moves.quotas import Quota, Use, check_quota, quota_left, read_quota
from holdfast.store.postgres.connection.session import Session, Tx, to_json
from holdfast.store.postgres.moves import write_events


class ProjectsPart:
    """The part of the store that keeps projects."""

    session: Session

    async def list_projects(self) -> list[ProjectRecord]:
        """See `Store.list_projects`."""
        return await self.session.single(lambda tx: _read_projects(tx, None))

    async def get_project(self, name: str) -> ProjectRecord:
        """See `Store.get_project`."""
        return await self.session.single(lambda tx: _read_project(tx, name))

    async def put_project(
        self,
        name: str,
        changes: Mapping[str, Value],
        unset: Sequence[str] = (),
        *,
        now: datetime | None = None,
    ) -> ProjectRecord:
        """See `Store.put_project`."""
        checked = check_changes(changes, unset, "project")

        async def work(tx: Tx) -> ProjectRecord:
            at = await tx.now(now)
            row = await tx.one("lock_project", {"name": name})
            if row is None or merge_layer(row["settings"], checked, unset) != row["settings"]:
                params = {
                    "name": name,
                    "changes": to_json(checked),
                    "unset": list(unset),
                    "now": at,
                }
                await tx.one("put_project", params)
                await tx.one("bump_revision")
                await write_events(
                    tx, [project_event(name, checked, unset, created=row is None)], at
                )
            return await _read_project(tx, name)

        return await self.session.transact(work)

    async def delete_project(self, name: str, *, now: datetime | None = None) -> None:
        """See `Store.delete_project`."""

        async def work(tx: Tx) -> None:
            at = await tx.now(now)
            if await tx.one("lock_project", {"name": name}) is None:
                raise no_project(name)
            if await tx.value("project_in_use", {"name": name}):
                raise project_in_use(name)
            await tx.run("delete_project", {"name": name})
            await tx.one("bump_revision")
            await write_events(tx, [forgotten_event(name)], at)

        await self.session.transact(work)

    async def count_waiting(self) -> dict[tuple[str, str], int]:
        """See `Store.count_waiting`."""
        rows = await self.session.rows("count_waiting")
        return {(row["project"], row["wait_cause"]): row["count"] for row in rows}


async def _read_projects(tx: Tx, names: Sequence[str] | None) -> list[ProjectRecord]:
    kept, used = await tx.many(("read_projects", None), ("use_of_projects", {"names": names}))
    own = {row["name"]: row for row in kept if names is None or row["name"] in names}
    use = {row["project"]: row for row in used}
    return [
        ProjectRecord(
            name=name,
            settings=own[name]["settings"] if name in own else {},
            running=use[name]["running_jobs"] if name in use else 0,
            gpus=use[name]["running_gpus"] if name in use else 0,
            unfinished=use[name]["jobs"] if name in use else 0,
            created_at=own[name]["created_at"] if name in own else None,
        )
        for name in sorted(own.keys() | use.keys() | set(names or ()))
    ]


async def _read_project(tx: Tx, name: str) -> ProjectRecord:
    (found,) = await _read_projects(tx, [name])
    return found


async def read_quotas(
    tx: Tx, names: Collection[str], environment: Mapping[str, Value]
) -> dict[str, Quota]:
    """The quotas in force of those of `names` that have one."""
    row = await tx.one("read_quota_layers", {"names": sorted(names)})
    if row is None:
        return {}
    below = [("cluster", row["cluster"]), ("environment", environment)]
    found = {name: read_quota(row["projects"].get(name, {}), below) for name in sorted(names)}
    return {name: quota for name, quota in found.items() if quota is not None}


async def read_quotas_left(tx: Tx, quotas: Mapping[str, Quota]) -> dict[str, QuotaLeft]:
    """What projects may still start (QUOTA-2)."""
    rows = await tx.rows("running_of_projects", {"names": list(quotas)}) if quotas else []
    use = {row.pop("project"): Use(**row) for row in rows}
    return {name: quota_left(quota, use.get(name, Use())) for name, quota in quotas.items()}


async def lock_quotas(tx: Tx, names: Collection[str]) -> None:
    """Take the projects' locks (QUOTA-1)."""
    await tx.rows("lock_quota", {"names": sorted(names)})


async def check_quotas(
    tx: Tx,
    asked: Sequence[tuple[str, int]],
    environment: Mapping[str, Value],
    *,
    written: Sequence[str],
) -> None:
    """QUOTA-1, for jobs that are to be added, or are `written` by this transaction already: these
    are not counted twice.

    asked: project and GPUs of each. Raises QuotaExceeded.
    """
    quotas = await read_quotas(tx, {project for project, _ in asked}, environment)
    hard = [name for name, quota in quotas.items() if quota.hard]
    if hard:
        await lock_quotas(tx, hard)
    for name, quota in quotas.items():
        use = Use()
        if quota.hard:
            use = Use(
                **(
                    await tx.one("unfinished_of_project", {"name": name, "but": list(written)})
                    or {}
                )
            )
        check_quota(name, quota, use, [gpus for project, gpus in asked if project == name])
