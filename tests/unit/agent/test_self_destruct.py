"""The clock that ends a host which its controller cannot reach (SELF-1)."""

from __future__ import annotations

import asyncio

import pytest

from holdfast.agent.uplink.self_destruct import end_when_alone


class Clock:
    """A time that goes on with every look."""

    def __init__(self) -> None:
        self.now = 0.0
        self.heard = 0.0
        self.ended: list[float] = []

    def read(self) -> float:
        self.now += 10.0
        return self.now

    def end(self) -> None:
        self.ended.append(self.now)


async def watch(clock: Clock, seconds: float | None, looks: int) -> None:
    task = asyncio.create_task(end_when_alone(seconds, lambda: clock.heard, clock.read, clock.end))
    try:
        while clock.now < looks * 10.0 and not clock.ended and seconds is not None:
            await asyncio.sleep(0)
        await asyncio.sleep(0)
        assert not task.done(), "the part that ends is the host, not this one"
    finally:
        task.cancel()


@pytest.fixture(autouse=True)
def no_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    sleep = asyncio.sleep
    monkeypatch.setattr(asyncio, "sleep", lambda seconds: sleep(0))


async def test_a_host_ends_itself_once_after_so_long_without_an_answer() -> None:
    clock = Clock()
    clock.heard = 50.0
    await watch(clock, 100.0, looks=100)
    assert clock.ended == [150.0]


async def test_an_answer_puts_the_end_off() -> None:
    clock = Clock()

    def end() -> None:
        raise AssertionError("it was heard all along")

    clock.end = end  # type: ignore[method-assign]  # the call that must not come
    task = asyncio.create_task(
        end_when_alone(100.0, lambda: clock.now - 50.0, clock.read, clock.end)
    )
    while clock.now < 1000.0 and not task.done():
        await asyncio.sleep(0)
    assert not task.done()
    task.cancel()


async def test_a_host_of_no_pool_never_ends_itself() -> None:
    clock = Clock()
    await watch(clock, None, looks=0)
    assert clock.ended == []
