"""`schedules`: jobs that are submitted again and again."""

from __future__ import annotations

import zoneinfo
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import click

from holdfast.cli.code.workdir import CODE_OPTIONS, find_code
from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.jobs.submit import read_job, takes_spec
from holdfast.cli.operate.resource import Columns, draw_columns, resource, say_state_of
from holdfast.cli.options import OWNER, POSITIVE, add_options, choose_owner
from holdfast.cli.output import facts, paint, print_text, table
from holdfast.client.synchronous import Client
from holdfast.core.arrays.records import ScheduleRecord, ScheduleRunRecord
from holdfast.core.records import JobRecord
from holdfast.core.settings.resolve import parse_duration
from holdfast.core.words import split_span

COLUMNS: Columns[ScheduleRecord] = {
    "SCHEDULE": lambda row: row.name,
    "WHEN": lambda row: _say_when(row),
    "NEXT (UTC)": lambda row: (
        "paused" if row.paused_at else f"{row.next_at.astimezone(UTC):%Y-%m-%d %H:%M}"
    ),
    "LAST JOB": lambda row: row.last_job_id or "-",
    "STATE": lambda row: (
        row.last_outcome if row.last_outcome == "refused" else row.last_state or "-"
    ),
}


@resource("SCHEDULE", lambda rows: draw_columns(COLUMNS, rows, elastic=1), nothing="no schedules")
@OWNER
def schedules(client: Client, owner: str | None, mine: bool) -> Sequence[ScheduleRecord]:
    """List schedules, which submit jobs at set times: their next time and their newest run.

    \b
    Examples:
      holdfast schedules set n --cron "0 3 * * *" --time-zone UTC -- ./n.sh
      holdfast schedules set poll --every 15m --overlap queue -- python poll.py
      holdfast schedules next nightly 3
    """
    return client.schedules(owner=choose_owner(owner, mine))


@schedules.command("set")
@click.argument("schedule", metavar="SCHEDULE")
@click.option("--cron", metavar="LINE", help="Minute, hour, day of month, month, day of week.")
@click.option("--every", metavar="TIME", help="An interval, as 15m or 6h.")
@click.option("--time-zone", metavar="ZONE", default="UTC", help="Whose clock --cron goes by.")
@click.option(
    "--catch-up",
    type=click.Choice(["none", "one", "all"]),
    default="one",
    help="Of times missed while no controller ran: none, the newest, or the last 100.",
)
@click.option(
    "--overlap",
    type=click.Choice(["skip", "queue", "cancel_running"]),
    default="skip",
    help="While the run before has not ended.",
)
@takes_spec
@talks
def set_schedule(
    io: CommandIO,
    schedule: str,
    cron: str | None,
    every: str | None,
    time_zone: str,
    catch_up: str,
    overlap: str,
    **options: Any,
) -> None:
    """Make a schedule of a job, or change the one of that name whole.

    The job's options are those of `submit`.

    \b
    Examples:
      holdfast schedules set nightly --cron "0 3 * * *" -- python train.py
      holdfast schedules set poll --every 15m --overlap queue -- python poll.py
    """
    if (cron is None) == (every is None):
        raise click.UsageError("give either --cron or --every")
    try:
        seconds = None if every is None else parse_duration(every)
    except ValueError as error:
        raise click.UsageError(f"--every: {error}") from None
    with io.client() as client:
        spec = read_job(client, options)
        made = client.put_schedule(
            schedule,
            spec,
            cron=cron,
            every_seconds=seconds,
            time_zone=time_zone,
            catch_up=catch_up,
            overlap=overlap,
        )
    io.show(made, _say_next(made))


@schedules.command()
@schedules.subject
@click.option("--limit", type=POSITIVE, default=10, help="How many of its runs.")
@talks
def show(io: CommandIO, subject: str, limit: int) -> None:
    """Show a schedule and its newest runs.

    \b
    Example:
      holdfast schedules show nightly
    """
    with io.client() as client:
        schedule, runs = client.schedule(subject), client.schedule_runs(subject, limit)
    if io.as_json:
        io.show_json({"schedule": schedule, "runs": runs})
        return
    print_text(_describe(schedule))
    if runs:
        print_text("\n" + _runs_table(runs))


