"""The loops: which controller runs them, what a failure does to them, and what each one says."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Collection, Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

import pytest

from holdfast.controller.loops.leader import Leader
from holdfast.controller.loops.loop import keep_running
from holdfast.controller.loops.sweeps import DeadHostsLoop, LeasesLoop
from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.outages import QUIET_SECONDS, TOLERATED_SECONDS, Outages
from holdfast.errors import Unavailable
from holdfast.moves.values import HostSync, HostSynced
from holdfast.store.postgres.connection.leadership import DueLook
from holdfast.store.postgres.store import PostgresStore
from tests.simulated.blobs import MemoryBlobs
from tests.store.rig import Rig
from tests.unit.controller.conftest import FakeAgent, Served
from tests.waits import within


class Counting:
    """A loop that counts its runs, and does what it is told in each."""

    name = "counting"
    topic: str | None = "admit"
    also: str | None = None
    by_look = False
    interval_seconds = 30.0

    def __init__(self, act: Callable[[int], None] = lambda n: None) -> None:
        self.runs = self.rests = 0
        self._act = act

    async def run_once(self) -> Mapping[str, Any]:
        self.runs += 1
        self._act(self.runs)
        return {}

    def rest(self) -> None:
        self.rests += 1

    async def stop(self) -> None:
        pass


async def until(condition: Callable[[], object], seconds: float = 8) -> None:
    async with within(seconds):
        while not condition():
            await asyncio.sleep(0.01)


async def test_a_loop_goes_on_where_what_it_waits_for_is_cancelled(store: PostgresStore) -> None:
    """LOOP-2: the cancel is not the loop's own (LOOP-3)."""

    def act(run: int) -> None:
        if run == 1:
            raise asyncio.CancelledError

    controller, loop = Controller(store, blobs=MemoryBlobs()), Counting(act)
    task = asyncio.create_task(keep_running(controller, loop))
    await until(lambda: loop.runs == 2)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_loop_that_fails_while_the_server_stops_leaves_the_others_their_turn(
    store: PostgresStore,
) -> None:
    """LOOP-2: the close wakes every waiter, and a loop that fails must not take that for a hint."""

    def act(run: int) -> None:
        assert run < 50, "it spins"
        raise Unavailable("the store is away")

    controller, loop = Controller(store, blobs=MemoryBlobs()), Counting(act)
    task = asyncio.create_task(keep_running(controller, loop))
    await until(lambda: loop.runs == 1)
    controller.wakes.close()
    for _ in range(20):
        await asyncio.sleep(0)
    assert loop.runs <= 2
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_a_hint_wakes_a_loop_long_before_its_interval(store: PostgresStore) -> None:
    controller, loop = Controller(store, blobs=MemoryBlobs()), Counting()
    leader = asyncio.create_task(Leader(controller, [loop]).run())
    await until(lambda: loop.runs == 1)
    controller.poke("admit")
    await until(lambda: loop.runs == 2, 2)
    leader.cancel()
    await asyncio.gather(leader, return_exceptions=True)


class Scripted:
    """A look whose answers a test gives, in place of the store's."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, store: PostgresStore) -> None:
        self.due: list[str] = []
        self.error: Exception | None = None
        self.hangs = False
        self.asked: list[list[str]] = []
        monkeypatch.setattr(store.leadership, "look", self.look)

    async def look(self, asked: Collection[str], **given: Any) -> DueLook:
        self.asked.append(list(asked))
        if self.hangs:
            await asyncio.Event().wait()
        if self.error is not None:
            raise self.error
        return DueLook(revision=1, due=self.due)


async def begin_loop(store: PostgresStore) -> tuple[Controller, Counting, list[asyncio.Task[None]]]:
    """Run a loop by the look, which comes every second, for its first turn."""
    controller, loop = Controller(store, blobs=MemoryBlobs()), Resting()
    tasks = [
        asyncio.create_task(controller.looks.run()),
        asyncio.create_task(keep_running(controller, loop)),
    ]
    await until(lambda: loop.runs == 1)
    return controller, loop, tasks


class Resting(Counting):
    by_look = True
    interval_seconds = 1.0


async def end_tasks(tasks: Sequence[asyncio.Task[None]]) -> None:
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)


async def test_a_loop_by_the_look_runs_where_the_look_names_it_and_else_rests(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOOK-1, LOOP-1: without a hint."""
    look = Scripted(monkeypatch, store)
    _, loop, tasks = await begin_loop(store)
    await until(lambda: loop.rests == 1)
    assert (loop.runs, look.asked) == (1, [["counting"]]), "one statement, no turn of the loop"
    look.due = ["counting"]
    await until(lambda: loop.runs == 2)
    await end_tasks(tasks)


