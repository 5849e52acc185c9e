"""How soon a slow rank is named, how often a healthy one is, and what both cost a sync."""

from __future__ import annotations

import asyncio
import random
import time
from collections.abc import Callable
from functools import partial
from typing import Any

import msgspec

from bench.figures import Figures, Line, percentile, spread
from bench.held_hosts import INCARNATION, lease_hosts
from bench.scale import Scale, say
from bench.straggler_traces import ApartTrace, Trace, play, play_apart
from bench.system import Database, Scratch
from holdfast.controller.sync.reports import read_sync
from holdfast.core.ids import TaskKey
from holdfast.core.stragglers.judge import GangJudge
from holdfast.core.stragglers.values import PaceBlock, read_pace, write_pace
from holdfast.moves.values import HostSync
from holdfast.store.postgres.connection.migrate import migrate
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire import agent as wire

name = "stragglers"
budget = (
    "a rank 1.2 times slow named within 30 steps; at most one false name in 1,000 gang-hours; under "
    "1 % of a sync"
)

SOON_STEPS = 30
RANKS = 8
FAST_BLOCKS = 5
"""Blocks of a rank in a sync every 5 s, where its steps are short: a block takes a second or more."""
HEALTHY = (
    Trace(steps=7200),
    Trace(steps=7200, tells="cpu"),
    Trace(steps=7200, tells="nothing"),
    Trace(steps=7200, ranks=2),
    Trace(steps=7200, ranks=2, tells="cpu"),
    Trace(steps=7200, ranks=3, noise=0.08),
    Trace(steps=72_000, step_seconds=0.1),
)
APART = (
    ApartTrace(seconds=1800, noise=0.002),
    ApartTrace(seconds=1800, apart=0.01, drift=0.01, ranks=8, spread=True),
    ApartTrace(seconds=1800, noise=0.03, apart=0.3, tells="own"),
    ApartTrace(seconds=1800, noise=0.15, apart=0.05, drift=0.1, ranks=8, tells="nothing"),
)
"""Ranks that never wait for each other, of which none is slow."""


def run(scale: Scale) -> Figures:
    """Simulated gangs, then the decoding of a sync with and without blocks, by turns."""
    lines = [_find(scale, tells) for tells in ("own", "cpu")]
    lines += [_count_alarms(scale), *_measure_sync(scale)]
    notes = (
        "Each gang has noise of 5 % of a step, drift, hiccups of three times a step, evaluations, "
        "saves of rank 0, a warm-up, and hosts that sync every 5 s at times of their own.",
        "What blocks add to a sync is the decoding of the same request with and without them. Reading "
        "the blocks and judging them are beside the sync, once a second, in a thread.",
    )
    return Figures(name=name, lines=tuple(lines), notes=notes)


def _find(scale: Scale, tells: str) -> Line:
    took: list[float] = []
    for seed in range(scale.pick(400, 2)):
        trace = Trace(slow=(3,), slow_from=300, steps=420, tells=tells)
        named = [step for step, found in play(trace, seed).named if found.rank == 3]
        took.append(float(min(named, default=trace.steps) - trace.slow_from))
    late = sum(steps > SOON_STEPS for steps in took)
    say(
        f"  {tells}: 99 of 100 within {percentile(took, 99):.0f} steps, {late} of {len(took)} later"
    )
    return Line(
        what=f"steps until a rank 1.2 times slow is named, by {tells} time; {len(took) - late} of "
        f"{len(took)} within {SOON_STEPS}",
        unit="steps",
        value=spread(took),
        limit_name="the bound",
        limit=spread([float(SOON_STEPS)]),
        budget=f"<= {SOON_STEPS}, 95 of 100",
        met=percentile(took, 95) <= SOON_STEPS,
    )


def _count_alarms(scale: Scale) -> Line:
    hours, named, slowed = 0.0, 0, 0
    for number, trace in enumerate(HEALTHY):
        steps = scale.pick(trace.steps, 300)
        for seed in range(scale.pick(90, 1)):
            healthy = Trace(**{**_fields(trace), "steps": steps})
            found = play(healthy, 10_000 * number + seed)
            hours += found.seconds / 3600
            named += len(found.named)
            slowed += len(found.slowed)
        say(f"  {hours:,.0f} gang-hours: {named} ranks named, {slowed} gangs said to be slowed")
    for apart in APART:
        seconds = float(scale.pick(int(apart.seconds), 100))
        for seed in range(scale.pick(30, 1)):
            named += len(play_apart(msgspec.structs.replace(apart, seconds=seconds), seed))
            hours += seconds / 3600
    say(f"  {hours:,.0f} gang-hours with those of ranks that do not wait: {named} ranks named")
    return Line(
        what=f"healthy ranks named in {hours:,.0f} gang-hours",
        unit="names in 1,000 h",
        value=spread([named / hours * 1000]),
        limit_name="the bound",
        limit=spread([1.0]),
        budget="<= 1",
        met=named / hours * 1000 <= 1,
    )


