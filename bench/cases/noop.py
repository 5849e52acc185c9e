"""No-op jobs to simulated agents over HTTP, against a raw claim loop on the same PostgreSQL."""

from __future__ import annotations

import time

from bench.figures import Figures, Line, spread
from bench.fleet import AgentProcess
from bench.limits.raw_claim import measure_raw_claims
from bench.scale import Scale, alternate, say
from bench.system import QUEUE, Database, Place, Scratch, start_server

name = "noop"
budget = ">= 0.5 of a raw batch-100 claim loop"
_LIMIT = "raw claim loop"
SPEC = {"argv": ["/bin/true"], "queue": QUEUE}


def run(scale: Scale) -> Figures:
    """Jobs per second from the queue's release to the last end on record; and with their submission
    in the time."""
    jobs, hosts, slots = scale.pick(5000, 60), scale.pick(8, 2), scale.pick(100, 10)
    with Scratch() as scratch, Database(scratch) as database, AgentProcess() as agents:
        limit_dsn = database.make("limit")
        place = start_server(scratch, database.make("holdfast"))
        place.make_queue()
        say(f"  registering {hosts} simulated hosts of {slots} slots")
        agents.register(place, hosts, slots, "noop")
        agents.order(do="work")
        run_ends = _Ends(agents)

        def limit() -> float:
            return measure_raw_claims(limit_dsn, scale.pick(50_000, 1000))

        limits, queued = alternate(
            scale.rounds,
            limit,
            lambda: _measure_queued(place, run_ends, jobs),
            ("raw", "queued jobs"),
            "/s",
        )
        more_limits, submitted = alternate(
            scale.rounds,
            limit,
            lambda: _measure_submitted(place, run_ends, jobs),
            ("raw", "with submission"),
            "/s",
        )
    ratio = spread(queued).median / spread(limits).median
    return Figures(
        name=name,
        lines=(
            Line(
                what="dispatch of queued no-op jobs",
                unit="jobs/s",
                value=spread(queued),
                limit_name=_LIMIT,
                limit=spread(limits),
                budget=">= 0.5",
                met=ratio >= 0.5,
            ),
            Line(
                what="submitted while dispatched",
                unit="jobs/s",
                value=spread(submitted),
                limit_name=_LIMIT,
                limit=spread(more_limits),
            ),
        ),
        notes=(
            f"{jobs} jobs a round, {hosts} simulated hosts x {slots} slots in one client process; "
            f"{run_ends.describe()}. The raw loop submits nothing: the first line is the one to "
            "compare.",
        ),
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


def _measure_queued(place: Place, ends: _Ends, jobs: int) -> float:
    place.pause()
    place.submit_many([SPEC] * jobs)
    began = time.monotonic()
    place.resume()
    return jobs / (ends.await_more(jobs) - began)


def _measure_submitted(place: Place, ends: _Ends, jobs: int) -> float:
    began = time.monotonic()
    place.submit_many([SPEC] * jobs, batch=500)
    return jobs / (ends.await_more(jobs) - began)
