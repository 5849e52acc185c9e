"""`attach`: the terminal of a job, or a session that was left."""

from __future__ import annotations

import sys
from typing import TYPE_CHECKING

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.find.jobs import find_job
from holdfast.cli.options import JOB
from holdfast.cli.output import note
from holdfast.cli.sessions.exec import leave
from holdfast.cli.sessions.terminal import Detached, carry, read_size, tell_lost

if TYPE_CHECKING:
    from holdfast.client import Client


@click.command()
@JOB
@click.option(
    "--session", metavar="ID", default="", help="A shell that was left, not the job's own terminal."
)
@click.option("--watch", is_flag=True, help="Only read along.")
@talks
def attach(io: CommandIO, job_id: str, session: str, watch: bool) -> None:
    """Come to the terminal of a job that was begun with `run -it`, or back to a shell.

    What the terminal printed last is shown first. A second person reads along. Ctrl-P Ctrl-Q leaves
    the terminal to itself; its job goes on.

    \b
    Examples:
      holdfast attach @last
      holdfast attach JOB --watch
      holdfast attach JOB --session 06ch2v8wq1m4kz7d9x3t
    """
    with io.client() as client:
        found = find_job(client, job_id)
        io.waiting.close()
        leave(come_to(client, found, session, watch=watch))


def come_to(client: Client, job_id: str, session: str = "", *, watch: bool = False) -> int:
    """Carry the terminal of a job to this terminal; return the exit code of the terminal's end, 0
    where the person leaves before that."""
    rows, cols = read_size()
    opened = client.open_session(
        job_id,
        kind="shell" if session else "attach",
        tty=True,
        rows=rows,
        cols=cols,
        session=session,
        watch=watch,
        on_lost=tell_lost,
    )
    if opened.watches:
        note("another person is at this terminal, or --watch was given: you read along")
    try:
        code = carry(opened, reads=True, detaches=True)
    except Detached:
        sys.stderr.write("\r\n")
        note(f"left; back to it: holdfast attach {job_id}")
        return 0
    sys.stdout.flush()
    return code
