"""The effect of every act of every page: what the database holds before and after, and the event."""

from __future__ import annotations

import asyncio
import re
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from contextlib import asynccontextmanager
from datetime import datetime
from typing import TYPE_CHECKING, Any, NamedTuple, Protocol

from holdfast.controller.runtime.auth import make_new_id
from holdfast.core.ids import TaskKey, make_id
from holdfast.errors import Unavailable
from holdfast.store.postgres.jobs.sessions import Visitor
from holdfast.web.app import _PAGES
from holdfast.web.pages.job.page import TABS
from holdfast.wire.operations.acts import ACTS
from holdfast.wire.sessions.messages import SessionOrder, SessionRequest
from tests.unit.controller.conftest import FakeAgent, Served
from tests.unit.controller.fleet.world import ScriptedProvider
from tests.waits import Patience, within

if TYPE_CHECKING:
    from holdfast.store.postgres.connection.session import Connection

POOL = {"provider": "local", "min": 1, "max": 3, "offers": [{"name": "s", "cpu_slots": 2, "usd_per_hour": 1}]}  # fmt: skip
RUN = make_id(1, 1)
SET = make_id(1, 2)
CLOSED = "ntfy://127.0.0.1:9/x"  # nothing listens at the port of `discard`
CLOSED_TOO = "ntfy://127.0.0.1:9/y"
Found = Mapping[str, Any] | None
"""The answer of a query: one row, or none."""


class KeptMachines(ScriptedProvider):
    """A provider whose machines cannot be ended, so that a deleted pool stays until it is forgotten."""

    async def terminate(self, ref: str) -> None:
        raise Unavailable("the provider ends no machine today")


class Receiver:
    """A server that webhooks are sent to: it refuses every delivery until it is told to take them."""

    def __init__(self) -> None:
        self.takes = False
        self.heard = 0
        self.url = ""

    async def start(self) -> asyncio.Server:
        server = await asyncio.start_server(self._answer, "127.0.0.1", 0)
        self.url = f"http://127.0.0.1:{server.sockets[0].getsockname()[1]}/hook"
        return server

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.readuntil(b"\r\n\r\n")
        self.heard += 1
        status = b"200 OK" if self.takes else b"503 Later"
        writer.write(b"HTTP/1.1 " + status + b"\r\nContent-Length: 0\r\nConnection: close\r\n\r\n")
        await writer.drain()
        writer.close()


class Cluster:
    """A controller with one of each kind of thing, and a look into its database."""

    def __init__(self, served: Served, receiver: Receiver, connection: Connection) -> None:
        self.served, self.receiver, self._connection = served, receiver, connection
        self.ids: dict[str, str] = {}

    async def call(self, method: str, path: str, body: Any = None) -> Any:
        answer = await self.served.call(method, path, json=body)
        assert answer.status_code < 300, (path, answer.text)
        return answer.json() if answer.content else None

    async def read(self, query: str, **values: Any) -> list[dict[str, Any]]:
        cursor = await self._connection.execute(query, {**self.ids, **values})  # type: ignore[arg-type]
        return await cursor.fetchall()

    async def look(self, query: str) -> Found:
        """Return the row of a query; None where it finds none."""
        rows = await self.read(query)
        assert len(rows) < 2, query
        return rows[0] if rows else None

    async def wait_for(self, query: str, wanted: Found) -> Found:
        """Return the row of a query once it is as it is wanted, or at last as it is."""
        patience = Patience(10)
        while not fits(found := await self.look(query), wanted) and not patience.over:
            await asyncio.sleep(0.02)
        return found

    async def count_events(self, kind: str, user: str = "tester") -> int:
        """Return how many events of a kind name a user. Both may be patterns of SQL."""
        query = "select count(*) as n from events where kind like %(kind)s and data ->> 'by' like %(user)s"
        (row,) = await self.read(query, kind=kind, user=user)
        return int(row["n"])


def find_act(acts: Sequence[Mapping[str, Any]], effect: Effect, ids: Mapping[str, str]) -> int:
    """Return the place of an effect's act among those of a page."""
    act = ACTS[effect.act]
    path = act.path.replace("{action}", effect.act.partition(".")[2])
    words = re.sub(r"\\\{\w+\\\}", "[^/]+", re.escape(path))
    named = ids.get(effect.named, effect.named)
    fitting = [
        place
        for place, each in enumerate(acts)
        if each["method"] == act.method
        and each["title"].startswith(act.button)
        and (each["path"] == path or re.fullmatch(words, each["path"]))
        and named in each["path"] + each["title"]
    ]
    assert fitting, (effect.act, effect.page)
    return fitting[0]


