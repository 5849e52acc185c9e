"""The two stores' webhooks, driven by the same random steps, always show the same; and HOOK-1 holds
after each."""

from __future__ import annotations

import random
from collections import Counter
from typing import Any

import msgspec
import pytest

from holdfast.core.webhooks.values import (
    BackOff,
    DeliveryAnswer,
    DeliveryState,
    DueDelivery,
    judge_try,
)
from holdfast.store.memory.store import MemoryStore
from tests.store.conformance.webhooks import Hooks
from tests.store.rig import START, Rig
from tests.store.test_postgres import rig

__all__ = ["rig"]
HOOKS = ("hook-a", "hook-b", "hook-c")
PATTERNS = {"hook-a": ("job.*",), "hook-b": (), "hook-c": ("webhook.*", "job.cancelled")}


class Pair:
    """Both stores, and what is under way: the same in both."""

    def __init__(self, memory: Rig, postgres: Rig) -> None:
        self.sides = (Hooks(memory), Hooks(postgres))
        self.flying: list[tuple[DueDelivery, DueDelivery]] = []
        self.jobs: list[str] = []
        self.reached: Counter[str] = Counter()

    async def both(self, call: str, *args: Any, **more: Any) -> Any:
        first, second = [
            await getattr(side.rig.store.webhooks, call)(*args, now=side.rig.now, **more)
            for side in self.sides
        ]
        assert first == second, call
        return first

    async def step(self, chance: random.Random) -> None:
        hook = chance.choice(HOOKS)
        match chance.randrange(12):
            case 0 | 1:
                self.jobs.append(f"job-{len(self.jobs):04d}")
                for side in self.sides:
                    await side.rig.submit(self.jobs[-1])
            case 2 if self.jobs:
                job_id = chance.choice(self.jobs)
                ended = (await self.sides[0].rig.job(job_id)).state.terminal
                for side in self.sides:
                    await getattr(side.rig.store.jobs, "revive_job" if ended else "cancel_job")(
                        job_id, "", now=side.rig.now
                    )
            case 3:
                value = chance.randrange(5)
                for side in self.sides:
                    await side.rig.set_queue("q", max_running=value)
            case 4 | 5:
                room = chance.choice([1, 3, 100])
                first, second = [await side.collect(room) for side in self.sides]
                assert first == second
            case 6 | 7:
                await self.send(chance)
            case 8 | 9 if self.flying:
                await self.land(chance)
            case 10:
                await self.interfere(hook, chance)
            case 11:
                seconds = chance.choice([1, 5, 30, 4000])
                for side in self.sides:
                    side.rig.tick(seconds)

    async def send(self, chance: random.Random) -> None:
        known = {first.id for first, _ in self.flying}
        first, second = [await side.due(*known, per_hook=3) for side in self.sides]
        assert [(d.id, d.sequence, d.tries) for d in first] == [
            (d.id, d.sequence, d.tries) for d in second
        ]
        if first:
            place = chance.randrange(len(first))
            self.flying.append((first[place], second[place]))

    async def land(self, chance: random.Random) -> None:
        pair = self.flying.pop(chance.randrange(len(self.flying)))
        answer = DeliveryAnswer(status=chance.choice([200, 200, 500, 500, 410, None]), error="")
        applied = []
        for side, due in zip(self.sides, pair, strict=True):
            tried = judge_try(due, answer, 2, BackOff(), 0.0)
            applied.append(await side.rig.store.webhooks.record_tries([tried], now=side.rig.now))
        assert applied[0] == applied[1]
        self.reached[str(answer.status)] += 1

    async def interfere(self, hook: str, chance: random.Random) -> None:
        what = chance.choice(
            ["pause", "resume", "resume", "redeliver", "redeliver", "redeliver_dead", "prune"]
        )
        self.reached[what] += 1
        if what == "pause":
            await self.both("pause_webhook", hook, "by hand")
        elif what == "resume":
            for one in HOOKS:
                await self.both("resume_webhook", one)
        elif what == "redeliver":
            known = await self.sides[0].list(hook)
            if known:
                delivery = await self.both_sides_redeliver(hook, chance.choice(known).id)
                self.reached[f"redelivered, waits: {delivery}"] += 1
        elif what == "redeliver_dead":
            await self.both("redeliver_dead", hook)
        else:
            await self.both("prune_deliveries", 0.02)

    async def both_sides_redeliver(self, hook: str, delivery_id: str) -> bool:
        first, second = [
            await s.rig.store.webhooks.redeliver(hook, delivery_id, now=s.rig.now)
            for s in self.sides
        ]
        assert seen(first) == seen(second)
        return first.next_at is None

    async def compare(self) -> None:
        for hook in HOOKS:
            assert await self.sides[0].rig.store.webhooks.get_webhook(hook) == await self.sides[
                1
            ].rig.store.webhooks.get_webhook(hook)
            shown = [await side.list(hook) for side in self.sides]
            assert [seen(d) for d in shown[0]] == [seen(d) for d in shown[1]]
            due = Counter(d.job_id for d in shown[0] if d.next_at is not None)
            waiting = {d.job_id for d in shown[0] if d.state is DeliveryState.PENDING}
            assert due == dict.fromkeys(waiting, 1), (
                "HOOK-1: of each sequence with a pending delivery exactly one is due"
            )


def seen(record: Any) -> dict[str, Any]:
    """What may be compared: the ids of events are each store's own."""
    return {k: v for k, v in msgspec.structs.asdict(record).items() if k != "event_id"}


@pytest.mark.parametrize("seed", range(6))
async def test_the_stores_agree(rig: Rig, seed: int) -> None:
    pair = Pair(Rig(MemoryStore(clock=lambda: START)), rig)
    chance = random.Random(seed)
    for side in pair.sides:
        for hook, events in PATTERNS.items():
            await side.add(hook, events=events)
    for _ in range(120):
        await pair.step(chance)
        await pair.compare()
    assert pair.reached["200"]
    assert pair.reached["500"]
