"""Group commit: one store call for many senders, and no neighbour fails with a bad one (BATCH-1…4)."""

import asyncio
from collections.abc import Sequence

import msgspec
import pytest

from holdfast.controller.runtime.hosts.group_commit import GroupCommit
from holdfast.controller.runtime.outages import Outages
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.errors import Unavailable
from holdfast.moves.jobs.reports import count_wanted, guess_room
from holdfast.moves.values import HostSync


class Asked:
    """A store call that notes its batches, and fails for those with a bad member."""

    def __init__(self) -> None:
        self.batches: list[list[str]] = []
        self.gate = asyncio.Event()
        self.away = False

    async def send(self, items: Sequence[str]) -> Sequence[str]:
        self.batches.append(list(items))
        await self.gate.wait()
        if self.away:
            raise Unavailable("the store is away")
        if "bad" in items:
            raise ValueError("bad")
        return [item.upper() for item in items]


def commit(asked: Asked) -> GroupCommit[str, str]:
    return GroupCommit("turn", lambda item: item[0], asked.send, Outages(lambda: 0.0))


async def test_what_arrives_during_a_call_goes_together() -> None:
    asked = Asked()
    group = commit(asked)
    waiting = [asyncio.create_task(group.submit(item)) for item in ("a1", "b1", "c1", "b2")]
    await asyncio.sleep(0)
    asked.gate.set()
    assert await asyncio.gather(*waiting) == ["A1", "B1", "C1", "B2"]
    assert asked.batches == [["a1", "b1", "c1"], ["b2"]]  # a sender is once in a batch


async def test_a_batch_weighs_no_more_than_is_handed_over_at_once() -> None:
    asked = Asked()
    asked.gate.set()
    group: GroupCommit[str, str] = GroupCommit(
        "turn", lambda item: item[0], asked.send, Outages(lambda: 0.0), weigh=len, most=5
    )
    given = ("a1", "b1", "c1", "c2", "d" * 9, "e1")
    await asyncio.gather(*(group.submit(item) for item in given))
    # One that is too heavy by itself goes alone, and nothing goes past one that waits.
    assert asked.batches == [["a1", "b1"], ["c1"], ["c2"], ["d" * 9], ["e1"]]


async def test_a_bad_member_fails_alone() -> None:
    asked = Asked()
    asked.gate.set()
    group = commit(asked)
    found = await asyncio.gather(
        *(group.submit(item) for item in ("a1", "bad", "c1")), return_exceptions=True
    )
    assert found[0] == "A1"
    assert isinstance(found[1], ValueError)
    assert found[2] == "C1"


async def test_an_absent_store_fails_the_whole_batch_once() -> None:
    asked = Asked()
    asked.away = True
    asked.gate.set()
    group = commit(asked)
    found = await asyncio.gather(*(group.submit(i) for i in ("a1", "b1")), return_exceptions=True)
    assert [type(one) for one in found] == [Unavailable, Unavailable]
    assert len(asked.batches) == 1


async def test_a_close_lets_the_batch_in_flight_end() -> None:
    asked = Asked()
    group = commit(asked)
    waiting = asyncio.create_task(group.submit("a1"))
    await asyncio.sleep(0)
    closing = asyncio.create_task(group.close())
    asked.gate.set()
    assert await waiting == "A1"
    await closing


@pytest.mark.parametrize(
    ("ended", "free", "wanted"),
    [
        (3, 3, 3),
        (3, 2, 3),  # it counts tasks, and one may hold several slots
        (3, 100, 12),  # in steps, because its slots may be free for want of devices
        (16, 40, 40),
        (0, 100, 0),
    ],
)
def test_a_host_asks_for_the_room_of_its_ends_and_some_that_is_free_besides(
    ended: int, free: int, wanted: int
) -> None:
    room = guess_room(free, 0, ended)
    key = TaskKey("job", 0, 1)
    ends = tuple((key, TaskFacts(exit_code=0)) for _ in range(ended))
    sync = HostSync(host_id="h", incarnation="i", ended=ends, takes=True, room=room)
    assert count_wanted(sync) == wanted
    assert count_wanted(msgspec.structs.replace(sync, takes=False)) == 0
