"""Webhooks under random steps: HOOK-1 holds after each."""

from __future__ import annotations

import random
from collections import Counter

import pytest

from holdfast.core.webhooks.values import (
    BackOff,
    DeliveryAnswer,
    DeliveryState,
    DueDelivery,
    judge_try,
)
from tests.store.postgres.test_webhooks import Hooks
from tests.store.rig import Rig

HOOKS = ("hook-a", "hook-b", "hook-c")
PATTERNS = {"hook-a": ("job.*",), "hook-b": (), "hook-c": ("webhook.*", "job.cancelled")}


class Walk:
    """A store with hooks, and the deliveries that are under way."""

    def __init__(self, rig: Rig) -> None:
        self.rig, self.hooks = rig, Hooks(rig)
        self.flying: list[DueDelivery] = []
        self.jobs: list[str] = []
        self.reached: Counter[str] = Counter()

    async def step(self, chance: random.Random) -> None:
        match chance.randrange(12):
            case 0 | 1:
                self.jobs.append(f"job-{len(self.jobs):04d}")
                await self.rig.submit(self.jobs[-1])
            case 2 if self.jobs:
                job_id = chance.choice(self.jobs)
                ended = (await self.rig.job(job_id)).state.terminal
                move = self.rig.store.jobs.revive_job if ended else self.rig.store.jobs.cancel_job
                await move(job_id, "", now=self.rig.now)
            case 3:
                await self.rig.set_queue("q", max_running=chance.randrange(5))
            case 4 | 5:
                await self.hooks.collect(chance.choice([1, 3, 100]))
            case 6 | 7:
                known = {due.id for due in self.flying}
                if found := await self.hooks.due(*known, per_hook=3):
                    self.flying.append(chance.choice(found))
            case 8 | 9 if self.flying:
                await self.land(chance)
            case 10:
                await self.interfere(chance.choice(HOOKS), chance)
            case 11:
                self.rig.tick(chance.choice([1, 5, 30, 4000]))

    async def land(self, chance: random.Random) -> None:
        due = self.flying.pop(chance.randrange(len(self.flying)))
        answer = DeliveryAnswer(status=chance.choice([200, 200, 500, 500, 410, None]), error="")
        tried = judge_try(due, answer, 2, BackOff(), 0.0)
        await self.rig.store.webhooks.record_tries([tried], now=self.rig.now)
        self.reached[str(answer.status)] += 1

    async def interfere(self, hook: str, chance: random.Random) -> None:
        webhooks, now = self.rig.store.webhooks, self.rig.now
        match chance.choice(["pause", "resume", "resume", "one", "one", "dead", "prune"]):
            case "pause":
                await webhooks.pause_webhook(hook, "by hand", now=now)
            case "resume":
                for one in HOOKS:
                    await webhooks.resume_webhook(one, now=now)
            case "one":
                if known := await self.hooks.list(hook):
                    await webhooks.redeliver(hook, chance.choice(known).id, now=now)
            case "dead":
                await webhooks.redeliver_dead(hook, now=now)
            case "prune":
                await webhooks.prune_deliveries(0.02, now=now)

    async def check(self) -> None:
        for hook in HOOKS:
            shown = await self.hooks.list(hook)
            due = Counter(d.job_id for d in shown if d.next_at is not None)
            waiting = {d.job_id for d in shown if d.state is DeliveryState.PENDING}
            assert due == dict.fromkeys(waiting, 1), (
                "HOOK-1: of each sequence with a pending delivery exactly one is due"
            )


@pytest.mark.parametrize("seed", range(6))
async def test_of_each_sequence_one_delivery_is_due(rig: Rig, seed: int) -> None:
    walk, chance = Walk(rig), random.Random(seed)
    for hook, events in PATTERNS.items():
        await walk.hooks.add(hook, events=events)
    for _ in range(120):
        await walk.step(chance)
        await walk.check()
    assert walk.reached["200"]
    assert walk.reached["500"]
