"""Look-ups of host keys: thousands of hosts that ask at once take few statements."""

from __future__ import annotations

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest

from holdfast.controller.runtime.auth import MAX_GATHERED, Guard, hash_secret
from holdfast.controller.runtime.hosts.doubts import Doubts
from holdfast.controller.runtime.outages import Outages
from holdfast.errors import Unauthorized, Unavailable
from holdfast.store.postgres.store import PostgresStore
from holdfast.store.postgres.sync.witness import NOTHING, Sought

HOSTS = 3 * MAX_GATHERED


class _Hosts:
    """A port of hosts that answers when it may, and keeps what it was asked for."""

    def __init__(self) -> None:
        self.keys = {hash_secret(f"key-{n}"): f"host-{n}" for n in range(HOSTS)}
        self.asked: list[int] = []
        self.may_answer = asyncio.Event()
        self.error: Exception | None = None

    async def find_hosts_by_keys(self, key_hashes: list[bytes]) -> dict[bytes, Any]:
        self.asked.append(len(key_hashes))
        await self.may_answer.wait()
        if self.error is not None:
            raise self.error
        return {each: self.keys[each] for each in key_hashes if each in self.keys}

    async def find_ended_host(self, key_hash: bytes) -> str | None:
        return "gone" if key_hash == hash_secret("key-of-gone") else None


class _Witness:
    """A second look that finds nothing."""

    async def look(self, sought: Sought) -> Sought:
        return NOTHING


def _make(hosts: _Hosts, *more: Any) -> Guard:
    store = cast(PostgresStore, SimpleNamespace(hosts=hosts, tokens=None, witness=_Witness()))
    return Guard(store, Doubts(store, Outages(lambda: 0.0)), *more)


async def _begin(guard: Guard, *keys: str) -> list[asyncio.Task[Any]]:
    tasks = [asyncio.create_task(guard.find_host(f"Bearer {key}")) for key in keys]
    await asyncio.sleep(0)
    await asyncio.sleep(0)
    return tasks


async def test_the_key_of_an_ended_host_says_that_it_was_ended() -> None:
    hosts = _Hosts()
    hosts.may_answer.set()
    for key, code in (("key-of-gone", "host_ended"), ("key-of-nobody", "unauthorized")):
        with pytest.raises(Unauthorized) as refused:
            await _make(hosts).find_host(f"Bearer {key}")
        assert refused.value.code == code


async def test_a_key_is_looked_up_anew_where_the_store_does_not_look_itself() -> None:
    hosts, now = _Hosts(), [0.0]
    hosts.may_answer.set()
    changes = [0]
    guard = _make(hosts, lambda: now[0], lambda: changes[0])
    await guard.find_host("Bearer key-0")
    hosts.keys.clear()  # it was revoked, and no word of it comes
    now[0] = 4.0
    assert await guard.find_host("Bearer key-0", recent=False) == "host-0"
    with pytest.raises(Unauthorized):
        await guard.find_host("Bearer key-0")
    hosts.keys[hash_secret("key-0")] = "host-0"
    await guard.find_host("Bearer key-0")
    hosts.keys.clear()
    changes[0] += 1
    with pytest.raises(Unauthorized):
        await guard.find_host("Bearer key-0", recent=False)


async def test_those_that_ask_at_once_share_look_ups() -> None:
    hosts = _Hosts()
    guard = _make(hosts)
    tasks = await _begin(guard, "key-0")
    await asyncio.sleep(0)
    tasks += await _begin(guard, *(f"key-{n}" for n in range(1, HOSTS)), "key-1", "unknown")
    hosts.may_answer.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert answers[:HOSTS] == [f"host-{n}" for n in range(HOSTS)]
    assert answers[HOSTS] == "host-1"
    assert isinstance(answers[HOSTS + 1], Unauthorized)
    assert hosts.asked == [1, MAX_GATHERED, MAX_GATHERED, MAX_GATHERED]


async def test_an_error_goes_to_those_that_asked_and_is_not_kept() -> None:
    hosts = _Hosts()
    hosts.error = Unavailable("the database is away")
    hosts.may_answer.set()
    guard = _make(hosts)
    for task in await _begin(guard, "key-0", "key-1"):
        with pytest.raises(Unavailable):
            await task
    hosts.error = None
    assert await guard.find_host("Bearer key-1") == "host-1"


async def test_those_that_wait_hear_of_an_error_at_once() -> None:
    """One batch after the other would hold the last of thousands for a minute."""
    hosts = _Hosts()
    hosts.error = Unavailable("the database is away")
    guard = _make(hosts)
    tasks = await _begin(guard, "key-0")
    tasks += await _begin(guard, *(f"key-{n}" for n in range(1, HOSTS)))
    hosts.may_answer.set()
    answers = await asyncio.gather(*tasks, return_exceptions=True)
    assert {type(each) for each in answers} == {Unavailable}
    assert hosts.asked == [1]


async def test_a_request_that_is_given_up_leaves_the_look_up_to_the_others() -> None:
    hosts = _Hosts()
    guard = _make(hosts)
    first, second = await _begin(guard, "key-0", "key-0")
    first.cancel()
    with pytest.raises(asyncio.CancelledError):
        await first
    hosts.may_answer.set()
    assert await second == "host-0"


async def test_all_are_let_go_where_the_look_up_is_cancelled() -> None:
    hosts = _Hosts()
    guard = _make(hosts)
    tasks = await _begin(guard, "key-0")
    await asyncio.sleep(0)
    tasks += await _begin(guard, "key-1")
    (look_up,) = (task for task in asyncio.all_tasks() if task.get_name() == "look-up of keys")
    look_up.cancel()
    answers = await asyncio.wait_for(asyncio.gather(*tasks, return_exceptions=True), 5)
    assert [type(each) for each in answers] == [asyncio.CancelledError] * 2
    hosts.may_answer.set()
    assert await guard.find_host("Bearer key-1") == "host-1"
