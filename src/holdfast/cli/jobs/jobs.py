"""`jobs`: the list of jobs."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.options import COUNT, POSITIVE, read_pairs
from holdfast.cli.output import Face, age, shorten, table, talks

if TYPE_CHECKING:
    from holdfast.core.records import JobRecord


@click.command()
@click.option("--state", "states", multiple=True, help="waiting, queued, running, succeeded, …")
@click.option("--queue", help="Only this queue.")
@click.option("--project", help="Only this project.")
@click.option("--name", help="Only this name.")
@click.option("--label", "labels", multiple=True, metavar="K=V", help="Only with this label.")
@click.option("--cause", help="Only jobs that ended of this cause.")
@click.option("--min-retries", type=COUNT, help="Only jobs charged with so many or more.")
@click.option("--max-retries", type=COUNT, help="Only jobs charged with so many or fewer.")
@click.option("--host", help="Only jobs with a task on this host now.")
@click.option("--limit", type=POSITIVE, default=50, help="The most to list.")
@click.option("--all", "everything", is_flag=True, help="List all of them.")
@talks
def jobs(
    face: Face,
    states: Sequence[str],
    labels: Sequence[str],
    limit: int,
    everything: bool,
    **only: Any,
) -> None:
    """List jobs, newest first.

    \b
    Examples:
      holdfast jobs --state running --state queued
      holdfast jobs --cause oom_killed --min-retries 2
      holdfast jobs --label team=vision --json | jq -r '.[].id'
    """
    pairs = read_pairs("--label", labels, "label")
    with face.client() as client:
        page_size = 500 if everything else min(limit, 500)
        found = client.jobs(states=states, labels=pairs, page_size=page_size, **only)
        rows = list(found if everything else itertools.islice(found, min(limit, sys.maxsize)))
    face.show(rows, jobs_table(rows) if rows else "no jobs")


def jobs_table(rows: Sequence[JobRecord]) -> str:
    """Draw the table of `jobs`."""
    cells = []
    for job in rows:
        name, tries = shorten(job.name, 16), str(job.attempts)
        times = (age(job.created_at), job.reason or "-")
        cells.append((job.id, job.state.value, job.queue, name, tries, *times))
    return table(("ID", "STATE", "QUEUE", "NAME", "TRY", "AGE", "REASON"), cells)
