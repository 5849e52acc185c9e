"""Which chunks of logs a search reads."""

from __future__ import annotations

from datetime import timedelta

import pytest

from holdfast.core.calls.marks import make_mark
from holdfast.core.records import LogStreamRecord
from holdfast.moves.values import LogAppend
from holdfast.store.postgres.logs import search
from holdfast.store.postgres.logs.search import LogSpan
from tests.store.rig import Rig


async def write(rig: Rig, key: object, *pieces: bytes, at: int = 0, stream: str = "stdout") -> None:
    for piece in pieces:
        await rig.append_log("h1", key, stream, at, piece, False, 1 << 24)  # type: ignore[arg-type]
        at += len(piece)


async def find(rig: Rig, job_id: str, *texts: bytes, start: int = 0) -> list[tuple[int, int]]:
    streams = await rig.store.log_search.list_searched_streams([job_id])
    look = await rig.store.log_search.find_chunks(streams, [start] * len(streams), texts)
    assert look.seen == [None] * len(streams)
    return [(place.start, place.end) for place in look.spans]


async def test_a_text_of_four_characters_reads_only_chunks_that_may_hold_it(rig: Rig) -> None:
    """GREP-1."""
    await rig.host()
    job_id, key = await rig.running()
    lines = [
        b"".join(b"step %d loss 0.%d\n" % (n, n * 7) for n in range(k, k + 99)) for k in range(60)
    ]
    lines[17] = lines[17][:500] + b"needle" + lines[17][500:]
    await write(rig, key, *lines)
    found = await find(rig, job_id, b"needle")
    begin = sum(map(len, lines[:17]))
    assert found == [(begin, begin + len(lines[17]))]
    assert len(await find(rig, job_id, b"need")) == 1
    assert len(await find(rig, job_id, b"loss")) == 60
    assert len(await find(rig, job_id)) == 60
    assert await find(rig, job_id, b"absent", b"needle") == found
    assert await find(rig, job_id, b"quux") == []
    later = await find(rig, job_id, b"needle", start=begin + 1)
    assert later == []


async def test_a_text_is_found_in_the_chunk_in_which_it_ends(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    await write(rig, key, b"a line\nnee", b"d", b"le\n", b"x" * 70, b"other")
    assert await find(rig, job_id, b"needle") == [(11, 14), (14, 84)], "in its last bytes, too"
    streams = await rig.store.log_search.list_searched_streams([job_id])
    look = await rig.store.log_search.find_chunks(streams, [0], [])
    assert [place.begins_line for place in look.spans] == [True, False, False, True, False]


async def test_a_chunk_behind_bytes_that_are_missing_is_always_read(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    await write(rig, key, b"begin ")
    await write(rig, key, b"le one", b" two\n", b"x" * 99, b"three", at=9)
    assert await find(rig, job_id, b"needle") == [(9, 15), (15, 20), (20, 119)]
    await write(rig, key, b"need", b"l", at=5)  # three of these bytes come late
    assert (6, 9) in await find(rig, job_id, b"needle")
    assert (9, 15) in await find(rig, job_id, b"needle")
    await write(rig, key, b"threefour needle", at=119)  # begins before the end that is known
    assert (124, 135) in await find(rig, job_id, b"needle")
    pieces = await rig.store.log_search.read_spans(
        [LogSpan(s, 4, 10) for s in await rig.store.log_search.list_searched_streams([job_id])]
    )
    assert b"".join(p.data for p in pieces[0]) == b"begin eedle one"


async def test_many_chunks_are_looked_at_in_turns(
    rig: Rig, monkeypatch: pytest.MonkeyPatch
) -> None:
    await rig.host()
    job_id, key = await rig.running()
    await write(rig, key, *(b"line %d of more\n" % n for n in range(7)))
    monkeypatch.setattr(search, "CHUNKS_AT_ONCE", 3)
    streams = await rig.store.log_search.list_searched_streams([job_id])
    turns, at, found = 0, 0, 0
    while True:
        look = await rig.store.log_search.find_chunks(streams, [at], [b"line 6"])
        turns, found = turns + 1, found + len(look.spans)
        if look.seen[0] is None:
            break
        assert look.seen[0] > at
        at = look.seen[0]
    assert (turns, found) == (3, 1)


async def test_which_jobs_and_streams_are_searched(rig: Rig) -> None:
    await rig.host(slots=8)
    first, one = await rig.running()
    second, other = await rig.running()
    silent, _ = await rig.running()
    await write(rig, one, b"x\n")
    await write(rig, other, b"y\n", stream="stderr")
    await write(rig, other, b"z\n")
    found_by = rig.store.log_search
    assert await found_by.list_searched_jobs(None, None, None, limit=9) == [second, first]
    assert await found_by.list_searched_jobs("default", None, second, limit=9) == [first]
    assert await found_by.list_searched_jobs("other", None, None, limit=9) == []
    since = rig.now + timedelta(seconds=1)
    assert await found_by.list_searched_jobs(None, since, None, limit=1) == [second]
    found = await found_by.list_searched_streams([second, silent, first])
    assert [(s.job_id, s.stream) for s in found] == [
        (second, "stdout"),
        (second, "stderr"),
        (first, "stdout"),
    ]
    assert [s.stream for s in await found_by.list_searched_streams([second], stream="stderr")] == [
        "stderr"
    ]
    assert await found_by.list_searched_streams([second], attempt=2) == []
    assert await found_by.list_searched_streams([second], rank=1) == []
    streams: list[LogStreamRecord] = await found_by.list_searched_streams([second])
    late = await found_by.find_chunks(streams, [0, 0], [], since)
    assert late.spans == []


async def test_the_call_that_printed_a_line_is_found(rig: Rig) -> None:
    await rig.host(slots=2)
    job_id, key = await rig.running(executor="a family")
    plain, stranger = await rig.running()
    one, other = "0" * 19 + "1", "0" * 19 + "2"
    data = b"loading\n"
    starts = {}
    for set_id, index in ((one, 3), (one, 4), (other, 3), (one, 5)):
        data += make_mark(set_id, index, 1).encode()
        starts[set_id, index] = len(data)
        data += b"x\n" * 20_000 if index == 4 else b"error here\n"
    for task in (key, stranger):
        append = LogAppend(key=task, stream="stdout", offset=0, data=data, ended=False,
                           keep_bytes=1 << 20, marked=True)  # fmt: skip
        await rig.store.logs.append_logs("h1", [append])
    ours, theirs = await rig.store.log_search.list_searched_streams([job_id, plain])
    places = [(ours, 0), *((ours, at) for at in starts.values())]
    places += [(ours, starts[other, 3] - 200), (theirs, len(data))]
    found = await rig.store.log_search.find_calls(places)
    assert {n: (mark.set_id, mark.index) for n, mark in found.items()} == {
        1: (one, 3), 2: (one, 4), 3: (other, 3), 4: (one, 5), 5: (one, 4),
    }, "none before the first mark, and none in a job that is no executor"  # fmt: skip
