"""`telemetry`: the processors and the memory of a job's ranks over time."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.find.jobs import one_job
from holdfast.cli.options import COUNT, JOB, POSITIVE, read_seconds
from holdfast.cli.output import table
from holdfast.core.placement.ranks import name_ranks
from holdfast.core.readings.points import MAX_RANKS
from holdfast.core.words import short_bytes

if TYPE_CHECKING:
    from holdfast.core.readings.records import JobTelemetryView


@click.command()
@JOB
@click.option("--rank", "ranks", multiple=True, type=COUNT, help="Only this rank; repeatable.")
@click.option("--attempt", type=POSITIVE, help="Only this attempt.")
@click.option("--hours", is_flag=True, help="Hours of the last 90 days instead of minutes.")
@click.option("--last", metavar="TIME", default="1h", help="How far back. [default: 1h]")
@talks
def telemetry(
    io: CommandIO, job_id: str, ranks: Sequence[int], attempt: int | None, hours: bool, last: str
) -> None:
    """Show the processors and the memory of a job's ranks, over time.

    CORES is how many processors a rank kept busy on average, PEAK the highest reading of that.
    MEMORY is without the file cache, OF the limit of --memory. Of a larger job without --rank: its
    first 64 ranks. The GPUs of a host are in `holdfast hosts telemetry`.

    \b
    Examples:
      holdfast telemetry 06ch2v8wq1m4kz7d9x3t
      holdfast telemetry train --rank 0 --rank 7 --last 6h
      holdfast telemetry train --attempt 2 --hours --last 7d --json
    """
    seconds = int(read_seconds("--last", last))
    step = "hour" if hours else "minute"
    with io.client() as client, one_job(client, job_id) as found:
        view = client.job_telemetry(found, step=step, seconds=seconds, ranks=ranks, attempt=attempt)
    io.show(view, _draw(view, ranks) if view.points else _say_nothing(job_id, hours=hours))


def _draw(view: JobTelemetryView, ranks: Sequence[int]) -> str:
    limit = short_bytes(view.memory_limit_bytes) if view.memory_limit_bytes else "-"
    lines = [
        (
            f"{p.at:%m-%d %H:%M}",
            str(p.rank),
            str(p.attempt),
            f"{p.cores:.2f}",
            f"{p.cores_max:.2f}",
            short_bytes(p.memory_max_bytes),
            limit,
        )
        for p in view.points
    ]
    drawn = table(("AT", "RANK", "TRY", "CORES", "PEAK", "MEMORY", "OF"), lines)
    left = range(MAX_RANKS, view.tasks)
    if ranks or not left:
        return drawn
    be = "is" if len(left) == 1 else "are"
    return f"{drawn}\n{name_ranks(left)} {be} not shown; --rank names one"


def _say_nothing(job_id: str, *, hours: bool) -> str:
    more = "" if hours else "; minutes are kept for a day, and --hours shows what is older"
    return f"{job_id} has no readings of that time, as a rank is first read after 15 s{more}"