@schedules.add("pause", lambda made: say_state_of(made.name, made), act="schedule.pause", asks=True)
@click.option("--reason", default="", help="Shown with it.")
def pause(client: Client, name: str, reason: str) -> ScheduleRecord:
    """Let none of its times come.

    \b
    Example:
      holdfast schedules pause nightly --reason "holidays"
    """
    return client.pause_schedule(name, reason)


@schedules.add("resume", lambda row: _say_next(row), act="schedule.resume")
def resume(client: Client, name: str) -> ScheduleRecord:
    """Let its times come again, from now on: those of the pause are not caught up.

    \b
    Example:
      holdfast schedules resume nightly
    """
    return client.resume_schedule(name)


@schedules.add("update", lambda row: f"{row.name}: {row.spec.job.code.describe()}")
@add_options(*CODE_OPTIONS)
def update(client: Client, name: str, **options: Any) -> ScheduleRecord:
    """Give a schedule's job the code of a folder as it is now, or of a commit.

    A schedule keeps the code that it was made with: what its folder has become since does not matter,
    until this command reads it again.

    \b
    Examples:
      holdfast schedules update nightly
      holdfast schedules update nightly --workdir ../train
    """
    project = client.schedule(name).spec.job.project
    return client.pin_schedule(name, find_code(client, options, project))


@schedules.deletes(act="schedule.delete")
def delete(client: Client, name: str) -> None:
    """Forget a schedule. Its jobs stay.

    \b
    Example:
      holdfast schedules delete nightly
    """
    client.delete_schedule(name)


@schedules.add("run-now", lambda job: job.id, act="schedule.run")
def run_now(client: Client, name: str) -> JobRecord:
    """Submit its job now, beside its times, and print the job's id.

    \b
    Example:
      holdfast schedules run-now nightly
    """
    return client.run_schedule(name)


@schedules.command("next")
@schedules.subject
@click.argument("count", type=POSITIVE, default=5)
@talks
def list_next(io: CommandIO, subject: str, count: int) -> None:
    """Print its next times, in its own time zone.

    \b
    Example:
      holdfast schedules next nightly 3
    """
    with io.client() as client:
        told = client.schedule_times(subject, count)
    try:
        zone: zoneinfo.ZoneInfo | None = zoneinfo.ZoneInfo(told.time_zone)
    except (zoneinfo.ZoneInfoNotFoundError, OSError):
        zone = None  # this machine does not know it; UTC then
    lines = [at.astimezone(zone or UTC).isoformat(timespec="seconds") for at in told.times]
    io.show(told, "\n".join(lines))


def _runs_table(runs: Sequence[ScheduleRunRecord]) -> str:
    return table(
        ("TIME", "RUN", "JOB", "REASON"),
        [(_moment(r.due_at), r.outcome, r.job_id or "-", r.reason or "-") for r in runs],
        elastic=3,
    )


def _describe(row: ScheduleRecord) -> str:
    job, paused = row.spec.job, ""
    if row.paused_at is not None:
        paused = f"since {_moment(row.paused_at)}: {row.paused_reason}"
    return facts(
        [
            ("schedule", row.name),
            ("owner", row.owner),
            ("when", _say_when(row)),
            ("next", "" if paused else _moment(row.next_at)),
            ("paused", paused),
            ("catch up", row.spec.catch_up),
            ("overlap", row.spec.overlap),
            ("last run", f"{row.last_outcome or ''}  {row.last_reason}".strip()),
            ("last job", f"{row.last_job_id or ''}  {paint(row.last_state or '')}".strip()),
            ("queue", row.queue),
            ("project", row.project),
            ("command", job.shell if job.shell is not None else " ".join(job.argv)),
        ]
    )


def _say_when(row: ScheduleRecord) -> str:
    if row.spec.every_seconds is not None:
        text = split_span(row.spec.every_seconds)
        for nothing in ("00s", "00m", "00h"):
            text = text.removesuffix(nothing)
        return f"every {text}"
    zone = "" if row.spec.time_zone == "UTC" else f" {row.spec.time_zone}"
    return f"{row.spec.cron}{zone}"


def _say_next(row: ScheduleRecord) -> str:
    return f"{row.name}: next at {_moment(row.next_at)}"


def _moment(at: datetime) -> str:
    return at.astimezone(UTC).strftime("%Y-%m-%d %H:%M:%SZ")
