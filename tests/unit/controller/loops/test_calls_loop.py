"""The calls' loop: batches of executors that are gone come back, and back-offs end."""

from datetime import timedelta

import msgspec

from holdfast.controller.loops.calls.calls import LOOK_SECONDS, CallsLoop
from holdfast.controller.runtime.context import Controller
from holdfast.core.calls.executors import make_executor_spec
from holdfast.core.calls.values import FunctionSpec, find_family
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.moves.values import NewJob
from holdfast.store.postgres.calls.values import CLOSING_SECONDS, ExecutorTurn, ExecutorTurned
from holdfast.wire.calls import BatchEnds, CallEnd, ExecutorReport
from tests.simulated.blobs import MemoryBlobs
from tests.store.rig import START, Rig

SPEC = msgspec.convert(
    {"function": "m:f", "retry": {"max_retries": 3, "retry_delay": 1.5}}, FunctionSpec
)


class Led:
    """A leader, and an executor that runs."""

    def __init__(self, rig: Rig) -> None:
        self.rig = rig
        self.controller = Controller(
            rig.store, clock=lambda: (rig.now - START).total_seconds(), blobs=MemoryBlobs()
        )
        self.controller.leadership.begin(START - timedelta(hours=1))
        self.loop = CallsLoop(self.controller)
        self.woken = self.controller.wakes.topic(f"calls:{find_family(SPEC, 'cpu').name}")

    async def start_executor(self) -> TaskKey:
        await self.rig.host(labels={"app/m": "yes"})
        family = find_family(SPEC, "cpu")
        job = NewJob(id="e1", spec=make_executor_spec(family), queue="cpu")
        await self.rig.store.jobs.submit_jobs([job], now=self.rig.now)
        await self.rig.admit()
        key = await self.rig.key("e1")
        await self.rig.sync()
        await self.rig.sync(live=[key], started=[key])
        return key

    async def say(self, key: TaskKey, **report: object) -> ExecutorTurned:
        turn = ExecutorTurn(
            host_id="h1",
            incarnation=self.rig.incarnations["h1"],
            report=ExecutorReport(key=key, **report),  # type: ignore[arg-type]  # its own fields
            family=find_family(SPEC, "cpu").name,
        )
        settings = await self.controller.settings.current()
        (answer,) = await self.rig.store.calls.exchange(
            [turn], policy_of=settings.call_policy, now=self.rig.now
        )
        return answer


async def test_the_batch_of_a_lost_executor_comes_back_after_a_last_report_could_have(
    told_rig: Rig,
) -> None:
    led = Led(told_rig)
    key = await led.start_executor()
    calls = led.rig.store.calls
    await calls.create_set("s" * 20, SPEC, "cpu", count=3, args=["{}"] * 3, now=led.rig.now)
    assert len((await led.say(key, want=3)).batches[0].calls) == 3
    assert await led.loop.run_once() == {}
    await led.rig.sync(ended=[(key, TaskFacts(signal=9))])
    await led.rig.complete(max_retries=0)
    assert await led.loop.run_once() == {}
    seen, found = led.woken.version, []
    for _ in range(int(CLOSING_SECONDS / LOOK_SECONDS) + 1):
        led.rig.tick(LOOK_SECONDS)
        found.append(await led.loop.run_once())
    assert [each for each in found if each] == [{"returned": 1}]
    assert led.woken.version > seen
    (feed,) = await calls.read_feeds(now=led.rig.now)
    assert feed.ready == 3  # the first goes again at once, charged to infra


async def test_a_back_off_ends_when_it_is_over_and_the_loop_waits_no_longer(told_rig: Rig) -> None:
    led = Led(told_rig)
    key = await led.start_executor()
    calls = led.rig.store.calls
    await calls.create_set("s" * 20, SPEC, "cpu", count=1, args=["{}"], now=led.rig.now)
    (batch,) = (await led.say(key, want=1)).batches
    error = CallEnd(0, True, 0.1, '{"kind": "E", "message": "no"}')
    await led.say(key, ends=[BatchEnds(batch.id, [error])])
    assert await led.loop.run_once() == {}
    assert led.loop.interval_seconds == 1.5
    led.rig.tick(2.0)
    assert await led.loop.run_once() == {"released": 1}
    assert led.loop.interval_seconds == LOOK_SECONDS
    assert (await led.say(key, want=1)).batches[0].calls[0].attempt == 2


async def test_nothing_comes_back_while_another_replica_leads(told_rig: Rig) -> None:
    led = Led(told_rig)
    key = await led.start_executor()
    calls = led.rig.store.calls
    await calls.create_set("s" * 20, SPEC, "cpu", count=1, args=["{}"], now=led.rig.now)
    await led.say(key, want=1)
    await led.rig.sync(ended=[(key, TaskFacts(signal=9))])
    led.controller.leadership.end()
    for _ in range(3):
        led.rig.tick(CLOSING_SECONDS + 1)
        assert await led.loop.run_once() == {}
