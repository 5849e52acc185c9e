"""`report`: where the hours went, what they cost, what was lost and what would mend it."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import TYPE_CHECKING

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.find.jobs import find_job
from holdfast.cli.options import LABEL, OWNER, POSITIVE, choose_owner, read_pairs, read_seconds
from holdfast.cli.output import print_line
from holdfast.cli.zones import find_local_zone
from holdfast.errors import ValidationError

if TYPE_CHECKING:
    from holdfast.client.synchronous import Client
    from holdfast.core.report.rows import HoursReport

_TIMES = ("minute", "hour", "day")
_FIELDS = ("job", "owner", "project", "queue", "pool", "host", *_TIMES)


@click.command()
@click.option(
    "--by",
    metavar="WHAT",
    default="project",
    show_default=True,
    help=f"Lines by {', '.join(_FIELDS)} or label:KEY; up to three, with commas.",
)
@click.option("--last", metavar="TIME", help="The span until now, as 7d or 12h. [default: 7d]")
@click.option("--since", metavar="TIME", help="From then on: 2h (ago), or a date.")
@click.option("--until", metavar="TIME", help="Until then: 2h (ago), or a date. [default: now]")
@click.option("--cpu", is_flag=True, help="The hours of CPU slots in place of GPUs.")
@click.option("--job", metavar="JOB", help="Only this job's hours.")
@OWNER
@click.option("--project", help="Only this project's.")
@click.option("--queue", help="Only this queue's.")
@click.option("--pool", help="Only those of this pool's hosts.")
@click.option("--host", help="Only this host's.")
@LABEL
@click.option("--limit", type=POSITIVE, default=50, show_default=True, help="The most lines.")
@click.option("--csv", "as_csv", is_flag=True, help="Print the lines as CSV.")
@click.option("--html", "page", metavar="FILE", help="Write a page with pictures; - prints it.")
@click.option("--idle", is_flag=True, help="List the jobs that hold idle GPUs now.")
@talks
def report(
    io: CommandIO,
    by: str,
    last: str | None,
    since: str | None,
    until: str | None,
    cpu: bool,
    job: str | None,
    owner: str | None,
    mine: bool,
    project: str | None,
    queue: str | None,
    pool: str | None,
    host: str | None,
    labels: Sequence[str],
    limit: int,
    as_csv: bool,
    page: str | None,
    idle: bool,
) -> None:
    """Say where the hours went: what they cost, what was lost, and what would mend it.

    GOODPUT is the part of the hours that moved the work forward and was never done again. FREE hours
    are those that no job held. A GPU-hour costs what its pool pays for it; on hosts of your own, what
    `holdfast config set gpu_hour_usd N` says. Days and times are those of your time zone (TZ), which the
    first line names.

    \b
    Examples:
      holdfast report --last 30d
      holdfast report --by owner,job --project vision
      holdfast report --by day --html report.html
      holdfast report --idle
    """
    if as_csv + io.as_json + (page is not None) > 1:
        raise click.UsageError("--json, --csv and --html go one at a time")
    owner = choose_owner(owner, mine)
    with io.client() as client:
        if idle:
            _show_idle(io, client, project, owner, as_csv=as_csv, page=page)
            return
        begin, end = _read_span(last, since, until, time.time())
        fields, step = _read_by(by)
        found = client.report(
            since=begin,
            until=end,
            by=fields,
            step=step,
            zone=find_local_zone(),
            unit="cpu" if cpu else "gpu",
            job=None if job is None else find_job(client, job),
            owner=owner,
            project=project,
            queue=queue,
            pool=pool,
            host=host,
            labels=read_pairs("--label", labels),
            limit=min(limit, 1000),
        )
    _show(io, found, as_csv=as_csv, page=page)


def _show(io: CommandIO, found: HoursReport, *, as_csv: bool, page: str | None) -> None:
    if as_csv:
        from holdfast.cli.report.spreadsheet import write_csv

        print_line(write_csv(found).rstrip("\n"))
    elif page is not None:
        from holdfast.cli.report.page import draw_page
        from holdfast.core.arrays.schedules import read_zone

        _write_page(page, draw_page(found, datetime.now(read_zone(found.zone))))
    else:
        from holdfast.cli.report.tables import draw_report

        io.show(found, draw_report(found))


def _show_idle(
    io: CommandIO,
    client: Client,
    project: str | None,
    owner: str | None,
    *,
    as_csv: bool,
    page: str | None,
) -> None:
    from holdfast.cli.report.tables import draw_idle

    if as_csv or page is not None:
        raise click.UsageError("--idle is printed as a table, or with --json")
    jobs = client.idle_jobs(project=project, owner=owner)
    io.show(jobs, draw_idle(jobs))


def _write_page(path: str, text: str) -> None:
    if path == "-":
        print_line(text)
        return
    try:
        Path(path).write_text(text, encoding="utf-8")
    except OSError as error:
        why = f"the page cannot be written to {path}: {error.strerror}"
        raise ValidationError(why, field="html") from error
    click.echo(f"holdfast: wrote {path}; open it in a browser", err=True)


def _read_by(text: str) -> tuple[tuple[str, ...], str]:
    """Return the fields of --by as the server names them, and the step of time."""
    fields: list[str] = []
    step = "day"
    for word in text.split(","):
        name = word.strip()
        if not name.startswith("label:") and name not in _FIELDS:
            known = f"{', '.join(_FIELDS)} or label:KEY"
            raise ValidationError(f"--by {name!r} is none of {known}", field="by")
        if name in _TIMES:
            step = name
        fields.append("time" if name in _TIMES else name)
    if len(set(fields)) < len(fields):
        raise ValidationError(f"--by {text!r} names a field twice", field="by")
    if len(fields) > 3:
        raise ValidationError("--by takes up to three fields", field="by")
    return tuple(fields), step


def _read_span(
    last: str | None, since: str | None, until: str | None, now: float
) -> tuple[float, float | None]:
    """Return the begin and the end of the span, in Unix seconds; None for now."""
    from holdfast.cli.options import read_since

    if last is not None and since is not None:
        raise click.UsageError("give either --last or --since")
    end = None if until is None else read_since(until, now, "--until")
    if since is not None:
        begin = read_since(since, now)
    else:
        begin = (now if end is None else end) - read_seconds("--last", last or "7d")
    if begin >= (now if end is None else end):
        raise ValidationError(
            "the span begins before it ends: --since is not before --until", field="since"
        )
    return begin, end
