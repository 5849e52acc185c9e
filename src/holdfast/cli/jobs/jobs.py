"""`jobs`: the list of jobs."""

from __future__ import annotations

import heapq
import itertools
import sys
import textwrap
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.find.arrays import find_array, say_counts, say_parameters, say_progress
from holdfast.cli.find.jobs import find_job
from holdfast.cli.live.progress import find_estimate, say_left, say_rate
from holdfast.cli.options import COUNT, OWNER, POSITIVE, choose_owner, read_pairs, read_since
from holdfast.cli.output import age, columns, count_columns, shorten, table, unstyle
from holdfast.core.arrays.records import ArrayRecord
from holdfast.core.progress.pace import Estimate
from holdfast.core.states import JobState
from holdfast.core.words import split_span

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.core.records import JobRecord
    from holdfast.wire.forecasts.values import JobForecast

# Filters about jobs alone: an array that has some such members is not one of them.
_OF_JOBS = ("cause", "min_retries", "max_retries", "host", "parent", "match", "since", "supervised")
# And what lists of arrays can be asked for, too.
_OF_BOTH = ("queue", "project", "owner", "name")
# The least room in which a reason is read easily beside the other columns; else it goes under them.
REASON_COLUMNS, UNDER_COLUMNS, RATE_COLUMNS = 30, 5, 100


@click.command()
@click.option(
    "--state",
    "states",
    multiple=True,
    type=click.Choice([state.value for state in JobState]),
    metavar="STATE",
    help="Only in this state, as running or failed; repeatable.",
)
@click.option("--queue", help="Only this queue.")
@click.option("--project", help="Only this project.")
@OWNER
@click.option("--name", help="Only this name.")
@click.option("--parent", metavar="JOB", help="Only those that this job submitted itself.")
@click.option("--match", metavar="TEXT", help="Only with this text in the name.")
@click.option("--since", metavar="TIME", help="Only those submitted since: 2h (ago), or a date.")
@click.option(
    "--sort",
    type=click.Choice(["age", "name", "state", "time"]),
    default="age",
    help="The order of what is listed; time: how long it ran.",
)
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Only with this label.")
@click.option("--cause", help="Only jobs that ended of this cause.")
@click.option("--min-retries", type=COUNT, help="Only jobs charged with so many or more.")
@click.option("--max-retries", type=COUNT, help="Only jobs charged with so many or fewer.")
@click.option("--host", help="Only jobs with a task on this host now.")
@click.option("--array", "array", metavar="ARRAY", help="Only the members of this array.")
@click.option("--indices", is_flag=True, help="Give each member of an array a line of its own.")
@click.option("--limit", type=POSITIVE, default=50, help="The most to list.")
@click.option("--all", "everything", is_flag=True, help="List all of them, executors too.")
@click.option("--executors", is_flag=True, help="Only the jobs that run calls of functions.")
@click.option(
    "--supervised", is_flag=True, default=None, help="Only jobs that a script supervises."
)
@click.option("--wide", is_flag=True, help="One line for each job, with nothing cut or wrapped.")
@click.option("--watch", "watches", is_flag=True, help="Draw it anew every two seconds; q leaves.")
@talks
def jobs(
    io: CommandIO,
    states: Sequence[str],
    labels: Sequence[str],
    limit: int,
    everything: bool,
    executors: bool,
    wide: bool,
    watches: bool,
    array: str | None,
    indices: bool,
    since: str | None,
    sort: str,
    mine: bool,
    **only: Any,
) -> None:
    """List jobs, newest first. A reason that finds no room in its row is written under it.

    An array is one line, with how many of its members have ended and in which states they are.

    \b
    Examples:
      holdfast jobs --state running --state queued
      holdfast jobs --mine --watch
      holdfast jobs --cause oom_killed --min-retries 2
      holdfast jobs --match train --since 1d --sort time
      holdfast jobs --label team=vision --json | jq -r '.[].id'
    """
    pairs = read_pairs("--label", labels, "label")
    only["since"] = None if since is None else read_since(since, time.time())
    only["owner"] = choose_owner(only["owner"], mine)
    only["executors"] = "only" if executors else "show" if everything else None
    apart = not (
        array or indices or pairs or executors or any(only[n] is not None for n in _OF_JOBS)
    )
    paging: dict[str, Any] = {"page_size": 500 if everything else min(limit, 500)}

    def look(client: Client) -> list[JobRecord | ArrayRecord]:
        if only["parent"] is not None:
            only["parent"] = find_job(client, only["parent"])
        if array is not None:
            named = find_array(client, array)
            only["array"] = array if named is None else named.id
        chosen = {"states": states, **paging, **only}
        found: Iterator[JobRecord | ArrayRecord] = iter(
            client.jobs(**chosen | ({"array": "none"} if apart else {}), labels=pairs)
        )
        if apart:
            arrays = client.arrays(states=states, **paging, **{n: only[n] for n in _OF_BOTH})
            found = heapq.merge(found, arrays, key=lambda row: row.id, reverse=True)
        rows = list(found if everything else itertools.islice(found, min(limit, sys.maxsize)))
        return rows if sort == "age" else sorted(rows, key=_SORTS[sort])

    if watches and not io.as_json and sys.stdin.isatty() and sys.stdout.isatty():
        _watch(io, look, wide)
        return
    with io.client() as client:
        rows = look(client)
        starts = {} if io.as_json else _find_starts(client, rows)
    io.show(rows, jobs_table(rows, wide=wide, starts=starts) if rows else "no jobs")