def _fields(trace: Trace) -> dict[str, Any]:
    return {field: getattr(trace, field) for field in trace.__struct_fields__}


def _make_sync(blocks: int) -> bytes:
    """A sync of a host with a rank of a gang on each of eight devices."""
    dice = random.Random(blocks)
    pace = [
        PaceBlock(
            last_step=70_000 + 5 * n,
            steps=5,
            seconds=round(dice.uniform(0.9, 1.1), 7),
            age_seconds=round(dice.uniform(0, 5), 4),
            own_seconds=round(dice.uniform(0.8, 0.9), 7),
        )
        for n in range(1, blocks + 1)
    ]
    tasks = [
        wire.TaskReport(
            key=TaskKey("06ch2v8wq1m4kz7d9x3t", rank, 3),
            state="running",
            pid=4321,
            beat=wire.BeatReport(step=1234, age_seconds=0.5),
            pace=write_pace(pace),
        )
        for rank in range(RANKS)
    ]
    return wire.encode(wire.SyncRequest(incarnation=INCARNATION, seq=1, tasks=tasks))


def _measure_sync(scale: Scale) -> list[Line]:
    with Scratch() as scratch, Database(scratch) as database:
        dsn = database.make("syncs")
        migrate(dsn)
        whole = spread(asyncio.run(_sync_hosts(dsn, scale)))
    bodies = {blocks: _make_sync(blocks) for blocks in (0, 1, FAST_BLOCKS)}
    took: dict[int, list[float]] = {blocks: [] for blocks in bodies}
    for _ in range(scale.pick(15, 1)):
        for blocks, body in bodies.items():
            took[blocks].append(_time(partial(read_sync, body), scale.pick(2000, 10)))
    lines = []
    for blocks in (1, FAST_BLOCKS):
        more = max(0.0, min(took[blocks]) - min(took[0]))
        lines.append(
            Line(
                what=f"what {blocks} {'block' if blocks == 1 else 'blocks'} of each of {RANKS} "
                "ranks add to a sync",
                unit="us of CPU",
                value=spread([more]),
                limit_name="the sync without any, and without HTTP",
                limit=whole,
                budget="<= 1 %",
                met=more <= 0.01 * whole.median,
            )
        )
    judging = [_judge(ranks, scale.pick(60, 5)) for ranks in (8, 64, 1024)]
    judged = Line(
        what="reading and judging a rank's block, in gangs of 8, 64 and 1,024",
        unit="us",
        value=spread(judging),
    )
    return [*lines, judged]


async def _sync_hosts(dsn: str, scale: Scale) -> list[float]:
    """Microseconds of this process for a sync of one host with eight tasks, batch by batch: its
    request is read, and the store takes it; PostgreSQL's own time is left out."""
    store = PostgresStore(dsn)
    await store.open()
    mine = await lease_hosts(store, scale.pick(100, 3))
    body, found = _make_sync(0), list[float]()
    for number in range(scale.pick(16, 2)):
        began = time.process_time()
        syncs = []
        for host, keys in mine.items():
            read_sync(body)
            live = tuple(keys)
            syncs.append(HostSync(host_id=host, incarnation=INCARNATION, live=live, started=live))
        await store.leases.sync_hosts(syncs)
        if number:
            found.append((time.process_time() - began) * 1e6 / len(syncs))
    await store.close()
    return found


def _time(do: Callable[[], object], turns: int) -> float:
    began = time.process_time()
    for _ in range(turns):
        do()
    return (time.process_time() - began) / turns * 1e6


def _judge(ranks: int, chunks: int) -> float:
    judge, dice, spent = GangJudge(), random.Random(1), 0.0
    for number in range(1, chunks + 1):
        texts = [
            write_pace([PaceBlock(5 * number, 5, 1.0, 0.1, round(dice.gauss(0.95, 0.03), 7))])
            for _ in range(ranks)
        ]
        now = 100.0 + number
        began = time.process_time()
        for rank in range(ranks):
            judge.add_blocks(rank, read_pace(texts[rank]), now, now, 0.001)
        judge.judge(now)
        spent += time.process_time() - began
    return spent / (ranks * chunks) * 1e6