def fits(found: Found, wanted: Found) -> bool:
    """Return whether a row has the values that are wanted. `...` is any value but null."""
    if found is None or wanted is None:
        return found is wanted
    return all(
        found[name] is not None if value is ... else found[name] == value
        for name, value in wanted.items()
    )


def is_same(one: Found, other: Found) -> bool:
    """Return whether two rows hold the same, but for the moments of pauses and drains."""
    if one is None or other is None:
        return one is other
    return one.keys() == other.keys() and all(
        abs((one[name] - other[name]).total_seconds()) < 120
        if isinstance(one[name], datetime) and isinstance(other[name], datetime)
        else one[name] == other[name]
        for name in one
    )


class Effect(NamedTuple):
    """The effect of an act. page: where it is offered. fields: what a person fills in. look: a query of one
    row. before, after: of that row. event: its kind. named: a part of the button's title or path. ready:
    what has to happen first."""

    act: str
    page: str
    fields: Mapping[str, str]
    look: str
    before: Found
    after: Found
    event: str
    named: str = ""
    ready: Callable[[Cluster], Awaitable[object]] | None = None


class Actor(Protocol):
    """A person that acts on a page."""

    async def act(self, effect: Effect) -> bool:
        """Do an act as its page offers it, and return whether the page offers to take it back."""

    async def undo(self) -> None:
        """Take the last act back."""


async def check_effect(cluster: Cluster, actor: Actor, effect: Effect) -> None:
    """Do an act, compare the database before and after, and find its event. What can be taken back is
    taken back, compared with how it was, and done again."""
    name, look, kind = effect.act, effect.look, effect.event
    if effect.ready is not None:
        await effect.ready(cluster)
    before = await cluster.wait_for(look, effect.before)
    assert fits(before, effect.before), (name, "before", before)
    for undone in (False, True):
        told = await cluster.count_events(kind)
        undoable = await actor.act(effect)
        after = await cluster.wait_for(look, effect.after)
        assert fits(after, effect.after), (name, "after", after)
        assert (await cluster.count_events(kind) > told) != ACTS[name].quiet, (name, kind)
        if undone or not undoable:
            break
        told = await cluster.count_events("%")
        await actor.undo()
        back = await cluster.look(look)
        assert is_same(back, before), (name, "undone", before, back)
        assert await cluster.count_events("%") > told, (name, "undone")


HOST = (
    "select state, case state when 'active' then '' else reason end as reason, drain_deadline"
    " from hosts where name = 'h1'"
)
QUEUE = "select paused_at, paused_reason, hard from queues where name = 'night'"
QUEUE_SETTINGS = "select settings from queues where name = 'night'"
PROJECT = "select settings from projects where name = 'vision'"
POOL_ROW = "select (spec ->> 'max')::integer as max, paused_at, paused_reason, deleted_at from pools where name = 'p'"
SCHEDULE = "select paused_at, paused_reason from schedules where name = 's'"
SUBMITTED = "select count(*)::integer as jobs from schedule_runs"
NODE = (
    "select n.state, n.result, n.rounds, r.state as run from workflow_nodes n"
    " join workflow_runs r on r.id = n.run where n.run = %(run)s"
)
CALLS = "select cancelled, cancelled_at, cancel_reason, ended_at from call_sets where id = %(set)s"
CONFIG = "select settings - 'webhook_allow_private' - 'webhook_tries' as settings from cluster"
TOKEN = "select role, user_name, revoked_at from tokens where name = 'spare'"
HOOK = "select state, reason from webhooks where id = %(hook)s"
SECRET = "select secret, old_secret from webhooks where id = %(hook)s"
DELIVERY = "select state, status from webhook_deliveries where id = %(delivery)s"
DEAD = (
    "select count(*) filter (where state = 'dead')::integer as dead, count(*)::integer as kept"
    " from webhook_deliveries where webhook_id = %(hook)s"
)
TARGET = "select url, state from webhooks where name = 'team'"


async def take_deliveries(cluster: Cluster) -> None:
    """Have the receiver take what it is sent from now on, and pick a delivery that was given up."""
    query = (
        "select id from webhook_deliveries where webhook_id = %(hook)s and state = 'dead' limit 1"
    )
    async with within(20):
        while (await cluster.look(DEAD) or {})["dead"] < 2:
            await asyncio.sleep(0.05)
    cluster.receiver.takes = True
    cluster.ids["delivery"] = (await cluster.look(query) or {})["id"]


