"""What every store must do for `store.logs`."""

from __future__ import annotations

import itertools

import pytest

from holdfast.core.ids import TaskKey
from holdfast.errors import Stale
from holdfast.moves.values import LogAppend
from holdfast.store.postgres.logs.appends import LOG_READ_SECONDS
from holdfast.wire.agent import Forensics, LogReadOrder
from holdfast.wire.logs.uploads import LogReadAnswer
from tests.store.rig import OK, Rig


async def test_log_appends_in_any_order_are_idempotent(rig: Rig) -> None:
    """LOG-2."""
    await rig.host()
    job_id, key = await rig.running()
    text = bytes(range(256)) * 40

    async def put(start: int, end: int, *, ended: bool = False) -> int | None:
        return await rig.append_log("h1", key, "stdout", start, text[start:end], ended, 1 << 20)

    assert await put(0, 100) == 100
    assert await put(0, 100) == 100
    assert await put(50, 150) == 150
    assert await put(300, 400) == 400
    chunks = await rig.store.logs.read_log(job_id, 1, 0, "stdout", 0)
    assert [(c.offset, len(c.data)) for c in chunks] == [(0, 100), (100, 50), (300, 100)]
    assert await put(120, 350) == 400
    assert await put(400, 400, ended=True) == 400
    chunks = await rig.store.logs.read_log(job_id, 1, 0, "stdout", 7)
    assert chunks[0].offset == 7
    assert b"".join(c.data for c in chunks) == text[7:400]
    assert None not in [c.at for c in chunks]
    short = await rig.store.logs.read_log(job_id, 1, 0, "stdout", 7, limit_bytes=20)
    assert [c.at for c in short] == [chunks[0].at]
    assert b"".join(c.data for c in short) == text[7:27]
    (stream,) = await rig.store.logs.list_log_streams(job_id)
    assert (stream.size, stream.kept, stream.ended) == (400, 400, True)
    assert await rig.store.logs.list_log_streams(job_id, 2) == []
    assert await rig.store.logs.read_log(job_id, 1, 0, "stderr", 0) == []


