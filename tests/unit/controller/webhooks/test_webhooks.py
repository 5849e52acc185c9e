"""Webhooks from the event to the receiver: the leader's loop over real sockets, and the routes."""

from __future__ import annotations

import asyncio
import random
from collections import Counter, defaultdict
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager
from typing import Any

import pytest

from holdfast import webhooks
from holdfast.controller.loops.loop import keep_running
from holdfast.controller.loops.webhooks import PruneDeliveriesLoop, WebhooksLoop
from holdfast.controller.runtime.auth import make_new_id
from holdfast.controller.runtime.context import Controller
from holdfast.core.spec import JobSpec
from holdfast.core.webhooks.values import (
    HOOK_WINDOW,
    TOTAL_WINDOW,
    BackOff,
    DeliveryRecord,
    WebhookState,
)
from holdfast.errors import Unavailable
from holdfast.moves.values import NewJob
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.postgres.webhooks import NewWebhook, PostgresWebhooks
from tests.simulated.blobs import MemoryBlobs
from tests.store.pg_fixture import MakeStore
from tests.unit.controller.conftest import Served
from tests.unit.controller.webhooks.receiver import (
    OK,
    SECRET,
    Receiver,
    Request,
    hang,
    receive,
    status,
)
from tests.waits import within

QUICK = BackOff(first_seconds=0.05, ceiling_seconds=0.2)
SETTINGS = {"webhook_allow_private": True, "webhook_timeout_seconds": 20.0}


