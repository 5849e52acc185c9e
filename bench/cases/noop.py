"""No-op jobs to simulated agents over HTTP, against a raw claim loop and PgQueuer on the same
PostgreSQL."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from functools import partial

import msgspec

from bench.costs import Meter, describe_refusal, list_cost_lines
from bench.figures import Figures, Line, spread
from bench.fleet import AgentProcess
from bench.limits.pgqueuer_loop import PGQUEUER_BATCH, make_environment, measure_pgqueuer
from bench.limits.raw_claim import measure_raw_claims
from bench.processes import list_family
from bench.scale import Scale, say
from bench.system import QUEUE, Database, Place, Scratch, start_server

name = "noop"
budget = ">= 0.15 of a raw batch-100 claim loop: a stress of the path, no figure of work"
_LIMIT = "raw claim loop"
PGQUEUER_JOBS = 20_000
SPEC = {"argv": ["/bin/true"], "queue": QUEUE}


def run(scale: Scale) -> Figures:
    """Jobs per second from the queue's release to the last end on record; and with their submission
    in the time."""
    jobs, few = scale.pick(30_000, 60), scale.pick(5000, 30)
    hosts, slots = scale.pick(8, 2), scale.pick(100, 10)
    rates = _Readings()
    with Scratch() as scratch, Database(scratch) as database, AgentProcess() as agents:
        python = make_environment(scratch.folder / "pgqueuer") if not scale.quick else None
        limit, other = database.make("limit"), database.make("pgqueuer")
        place = start_server(scratch, database.make("holdfast"))
        place.make_queue()
        say(f"  registering {hosts} simulated hosts of {slots} slots")
        agents.register(place, hosts, slots, "noop")
        agents.order(do="work")
        ends = _Ends(agents)
        servers = partial(list_family, database.pid)
        cost = Meter(
            {
                "controller": partial(list_family, place.process.pid),
                "PostgreSQL": servers,
                "simulated agents": lambda: [agents.process.pid],
            }
        )
        raw_cost = Meter({"PostgreSQL": servers, "client": lambda: [os.getpid()]})
        for number in range(scale.rounds):
            rows = scale.pick(100_000, 1000)
            rates.raw.append(measure_raw_claims(limit, rows, raw_cost.count(rows)))
            rates.queued.append(_measure_queued(place, ends, jobs, cost.count(jobs)))
            if python is not None:
                _, ran = measure_pgqueuer(python, other, PGQUEUER_JOBS, PGQUEUER_BATCH)
                rates.pgqueuer.append(PGQUEUER_JOBS / ran)
            rates.few_raw.append(measure_raw_claims(limit, scale.pick(50_000, 1000)))
            rates.few.append(_measure_queued(place, ends, few, nullcontext()))
            rates.submitted.append(_measure_submitted(place, ends, few))
            say(f"  round {number + 1}/{scale.rounds}: {rates.describe_last()}")
    note = (
        f"{jobs} or {few} jobs a round, {hosts} simulated hosts x {slots} slots in one client process; "
        f"{ends.describe()}. The raw loop submits nothing: the first line is the one to compare. "
        f"PgQueuer runs {PGQUEUER_JOBS} queued jobs in batches of {PGQUEUER_BATCH}, the quickest of "
        "10, 100 and 500."
    )
    lines = [
        *_list_lines(rates, jobs, few),
        *list_cost_lines("a job of the first line", cost, _LIMIT, raw_cost),
    ]
    notes = (note, *describe_refusal(cost, raw_cost))
    return Figures(name=name, lines=tuple(lines), notes=notes)


class _Readings(msgspec.Struct):
    """Readings of one kind, a round each."""

    raw: list[float] = []
    queued: list[float] = []
    pgqueuer: list[float] = []
    few_raw: list[float] = []
    few: list[float] = []
    submitted: list[float] = []

    def describe_last(self) -> str:
        """For progress."""
        named = ((each, getattr(self, each)) for each in self.__struct_fields__)
        return ", ".join(f"{each} {found[-1]:,.0f}/s" for each, found in named if found)


def _list_lines(rates: _Readings, jobs: int, few: int) -> Iterator[Line]:
    what = f"dispatch of {jobs} queued no-op jobs"
    yield _compare(what, rates.queued, _LIMIT, rates.raw, 0.15)
    if rates.pgqueuer:
        yield _compare("the same beside PgQueuer", rates.queued, "PgQueuer", rates.pgqueuer)
    yield _compare(f"dispatch of {few}", rates.few, _LIMIT, rates.few_raw)
    yield _compare(f"{few} submitted while dispatched", rates.submitted, _LIMIT, rates.few_raw)


def _compare(
    what: str,
    value: Sequence[float],
    limit_name: str,
    limit: Sequence[float],
    budget: float | None = None,
) -> Line:
    found, beside = spread(value), spread(limit)
    return Line(
        what=what,
        unit="jobs/s",
        value=found,
        limit_name=limit_name,
        limit=beside,
        budget="" if budget is None else f">= {budget:g} x",
        met=None if budget is None else found.median >= budget * beside.median,
    )


class _Ends:
    """How many ends are on record, as the agents count them."""

    def __init__(self, agents: AgentProcess) -> None:
        self._agents = agents
        self.total = 0
        self._syncs = 0
        self._refused = 0

    def await_more(self, more: int) -> float:
        """Wait for `more` ends; returns the monotonic time of the last."""
        self.total += more
        answer = self._agents.order(do="await", ended=self.total, timeout=300)
        self._syncs, self._refused = answer["syncs"], answer["refused"]
        return float(answer["at"])

    def describe(self) -> str:
        """For the notes."""
        return f"{self.total / max(1, self._syncs):.1f} ends a sync, {self._refused} refused"


def _measure_queued(
    place: Place, ends: _Ends, jobs: int, counting: AbstractContextManager[None]
) -> float:
    place.pause()
    place.submit_many([SPEC] * jobs)
    with counting:
        began = time.monotonic()
        place.resume()
        return jobs / (ends.await_more(jobs) - began)


def _measure_submitted(place: Place, ends: _Ends, jobs: int) -> float:
    began = time.monotonic()
    place.submit_many([SPEC] * jobs, batch=500)
    return jobs / (ends.await_more(jobs) - began)