async def test_logs_keep_head_and_tail(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    keep, piece = 80_000, 7_000
    text = b"".join(b"%07d" % i for i in range(100_000))
    for at in range(0, len(text), piece):
        size = await rig.append_log("h1", key, "stdout", at, text[at : at + piece], False, keep)
        assert size == min(at + piece, len(text))
    (stream,) = await rig.store.logs.list_log_streams(job_id)
    assert stream.size == len(text)
    assert keep <= stream.kept <= keep + 2 * piece
    chunks = await rig.store.logs.read_log(job_id, 1, 0, "stdout", 0)
    assert all(c.data == text[c.offset : c.offset + len(c.data)] for c in chunks)
    assert sum(len(c.data) for c in chunks) == stream.kept
    gaps = [b.offset - a.offset - len(a.data) for a, b in itertools.pairwise(chunks)]
    assert [g for g in gaps if g] == [len(text) - stream.kept]
    assert chunks[0].offset == 0
    assert chunks[-1].offset + len(chunks[-1].data) == len(text)
    # A late chunk of what was dropped stays dropped.
    middle = len(text) // 2
    await rig.append_log("h1", key, "stdout", middle, text[middle : middle + 100], False, keep)
    assert (await rig.store.logs.list_log_streams(job_id))[0].kept == stream.kept


async def test_appends_together_are_as_appends_one_by_one(rig: Rig) -> None:
    await rig.host("h1", slots=2)
    job_id, key = await rig.running()
    other_id, other = await rig.running()

    def put(key: TaskKey, stream: str, offset: int, data: bytes, ended: bool = False) -> LogAppend:
        return LogAppend(
            key=key, stream=stream, offset=offset, data=data, ended=ended, keep_bytes=1 << 20
        )

    wrong = TaskKey(job_id, 0, 9)
    appends = [
        put(key, "stdout", 0, b"one two "), put(wrong, "stdout", 0, b"x"), put(other, "stdout", 0, b"theirs", True),
        put(key, "stdout", 8, b"three"), put(key, "stdout", 4, b"two three four"), put(key, "stderr", 0, b"", True),
        put(TaskKey("x\x00", 0, 1), "stdout", 0, b"x"), put(key, "stdout", 18, b"", True),
    ]  # fmt: skip
    for sizes in ([8, None, 6, 13, 18, 0, None, 18], [18, None, 6, 18, 18, 0, None, 18]):
        assert await rig.store.logs.append_logs("h1", appends) == sizes
        chunks = await rig.store.logs.read_log(job_id, 1, 0, "stdout", 0)
        assert b"".join(c.data for c in chunks) == b"one two three four"
        found = {
            (s.job_id, s.stream): (s.size, s.kept, s.ended)
            for s in [
                *await rig.store.logs.list_log_streams(job_id),
                *await rig.store.logs.list_log_streams(other_id),
            ]
        }
        assert found == {
            (job_id, "stdout"): (18, 18, True),
            (job_id, "stderr"): (0, 0, True),
            (other_id, "stdout"): (6, 6, True),
        }
    assert await rig.store.logs.append_logs("h1", []) == []
    assert await rig.store.logs.append_logs("h2", appends[:1]) == [None]


async def test_bytes_from_a_stranger_are_stale(rig: Rig) -> None:
    await rig.host("h1", slots=1)
    job_id, key = await rig.running()
    await rig.host("h2")
    strange = [
        ("h2", key),
        ("h1", TaskKey(job_id, 0, 9)),
        ("h1", TaskKey(job_id, 1, 1)),
        ("h1", TaskKey("x\x00", 0, 1)),
    ]
    for host, wrong in strange:
        assert await rig.append_log(host, wrong, "stdout", 0, b"x", False, 1000) is None
        with pytest.raises(Stale):
            await rig.store.logs.put_forensics(
                host, Forensics(key=wrong, reason="r", seconds=1.0, sections={})
            )
    await rig.sync(ended=[(key, OK)])
    assert await rig.append_log("h1", key, "stdout", 0, b"late", True, 1000) == 4


async def test_forensics(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    found = Forensics(key=key, reason="stalled", seconds=1.25, sections={"stacks": "main\n  wait"})
    for _ in range(2):
        await rig.store.logs.put_forensics("h1", found)
    assert await rig.store.logs.get_forensics(job_id) == [(1, found)]
    assert await rig.store.logs.get_forensics(job_id, 2) == []
    assert (await rig.store.jobs.list_attempts(job_id))[0].has_forensics
    await rig.store.logs.put_forensics(
        "h1", Forensics(key=key, reason="a\x00", seconds=1.0, sections={"t": "b\x00c"})
    )


async def test_a_read_waits_for_its_host_and_is_taken_once(rig: Rig) -> None:
    host, other = await rig.host("h1"), await rig.host("h2")
    _, key = await rig.running()
    logs = rig.store.logs
    order = LogReadOrder(id="r1", key=key, stream="stdout", offset=7, length=100)
    assert not (await rig.sync("h1")).reads
    await logs.ask_log_read(host, order)
    assert (await rig.sync("h1")).reads
    assert not (await rig.sync("h2")).reads
    assert await logs.list_log_reads(host) == [order]
    assert await logs.list_log_reads(other) == []
    assert await logs.take_log_read("r1") is None
    answer = LogReadAnswer(id="r1", offset=9, data=b"a\0b", reason="a\0 hole")
    await logs.answer_log_reads(other, [LogReadAnswer(id="r1", offset=7, data=b"forged")])
    await logs.answer_log_reads(host, [LogReadAnswer(id="no such", offset=7), answer])
    await logs.answer_log_reads(host, [LogReadAnswer(id="r1", offset=7, data=b"late")])
    assert not (await rig.sync("h1")).reads
    taken = await logs.take_log_read("r1")
    assert taken is not None
    assert (taken.offset, taken.data) == (9, b"a\0b")
    assert await logs.take_log_read("r1") is None
    await logs.ask_log_read(host, order)
    assert await logs.take_log_read("r1", give_up=True) is None
    assert await logs.list_log_reads(host) == []


async def test_a_read_that_no_host_answers_is_forgotten_after_its_time(rig: Rig) -> None:
    host = await rig.host("h1")
    key = TaskKey("job-1", 0, 0)
    first, second, third = (
        LogReadOrder(id=name, key=key, stream="stdout", offset=0, length=9) for name in "abc"
    )
    await rig.store.logs.ask_log_read(host, first, now=rig.now)
    await rig.store.logs.ask_log_read(host, second, now=rig.tick(LOG_READ_SECONDS))
    assert await rig.store.logs.list_log_reads(host) == [first, second]
    await rig.store.logs.ask_log_read(host, third, now=rig.tick(1))
    assert await rig.store.logs.list_log_reads(host) == [second, third]
