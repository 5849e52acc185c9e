"""A search of a gigabyte of logs, against `grep` on the same bytes; and what a bloom costs an append."""

from __future__ import annotations

import asyncio
import random
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import psycopg

from bench.figures import Figures, Line, spread
from bench.processes import list_family, sum_cpu_seconds
from bench.scale import Scale, alternate, say
from bench.system import Database, Place, Scratch, start_server
from holdfast.client import Client
from holdfast.core.ids import TaskKey
from holdfast.moves.values import LogAppend
from holdfast.store.postgres.logs import appends
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire.logs.search import LogSearchEnd

name = "grep"
budget = "in 1 GB: first match <= 1 s, last <= 10 s; a bloom <= 1.2 x an append without"
_FIRST_SECONDS, _LAST_SECONDS, _APPEND_RATIO = 1.0, 10.0, 1.2
PIECE = 1 << 16
STREAM_BYTES = 16 << 20  # what is kept of a stream
NEEDLE = "needle in the hay"
_WORDS = [
    "loss",
    "step",
    "epoch",
    "rank",
    "gradient",
    "norm",
    "learning",
    "rate",
    "tokens",
    "per",
    "second",
    "throughput",
    "batch",
    "validation",
    "accuracy",
    "checkpoint",
    "saved",
    "loading",
    "shard",
    "dataset",
    "worker",
    "NCCL",
    "INFO",
    "Channel",
    "Ring",
    "Tree",
    "comm",
    "watchdog",
    "warning",
]
_ATTEMPT = """
insert into attempts (job_id, number, epoch, state, host_ids, reserved_at)
values (%s, 1, 1, 'running', '{h1}', now())
"""


def run(scale: Scale) -> Figures:
    """Seconds until the first and the last match are with the client."""
    streams = scale.pick(64, 2)
    size = scale.pick(STREAM_BYTES, 4 * PIECE)
    with Scratch() as scratch, Database(scratch) as database:
        dsn = database.make("grep")
        place = start_server(scratch, dsn)
        place.make_queue()
        place.pause()
        text = scratch.folder / "logs.txt"
        jobs = _submit(place, streams)
        say(f"  writing {streams} logs of {size >> 20} MiB")
        asyncio.run(_fill(dsn, jobs, size, text))
        roots = (place.process.pid, database.pid)
        found = [*_measure(scale, place, text, roots), _measure_appends(scale, dsn, jobs)]
    held = f"{streams * size / 1e9:.2f} GB in {streams} streams"
    return Figures(
        name=name, lines=tuple(found), notes=(f"the logs: {held}, the needle in the last",)
    )


def _submit(place: Place, count: int) -> list[str]:
    with Client(url=place.url, token=place.token) as client:
        return [client.submit(["true"], queue="bench").id for _ in range(count)]


def _make_lines(chance: random.Random, size: int) -> bytes:
    lines: list[str] = []
    length = 0
    while length < size:
        words = " ".join(chance.choices(_WORDS, k=5))
        lines.append(f"2026-11-26 12:{chance.randrange(60):02}:{chance.random() * 60:06.3f} {words} "
                     f"{chance.random():.6f} 0x{chance.randrange(1 << 40):010x}\n")  # fmt: skip
        length += len(lines[-1])
    return "".join(lines).encode()[:size]


async def _fill(dsn: str, jobs: list[str], size: int, text: Path) -> None:
    """Write a log for each job, the needle at the end of the one that is searched last."""
    with psycopg.connect(dsn, autocommit=True) as connection:
        for job in jobs:
            connection.execute(_ATTEMPT, (job,))
    store, chance = PostgresStore(dsn), random.Random(1)
    await store.open()
    block = _make_lines(chance, 1 << 20)
    try:
        with text.open("wb") as sink:
            for job in jobs:
                data = b"".join(_vary(chance, block, size))
                if job == jobs[0]:  # the oldest, so the last one to be searched
                    data = data[: -len(NEEDLE) - 1] + NEEDLE.encode() + b"\n"
                sink.write(data)
                await _append(store, job, data, size=1 << 21)
    finally:
        await store.close()