async def hold_retries(cluster: Cluster) -> None:
    await cluster.call("PATCH", "/v1/config", {"set": {"retries_enabled": False}})


async def hold_projects_retries(cluster: Cluster) -> None:
    await cluster.call("PUT", "/v1/projects/vision", {"set": {"retries_enabled": False}})


PAUSED = {"paused_at": ..., "paused_reason": "a while"}
OPEN = {"paused_at": None, "paused_reason": ""}
WHY = {"reason": "a while"}
HOOK_PAGE = "/settings/webhooks/%(hook)s"
EFFECTS: tuple[Effect, ...] = (
    Effect("job.cancel", "/jobs/%(job)s", WHY, "select state, reason from jobs where id = %(job)s",
           {"state": "queued"}, {"state": "cancelled", "reason": "a while"}, "job.cancelled"),
    Effect("job.retry", "/jobs/%(job)s", {}, "select state from jobs where id = %(job)s",
           {"state": "cancelled"}, {"state": "queued"}, "job.revived"),
    Effect("host.drain", "/hosts/h1", {**WHY, "deadline_seconds": "3600"}, HOST,
           {"state": "active"}, {"state": "draining", "reason": "a while", "drain_deadline": ...}, "host.moved"),
    Effect("host.undrain", "/hosts/h1", {}, HOST, {"state": "draining"}, {"state": "active", "drain_deadline": None},
           "host.moved"),
    Effect("host.quarantine", "/hosts/h1", WHY, HOST, {"state": "active"},
           {"state": "quarantined", "reason": "a while"}, "host.moved"),
    Effect("host.release", "/hosts/h1", {}, HOST, {"state": "quarantined"}, {"state": "active"}, "host.moved"),
    Effect("queue.create", "/queues", {"path.name": "night"}, QUEUE, None, OPEN, "queue.changed"),
    Effect("queue.set", "/queues", {"set.max_running": "3"}, QUEUE_SETTINGS, {"settings": {}},
           {"settings": {"max_running": 3}}, "queue.changed", "queue night"),
    Effect("queue.pause", "/queues", {**WHY, "hard": "x"}, QUEUE, OPEN, {**PAUSED, "hard": True}, "queue.paused",
           "queue night"),
    Effect("queue.resume", "/queues", {}, QUEUE, {**PAUSED, "hard": True}, {**OPEN, "hard": False}, "queue.resumed",
           "queue night"),
    Effect("queue.delete", "/queues", {}, QUEUE, OPEN, None, "queue.changed", "queue night"),
    Effect("project.create", "/queues", {"path.name": "vision"}, PROJECT, None, {"settings": {}}, "project.changed"),
    Effect("project.set", "/queues", {"set.quota_gpus": "4", "set.budget_usd_per_month": "100"}, PROJECT,
           {"settings": {}}, {"settings": {"quota_gpus": 4, "budget_usd_per_month": 100}}, "project.changed", "vision"),
    Effect("project.release", "/", {}, PROJECT,
           {"settings": {"quota_gpus": 4, "budget_usd_per_month": 100, "retries_enabled": False}},
           {"settings": {"quota_gpus": 4, "budget_usd_per_month": 100}}, "project.changed",
           ready=hold_projects_retries),
    Effect("pool.scale", "/pools", {"max": "5"}, POOL_ROW, {"max": 3}, {"max": 5}, "pool.changed"),
    Effect("pool.pause", "/pools/p", WHY, POOL_ROW, OPEN, PAUSED, "pool.paused"),
    Effect("pool.resume", "/pools/p", {}, POOL_ROW, PAUSED, OPEN, "pool.resumed"),
    Effect("pool.delete", "/pools/p", {}, POOL_ROW, {"deleted_at": None}, {"deleted_at": ...}, "pool.deleted"),
    Effect("pool.forget", "/pools/p", {}, POOL_ROW, {"deleted_at": ...}, None, "pool.forgotten"),
    Effect("schedule.run", "/schedules", {}, SUBMITTED, {"jobs": 0}, {"jobs": 1}, "schedule.submitted"),
    Effect("schedule.pause", "/schedules", WHY, SCHEDULE, OPEN, PAUSED, "schedule.paused"),
    Effect("schedule.resume", "/schedules/s", {}, SCHEDULE, PAUSED, OPEN, "schedule.resumed"),
    Effect("schedule.delete", "/schedules/s", {}, SCHEDULE, OPEN, None, "schedule.deleted"),
    Effect("run.answer", "/workflows/%(run)s", {"answer": "yes"}, NODE, {"state": "started", "result": None},
           {"state": "succeeded", "result": '"yes"', "run": "succeeded"}, "workflow.node_answered"),
    Effect("run.restart", "/workflows/%(run)s?node=q", {}, NODE, {"run": "succeeded", "rounds": 1},
           {"state": "started", "result": None, "rounds": 2, "run": "running"}, "workflow.restarted", "from q"),
    Effect("run.cancel", "/workflows/%(run)s", WHY, NODE, {"state": "started"},
           {"state": "cancelled", "run": "cancelled"}, "workflow.cancelling"),
    Effect("calls.cancel", "/calls", WHY, CALLS, {"cancelled": 0, "ended_at": None},
           {"cancelled": 1, "ended_at": ...}, "calls.cancelling"),
    Effect("calls.retry", "/calls/%(set)s", {}, CALLS, {"cancelled": 1}, {"cancelled": 0, "ended_at": None}, "calls.retried"),
    Effect("setting.set", "/settings?q=history_days", {"set.history_days": "40"}, CONFIG, {"settings": {}},
           {"settings": {"history_days": 40}}, "settings.changed"),
    Effect("setting.unset", "/settings?q=history_days", {}, CONFIG, {"settings": {"history_days": 40}},
           {"settings": {}}, "settings.changed"),
    Effect("retries.release", "/", {}, CONFIG, {"settings": {"retries_enabled": False}}, {"settings": {}},
           "settings.changed", ready=hold_retries),
    Effect("token.create", "/settings", {"role": "submit", "name": "spare", "user": "ann"}, TOKEN, None,
           {"role": "submit", "user_name": "ann", "revoked_at": None}, "token.created"),
    Effect("token.revoke", "/settings", {}, TOKEN, {"revoked_at": None}, {"revoked_at": ...}, "token.revoked", "spare"),
    Effect("sign-in.end", "/settings", {}, "select ended_at from sign_ins where id = %(sign_in)s", {"ended_at": None},
           {"ended_at": ...}, "sign_in.ended", "sign_in"),
    Effect("session.end", "/settings", {}, "select state, ended_at, reason from sessions where id = %(session)s",
           {"state": "opening", "ended_at": None}, {"state": "ended", "ended_at": ..., "reason": "tester ended it"},
           "session_ended"),
    Effect("hook.create", "/settings", {"url": "http://127.0.0.1:9/hook", "name": "second", "events": "job.*, host.*"},
           "select url, events, state from webhooks where name = 'second'", None,
           {"url": "http://127.0.0.1:9/hook", "events": ["job.*", "host.*"], "state": "active"}, "webhook.created"),
    Effect("delivery.again", HOOK_PAGE, {}, DELIVERY, {"state": "dead", "status": 503},
           {"state": "delivered", "status": 200}, "webhook.redelivered", "delivery", ready=take_deliveries),
    Effect("hook.redeliver-dead", "/settings", {}, DEAD, {"dead": ...}, {"dead": 0}, "webhook.redelivered"),
    Effect("hook.test", HOOK_PAGE, {}, DEAD, {"dead": 0}, {"dead": 0}, "webhook.%"),
    Effect("hook.rotate", HOOK_PAGE, {}, SECRET, {"old_secret": None}, {"old_secret": ...}, "webhook.changed"),
    Effect("hook.pause", HOOK_PAGE, WHY, HOOK, {"state": "active"}, {"state": "paused", "reason": "a while"},
           "webhook.paused"),
    Effect("hook.resume", HOOK_PAGE, {}, HOOK, {"state": "paused"}, {"state": "active", "reason": ""},
           "webhook.resumed"),
    Effect("hook.delete", HOOK_PAGE, {}, DEAD, {"kept": ...}, {"kept": 0}, "webhook.deleted"),
    Effect("target.create", "/settings", {"path.name": "team", "url": CLOSED}, TARGET, None,
           {"url": CLOSED, "state": "active"}, "webhook.created"),
    Effect("target.set", "/settings", {"url": CLOSED_TOO}, TARGET, {"url": CLOSED}, {"url": CLOSED_TOO}, "webhook.changed"),
    Effect("target.test", "/settings", {}, TARGET, {"url": CLOSED_TOO}, {"url": CLOSED_TOO}, "webhook.%"),
    Effect("target.delete", "/settings", {}, TARGET, {"url": CLOSED_TOO}, None, "webhook.deleted"),
)  # fmt: skip
"""In the order in which they are done: many begin where an earlier one ended."""


