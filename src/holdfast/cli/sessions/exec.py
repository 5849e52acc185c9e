"""`exec` and `shell`: a command, or a terminal, in a running task."""

from __future__ import annotations

import os
import sys

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.options import COUNT, JOB
from holdfast.cli.sessions.terminal import carry, read_size, tell_lost
from holdfast.client.locate import ControllerPlace
from holdfast.client.sessions.session import TaskSession
from holdfast.core.ids import ID_PATTERN
from holdfast.wire.sessions.messages import Kind, SessionRequest

_RANK = click.option("--rank", type=COUNT, default=0, help="The task of a gang to go into.")


@click.command(name="exec")
@JOB
@_RANK
@click.option("-t", "--tty", is_flag=True, help="Give the command a terminal.")
@click.option("-n", "--no-stdin", is_flag=True, help="Do not read this program's input.")
@click.argument("argv", nargs=-1, required=True, metavar="-- CMD")
@talks
def exec_(
    io: CommandIO, job_id: str, rank: int, tty: bool, no_stdin: bool, argv: tuple[str, ...]
) -> None:
    """Run a command in a running task, and exit with its code.

    It runs in the task's environment, user, folder, container and GPUs. Input, output and errors
    are this program's own, byte for byte, and so are its signals. The command's end is not the
    job's; it ends with the attempt at the latest. Its memory and its work are not counted as the
    job's.

    \b
    Examples:
      holdfast exec @last -- nvidia-smi
      holdfast exec JOB --rank 3 -- py-spy dump --pid 1234
      holdfast exec JOB -- tar c out > out.tar
      holdfast exec -t JOB -- htop
    """
    _go_in(io, job_id, list(argv), "exec", rank, tty=tty, reads=not no_stdin)


@click.command()
@JOB
@_RANK
@talks
def shell(io: CommandIO, job_id: str, rank: int) -> None:
    """Open a shell in a running task.

    A real terminal: colours, the window's size, Ctrl-C, Ctrl-Z. The shell is the task's $SHELL, or
    bash, or sh. It survives ten minutes without a connection, and ends with the attempt.

    \b
    Examples:
      holdfast shell @last
      holdfast shell JOB --rank 3
    """
    if not os.isatty(0):
        raise click.UsageError(
            "a shell takes a terminal, and the input of this program is none; "
            "`holdfast exec JOB -- sh` reads a script from a pipe"
        )
    _go_in(io, job_id, [], "shell", rank, tty=True)


def _go_in(
    io: CommandIO,
    job_word: str,
    argv: list[str],
    kind: Kind,
    rank: int,
    *,
    tty: bool,
    reads: bool = True,
) -> None:
    rows, cols = read_size() if tty else (0, 0)
    term = os.environ.get("TERM", "") if tty else ""
    place, job_id = _find(io, job_word)
    asked = SessionRequest(
        kind=kind, rank=rank, argv=argv, tty=tty, rows=rows, cols=cols, term=term
    )
    session = TaskSession(place, job_id, asked, on_lost=tell_lost)
    if not reads:
        session.close_stdin()
    code = carry(session, reads=reads)
    sys.stdout.flush()
    leave(code)


def _find(io: CommandIO, job_word: str) -> tuple[ControllerPlace, str]:
    """Return the controller's place and the id of the job that a word names. A whole id is asked of
    no server."""
    if ID_PATTERN.fullmatch(job_word):
        return io.locate(), job_word
    from holdfast.cli.find.jobs import find_job

    with io.client() as client:
        found = find_job(client, job_word)
        io.waiting.close()
        return client.place, found


def leave(code: int) -> None:
    """Exit without waiting for the thread that reads the input."""
    sys.stderr.flush()
    os._exit(code)