def _vary(chance: random.Random, block: bytes, size: int) -> Iterator[bytes]:
    """Yield lines in another order each time, which is quicker than making new ones."""
    left = size
    while left > 0:
        cut = block.find(b"\n", chance.randrange(len(block) // 2)) + 1
        part = (block[cut:] + block[:cut])[:left]
        yield part
        left -= len(part)


async def _append(
    store: PostgresStore, job: str, data: bytes, stream: str = "stdout", size: int = PIECE
) -> None:
    """Write a log, `size` bytes at a time."""
    for at in range(0, len(data), size):
        append = LogAppend(key=TaskKey(job, 0, 1), stream=stream, offset=at, data=data[at : at + size],
                           ended=False, keep_bytes=1 << 30)  # fmt: skip
        sizes = await store.logs.append_logs("h1", [append])
        assert None not in sizes


def _measure(scale: Scale, place: Place, text: Path, roots: tuple[int, ...]) -> list[Line]:
    cases = (
        ("a word", NEEDLE, None),
        ("a pattern without a text", r"[a-d]\d{4}[x-z]|\bh[a-d][x-z]$", None),
        ("a word that is everywhere", "epoch", 0),
    )
    lines = []
    for what, pattern, least in cases:
        before = _sum_cpu(roots)
        limits, systems = alternate(
            min(2, scale.rounds),
            lambda pattern=pattern: _grep(pattern, text),
            lambda pattern=pattern: _search(place, pattern),
            unit="s to the last",
        )
        cpu = (_sum_cpu(roots) - before) / len(systems)
        firsts, lasts = [first for first, _ in systems], [last for _, last in systems]
        if least == 0:
            lines.append(_line(f"{what}: first match", firsts, limits, _FIRST_SECONDS))
        lines.append(_line(f"{what}: last match", lasts, limits, _LAST_SECONDS))
        # What it takes where other programs have the cores.
        lines.append(Line(what=f"{what}: server and database", unit="CPU s", value=spread([cpu])))
    return lines


def _sum_cpu(roots: tuple[int, ...]) -> float:
    """CPU seconds of the server and of all processes of the database that live."""
    return sum_cpu_seconds([pid for root in roots for pid in list_family(root)])


def _line(what: str, found: list[float], limits: list[float], most: float) -> Line:
    value = spread(found)
    return Line(
        what=what,
        unit="s",
        value=value,
        limit_name="grep of the same bytes in a file",
        limit=spread(limits),
        budget=f"<= {most:g} s",
        met=value.median <= most,
    )


def _grep(pattern: str, text: Path) -> float:
    began = time.monotonic()
    subprocess.run(
        ["grep", "-m", "1000", "-P", pattern, text], stdout=subprocess.DEVNULL, check=False
    )
    return time.monotonic() - began


def _search(place: Place, pattern: str) -> tuple[float, float]:
    """Return seconds until the first match, and until the end."""
    began = time.monotonic()
    first = 0.0
    with Client(url=place.url, token=place.token) as client:
        for found in client.search_logs(pattern):
            first = first or time.monotonic() - began
            if isinstance(found, LogSearchEnd):
                say(f"    read {found.read_bytes:,} of {found.kept_bytes:,} bytes")
    return first, time.monotonic() - began


def _measure_appends(scale: Scale, dsn: str, jobs: list[str]) -> Line:
    """Milliseconds of an append of 64 KiB, without blooms and with."""
    data = _make_lines(random.Random(2), scale.pick(16 << 20, 2 * PIECE))
    numbers = iter(range(1000))
    make = appends.make_bloom

    def time_appends(blooms: bool) -> float:
        appends.make_bloom = make if blooms else lambda *_: None  # type: ignore[assignment]  # as before there were any
        try:
            return asyncio.run(_time_appends(dsn, jobs[next(numbers) % len(jobs)], data))
        finally:
            appends.make_bloom = make

    without, with_blooms = alternate(
        scale.rounds, lambda: time_appends(False), lambda: time_appends(True), unit="ms"
    )
    value, limit = spread(with_blooms), spread(without)
    return Line(
        what="an append of 64 KiB",
        unit="ms",
        value=value,
        limit_name="without a bloom",
        limit=limit,
        budget=f"<= {_APPEND_RATIO:g} x",
        met=value.median <= _APPEND_RATIO * limit.median,
    )


async def _time_appends(dsn: str, job: str, data: bytes) -> float:
    store = PostgresStore(dsn)
    await store.open()
    try:
        with psycopg.connect(dsn, autocommit=True) as connection:
            for table in ("log_chunks", "log_streams"):
                connection.execute(
                    f"delete from {table} where job_id = %s and stream = 'stderr'".encode(), (job,)
                )
        began = time.monotonic()
        await _append(store, job, data, "stderr")
        return (time.monotonic() - began) * 1000 / (len(data) / PIECE)
    finally:
        await store.close()
