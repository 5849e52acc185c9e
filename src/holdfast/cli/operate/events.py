"""`events`."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.cli.jobs.jobs import event_text
from holdfast.cli.output import Face, print_text, talks


@click.command()
@click.option("--follow", "-f", is_flag=True, help="Go on with what happens from now on.")
@click.option("--job", "job_id", metavar="JOB", help="Only of this job.")
@click.option("--kind", "kinds", multiple=True, help="Only this kind, as job.failed; repeatable.")
@click.option(
    "--after", metavar="ID", help="Only after the event with this id: how a reader resumes."
)
@click.option(
    "--tail", type=click.IntRange(0), help="Begin with the last N; 20 when nothing else is said."
)
@talks
def events(
    face: Face,
    follow: bool,
    job_id: str | None,
    kinds: Sequence[str],
    after: str | None,
    tail: int | None,
) -> None:
    """Show what happened, oldest first. With --json a list (with -f one object a line); `id` is
    what --after takes.

    \b
    Examples:
      holdfast events --tail 50
      holdfast events -f --json --after "$LAST_ID" --kind job.failed
    """
    if tail is None and after is None and job_id is None:
        tail = 20
    with face.client() as client:
        found = client.events(
            follow=follow,
            after=after,
            job_id=job_id,
            kinds=kinds,
            tail=tail,
            retry_seconds=24 * 3600.0,
        )
        if face.as_json and not follow:
            face.show_json(list(found))
            return
        for event in found:
            if face.as_json:
                face.show_json_line(event)
            else:
                print_text(event_text(event))