@asynccontextmanager
async def open_cluster(served: Served, agent: FakeAgent) -> AsyncIterator[Cluster]:
    """Make one of each kind of thing that pages act on."""
    provider, receiver = KeptMachines(), Receiver()
    served.controller.open_provider = lambda kind, config, installation: provider
    server = await receiver.start()
    connection = await served.store.session.connect()
    cluster = Cluster(served, receiver, connection)
    try:
        running = await served.submit(name="serve")
        order = await agent.take()
        await agent.sync(agent.running(order))
        cluster.ids |= await make_things(served, receiver.url)
        cluster.ids["job"] = str((await served.submit(name="train", cpus=4))["id"])
        await open_session(cluster, str(running["id"]))
        yield cluster
    finally:
        await connection.close()
        server.close()


async def make_things(served: Served, url: str) -> dict[str, str]:
    """Make a pool, a schedule, calls, a workflow that asks and a webhook, and return their ids."""
    job = {"argv": ["/bin/true"]}
    nodes = [{"name": "q", "ask": {"prompt": "On?"}}]
    made: list[tuple[str, str, Any]] = [
        ("PATCH", "/v1/config", {"set": {"webhook_allow_private": True, "webhook_tries": 1}}),
        ("PUT", "/v1/pools/p", POOL),
        ("PUT", "/v1/schedules/s", {"every_seconds": 3600, "job": job}),
        ("POST", "/v1/call-sets", {"id": SET, "spec": {"function": "m:f"}, "args": ["{}"], "count": 1}),
        ("POST", "/v1/workflows", {"id": RUN, "spec": {"name": "w", "nodes": nodes}}),
        ("POST", "/v1/webhooks", {"url": url, "name": "hook", "events": ["job.*"]}),
    ]  # fmt: skip
    for method, path, body in made:
        answer = await served.call(method, path, json=body)
        assert answer.status_code < 300, (path, answer.text)
    return {"run": RUN, "set": SET, "hook": answer.json()["id"]}


