"""What every store must do for `store.webhooks`."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass, field

import msgspec
import pytest

from holdfast.core.webhooks.values import (
    BackOff,
    DeliveryAnswer,
    DeliveryBatch,
    DeliveryRecord,
    DeliveryState,
    DueDelivery,
    Payload,
    Tried,
    WebhookState,
    judge_try,
    plan_deliveries,
)
from holdfast.errors import NotFound
from holdfast.store.postgres.webhooks import NewWebhook, WebhookChange
from tests.store.rig import OK, Rig

PENDING, DELIVERED, DEAD = DeliveryState.PENDING, DeliveryState.DELIVERED, DeliveryState.DEAD
URL = "https://hooks.example/secret-path"
GOOD = DeliveryAnswer(status=204)


@dataclass
class Hooks:
    """The steps a leader takes."""

    rig: Rig
    numbers: itertools.count[int] = field(default_factory=lambda: itertools.count(1))

    async def add(
        self,
        hook_id: str = "hook-a",
        *,
        events: Sequence[str] = ("job.*",),
        project: str | None = None,
    ) -> str:
        new = NewWebhook(
            id=hook_id,
            url=URL,
            secret=f"secret of {hook_id}",
            events=tuple(events),
            project=project,
        )
        await self.rig.store.webhooks.create_webhook(new, now=self.rig.now)
        return hook_id

    async def collect(self, max_pending: int = 100) -> list[str]:
        """Read what every hook has not seen and write its deliveries."""
        batches = []
        for hook in await self.rig.store.webhooks.list_subscriptions(max_pending):
            events = await self.rig.store.events.read_events(hook.cursor, limit=100)
            jobs = await self.rig.store.webhooks.summarize_jobs(
                {e.job_id for e in events if e.job_id}
            )
            ids = (f"delivery-{next(self.numbers):04d}" for _ in itertools.count())
            batches.append(plan_deliveries(hook, events, jobs, ids))
        return await self.rig.store.webhooks.write_deliveries(
            [b for b in batches if b.before != b.after], now=self.rig.now
        )

    async def due(self, *flying: str, per_hook: int = 10) -> list[DueDelivery]:
        return await self.rig.store.webhooks.list_due(per_hook, flying, now=self.rig.now)

    async def answer(
        self, due: DueDelivery, answer: DeliveryAnswer = GOOD, tries: int = 12
    ) -> list[str]:
        tried = judge_try(due, answer, tries, BackOff(), chance=0.0)
        return await self.rig.store.webhooks.record_tries([tried], now=self.rig.now)

    async def list(self, hook_id: str = "hook-a", *states: DeliveryState) -> list[DeliveryRecord]:
        return await self.rig.store.webhooks.list_deliveries(hook_id, states=states)


@pytest.fixture
def hooks(rig: Rig) -> Hooks:
    return Hooks(rig)


def kinds(deliveries: Sequence[DeliveryRecord]) -> list[str]:
    return [d.event_kind for d in deliveries]


async def test_a_hook_is_made_changed_and_deleted(rig: Rig, hooks: Hooks) -> None:
    await hooks.add(project="vision")
    made = await rig.store.webhooks.get_webhook("hook-a")
    assert (made.url, made.events, made.project, made.state) == (
        URL,
        ("job.*",),
        "vision",
        WebhookState.ACTIVE,
    )
    assert "secret of" not in repr(made)
    rig.tick(1)
    changed = await rig.store.webhooks.change_webhook(
        "hook-a", WebhookChange(events=("host.dead",), project=None), now=rig.now
    )
    assert (changed.events, changed.project, changed.url) == (("host.dead",), None, URL)
    await rig.store.webhooks.change_webhook("hook-a", WebhookChange(), now=rig.now)
    await rig.submit()
    await rig.store.webhooks.change_webhook("hook-a", WebhookChange(events=("job.*",)), now=rig.now)
    await hooks.collect()
    assert [r.id for r in await rig.store.webhooks.list_webhooks()] == ["hook-a"]
    await rig.store.webhooks.delete_webhook("hook-a", now=rig.now)
    assert await rig.store.webhooks.list_webhooks() == []
    assert dict((await rig.store.read_gauges()).webhook_deliveries) == {"pending": 0, "dead": 0}
    for call in (
        rig.store.webhooks.get_webhook("hook-a"),
        rig.store.webhooks.get_webhook_target("hook-a"),
        rig.store.webhooks.delete_webhook("hook-a"),
        rig.store.webhooks.change_webhook("hook-a", WebhookChange()),
        rig.store.webhooks.rotate_webhook("hook-a", "s", 1),
        rig.store.webhooks.pause_webhook("hook-a", ""),
        rig.store.webhooks.resume_webhook("hook-a"),
        rig.store.webhooks.list_deliveries("hook-a"),
        rig.store.webhooks.get_delivery("hook-a", "d"),
        rig.store.webhooks.redeliver("hook-a", "d"),
        rig.store.webhooks.redeliver_dead("hook-a"),
    ):
        with pytest.raises(NotFound):
            await call
    events = [e for e in await rig.events() if e.kind.startswith("webhook.")]
    assert [e.kind for e in events] == [
        "webhook.created",
        "webhook.changed",
        "webhook.changed",
        "webhook.deleted",
    ]
    assert "secret" not in repr(events)


async def test_creating_a_hook_twice_makes_one(rig: Rig, hooks: Hooks) -> None:
    await hooks.add()
    await hooks.add()
    assert len(await rig.store.webhooks.list_webhooks()) == 1
    assert (await rig.kinds()).count("webhook.created") == 1


async def test_both_secrets_sign_until_the_grace_is_over(rig: Rig, hooks: Hooks) -> None:
    await hooks.add()
    await rig.store.webhooks.rotate_webhook("hook-a", "second", 60, now=rig.now)
    await rig.submit()
    await hooks.collect()
    rig.tick(59)
    assert (await hooks.due())[0].secrets == ("second", "secret of hook-a")
    assert (await rig.store.webhooks.get_webhook_target("hook-a", now=rig.now)).secrets == (
        "second",
        "secret of hook-a",
    )
    rig.tick(2)
    assert (await hooks.due())[0].secrets == ("second",)
    assert (await rig.store.webhooks.get_webhook_target("hook-a", now=rig.now)).secrets == (
        "second",
    )
    hook = await rig.store.webhooks.rotate_webhook("hook-a", "third", 0, now=rig.now)
    assert hook.old_secret_until is None
    assert (await hooks.due())[0].secrets == ("third",)


async def test_a_hook_sees_what_happens_from_its_creation_on_and_nothing_twice(
    rig: Rig, hooks: Hooks
) -> None:
    await rig.submit()
    await hooks.add()
    assert await hooks.collect() in ([], ["hook-a"])  # it may have to step over its own creation
    assert await hooks.list() == []
    job_id = await rig.submit(
        name="later",
        labels={"team": "a"},
        project="vision",
        env={"KEY": "in-env"},
        secrets={"TOKEN": "hush-hush"},
    )
    rig.tick(1)
    assert await hooks.collect() == ["hook-a"]
    assert await hooks.collect() == []
    (delivery,) = await hooks.list()
    assert (delivery.event_kind, delivery.job_id, delivery.state) == (
        "job.submitted",
        job_id,
        PENDING,
    )
    assert (delivery.tries, delivery.next_at, delivery.created_at) == (0, rig.now, rig.now)
    (due,) = await hooks.due()
    assert (due.sequence, due.url, due.secrets) == (job_id, URL, ("secret of hook-a",))
    payload = msgspec.json.decode(due.body, type=Payload)
    assert (payload.delivery, payload.webhook) == (delivery.id, "hook-a")
    assert payload.event == (await rig.events(job_id))[0]
    assert payload.job is not None
    assert (payload.job.name, payload.job.project, payload.job.labels) == (
        "later",
        "vision",
        {"team": "a"},
    )
    assert (payload.job.state, payload.job.queue, payload.job.attempt) == ("queued", "cpu", 0)
    assert "hush-hush" not in due.body
    assert "in-env" not in due.body


async def test_two_leaders_with_one_cursor_write_once(rig: Rig, hooks: Hooks) -> None:
    await hooks.add()
    await rig.submit()
    (hook,) = await rig.store.webhooks.list_subscriptions(100)
    events = await rig.store.events.read_events(hook.cursor)
    first = plan_deliveries(hook, events, {}, iter(["one-1", "one-2"]))
    second = plan_deliveries(hook, events, {}, iter(["two-1", "two-2"]))
    assert await rig.store.webhooks.write_deliveries([first], now=rig.now) == ["hook-a"]
    assert await rig.store.webhooks.write_deliveries([second], now=rig.now) == []
    assert [d.id for d in await hooks.list()] == ["one-1"]
    # An event is delivered once even where a cursor was set back by hand.
    back = DeliveryBatch(
        webhook_id="hook-a", before=first.after, after=first.after, deliveries=second.deliveries
    )
    await rig.store.webhooks.write_deliveries([back], now=rig.now)
    assert [d.id for d in await hooks.list()] == ["one-1"]


async def test_a_full_hook_waits_and_a_paused_one_stands_still(rig: Rig, hooks: Hooks) -> None:
    await hooks.add("hook-a")
    await hooks.add("hook-b")
    await rig.store.webhooks.pause_webhook("hook-b", "by hand", now=rig.now)
    for _ in range(5):
        await rig.submit()
    await hooks.collect(max_pending=3)
    assert len(await hooks.list()) == 3
    assert await rig.store.webhooks.list_subscriptions(3) == []
    for due in (await hooks.due())[:2]:
        await hooks.answer(due)
    (hook,) = await rig.store.webhooks.list_subscriptions(3)
    assert hook.room == 2
    await hooks.collect(max_pending=3)
    assert len(await hooks.list()) == 5
    assert [h.pending for h in await rig.store.webhooks.list_webhooks()] == [3, 0]
    assert (await rig.store.webhooks.get_webhook("hook-b")).reason == "by hand"
    await rig.store.webhooks.resume_webhook("hook-b", now=rig.now)
    await hooks.collect()
    assert len(await hooks.list("hook-b")) == 5


async def test_only_the_oldest_of_a_job_is_due(rig: Rig, hooks: Hooks) -> None:
    """HOOK-1."""
    await rig.host()
    await hooks.add()
    first, _ = await rig.running()
    second = await rig.submit()
    await hooks.collect()
    due = await hooks.due()
    assert {d.sequence: msgspec.json.decode(d.body, type=Payload).event.kind for d in due} == {
        first: "job.submitted",
        second: "job.submitted",
    }
    mine = next(d for d in due if d.sequence == first)
    await hooks.answer(mine, DeliveryAnswer(status=500))
    assert [d.sequence for d in await hooks.due()] == [second]  # those behind a failing one wait
    rig.tick(5)
    assert {d.id for d in await hooks.due()} == {d.id for d in due}
    assert [d.sequence for d in await hooks.due(mine.id)] == [
        second
    ]  # under way: neither it nor what is behind it
    (mine,) = [d for d in await hooks.due() if d.sequence == first]
    await hooks.answer(mine)
    (following,) = [d for d in await hooks.due() if d.sequence == first]
    assert msgspec.json.decode(following.body, type=Payload).event.kind == "job.reserved"
    assert following.seq > mine.seq
    assert [d.sequence for d in await hooks.due(per_hook=1)] == [
        second
    ]  # the one that has been due the longest


async def test_events_of_no_job_are_one_sequence(rig: Rig, hooks: Hooks) -> None:
    await hooks.add(events=())
    await rig.set_queue("one", max_running=1)
    await rig.set_queue("two", max_running=1)
    await hooks.collect()
    (due,) = await hooks.due()
    assert (due.sequence, msgspec.json.decode(due.body, type=Payload).event.queue) == ("", "one")
    await hooks.answer(due)
    (due,) = await hooks.due()
    assert msgspec.json.decode(due.body, type=Payload).event.queue == "two"


async def test_tries_are_counted_and_of_two_senders_one_is_heard(rig: Rig, hooks: Hooks) -> None:
    await hooks.add()
    await rig.submit()
    await hooks.collect()
    (due,) = await hooks.due()
    rig.tick(3)
    assert await hooks.answer(due, DeliveryAnswer(error="refused")) == [due.id]
    (delivery,) = await hooks.list()
    assert (delivery.tries, delivery.error, delivery.status, delivery.state) == (
        1,
        "refused",
        None,
        PENDING,
    )
    assert delivery.next_at is not None
    assert (delivery.next_at - rig.now).total_seconds() == 5.0
    assert await hooks.answer(due) == []  # the other sender's word of the same try
    rig.tick(5)
    (again,) = await hooks.due()
    assert (again.tries, again.body) == (1, due.body)
    assert await hooks.answer(again) == [due.id]
    (delivery,) = await hooks.list()
    assert (delivery.state, delivery.tries, delivery.delivered_at, delivery.next_at) == (
        DELIVERED,
        2,
        rig.now,
        None,
    )
    assert await hooks.answer(again) == []
    assert await hooks.due() == []


async def test_a_dead_letter_lets_the_next_go_and_may_be_sent_again(rig: Rig, hooks: Hooks) -> None:
    await hooks.add("hook-a")
    await hooks.add("hook-b", events=("webhook.*",))
    await rig.host()
    await rig.running()
    await hooks.collect()
    (first,) = [d for d in await hooks.due() if d.webhook_id == "hook-a"]
    await hooks.answer(first, DeliveryAnswer(status=500), tries=1)
    (dead,) = await hooks.list("hook-a", DEAD)
    assert (dead.id, dead.next_at, dead.error) == (first.id, None, "the receiver answered 500")
    (second,) = [d for d in await hooks.due() if d.webhook_id == "hook-a"]
    assert msgspec.json.decode(second.body, type=Payload).event.kind == "job.reserved"
    assert dict((await rig.store.read_gauges()).webhook_deliveries)["dead"] == 1
    await hooks.answer(second, DeliveryAnswer(status=500), tries=1)
    # A watcher learns of it, and its own dead letter makes no event (HOOK-3).
    await hooks.collect()
    told = [d for d in await hooks.list("hook-b") if d.event_kind == "webhook.dead_letter"]
    assert len(told) == 2
    while due := [d for d in await hooks.due() if d.webhook_id == "hook-b"]:
        await hooks.answer(due[0], DeliveryAnswer(status=500), tries=1)
    assert (await rig.kinds()).count("webhook.dead_letter") == 2
    # Redelivered, both go in their old order, before what is newer.
    rig.tick(1)
    assert await rig.store.webhooks.redeliver_dead("hook-a", now=rig.now) == 2
    order = []
    while due := [d for d in await hooks.due() if d.webhook_id == "hook-a"]:
        (one,) = due
        assert one.tries == 0
        order.append(msgspec.json.decode(one.body, type=Payload).event.kind)
        await hooks.answer(one)
    assert order == ["job.submitted", "job.reserved", "job.started"]
    again = await rig.store.webhooks.redeliver("hook-a", first.id, now=rig.now)
    assert (again.state, again.tries, again.delivered_at) == (PENDING, 0, None)
    record, body = await rig.store.webhooks.get_delivery("hook-a", first.id)
    assert (record, body) == (again, first.body)
    with pytest.raises(NotFound):
        await rig.store.webhooks.redeliver("hook-b", first.id)


async def test_an_older_one_sent_again_goes_before_what_is_under_way(
    rig: Rig, hooks: Hooks
) -> None:
    """HOOK-1, when a person interferes: the newer one that is under way ends as it ends, and waits
    if it failed."""
    await rig.host()
    await hooks.add()
    await rig.running()
    await hooks.collect()
    (first,) = await hooks.due()
    await hooks.answer(first)
    (second,) = await hooks.due()
    await rig.store.webhooks.redeliver("hook-a", first.id, now=rig.now)
    assert [d.id for d in await hooks.due()] == [first.id]
    waiting, _ = await rig.store.webhooks.get_delivery("hook-a", second.id)
    assert waiting.next_at is None
    assert (await rig.store.webhooks.redeliver("hook-a", second.id, now=rig.now)).next_at is None
    assert await hooks.answer(second, DeliveryAnswer(status=500)) == [second.id]
    assert [d.id for d in await hooks.due()] == [first.id]
    await hooks.answer(first)
    (again,) = await hooks.due()
    assert (again.id, again.tries) == (second.id, 1)
    rig.tick(1)
    await hooks.answer(again, DeliveryAnswer(status=500))
    assert await hooks.due() == []
    hurried = await rig.store.webhooks.redeliver("hook-a", second.id, now=rig.now)
    assert (hurried.next_at, hurried.tries) == (rig.now, 2)
    assert [d.id for d in await hooks.due()] == [second.id]


async def test_gone_pauses_the_hook_and_a_resumed_one_goes_on_at_once(
    rig: Rig, hooks: Hooks
) -> None:
    await hooks.add()
    await rig.submit()
    await rig.submit()
    await hooks.collect()
    first, second = await hooks.due()
    await rig.store.webhooks.record_tries(
        [judge_try(d, DeliveryAnswer(status=410), 1, BackOff(), 0.0) for d in (first, second)],
        now=rig.now,
    )
    hook = await rig.store.webhooks.get_webhook("hook-a")
    assert (hook.state, hook.pending) == (WebhookState.PAUSED, 2)
    assert "410" in hook.reason
    rig.tick(100_000)
    assert await hooks.due() == []
    assert await hooks.collect() == []
    assert (await rig.kinds()).count("webhook.paused") == 1
    await rig.store.webhooks.resume_webhook("hook-a", now=rig.now)
    assert (await rig.store.webhooks.get_webhook("hook-a")).reason == ""
    assert [d.id for d in await hooks.due()] == [first.id, second.id]
    await hooks.answer((await hooks.due())[0], DeliveryAnswer(status=500))
    await rig.store.webhooks.pause_webhook("hook-a", "by hand", now=rig.now)
    await rig.store.webhooks.resume_webhook("hook-a", now=rig.now)
    assert len(await hooks.due()) == 2  # a resumed hook does not wait for a back-off
    await rig.store.webhooks.resume_webhook("hook-a", now=rig.now)
    assert (await rig.kinds()).count("webhook.resumed") == 2


async def test_a_pause_whose_try_nobody_heard_does_nothing(rig: Rig, hooks: Hooks) -> None:
    await hooks.add()
    await rig.submit()
    await hooks.collect()
    (due,) = await hooks.due()
    await hooks.answer(due)
    await hooks.answer(due, DeliveryAnswer(status=410))
    assert (await rig.store.webhooks.get_webhook("hook-a")).state is WebhookState.ACTIVE
    gone = Tried(delivery_id="no-such", webhook_id="no-such", tries=0, state=DEAD, pause="gone")
    assert await rig.store.webhooks.record_tries([gone], now=rig.now) == []


async def test_deliveries_are_paged_newest_first(rig: Rig, hooks: Hooks) -> None:
    await hooks.add()
    for _ in range(5):
        await rig.submit()
    await hooks.collect()
    await hooks.answer((await hooks.due())[0])
    page = await rig.store.webhooks.list_deliveries("hook-a", limit=3)
    assert [d.id for d in page] == ["delivery-0005", "delivery-0004", "delivery-0003"]
    rest = await rig.store.webhooks.list_deliveries("hook-a", before=page[-1].id, limit=3)
    assert [d.id for d in rest] == ["delivery-0002", "delivery-0001"]
    assert [d.id for d in await hooks.list("hook-a", DELIVERED, DEAD)] == ["delivery-0001"]


async def test_old_deliveries_are_deleted_and_pending_ones_never(rig: Rig, hooks: Hooks) -> None:
    await hooks.add()
    for _ in range(4):
        await rig.submit()
    await hooks.collect()
    first, second, third, _ = await hooks.due()
    await hooks.answer(first)
    await hooks.answer(second, DeliveryAnswer(status=500), tries=1)
    await hooks.answer(third)
    rig.tick(86_400 * 2)
    assert await rig.store.webhooks.prune_deliveries(3, now=rig.now) == 0
    assert await rig.store.webhooks.prune_deliveries(1, limit=2, now=rig.now) == 2
    assert await rig.store.webhooks.prune_deliveries(1, now=rig.now) == 1
    assert [d.state for d in await hooks.list()] == [PENDING]
    assert (await rig.store.read_gauges(now=rig.now)).webhook_deliveries == {
        "pending": 1,
        "dead": 0,
    }


async def test_a_hook_survives_the_end_of_its_jobs(rig: Rig, hooks: Hooks) -> None:
    await rig.host()
    await hooks.add(events=("job.succeeded",))
    job_id, key = await rig.running()
    await rig.sync(ended=[(key, OK)])
    events = await rig.store.events.read_events(
        (await rig.store.webhooks.list_subscriptions(9))[0].cursor
    )
    assert events
    await hooks.collect()
    rig.tick(86_400 * 40)
    await rig.store.jobs.prune(30, now=rig.now)
    (due,) = await hooks.due()
    payload = msgspec.json.decode(due.body, type=Payload)
    assert payload.event.kind == "job.succeeded"
    assert payload.job is not None
    assert payload.job.state == "succeeded"
    assert await rig.store.webhooks.summarize_jobs([job_id]) == {}
    await hooks.answer(due)