def _watch(
    io: CommandIO, look: Callable[[Client], list[JobRecord | ArrayRecord]], wide: bool
) -> None:
    """Draw the table anew every two seconds."""
    from holdfast.cli.live.again import watch

    def make(client: Client) -> str:
        rows = look(client)
        starts = _find_starts(client, rows)
        return jobs_table(rows, wide=wide, starts=starts) if rows else "no jobs"

    watch(io, make)


def jobs_table(
    rows: Sequence[JobRecord | ArrayRecord],
    *,
    wide: bool = False,
    starts: Mapping[str, str] | None = None,
) -> str:
    """Draw the table of `jobs`, with owners where there are several, and rates and times left where
    they are known. No reason is cut: it wraps in its column, or under a narrow table. The parameters
    of a sweep's member stand before its reason. starts: when queued jobs should start, in words."""
    wide = wide or columns() == sys.maxsize
    owned = wide or len({job.owner for job in rows}) > 1
    estimates = {job.id: _find_estimate(job) for job in rows}
    pace = _choose_pace_columns(estimates.values(), wide=wide)
    head, *lines = table(
        ("ID", "STATE", "QUEUE", *["OWNER"] * owned, "NAME", "TRY", "STEP", *pace, "AGE", "RAN"),
        [
            (
                job.id,
                job.state.value,
                job.queue,
                *[(job.owner if wide else shorten(job.owner, 12)) or "-"] * owned,
                job.name if wide else shorten(job.name, 16),
                "-" if isinstance(job, ArrayRecord) else str(job.attempts),
                say_progress(job) if isinstance(job, ArrayRecord) else _step_text(job),
                *[say(estimates[job.id]) or "-" for say in pace.values()],
                age(job.created_at),
                "-" if (ran := _run_seconds(job)) is None else split_span(ran),
            )
            for job in rows
        ],
        elastic=3 + owned,
        width=sys.maxsize if wide else None,
    ).splitlines()
    used = max(count_columns(unstyle(line)) for line in (head, *lines)) + 2
    room = sys.maxsize if wide else columns() - used
    beside = room >= REASON_COLUMNS
    indent, wrap = (used, room) if beside else (UNDER_COLUMNS, columns() - UNDER_COLUMNS)
    out = [_pad(head, used) + "REASON" if beside else head]
    for job, line in zip(rows, lines, strict=True):
        reason = job.reason if job.reason != job.state.value else ""
        if isinstance(job, ArrayRecord):
            reason = f"{say_counts(job.counts)}; {reason}"
        elif job.array_index is not None:
            reason = "; ".join(filter(None, (say_parameters(job), reason)))
        if starts and job.id in starts:
            reason = "; ".join(filter(None, (starts[job.id], reason)))
        texts = [reason] if wide else textwrap.wrap(reason, wrap)
        first = texts.pop(0) if beside and texts else ""
        out.append((_pad(line, used) + first).rstrip())
        out += [" " * indent + text for text in texts]
    return "\n".join(out)


def _find_starts(client: Client, rows: Iterable[JobRecord | ArrayRecord]) -> dict[str, str]:
    """Return, in words, when the queued jobs among `rows` should start, for those of which it is known."""
    queued = {row.id for row in rows if row.state is JobState.QUEUED}
    if not queued:
        return {}
    found = [each for each in client.forecasts() if each.job_id in queued]
    return {each.job_id: _say_start(each) for each in found if each.expected_start is not None}


def _say_start(forecast: JobForecast) -> str:
    now = datetime.now(UTC)

    def until(moment: datetime | None) -> str:
        return "?" if moment is None else split_span(max(0.0, (moment - now).total_seconds()))

    text = f"starts in about {until(forecast.expected_start)}"
    if forecast.latest_start != forecast.earliest_start:
        text += f" ({until(forecast.earliest_start)} to {until(forecast.latest_start)})"
    return text + (f", {forecast.ahead} ahead" if forecast.ahead else "")


def _run_seconds(job: JobRecord | ArrayRecord) -> float | None:
    """Return how long a job has run, or ran; None where it has not begun."""
    started = getattr(job, "started_at", None)
    if started is None:
        return None
    ended = getattr(job, "ended_at", None) or datetime.now(UTC)
    return max(0.0, float((ended - started).total_seconds()))


_SORTS: dict[str, Callable[[JobRecord | ArrayRecord], Any]] = {
    "name": lambda job: (job.name, job.id),
    "state": lambda job: (job.state.value, job.id),
    "time": lambda job: (-(_run_seconds(job) or 0.0), job.id),
}


def _find_estimate(job: JobRecord | ArrayRecord) -> Estimate | None:
    if isinstance(job, ArrayRecord) or job.state is not JobState.RUNNING:
        return None
    return find_estimate(job, datetime.now(UTC))


def _choose_pace_columns(
    estimates: Iterable[Estimate | None], *, wide: bool
) -> dict[str, Callable[[Estimate | None], str]]:
    """Return the columns about rates that some row has something for, within the width."""
    known = [one for one in estimates if one is not None]
    found: dict[str, Callable[[Estimate | None], str]] = {}
    if any(one.rate is not None for one in known) and (wide or columns() >= RATE_COLUMNS):
        found["RATE"] = lambda one: "" if one is None else say_rate(one)
    if any(one.left_seconds is not None for one in known):
        found["LEFT"] = lambda one: "" if one is None else say_left(one)
    return found


def _step_text(job: JobRecord) -> str:
    if job.step is None:
        return "-"
    return f"{job.step}/{job.total}" if job.total else str(job.step)


def _pad(line: str, width: int) -> str:
    """Fill a line up to `width` columns; its colours take none."""
    return line + " " * (width - count_columns(unstyle(line)))
