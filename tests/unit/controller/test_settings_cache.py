"""The settings in force: what a store kept and this version does not know any more is said once."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from typing import Any

import pytest

from holdfast.controller.runtime.background import Background
from holdfast.controller.runtime.outages import Outages
from holdfast.controller.runtime.remembered import Sizes
from holdfast.controller.runtime.settings import FRESH_SECONDS, RECENT_SECONDS, SettingsCache
from holdfast.core.calls.values import FunctionSpec
from holdfast.moves.values import SettingsLayers
from holdfast.store.postgres.store import PostgresStore
from tests.waits import within


class Reads:
    """A read that waits until it is let go, and a clock that is set."""

    def __init__(self) -> None:
        self.now, self.begun, self.ended = 100.0, 0, 0
        self.open = asyncio.Event()
        self.open.set()
        self.background = Background(Outages(self.clock))

    def clock(self) -> float:
        return self.now

    def hold(self, read: Callable[[], Awaitable[Any]]) -> Callable[[], Awaitable[Any]]:
        async def held() -> Any:
            self.begun += 1
            await self.open.wait()
            found = await read()
            self.ended += 1
            return found

        return held

    async def settle(self, begun: int) -> None:
        """Let go, and wait until so many reads have begun and ended."""
        self.open.set()
        async with within(5):
            while self.ended < begun:
                await asyncio.sleep(0.001)


async def test_a_caller_in_a_hurry_waits_for_no_read_of_the_settings(
    monkeypatch: pytest.MonkeyPatch, store: PostgresStore
) -> None:
    reads = Reads()
    monkeypatch.setattr(store.settings, "read_settings", reads.hold(store.settings.read_settings))
    cache = SettingsCache(store, {}, reads.clock, reads.background)
    first = await cache.recent()  # there are none yet, so it waits
    await store.settings.put_queue("new", {})
    reads.now += 2.0
    reads.open.clear()
    assert [await cache.recent(), await cache.recent()] == [first, first]
    await asyncio.sleep(0)
    assert reads.begun == 1, "the callers' own statements come first"
    await reads.settle(2)
    assert reads.begun == 2, "one read behind them both"
    await asyncio.sleep(0)
    assert "new" in (await cache.recent()).queues
    await store.settings.put_queue("newer", {})
    reads.now += RECENT_SECONDS
    assert "newer" in (await cache.recent()).queues, "too old for anyone"


async def test_what_another_server_changed_is_in_force_within_a_second_without_a_hint(
    monkeypatch: pytest.MonkeyPatch, store: PostgresStore
) -> None:
    """One reading serves for as long as the revision stands, which grows with every layer."""
    now = 0.0
    cache, other = SettingsCache(store, {}, lambda: now), PostgresStore(store.session.dsn)
    reads: list[int] = []
    read = store.settings.read_settings

    async def counted() -> SettingsLayers:
        layers = await read()
        reads.append(layers.revision)
        return layers

    monkeypatch.setattr(store.settings, "read_settings", counted)
    await other.open()
    settings = other.settings
    changes: list[Callable[[], Awaitable[object]]] = [
        lambda: settings.write_cluster_settings({"grace_seconds": 7.0}),
        lambda: settings.write_rules("# none yet"),
        lambda: settings.put_queue("made", {}),
        lambda: settings.put_queue("made", {"max_running": 3}),
        lambda: settings.delete_queue("made"),
        lambda: settings.put_project("p", {}),
        lambda: settings.put_project("p", {"retries_enabled": False}),
        lambda: settings.delete_project("p"),
    ]
    known = await cache.current()
    for change in changes:
        now += FRESH_SECONDS
        assert await cache.current() is known, "nothing changed, so nothing was read anew"
        await change()
        now += FRESH_SECONDS
        found = await cache.current()
        assert found.rev == known.rev + 1 == reads[-1]
        known = found
    assert len(reads) == len(changes) + 1
    await other.close()


async def test_a_submission_waits_for_no_read_of_the_hosts(
    monkeypatch: pytest.MonkeyPatch, store: PostgresStore
) -> None:
    reads = Reads()
    found: list[Any] = []

    async def read() -> list[Any]:
        return list(found)

    monkeypatch.setattr(store.hosts, "host_sizes", reads.hold(read))
    sizes = Sizes(store, reads.clock, reads.background)
    assert await sizes.current() == []
    found.append("a host")
    reads.now += 3.0
    reads.open.clear()
    assert [await sizes.current(), await sizes.current()] == [[], []]
    await reads.settle(2)
    await asyncio.sleep(0)
    assert (await sizes.current(), reads.begun) == (["a host"], 2)
    found.append("another")
    reads.now += 31.0
    assert await sizes.current() == ["a host", "another"]


async def test_hosts_take_jobs_only_where_no_setting_binds(store: PostgresStore) -> None:
    cache = SettingsCache(store, {})
    terms = (await cache.refresh()).take_terms
    assert terms is not None
    queues = set((await store.settings.read_settings()).queues)
    assert (terms.whole, set(terms.ttls)) == (True, queues)
    assert terms.revision == (await store.settings.read_settings()).revision
    await store.settings.put_queue("cpu", {"lease_ttl_seconds": 90})
    await store.settings.put_queue("gpu", {"max_running": 4})
    terms = (await cache.refresh()).take_terms
    assert terms is not None
    assert (terms.whole, set(terms.ttls)) == (False, queues - {"gpu"}), "a cap is the leader's"
    assert terms.ttls["cpu"] == 90.0
    await store.settings.put_project("team", {"quota_jobs": 9})
    assert (await cache.refresh()).take_terms is None, "a quota binds in every queue"
    budget = {"budget_usd_per_month": 9.0}
    await store.settings.put_project("team", budget, unset=["quota_jobs"])
    assert (await cache.refresh()).take_terms is not None, "a budget that holds no job binds none"
    await store.settings.put_project("team", {"at_budget": "hold"})
    assert (await cache.refresh()).take_terms is None
    await store.settings.put_project("team", {"share_gpus": 1}, unset=["at_budget"])
    assert (await cache.refresh()).take_terms is None, "and so does a share"
    await store.settings.put_project("team", {}, unset=["share_gpus"])
    assert (await cache.refresh()).take_terms is not None
    assert (await SettingsCache(store, {"quota_gpus": 3}).refresh()).take_terms is None
    capped = (await SettingsCache(store, {"max_running": 3}).refresh()).take_terms
    assert capped is not None
    assert capped.ttls == {}, "the cluster's limit holds in each queue"


async def test_calls_have_a_delay_of_their_own(store: PostgresStore) -> None:
    cache = SettingsCache(store, {})
    await store.settings.put_project("vision", {"retry_delay_seconds": 20, "max_retries": 3})
    spec = FunctionSpec(function="m:f", project="vision")
    policy = (await cache.refresh()).call_policy("cpu", spec)
    assert (policy.retry.max_retries, policy.retry.retry_delay) == (3, 1.0)
    await store.settings.put_project("vision", {"call_retry_delay_seconds": 5})
    policy = (await cache.refresh()).call_policy("cpu", spec)
    assert (policy.retry.retry_delay, policy.retry.backoff) == (5.0, "exponential")