async def prepare(served: Served, agent: FakeAgent) -> str:
    """Make one of each kind of thing, and return the id of a job."""
    provider = ScriptedProvider()
    served.controller.open_provider = lambda kind, config, installation: provider
    await make_things(served, "http://127.0.0.1:9/hook")
    return str((await served.submit(name="train"))["id"])


async def list_paths(served: Served, agent: FakeAgent) -> list[str]:
    """Make one of each kind of thing, and return the address of each page, with each part of a job and
    what is shown where nothing matches."""
    job = f"/jobs/{await prepare(served, agent)}"
    run = (await served.submit(name="gang-" * 16, tasks=9, supervised=True))["id"]
    (hook,) = (await served.call("GET", "/v1/webhooks")).json()["items"]
    paths = [
        "/", "/jobs", "/jobs?q=nothing", job, *[f"{job}?tab={tab}" for tab in TABS],
        f"{job}?find=x", f"{job}/shell", f"{job}/again", f"/jobs/{run}", f"/jobs/{run}?tab=ranks",
        "/hosts", "/hosts/h1", "/queues", "/pools", "/pools/p", "/workflows", f"/workflows/{RUN}",
        f"/workflows/{RUN}?node=q", "/calls", f"/calls/{SET}", "/schedules", "/schedules/s",
        "/find?q=a", "/find?q=nothing", "/events", "/events?kind=none", "/report",
        "/report?last=30d&unit=cpu&by=job", "/settings", "/settings?q=none",
        f"/settings/webhooks/{hook['id']}",
    ]  # fmt: skip
    bare = {path.partition("?")[0] for path in paths}
    assert [each for each, _ in _PAGES if not any(re.fullmatch(each, path) for path in bare)] == []
    return paths


async def open_session(cluster: Cluster, job_id: str) -> None:
    """Record a session in the only task of a job."""
    store = cluster.served.store
    job = await store.jobs.get_job(job_id)
    order = SessionOrder(
        id=make_new_id(), session=make_new_id(), key=TaskKey(job.id, 0, 1), ticket="t"
    )
    visitor = Visitor(user="tester", token_id="t", token_name="", address="127.0.0.1")
    asked = SessionRequest(kind="shell")
    made = await store.sessions.open_session(job, asked, "", visitor, order, "replica")
    cluster.ids["session"] = made.id
