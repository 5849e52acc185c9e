"""A run of 100,000 nodes carried to its end: what the outbox, the counters and the decisions cost."""

from __future__ import annotations

import asyncio
import time

import psycopg

from bench.figures import Figures, Line, spread
from bench.scale import Scale, alternate
from bench.system import Database, Scratch

name = "workflow"
budget = "100,000 nodes advance without quadratic work: a node costs as much as in a tenth of them"

ROWS = 500
MAX_GROWTH = 1.5
"""What a node of the large run may cost beside one of the small run."""
_BARE = """
create table bare_nodes (number integer primary key, state text not null, waiting_on integer not null,
  result text, ended_at timestamptz) with (fillfactor = 60);
create table bare_edges (parent integer, child integer, primary key (parent, child));
create table bare_outbox (n bigint generated always as identity primary key, node integer not null);
"""


def layer(count: int, width: int) -> list[list[int]]:
    """Layers of `width` nodes; each waits for two of the layer before."""
    return [
        [] if n < width else [n - width, (n - width) - (n % width) + (n % width + 1) % width]
        for n in range(count)
    ]


def fan(count: int) -> list[list[int]]:
    """One node, then all but two side by side, then one that waits for all of them."""
    return [[], *[[0] for _ in range(count - 2)], list(range(1, count - 1))]


async def _carry(dsn: str, parents: list[list[int]]) -> tuple[float, float]:
    """Submit a run and carry it to its end; return the seconds of each."""
    from holdfast.core.ids import make_id
    from holdfast.core.spec import JobSpec
    from holdfast.core.workflows.advance import NodeEnd
    from holdfast.core.workflows.values import JobWork, NodeSpec, NodeState, WorkflowSpec
    from holdfast.moves.workflows import NewRun, Processed
    from holdfast.store.postgres.store import PostgresStore

    work = JobWork(spec=JobSpec(argv=("true",)))
    nodes = [NodeSpec(name=f"n{number}", job=work) for number in range(len(parents))]
    spec = WorkflowSpec(name="bench", nodes=nodes)
    run_id = make_id(time.time_ns() // 1_000_000, time.time_ns())
    store = PostgresStore(dsn)
    await store.open()
    try:
        began = time.monotonic()
        await store.workflows.submit_run(NewRun(id=run_id, spec=spec, parents=parents))
        submitted = time.monotonic()
        end = NodeEnd(state=NodeState.SUCCEEDED, result="1")
        while posts := await store.workflows.read_outbox(rows=ROWS):
            found = [Processed(post=post, change=end) for post in posts]
            run = await store.workflows.record_posts(run_id, found)
        ended = time.monotonic()
        if run is None or run.state != "succeeded":
            raise RuntimeError(f"the run did not end well: {run}")
        return submitted - began, ended - submitted
    finally:
        await store.close()


def carry(dsn: str, parents: list[list[int]]) -> float:
    """Nodes a second, without the submission."""
    return len(parents) / asyncio.run(_carry(dsn, parents))[1]


def carry_bare(dsn: str, parents: list[list[int]]) -> float:
    """Nodes a second of the bare statements: the node's end, its children's counters, the outbox."""
    edges = [(parent, child) for child, above in enumerate(parents) for parent in above]
    with psycopg.connect(dsn, autocommit=True) as connection:
        connection.execute(b"drop table if exists bare_nodes, bare_edges, bare_outbox")
        for statement in _BARE.split(";"):
            if statement.strip():
                connection.execute(statement.encode())
        with connection.cursor().copy(
            "copy bare_nodes (number, state, waiting_on) from stdin"
        ) as copy:
            for number, above in enumerate(parents):
                copy.write_row((number, "waiting", len(above)))
        with connection.cursor().copy("copy bare_edges from stdin") as copy:
            for edge in edges:
                copy.write_row(edge)
        connection.execute(
            b"insert into bare_outbox (node) select number from bare_nodes where waiting_on = 0"
        )
        began = time.monotonic()
        while True:
            with connection.transaction():
                taken = connection.execute(
                    "delete from bare_outbox where n in (select n from bare_outbox order by n limit %s) "
                    "returning node", (ROWS,),
                ).fetchall()  # fmt: skip
                if not taken:
                    break
                numbers = [node for (node,) in taken]
                connection.execute(
                    "update bare_nodes set state = 'succeeded', result = '1', ended_at = now() "
                    "where number = any(%s)", (numbers,),
                )  # fmt: skip
                connection.execute(
                    "with less as (select child, count(*) as count from bare_edges where parent = any(%s) "
                    "group by child), moved as (update bare_nodes b set waiting_on = waiting_on - l.count "
                    "from less l where b.number = l.child returning b.number, b.waiting_on) "
                    "insert into bare_outbox (node) select number from moved where waiting_on = 0",
                    (numbers,),
                )
        return len(parents) / (time.monotonic() - began)


def run(scale: Scale) -> Figures:
    """Measure both shapes, the layers also at a tenth of the size."""
    count = scale.pick(100_000, 500)
    small = count // 10
    width = scale.pick(1000, 10)
    lines = []
    with Scratch() as scratch, Database(scratch) as database:
        dsn = database.make("workflow")
        from holdfast.store.postgres.connection.migrate import migrate

        migrate(dsn)
        rounds = min(scale.rounds, 3)
        for what, parents in (("layers", layer(count, width)), ("fan", fan(count))):
            bare, ours = alternate(
                rounds,
                lambda parents=parents: carry_bare(dsn, parents),  # type: ignore[misc]  # a lambda with a default
                lambda parents=parents: carry(dsn, parents),  # type: ignore[misc]  # a lambda with a default
                unit="nodes/s",
            )
            lines.append(
                Line(what=f"{count:,} nodes, {what}", unit="nodes/s", value=spread(ours),
                     limit_name="bare SQL", limit=spread(bare))
            )  # fmt: skip
            if what == "layers":
                less = [carry(dsn, layer(small, width)) for _ in range(rounds)]
                large = spread([1e6 / rate for rate in ours])
                lines.append(
                    Line(
                        what=f"a node of {count:,}",
                        unit="µs",
                        value=large,
                        limit_name=f"a node of {small:,}",
                        limit=spread([1e6 / rate for rate in less]),
                        budget=f"≤ {MAX_GROWTH:g} ×",
                        met=large.median * spread(less).median / 1e6 <= MAX_GROWTH,
                    )
                )
    notes = ("each node is started and ended by one post; its job or calls are not in the figure",)
    return Figures(name=name, lines=tuple(lines), notes=notes)
