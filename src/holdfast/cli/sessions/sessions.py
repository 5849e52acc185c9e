"""The command `sessions`: list which users are in which tasks."""

from __future__ import annotations

from collections.abc import Sequence

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.find.jobs import find_job
from holdfast.cli.operate.resource import Columns, draw_columns
from holdfast.cli.output import age
from holdfast.wire.sessions.messages import SessionRecord

COLUMNS: Columns[SessionRecord] = {
    "ID": lambda s: s.id,
    "JOB": lambda s: s.job_id,
    "RANK": lambda s: str(s.rank),
    "USER": lambda s: s.owner,
    "FROM": lambda s: s.from_address or "-",
    "KIND": lambda s: s.kind,
    "STATE": lambda s: s.state,
    "AGE": lambda s: age(s.created_at),
    "COMMAND": lambda s: s.command or "-",
}


@click.command()
@click.argument("job_id", metavar="[JOB]", required=False)
@click.option("--all", "also_over", is_flag=True, help="Those that ended, too.")
@click.option("--end", metavar="ID", help="End this session.")
@talks
def sessions(io: CommandIO, job_id: str | None, also_over: bool, end: str | None) -> None:
    """List which users are in which tasks, from where, and with which command.

    \b
    Examples:
      holdfast sessions
      holdfast sessions @last --all
      holdfast sessions --end 06ch2v8wq1m4kz7d9x3t
    """
    with io.client() as client:
        if end is not None:
            client.end_session(end)
            return
        job = None if job_id is None else find_job(client, job_id)
        found: Sequence[SessionRecord] = client.sessions(job, also_over=also_over)
    io.show(found, draw_columns(COLUMNS, found, elastic=8) if found else "no sessions")