class Leader:
    """A store, and the loop over it as the leader runs it."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.controller = Controller(store, blobs=MemoryBlobs())
        self.loop = WebhooksLoop(self.controller, policy=QUICK)
        self.task: asyncio.Task[None] | None = None
        self.looking: asyncio.Task[None] | None = None

    def start(self) -> None:
        self.looking = asyncio.create_task(self.controller.looks.run())
        self.task = asyncio.create_task(keep_running(self.controller, self.loop))

    async def stop(self) -> None:
        """As when leadership is lost. Nothing of the loop is left."""
        assert self.task is not None
        assert self.looking is not None
        self.looking.cancel()
        self.task.cancel()
        await asyncio.gather(self.task, self.looking, return_exceptions=True)

    async def set(self, **settings: Any) -> None:
        await self.store.settings.write_cluster_settings(settings)
        await self.controller.settings.refresh()

    async def add(
        self, url: str, *events: str, secret: str = SECRET, project: str | None = None
    ) -> str:
        hook_id = make_new_id()
        await self.store.webhooks.create_webhook(
            NewWebhook(
                id=hook_id, url=url, secret=secret, events=events or ("job.*",), project=project
            )
        )
        return hook_id

    async def submit(self, project: str = "default") -> str:
        job_id = make_new_id()
        await self.store.jobs.submit_jobs(
            [NewJob(id=job_id, spec=JobSpec(argv=("true",), project=project), queue="cpu")]
        )
        self.controller.poke("events")
        return job_id

    async def live(self, turns: int = 2, project: str = "default") -> str:
        """A job with a history of 1 + 2 × turns events."""
        job_id = await self.submit(project)
        for _ in range(turns):
            await self.store.jobs.cancel_job(job_id, "")
            await self.store.jobs.revive_job(job_id, "")
        self.controller.poke("events")
        return job_id

    async def deliveries(self, hook_id: str, *states: Any) -> list[DeliveryRecord]:
        return await self.store.webhooks.list_deliveries(hook_id, states=states, limit=1000)

    async def until_idle(self, seconds: float = 40) -> None:
        """Until nothing is pending and every event was looked at."""
        async with within(seconds):
            while True:
                hooks = await self.store.webhooks.list_subscriptions(10**9)
                behind = [
                    h for h in hooks if await self.store.events.read_events(h.cursor, limit=1)
                ]
                found = (await self.store.read_gauges()).webhook_deliveries
                if not behind and not found["pending"]:
                    return
                await asyncio.sleep(0.02)


@pytest.fixture
async def leader(make_store: MakeStore) -> AsyncIterator[Leader]:
    async with leading(await make_store()) as found:
        yield found


@asynccontextmanager
async def leading(store: PostgresStore) -> AsyncIterator[Leader]:
    found = Leader(store)
    await found.set(**SETTINGS)
    found.start()
    yield found
    await found.stop()
    await found.controller.close()
    assert not [t for t in asyncio.all_tasks() if "WebhooksLoop" in repr(t.get_coro())]


def story(job_kinds: Sequence[str], turns: int = 2) -> bool:
    return list(job_kinds) == ["job.submitted", *["job.cancelled", "job.revived"] * turns]


# ---- order


async def test_each_jobs_events_are_taken_in_order_whatever_fails(leader: Leader) -> None:
    """HOOK-1, HOOK-2: not even a try of a newer one comes before the older one was taken."""
    chance = random.Random(20260301)
    failures: Counter[str] = Counter()
    taken: dict[str, list[str]] = defaultdict(list)
    tried: dict[str, list[str]] = defaultdict(list)

    def answer(request: Request, number: int) -> Any:
        event, delivery = request.payload["event"], request.delivery
        order = tried[event["job_id"]]
        if delivery not in order:
            assert set(order) == set(taken[event["job_id"]]), (
                "an older delivery of the job was not taken yet"
            )
            order.append(delivery)
        if failures[delivery] < 3 and chance.random() < 0.4:
            failures[delivery] += 1
            return chance.choice(
                [status(500), status(429), b"", b"garbage\r\n\r\n", status(301, "Location: /")]
            )
        taken[event["job_id"]].append(delivery)
        return OK

    async with receive() as receiver:
        receiver.answer = answer
        await leader.add(receiver.url)
        jobs = await asyncio.gather(*(leader.live() for _ in range(12)))
        await leader.until_idle()
        assert sum(failures.values()) > 5
        for job_id in jobs:
            assert story(receiver.kinds_of(job_id))
            assert len(taken[job_id]) == 5


async def test_a_job_whose_events_nobody_takes_holds_no_other_job_back(leader: Leader) -> None:
    async with receive() as receiver:
        hook = await leader.add(receiver.url)
        receiver.answer = lambda request, number: status(500)
        stuck = await leader.live()
        receiver.answer = lambda request, number: (
            status(500) if request.payload["event"]["job_id"] == stuck else OK
        )
        others = [await leader.live() for _ in range(5)]
        async with within(20):
            while {d.job_id for d in await leader.deliveries(hook, "pending")} != {
                stuck
            } or not all(story(receiver.kinds_of(job_id)) for job_id in others):
                await asyncio.sleep(0.02)
        assert set(receiver.kinds_of(stuck)) == {"job.submitted"}  # and what is behind it waits


async def test_a_hook_sees_its_kinds_and_its_project_alone(leader: Leader) -> None:
    async with receive() as one, receive() as two:
        await leader.add(one.url, "job.cancelled", project="vision")
        await leader.add(two.url, "queue.*")
        mine, other = await leader.live(project="vision"), await leader.live(project="speech")
        await leader.store.settings.pause_queue("cpu", "why not", hard=False)
        await leader.store.settings.resume_queue("cpu")
        leader.controller.poke("events")
        await leader.until_idle()
        assert one.kinds_of(mine) == ["job.cancelled"] * 2
        assert one.kinds_of(other) == []
        assert [r.kind for r in two.requests] == ["queue.paused", "queue.resumed"]
        assert one.requests[0].payload["job"]["project"] == "vision"


# ---- at least once, and the end of trying


async def test_a_receiver_that_is_down_gets_everything_when_it_is_up(leader: Leader) -> None:
    async with receive() as receiver:
        port = receiver.port
    hook = await leader.add(f"http://127.0.0.1:{port}/hook")
    jobs = [await leader.live() for _ in range(3)]
    async with within(20):
        while len([d for d in await leader.deliveries(hook) if d.tries]) < len(jobs):
            await asyncio.sleep(0.02)
    assert {
        d.event_kind for d in await leader.deliveries(hook) if "cannot be reached" in d.error
    } == {"job.submitted"}
    async with receive(port=port) as receiver:
        await leader.until_idle()
        for job_id in jobs:
            assert story(receiver.kinds_of(job_id))


async def test_spent_tries_make_a_dead_letter_which_lets_the_next_go_and_may_be_sent_again(
    leader: Leader,
) -> None:
    await leader.set(webhook_tries=3)
    async with receive() as receiver, receive() as watcher:
        hook = await leader.add(receiver.url)
        await leader.add(watcher.url, "webhook.*")
        job_id = await leader.submit()
        receiver.answer = lambda request, number: (
            status(503) if request.kind == "job.submitted" else OK
        )
        await leader.store.jobs.cancel_job(job_id, "")
        leader.controller.poke("events")
        await leader.until_idle()
        tries = Counter(r.kind for r in receiver.requests)
        assert tries == {"job.submitted": 3, "job.cancelled": 1}
        (dead,) = await leader.deliveries(hook, "dead")
        assert (dead.tries, dead.status, dead.event_kind) == (3, 503, "job.submitted")
        (told,) = [r for r in watcher.requests if r.kind == "webhook.dead_letter"]
        assert told.payload["event"]["data"]["delivery_id"] == dead.id
        receiver.answer = lambda request, number: OK
        assert await leader.store.webhooks.redeliver_dead(hook) == 1
        leader.controller.poke("events")
        await leader.until_idle()
        assert receiver.requests[-1].delivery == dead.id
        assert {r.body for r in receiver.requests if r.delivery == dead.id} == {
            receiver.requests[-1].body
        }
        page = leader.controller.metrics.render(
            await leader.store.read_gauges(), {}, 0, True
        ).decode()
        for line in (
            'holdfast_webhook_deliveries_total{outcome="dead"} 1.0',
            'holdfast_webhook_deliveries_total{outcome="failed"} 2.0',
            'holdfast_webhook_backlog{state="dead"} 0.0',
            'holdfast_webhook_backlog{state="pending"} 0.0',
        ):
            assert line in page


async def test_gone_pauses_and_a_resumed_hook_misses_nothing(leader: Leader) -> None:
    async with receive() as receiver:
        receiver.answer = lambda request, number: status(410)
        hook = await leader.add(receiver.url)
        first = await leader.live()
        async with within(20):
            while (await leader.store.webhooks.get_webhook(hook)).state is WebhookState.ACTIVE:
                await asyncio.sleep(0.02)
        second = await leader.live()
        receiver.answer = lambda request, number: OK
        await asyncio.sleep(0.3)  # a pause is seen by what does not come
        assert len(receiver.requests) == 1
        await leader.store.webhooks.resume_webhook(hook)
        leader.controller.poke("events")
        await leader.until_idle()
        assert story(receiver.kinds_of(first))
        assert story(receiver.kinds_of(second))


async def test_what_was_under_way_when_leadership_was_lost_is_sent_again(
    make_store: MakeStore,
) -> None:
    async with receive() as receiver, leading(await make_store()) as first:
        receiver.answer = lambda request, number: hang
        await first.add(receiver.url)
        job_id = await first.submit()
        (request,) = await receiver.until(1)
        await first.stop()
        receiver.answer = lambda request, number: OK
        async with leading(first.store) as second:
            await second.until_idle()
        assert [r.delivery for r in receiver.requests] == [request.delivery] * 2
        assert receiver.requests[0].body == receiver.requests[1].body
        assert receiver.kinds_of(job_id) == ["job.submitted"]


async def test_a_store_that_fails_to_record_makes_a_second_call_and_no_harm(
    make_store: MakeStore,
) -> None:
    class Forgetful(PostgresWebhooks):
        left = 2

        async def record_tries(self, tries: Any, *, now: Any = None) -> list[str]:
            if self.left:
                self.left -= 1
                raise Unavailable("away")
            return await super().record_tries(tries, now=now)

    store = await make_store()
    store.webhooks = Forgetful(store.session)
    async with receive() as receiver, leading(store) as leader:
        await leader.add(receiver.url)
        job_id = await leader.live()
        await leader.until_idle()
        assert story(receiver.kinds_of(job_id))
        assert len(receiver.requests) == 5 + 2


async def test_retry_after_is_honoured(leader: Leader) -> None:
    async with receive() as receiver:
        leader.loop._policy = BackOff(first_seconds=0.05, ceiling_seconds=600)
        receiver.answer = lambda request, number: status(503, "Retry-After: 300")
        hook = await leader.add(receiver.url)
        await leader.submit()
        async with within(20):
            while not (found := await leader.deliveries(hook)) or not found[0].tries:
                await asyncio.sleep(0.02)
        (delivery,) = found
        assert delivery.next_at is not None
        assert 250 < (delivery.next_at - await leader.store.now()).total_seconds() <= 300


# ---- bounds


async def test_a_hook_that_hangs_holds_no_other_hook_back(leader: Leader) -> None:
    async with receive() as slow, receive() as fast:
        slow.answer = lambda request, number: hang
        await leader.add(slow.url)
        await leader.add(fast.url)
        jobs = [await leader.live() for _ in range(20)]
        async with within(20):
            while not all(story(fast.kinds_of(job_id)) for job_id in jobs):
                await asyncio.sleep(0.02)
        assert slow.most_open == HOOK_WINDOW


async def test_calls_under_way_are_bounded_in_all(leader: Leader) -> None:
    async with receive() as receiver:
        receiver.answer = lambda request, number: hang
        for _ in range(TOTAL_WINDOW // HOOK_WINDOW + 2):
            await leader.add(receiver.url)
        for _ in range(HOOK_WINDOW + 2):
            await leader.submit()
        await receiver.until(TOTAL_WINDOW)
        await asyncio.sleep(0.3)  # more would come now, if more could
        assert len(receiver.requests) == TOTAL_WINDOW


async def test_a_receiver_that_hangs_is_given_up_and_asked_less(leader: Leader) -> None:
    await leader.set(webhook_timeout_seconds=0.2, webhook_tries=2)
    async with receive() as receiver:
        receiver.answer = lambda request, number: hang
        hook = await leader.add(receiver.url)
        for _ in range(10):
            await leader.submit()
        await leader.until_idle()
        dead = await leader.deliveries(hook, "dead")
        assert [d.error for d in dead] == ["no answer within 0.2 s"] * 10
        assert leader.loop._windows[hook] == 1


async def test_a_long_way_behind_is_caught_up_page_by_page(leader: Leader) -> None:
    async with receive() as receiver:
        hook = await leader.add(receiver.url, "job.submitted")
        await leader.store.webhooks.pause_webhook(hook, "")
        for _ in range(6):
            await leader.live(turns=100)
        await leader.store.webhooks.resume_webhook(hook)
        leader.controller.poke("events")
        await leader.until_idle()
        assert [r.kind for r in receiver.requests] == ["job.submitted"] * 6


# ---- where it does not go


async def test_a_hook_made_while_it_was_allowed_is_refused_when_it_is_not(leader: Leader) -> None:
    """HOOK-4: judged at every try."""
    await leader.set(webhook_tries=2)
    async with receive() as receiver:
        hook = await leader.add(receiver.url)
        await leader.submit()
        await leader.until_idle()
        await leader.set(webhook_allow_private=False)
        await leader.submit()
        await leader.until_idle()
        (dead,) = await leader.deliveries(hook, "dead")
        assert dead.error.startswith("refused: ")
        assert len(receiver.requests) == 1


async def test_old_deliveries_go_with_the_history(make_store: MakeStore) -> None:
    leader = Leader(await make_store())
    assert await PruneDeliveriesLoop(leader.controller).run_once() == {}
    await leader.set(history_days=None)
    assert await PruneDeliveriesLoop(leader.controller).run_once() == {}


# ---- the routes


@pytest.fixture
async def open_served(served: Served) -> Served:
    answer = await served.call("PATCH", "/v1/config", json={"set": {"webhook_allow_private": True}})
    assert answer.status_code == 200, answer.text
    return served


async def create(served: Served, receiver: Receiver, **more: Any) -> dict[str, Any]:
    body = {"url": receiver.url, "events": ["job.*"], "secret": SECRET, **more}
    answer = await served.call("POST", "/v1/webhooks", json=body)
    assert answer.status_code == 201, answer.text
    found: dict[str, Any] = answer.json()
    return found


async def test_the_life_of_a_hook_over_the_api(open_served: Served) -> None:
    served = open_served
    async with receive() as receiver:
        made = await create(served, receiver, name="pager", secret=None)
        assert made["secret"].startswith("hfw_")
        receiver.secret = made["secret"]
        hook = f"/v1/webhooks/{made['id']}"
        job = await served.submit(secrets={"TOKEN": "hush-hush"}, env={"A": "in-env"})
        (request,) = await receiver.until(1)
        assert (
            webhooks.verify(made["secret"], request.headers, request.body).event["job_id"]
            == job["id"]
        )
        assert request.headers["holdfast-webhook-id"] == made["id"]
        assert b"hush-hush" not in request.body
        assert b"in-env" not in request.body
        for path in ("/v1/webhooks", hook, f"{hook}/deliveries"):
            assert made["secret"] not in (await served.call("GET", path)).text

        async with within(10):
            while (page := (await served.call("GET", f"{hook}/deliveries?state=delivered")).json())[
                "items"
            ] == []:
                await asyncio.sleep(0.02)
        (delivery,) = page["items"]
        assert (delivery["tries"], delivery["status"], delivery["job_id"]) == (1, 200, job["id"])
        shown = (await served.call("GET", f"{hook}/deliveries/{delivery['id']}")).json()
        assert shown["body"].encode() == request.body
        again = await served.call("POST", f"{hook}/deliveries/{delivery['id']}/redeliver")
        assert (again.status_code, again.json()["state"]) == (200, "pending")
        assert (await receiver.until(2))[1].delivery == request.delivery

        changed = await served.call("PATCH", hook, json={"events": [], "project": "vision"})
        assert (changed.json()["events"], changed.json()["project"], changed.json()["name"]) == (
            [],
            "vision",
            "pager",
        )
        assert (await served.call("POST", f"{hook}/pause")).json()["reason"] == "paused by tester"
        assert (await served.call("POST", f"{hook}/resume")).json()["state"] == "active"
        assert (await served.call("POST", f"{hook}/redeliver-dead")).json() == {"count": 0}
        assert (await served.call("DELETE", hook)).status_code == 204
        assert (await served.call("GET", hook)).status_code == 404


async def test_a_rotated_secret_signs_beside_the_old_one(open_served: Served) -> None:
    served = open_served
    async with receive() as receiver:
        made = await create(served, receiver)
        rotated = (await served.call("POST", f"/v1/webhooks/{made['id']}/rotate")).json()
        assert rotated["secret"] not in (SECRET, None)
        await served.submit()
        (request,) = await receiver.until(1)  # the receiver itself checks the old one
        webhooks.verify(rotated["secret"], request.headers, request.body)
        body = {"secret": "a-third-secret-0123", "grace_seconds": 0}
        assert (await served.call("POST", f"/v1/webhooks/{made['id']}/rotate", json=body)).json()[
            "old_secret_until"
        ] is None
        receiver.secret = "a-third-secret-0123"
        await served.submit()
        with pytest.raises(webhooks.BadSignature):
            webhooks.verify(SECRET, (await receiver.until(2))[1].headers, receiver.requests[1].body)


async def test_a_test_call_is_made_at_once_and_leaves_nothing(open_served: Served) -> None:
    served = open_served
    async with receive() as receiver:
        made = await create(served, receiver)
        await served.call("POST", f"/v1/webhooks/{made['id']}/pause")
        result = (await served.call("POST", f"/v1/webhooks/{made['id']}/test")).json()
        assert (result["delivered"], result["status"], result["error"]) == (True, 200, "")
        assert receiver.requests[0].kind == "webhook.test"
        receiver.answer = lambda request, number: status(500)
        result = (await served.call("POST", f"/v1/webhooks/{made['id']}/test")).json()
        assert (result["delivered"], result["status"]) == (False, 500)
        assert (await served.call("GET", f"/v1/webhooks/{made['id']}/deliveries")).json()[
            "items"
        ] == []


@pytest.mark.parametrize(
    ("body", "field"),
    [
        ({"url": "https://127.0.0.1/x"}, "url"), ({"url": "https://localhost/x"}, "url"), ({"url": "http://a.example/"}, "url"),
        ({"url": "https://2130706433/"}, "url"), ({"url": "https://[::ffff:127.0.0.1]/"}, "url"), ({"url": ""}, "url"),
        ({"url": "https://169.254.169.254/"}, "url"), ({"url": "https://u:p@a.example/"}, "url"), ({}, None),
        ({"url": "https://93.184.216.34/", "events": ["job.* "]}, "events[0]"),
        ({"url": "https://93.184.216.34/", "events": ["j*b"]}, "events[0]"),
        ({"url": "https://93.184.216.34/", "secret": "short"}, "secret"),
        ({"url": "https://93.184.216.34/", "secret": "with a space 0123456789"}, "secret"),
        ({"url": "https://93.184.216.34/", "project": "no/../../\n"}, "project"), ({"url": 5}, "url"),
        ({"url": "https://93.184.216.34/", "colour": "red"}, None),
    ],
)  # fmt: skip
async def test_what_cannot_be_a_hook_is_refused(
    served: Served, body: dict[str, Any], field: str | None
) -> None:
    answer = await served.call("POST", "/v1/webhooks", json=body)
    assert answer.status_code == 422, answer.text
    if field is not None:
        assert answer.json()["field"] == field
    assert (await served.call("GET", "/v1/webhooks")).json()["items"] == []


async def test_hooks_are_the_admins_alone_and_unknown_ones_are_not_found(served: Served) -> None:
    made = (
        await served.call("POST", "/v1/webhooks", json={"url": "https://93.184.216.34/x"})
    ).json()
    refused = await served.call(
        "PATCH", f"/v1/webhooks/{made['id']}", json={"url": "https://10.0.0.1/"}
    )
    assert refused.status_code == 422
    for role in ("read", "submit"):
        for method, path in (
            ("GET", ""),
            ("POST", ""),
            ("GET", f"/{made['id']}"),
            ("POST", f"/{made['id']}/test"),
            ("GET", f"/{made['id']}/deliveries"),
            ("POST", f"/{made['id']}/redeliver-dead"),
        ):
            assert (await served.call(method, f"/v1/webhooks{path}", role)).status_code == 403
    unknown = "0" * 20
    for method, path in (
        ("GET", unknown),
        ("PATCH", unknown),
        ("DELETE", unknown),
        ("POST", f"{unknown}/test"),
        ("POST", f"{unknown}/pause"),
        ("POST", f"{unknown}/resume"),
        ("POST", f"{unknown}/rotate"),
        ("POST", f"{unknown}/redeliver-dead"),
        ("GET", f"{unknown}/deliveries"),
        ("GET", f"{unknown}/deliveries/{unknown}"),
        ("GET", "not-an-id"),
        ("POST", f"{made['id']}/deliveries/{unknown}/redeliver"),
        ("GET", f"{made['id']}/deliveries/nonsense"),
    ):
        body = b"{}" if method == "PATCH" else b""
        answer = await served.call(method, f"/v1/webhooks/{path}", content=body)
        assert (answer.status_code, answer.json()["code"]) == (404, "not_found"), (method, path)


async def test_deliveries_are_paged(open_served: Served) -> None:
    served = open_served
    async with receive() as receiver:
        made = await create(served, receiver)
        for _ in range(5):
            await served.submit()
        await receiver.until(5)
        seen: list[str] = []
        path = f"/v1/webhooks/{made['id']}/deliveries?limit=2"
        page = (await served.call("GET", path)).json()
        while True:
            seen += [d["id"] for d in page["items"]]
            if page["next"] is None:
                break
            page = (await served.call("GET", f"{path}&cursor={page['next']}")).json()
        assert len(seen) == 5
        assert seen == sorted(seen, reverse=True)
        assert (await served.call("GET", f"{path}&cursor=nonsense")).status_code == 422