async def test_a_hint_wakes_a_loop_that_waits_for_the_look(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Scripted(monkeypatch, store)
    look.hangs = True
    controller, loop, tasks = await begin_loop(store)
    await until(lambda: look.asked)
    controller.wakes.fire("admit")
    await until(lambda: loop.runs == 2)
    await end_tasks(tasks)


@pytest.mark.parametrize("failure", ["away", "broken", "frozen"])
async def test_loops_find_out_by_themselves_where_the_look_fails(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, failure: str
) -> None:
    """LOOK-1."""
    look = Scripted(monkeypatch, store)
    look.error = Unavailable("away") if failure == "away" else ValueError("broken")
    look.hangs = failure == "frozen"
    _, loop, tasks = await begin_loop(store)
    await until(lambda: loop.runs == 3, seconds=30)
    assert loop.rests == 0
    await end_tasks(tasks)


async def test_a_loop_that_knows_its_next_time_asks_no_look(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    look = Scripted(monkeypatch, store)
    _, loop, tasks = await begin_loop(store)
    await until(lambda: loop.rests == 1)
    asked = len(look.asked)
    look.due, loop.interval_seconds = ["counting"], 0.01
    await until(lambda: loop.runs == 5)
    assert len(look.asked) <= asked + 1
    await end_tasks(tasks)


async def test_where_every_hint_is_lost_each_loop_finds_its_work_by_the_look(
    served: Served, agent: FakeAgent, monkeypatch: pytest.MonkeyPatch
) -> None:
    """LOOP-1, LOOK-1: a job is admitted, fails, its drain is completed, its retry comes due, it fails
    again, and the job that waited for it is cancelled."""
    monkeypatch.setattr(served.controller, "poke", lambda *topics: None)
    monkeypatch.setattr(served.controller, "poke_soon", lambda *topics, seconds=0.0: None)
    retries = {"max_retries": 1, "retry_delay": 0.5}
    job = await served.submit(retry=retries)
    child = await served.submit(after=[job["id"]])
    for _ in range(2):
        order = await agent.take(seconds=60)
        await agent.sync(agent.running(order))
        await agent.end(order, exit_code=1)
    assert (await served.until(job["id"], "failed", seconds=60))["attempts"] == 2
    await served.until(child["id"], "cancelled", seconds=60)


async def test_the_look_tells_when_settings_have_changed(store: PostgresStore) -> None:
    """One reading of the settings serves for as long as their revision stands."""
    now = 0.0
    controller = Controller(store, clock=lambda: now, blobs=MemoryBlobs())
    first = await controller.settings.current()
    now = 100.0
    controller.looks.ask("admit")
    await controller.looks.look()
    assert await controller.settings.current() is first, "the look has seen its revision"
    await store.settings.put_queue("new", {})
    controller.looks.ask("admit")
    await controller.looks.look()
    assert "new" in (await controller.settings.current()).queues, "at once, at the same time"


async def test_a_loop_that_fails_is_logged_and_goes_on(
    store: PostgresStore, caplog: pytest.LogCaptureFixture
) -> None:
    def fail_at_first(run: int) -> None:
        if run == 1:
            raise RuntimeError("no reason")

    controller, loop = Controller(store, blobs=MemoryBlobs()), Counting(fail_at_first)
    leader = asyncio.create_task(Leader(controller, [loop]).run())
    await until(lambda: loop.runs == 2)
    assert "loop counting failed; it goes on" in caplog.text
    leader.cancel()
    await asyncio.gather(leader, return_exceptions=True)


async def test_a_failing_loop_is_not_made_busy_by_hints(store: PostgresStore) -> None:
    def fail(run: int) -> None:
        raise Unavailable("away")

    controller, loop = Controller(store, blobs=MemoryBlobs()), Counting(fail)
    leader = asyncio.create_task(Leader(controller, [loop]).run())
    await until(lambda: loop.runs == 1)
    for _ in range(20):
        controller.poke("admit")
        await asyncio.sleep(0.01)
    assert loop.runs <= 2
    leader.cancel()
    await asyncio.gather(leader, return_exceptions=True)


@pytest.mark.parametrize("ends_in", ["an answer", "an error"])
async def test_a_loop_ends_though_the_word_to_end_was_swallowed_below(
    store: PostgresStore, ends_in: str
) -> None:
    """LOOP-3: a database that dies in the moment of a cancellation turns it into an error of its
    own, or into nothing."""

    class Swallowing(Counting):
        async def run_once(self) -> Mapping[str, Any]:
            self.runs += 1
            try:
                await asyncio.sleep(60)
            except asyncio.CancelledError:
                if ends_in == "an error":
                    raise Unavailable("the connection broke while it was cancelled") from None
            return {}

    loop = Swallowing()
    task = asyncio.create_task(keep_running(Controller(store, blobs=MemoryBlobs()), loop))
    await until(lambda: loop.runs == 1)
    task.cancel()
    async with within(5):  # otherwise it runs on, and the wait for its end has no end
        await asyncio.wait([task])
    assert task.cancelled()


@pytest.mark.slow
async def test_loops_stop_when_leadership_is_lost_and_start_anew(
    store: PostgresStore, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    leads = True

    async def try_lead() -> bool:
        return leads

    monkeypatch.setattr(store.leadership, "try_lead", try_lead)
    controller, loop = Controller(store, blobs=MemoryBlobs()), Counting()
    leader = asyncio.create_task(Leader(controller, [loop]).run())
    await until(lambda: loop.runs == 1)
    first = controller.leadership.since
    leads = False
    await until(lambda: controller.leadership.since is None)
    runs = loop.runs
    controller.poke("admit")
    await asyncio.sleep(0.05)
    assert loop.runs == runs
    leads = True
    await until(lambda: controller.leadership.since is not None)
    assert controller.leadership.since is not None
    assert first is not None
    assert controller.leadership.since > first
    leader.cancel()
    await asyncio.gather(leader, return_exceptions=True)


def test_an_outage_is_told_once_however_many_calls_fail(caplog: pytest.LogCaptureFixture) -> None:
    now = [0.0]
    outages = Outages(lambda: now[0])
    for end in (2.0, 20.0):
        outages.note_failure(Unavailable("away"))
        outages.note_failure(Unavailable("still away"))
        now[0] = end
        outages.note_renewal()
        outages.note_renewal()
    errors = [r for r in caplog.records if r.levelno == logging.ERROR]
    assert len(errors) == 2


def test_calls_that_go_through_hide_no_outage_of_renewals() -> None:
    """LEASE-6: with a full disk under the store every renewal fails for a minute, while loops find
    nothing to do and end well."""
    now = [0.0]
    outages = Outages(lambda: now[0])
    for second in range(60):
        now[0] = float(second)
        if second % 5 == 0:
            outages.note_failure(Unavailable("no space left on device"))
        elif second % 2 == 0:
            outages.note_success()
        assert not outages.takes_renewals
    outages.note_renewal()
    assert outages.takes_renewals


def test_an_outage_ends_also_where_no_host_is_left_to_renew() -> None:
    now = [0.0]
    outages = Outages(lambda: now[0])
    outages.note_failure(Unavailable("away"))
    now[0] = QUIET_SECONDS - 0.1
    outages.note_success()
    assert outages.going_on
    now[0] = QUIET_SECONDS
    outages.note_success()
    assert not outages.going_on


def test_the_longest_wait_of_several_calls_counts() -> None:
    now = [0.0]
    outages = Outages(lambda: now[0])
    with outages.asking():
        now[0] = TOLERATED_SECONDS
        with outages.asking():
            assert outages.takes_renewals
        now[0] += 0.1
        assert not outages.takes_renewals, "the first still waits"
    assert outages.takes_renewals


async def test_a_loop_that_had_nothing_to_ask_ends_no_outage(store: PostgresStore) -> None:
    """The leases' loop looks away while an outage goes on, and must not be what ends it."""
    controller, loop = Controller(store, clock=lambda: 100.0, blobs=MemoryBlobs()), Counting()
    controller.outages.note_failure(Unavailable("away"))
    task = asyncio.create_task(keep_running(controller, loop))
    await until(lambda: loop.runs == 1)
    controller.poke("admit")
    await until(lambda: loop.runs == 2)
    assert controller.outages.going_on
    task.cancel()
    await asyncio.gather(task, return_exceptions=True)


@pytest.mark.parametrize("step", [7200.0, -7200.0], ids=["forward", "back"])
async def test_a_step_of_the_databases_clock_takes_nobody_for_silent(
    step: float, caplog: pytest.LogCaptureFixture, told_rig: Rig
) -> None:
    """LEASE-5: no job is lost by it, no host is called dead, and a host that falls silent
    then is still found a lease later."""
    rig, ran = told_rig, [0.0]
    controller = Controller(rig.store, clock=lambda: ran[0], blobs=MemoryBlobs())
    leases, dead = LeasesLoop(controller), DeadHostsLoop(controller)

    async def run(seconds: float, *, heard: bool, stepped: float = 0.0) -> list[Mapping[str, Any]]:
        ran[0] += seconds
        rig.tick(seconds + stepped)
        if heard:
            await rig.sync(live=[key])
        return [await leases.run_once(), await dead.run_once()]

    await rig.host()
    job_id, key = await rig.running()
    controller.leadership.begin(rig.now - timedelta(days=1))
    assert await run(2.0, heard=True) == [{}, {}]
    assert await run(2.0, heard=False, stepped=step) == [{}, {}]
    assert await run(2.0, heard=True) == [{}, {}]
    assert (await rig.job(job_id)).state == "running"
    assert [r.levelname for r in caplog.records if "clock was set" in r.getMessage()] == ["ERROR"]
    silent = [await run(2.5, heard=False) for _ in range(116)]
    assert [{}, {"flagged": ["name-h1"]}] in silent
    assert all(lapsed == {} for lapsed, _ in silent)
    over = [await run(2.5, heard=False) for _ in range(24)]
    assert [lapsed for lapsed, _ in over if lapsed] == [{"lapsed": 1}]


class Swept:
    """The sweep for dead hosts over one host with running work, under clocks that a test sets."""

    def __init__(self, rig: Rig) -> None:
        self._rig, self._ran = rig, 0.0
        self.controller = Controller(self._rig.store, clock=lambda: self._ran, blobs=MemoryBlobs())
        self._loop = DeadHostsLoop(self.controller)

    async def begin(self) -> None:
        await self._rig.host()
        await self._rig.running()
        self.controller.leadership.begin(self._rig.now - timedelta(days=1))

    async def run_after(self, seconds: float) -> Mapping[str, Any]:
        self._ran += seconds
        self._rig.tick(seconds)
        return await self._loop.run_once()


async def test_the_controllers_own_pause_is_no_hosts_death(told_rig: Rig) -> None:
    """LEAD-4: a host that could not be heard is not silent; one that stays silent for a whole
    threshold after the pause is dead."""
    swept = Swept(told_rig)
    await swept.begin()
    assert await swept.run_after(5.0) == {}
    assert await swept.run_after(60.0) == {}, "the leader was frozen, and heard no host"
    assert [await swept.run_after(5.0) for _ in range(6)] == [{}] * 6
    assert await swept.run_after(5.0) == {"flagged": ["name-h1"]}


async def test_renewals_that_wait_for_the_store_are_no_hosts_silence(told_rig: Rig) -> None:
    """LEAD-4: a locked table holds the heartbeats up, while the sweep itself is not held up."""
    swept = Swept(told_rig)
    await swept.begin()
    held, entered = asyncio.Event(), asyncio.Event()

    async def sync_hosts(*_: Any, **__: Any) -> list[Any]:
        entered.set()
        await held.wait()
        return [HostSynced(host_id="h1", status="ok")]

    swept.controller.store.leases.sync_hosts = sync_hosts  # type: ignore[method-assign]  # a double
    sync = HostSync(host_id="h1", incarnation="i")
    waiting = asyncio.create_task(swept.controller.batcher.submit(sync))
    await entered.wait()
    assert [await swept.run_after(5.0) for _ in range(12)] == [{}] * 12
    held.set()
    await waiting
    assert [await swept.run_after(5.0) for _ in range(6)] == [{}] * 6
    assert await swept.run_after(5.0) == {"flagged": ["name-h1"]}


async def test_a_leader_in_an_outage_stamps_no_renewals(store: PostgresStore) -> None:
    """LEASE-6: what reads the time meanwhile is no proof that a renewal could be written."""
    ran = [0.0]
    controller = Controller(store, clock=lambda: ran[0], blobs=MemoryBlobs())
    controller.leadership.begin(await store.now() - timedelta(hours=1))
    first = await controller.leadership.read_time()
    controller.outages.note_failure(Unavailable("away"))
    ran[0] = 5.0
    at = await controller.leadership.read_time()
    assert controller.leadership.hears_since == at
    assert await _read_spells(store) == [(first, first)]
    controller.outages.note_renewal()
    ran[0] = 6.0
    assert (await controller.leadership.read_time()) == (await _read_spells(store))[0][1]
    assert controller.outages.takes_renewals


async def _read_spells(store: PostgresStore) -> list[tuple[datetime, datetime]]:
    rows = await store.session.rows("read_spells", now=None)
    return [(row["since"], row["until"]) for row in rows]


async def test_a_dead_host_is_told_once_and_cleared_by_a_heartbeat(
    served: Served, agent: FakeAgent, caplog: pytest.LogCaptureFixture
) -> None:
    await served.call(
        "PATCH",
        "/v1/config",
        json={"set": {"dead_host_seconds": 1, "dead_host_sweep_seconds": 0.5}},
    )
    job = await served.submit()
    order = await agent.take()
    await agent.sync(agent.running(order))
    served.controller.leadership.begin(await served.store.now() - timedelta(hours=1))
    loop = DeadHostsLoop(served.controller)
    async with within(8):
        while not (await served.store.hosts.get_host("h1")).flagged_dead_at:
            await loop.run_once()
            await asyncio.sleep(0.05)
    await loop.run_once()
    assert loop.interval_seconds == 0.5
    lines = [r for r in caplog.records if "DEAD HOST" in r.getMessage()]
    assert len(lines) == 1
    assert lines[0].levelno == logging.ERROR
    text = lines[0].getMessage()
    assert "h1" in text
    assert job["id"] in text
    assert "holdfast hosts terminate h1" in text
    dead = (await served.call("GET", "/v1/hosts", params={"dead": "1"})).json()["items"]
    assert [(h["name"], h["dead"]) for h in dead] == [("h1", True)]
    await agent.sync(agent.running(order))
    assert (await served.call("GET", "/v1/hosts", params={"dead": "1"})).json()["items"] == []


async def test_a_jobs_own_lease_goes_with_its_launch(served: Served, agent: FakeAgent) -> None:
    await served.submit(lease_ttl_seconds=33)
    order = await agent.take()
    assert order.ttl_seconds == 33
    renewed = (await agent.sync(agent.running(order))).renewed
    assert [r.ttl_seconds for r in renewed] == [33]
