"""The settings in force: what a store kept and this version does not know any more is said once."""

from __future__ import annotations

import logging

import msgspec
import pytest

from holdfast.controller.runtime.settings import SettingsCache
from holdfast.core.settings.table import RENAMED, SETTINGS
from holdfast.store.memory.store import MemoryStore
from tests.store.rig import START


async def test_a_setting_of_an_earlier_version_is_named_once(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    store = MemoryStore(clock=lambda: START)
    layers = msgspec.structs.replace(
        await store.settings.read_settings(),
        cluster={"io_moving_mb": 1.0, "cpu_idle_percent": 3.0},
        queues={"gpu": {"cpu_memory_moving_mb": 8.0}},
    )

    async def read() -> object:
        return layers

    monkeypatch.setattr(store.settings, "read_settings", read)
    cache = SettingsCache(store, {})
    with caplog.at_level(logging.WARNING):
        await cache.refresh()
        layers = msgspec.structs.replace(layers, revision=layers.revision + 1)
        await cache.refresh()
    assert [record.getMessage() for record in caplog.records] == [
        "io_moving_mb of the cluster has no effect any more: io_moving_mb_per_second took its place, "
        "and its values mean something else; remove it with `holdfast config unset io_moving_mb`",
        "cpu_memory_moving_mb of queue gpu has no effect any more: memory_moving_mb_per_second took "
        "its place, and its values mean something else; remove it with `holdfast config unset "
        "cpu_memory_moving_mb --queue gpu`",
    ]


def test_a_renamed_setting_is_gone_and_its_successor_is_there() -> None:
    assert not RENAMED.keys() & SETTINGS.keys()
    assert SETTINGS.keys() >= set(RENAMED.values())


async def test_hosts_take_jobs_only_where_no_setting_binds() -> None:
    store = MemoryStore(clock=lambda: START)
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
    await store.settings.put_project("team", {"share_gpus": 1}, unset=["quota_jobs"])
    assert (await cache.refresh()).take_terms is None, "and so does a share"
    await store.settings.put_project("team", {}, unset=["share_gpus"])
    assert (await cache.refresh()).take_terms is not None
    assert (await SettingsCache(store, {"quota_gpus": 3}).refresh()).take_terms is None
    capped = (await SettingsCache(store, {"max_running": 3}).refresh()).take_terms
    assert capped is not None
    assert capped.ttls == {}, "the cluster's limit holds in each queue"
