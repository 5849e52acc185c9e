"""Notice targets, and the jobs that people are told of. Their deliveries are those of webhooks."""

from collections.abc import Collection, Sequence
from datetime import datetime

from holdfast.core.webhooks import values
from holdfast.core.webhooks.notices import NOTED_EVENTS, NotedJob
from holdfast.core.webhooks.values import WebhookRecord
from holdfast.moves.events import hook_event, no_target
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Tx
from holdfast.store.postgres.moves import write_events

MAX_MOMENTS = 1000


class PostgresNotices(OnSession):
    """Notice targets, where people are told of jobs. A target is known by its name and its project;
    the project None stands for the whole cluster.

    Methods that take a name raise NotFound for an unknown target.
    """

    @transacts
    async def put_target(
        self,
        tx: Tx,
        target_id: str,
        name: str,
        project: str | None,
        url: str,
        service: str,
        *,
        now: Now = None,
    ) -> values.WebhookRecord:
        """Make a notice target, or give the target of this name another url. The target gets the
        events that are committed after this call."""
        at = await tx.now(now)
        row = await tx.one(
            "put_notice_target",
            id=target_id,
            name=name,
            project=project,
            url=url,
            service=service,
            events=list(NOTED_EVENTS),
            now=at,
        )
        assert row is not None
        hook = await _find(tx, name, project)
        what, said = ("created", "was created") if row["made"] else ("changed", "has a new url")
        await write_events(tx, [hook_event(what, hook, said, service=service)], at)
        return hook

    async def list_targets(self) -> list[values.WebhookRecord]:
        """Return every notice target, without its url, the oldest first."""
        return await self.session.list_of(
            values.WebhookRecord, "list_webhooks", id=None, notices=True
        )

    @reads
    async def get_target(
        self, tx: Tx, name: str, project: str | None
    ) -> tuple[values.WebhookRecord, str, str]:
        """Return a notice target, its url, and the error of its last delivery; the error is ""
        where that delivery succeeded."""
        hook = await _find(tx, name, project)
        row = await tx.one("read_webhook_target", id=hook.id, notice=True, now=None)
        error = await tx.one("find_last_error", ids=[hook.id])
        if row is None:
            raise no_target(name, project)
        return hook, row["url"], "" if error is None else error["error"]

    @transacts
    async def delete_target(
        self, tx: Tx, name: str, project: str | None, *, now: Now = None
    ) -> None:
        """Forget a notice target and its deliveries."""
        hook = await _find(tx, name, project)
        await tx.run("delete_webhook", id=hook.id)
        await write_events(tx, [hook_event("deleted", hook, "was deleted")], await tx.now(now))

    async def list_names(self, project: str) -> set[str]:
        """Return the names of the notice targets that a job of the project may name."""
        rows = await self.session.rows("list_shown_targets", project=project)
        return {row["name"] for row in rows}

    async def read_noted_jobs(self, job_ids: Collection[str]) -> dict[str, NotedJob]:
        """Return these jobs, each with what people are told of it; deleted jobs are missing."""
        if not job_ids:
            return {}
        found = await self.session.list_of(NotedJob, "read_noted_jobs", ids=sorted(job_ids))
        return {job.id: job for job in found}

    @reads
    async def list_moments(
        self, tx: Tx, hooks: Sequence[str], *, now: Now = None
    ) -> tuple[list[NotedJob], datetime]:
        """Return the jobs of which these notice targets may have to be told something that no event
        records, and the present time."""
        at = await tx.now(now)
        params = {"hooks": list(hooks), "now": at, "limit": MAX_MOMENTS}
        return await tx.list_of(NotedJob, "list_moments", **params), at


async def _find(tx: Tx, name: str, project: str | None) -> WebhookRecord:
    for hook in await tx.list_of(WebhookRecord, "list_webhooks", id=None, notices=True):
        if (hook.name, hook.project) == (name, project):
            return hook
    raise no_target(name, project)
