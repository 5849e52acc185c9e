"""Claim and complete with a short and a very long queue behind: does depth cost anything?"""

from __future__ import annotations

import time
from typing import Any

import psycopg

from bench.cases.noop import SPEC
from bench.figures import Figures, Line, spread
from bench.fleet import AgentProcess
from bench.scale import Scale, alternate, say
from bench.system import Database, Place, Scratch, start_server

name = "depth"
budget = "1M queued rows within 5 % of 1k"


def copy_queued(connection: psycopg.Connection[Any], made: int, count: int) -> None:
    """Copy one real queued row so often; `made`: how many copies there are."""
    names = connection.execute(
        "select attname from pg_attribute where attrelid = 'jobs'::regclass and attnum > 0 "
        "and not attisdropped and attname not in ('id', 'place') and attgenerated = ''"
    ).fetchall()
    columns = ", ".join(f'"{row[0]}"' for row in names)
    connection.execute(
        f"insert into jobs (id, place, {columns}) "
        f"select lpad((%s + n)::text, 20, '0'), nextval('job_order'), {columns} "
        "from (select * from jobs where state = 'queued' limit 1) as pattern, "
        "generate_series(1, %s) as n order by n".encode(),
        (made, count),
    )


class Lane:
    """A controller on a database of its own whose queue is kept at one depth."""

    def __init__(
        self, scratch: Scratch, database: Database, agents: AgentProcess, label: str, depth: int
    ) -> None:
        self.depth, self._agents = depth, agents
        self._dsn = database.make(label)
        self.place: Place = start_server(scratch, self._dsn, label)
        self.place.make_queue()
        self.place.pause()
        self.place.submit_many([SPEC])
        self._made = 0
        self._ended = 0
        self.fill(depth)
        agents.register(self.place, 8, 100, label)
        agents.order(do="work")

    def fill(self, queued: int) -> None:
        """Copy one real queued row until `queued` jobs are in the queue."""
        with psycopg.connect(self._dsn, autocommit=True) as connection:
            found = connection.execute(
                "select count(*) from jobs where state = 'queued'"
            ).fetchone()
            there = found[0] if found else 0
            if not there:  # all were taken before the pause
                self.place.submit_many([SPEC])
                there = 1
            missing = queued - there
            if missing > 0:
                copy_queued(connection, self._made, missing)
                self._made += missing
            connection.execute("vacuum (analyze) jobs")

    def measure(self, claims: int) -> float:
        """Claims and completions per second; the queue is `depth` deep when it ends."""
        self.fill(self.depth + claims)
        return self.claim(claims)

    def claim(self, claims: int) -> float:
        """The same of a queue that is filled already."""
        self.place.resume()  # counts the queue for its answer, then releases it
        began = time.monotonic()
        self._ended += claims
        at = float(self._agents.order(do="await", ended=self._ended, timeout=600)["at"])
        self.place.pause()
        # What was reserved before the pause is still claimed; it counts for nothing, but it must be
        # over.
        time.sleep(0.5)
        self._ended = int(self._agents.order(do="await", ended=0, timeout=1)["ended"])
        return claims / (at - began)


def run(scale: Scale) -> Figures:
    """The same controller code on two databases, taking turns."""
    shallow_depth, deep_depth = 1000, scale.pick(1_000_000, 4000)
    claims = scale.pick(4000, 40)
    with (
        Scratch() as scratch,
        Database(scratch) as database,
        AgentProcess() as one,
        AgentProcess() as other,
    ):
        shallow = Lane(scratch, database, one, "shallow", shallow_depth)
        say(f"  filling {deep_depth:,} rows")
        deep = Lane(scratch, database, other, "deep", deep_depth)
        limits, found = alternate(
            scale.rounds,
            lambda: shallow.measure(claims),
            lambda: deep.measure(claims),
            (f"{shallow_depth:,} deep", f"{deep_depth:,} deep"),
            "/s",
        )
    ratio = spread(found).median / spread(limits).median
    line = Line(
        what=f"claim and complete, {deep_depth:,} queued",
        unit="jobs/s",
        value=spread(found),
        limit_name=f"{shallow_depth:,} queued",
        limit=spread(limits),
        budget="ratio >= 0.95",
        met=ratio >= 0.95,
    )
    note = f"{claims} claims a round over HTTP; two controllers on one PostgreSQL, the other one idle meanwhile."
    return Figures(name=name, lines=(line,), notes=(note,))
