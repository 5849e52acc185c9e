"""`events`: the record of what happened."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.find.jobs import find_job
from holdfast.cli.options import COUNT
from holdfast.cli.output import print_text

if TYPE_CHECKING:
    from holdfast.core.records import EventRecord


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Go on with new events.")
@click.option("--job", "job_id", metavar="JOB", help="Only this job's.")
@click.option("--kind", "kinds", multiple=True, help="Only this kind, as job.failed; repeatable.")
@click.option("--after", metavar="ID", help="Only events after the one with this id, to resume.")
@click.option("--tail", type=COUNT, help="The last N. [default: 20, for all jobs]")
@talks
def events(
    io: CommandIO,
    follow: bool,
    job_id: str | None,
    kinds: Sequence[str],
    after: str | None,
    tail: int | None,
) -> None:
    """Show what happened, oldest first. --json prints a list, or with -f one object a line.

    \b
    Examples:
      holdfast events --tail 50
      holdfast events -f --json --after "$LAST_ID" --kind job.failed
    """
    if tail is None and after is None and job_id is None:
        tail = 20
    with io.client() as client:
        job_id = find_job(client, job_id) if job_id is not None else None
        found = client.events(
            follow=follow,
            after=after,
            job_id=job_id,
            kinds=kinds,
            tail=tail,
            retry_seconds=24 * 3600.0,
        )
        if io.as_json and not follow:
            io.show_json(list(found))
            return
        for event in found:
            if io.as_json:
                io.show_json_line(event)
            else:
                print_text(event_text(event))


def event_text(event: EventRecord) -> str:
    """Write an event in one line."""
    when = event.at.astimezone().strftime("%m-%d %H:%M:%S.%f")[:-3]
    what = f"{event.kind}{f' #{event.attempt}' if event.attempt else ''}"
    return f"{when}  {event.job_id or event.host_id or event.queue or '-':20}  {what:20}  {event.message}".rstrip()
