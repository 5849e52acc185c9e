"""Turns go round the callers (TURNS-1)."""

from __future__ import annotations

import asyncio
import contextlib

from holdfast.controller.runtime.turns import Turns


async def settle() -> None:
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_caller_with_ten_searches_does_not_starve_another() -> None:
    turns, log = Turns(2), []

    async def search(caller: str, number: int) -> None:
        for _ in range(5):
            async with turns.wait_turn(caller):
                log.append(caller)
                await asyncio.sleep(0)

    greedy = [asyncio.create_task(search("greedy", n)) for n in range(10)]
    await settle()
    before = len(log)
    modest = asyncio.create_task(search("modest", 0))
    await modest
    after = log[before:]
    assert after.count("modest") == 5
    assert len(after) <= 5 * 4 + 2, "with two turns at once, about every third turn was its own"
    await asyncio.gather(*greedy)
    assert log.count("greedy") == 50


async def test_no_more_turns_are_taken_at_once_than_there_are() -> None:
    turns, taken, most = Turns(2), 0, 0

    async def work(caller: str) -> None:
        nonlocal taken, most
        async with turns.wait_turn(caller):
            taken += 1
            most = max(most, taken)
            await asyncio.sleep(0)
            taken -= 1

    await asyncio.gather(*(work(str(n % 3)) for n in range(30)))
    assert (taken, most) == (0, 2)


async def test_a_turn_of_a_reader_who_left_goes_to_the_next() -> None:
    turns = Turns(1)
    async with turns.wait_turn("first"):
        left = asyncio.create_task(_take(turns, "left"))
        given = asyncio.create_task(_take(turns, "given"))
        stays = asyncio.create_task(_take(turns, "stays"))
        await settle()
        left.cancel()
        await settle()
    given.cancel()  # while its turn is on the way
    await stays
    async with asyncio.timeout(5), turns.wait_turn("after"):
        pass
    with contextlib.suppress(asyncio.CancelledError):
        await left


async def _take(turns: Turns, caller: str) -> None:
    async with turns.wait_turn(caller):
        pass
