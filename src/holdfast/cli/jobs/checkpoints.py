"""`checkpoints`: the files that tasks save for the next attempt; `checkpoint`: inside a job."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.find.jobs import find_job
from holdfast.cli.options import COUNT, JOB, POSITIVE
from holdfast.cli.output import age, table
from holdfast.core.words import short_bytes
from holdfast.work import checkpoint as library

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.core.records import CheckpointRecord

RANK = click.option("--rank", type=COUNT, default=0, help="The rank.")


class ListsByDefault(click.Group):
    """A group that takes a job's id in place of a command, and then lists its checkpoints."""

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and args[0] not in self.commands:
            args = ["list", *args]
        return super().resolve_command(ctx, args)


@click.group(cls=ListsByDefault)
def checkpoints() -> None:
    """List a job's checkpoints, the files its tasks saved; fetch, add or forget one.

    \b
    Examples:
      holdfast checkpoints 06ch2v8wq1m4kz7d9x3t
      holdfast checkpoints get 06ch2v8wq1m4kz7d9x3t --rank 0 -o weights.pt
      holdfast checkpoints delete 06ch2v8wq1m4kz7d9x3t --rank 0 --number 12
    """


@checkpoints.command("list")
@JOB
@talks
def list_them(io: CommandIO, job_id: str) -> None:
    """List checkpoints. The next attempt starts from the newest of each rank.

    \b
    Example:
      holdfast checkpoints 06ch2v8wq1m4kz7d9x3t
    """
    with io.client() as client:
        job_id = find_job(client, job_id)
        rows = client.checkpoints(job_id)
        if io.as_json:
            io.show(rows, "")
            return
        text = checkpoints_table(rows) if rows else "no checkpoint is kept"
        refused = list(_list_refused(client, job_id))
    io.show(rows, "\n".join([text, *refused]))


def _list_refused(client: Client, job_id: str) -> Iterator[str]:
    """Yield a line for each checkpoint that an attempt lost."""
    for attempt in client.attempts(job_id):
        for member in attempt.members:
            for notice in member.facts.notices if member.facts is not None else ():
                if "checkpoint" in notice:
                    yield f"attempt {attempt.number}, rank {member.rank}: {notice}"


def checkpoints_table(rows: Sequence[CheckpointRecord]) -> str:
    """Draw the table of `checkpoints`."""
    return table(
        ("RANK", "NUMBER", "STEP", "SIZE", "TRY", "EPOCH", "AGE", "SHA256"),
        [
            (
                str(c.rank),
                str(c.number),
                "-" if c.step is None else str(c.step),
                short_bytes(c.size),
                str(c.attempt),
                str(c.epoch),
                age(c.created_at),
                c.sha256[:12],
            )
            for c in rows
        ],
    )


@checkpoints.command()
@JOB
@RANK
@click.option("--number", type=POSITIVE, help="Its number. [default: the newest]")
@click.option(
    "-o",
    "--output",
    required=True,
    type=click.Path(dir_okay=False),
    metavar="FILE",
    help="The file to write.",
)
@talks
def get(io: CommandIO, job_id: str, rank: int, number: int | None, output: str) -> None:
    """Fetch a checkpoint into a file, whole or not at all.

    \b
    Example:
      holdfast checkpoints get 06ch2v8wq1m4kz7d9x3t --rank 0 -o weights.pt
    """
    with io.client() as client:
        try:
            client.get_checkpoint(find_job(client, job_id), output, rank=rank, number=number)
        except OSError as error:
            why = f"{output} cannot be written: {error.strerror or error}"
            raise click.ClickException(why) from error
    count = os.stat(output).st_size
    io.show({"file": output, "size": count}, f"{output}: {short_bytes(count)}")


@checkpoints.command()
@JOB
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@RANK
@click.option("--step", type=COUNT, help="The step that the work has reached with it.")
@click.option("--epoch", type=POSITIVE, help="The running attempt's epoch, if one runs.")
@talks
def put(
    io: CommandIO, job_id: str, file: str, rank: int, step: int | None, epoch: int | None
) -> None:
    """Leave a file for the next attempt of a rank.

    \b
    Example:
      holdfast checkpoints put 06ch2v8wq1m4kz7d9x3t repaired.pt
    """
    with io.client() as client:
        job_id = find_job(client, job_id)
        record = client.put_checkpoint(job_id, file, rank=rank, epoch=epoch, step=step)
    io.show(record, f"number {record.number} of rank {record.rank}: {short_bytes(record.size)}")


@checkpoints.command("delete")
@JOB
@click.option("--rank", type=COUNT, help="Only this rank's.")
@click.option("--number", type=POSITIVE, help="Only this one.")
@talks
def remove(io: CommandIO, job_id: str, rank: int | None, number: int | None) -> None:
    """Forget checkpoints: the next attempt starts from the one before, or from nothing.

    \b
    Example:
      holdfast checkpoints delete 06ch2v8wq1m4kz7d9x3t --rank 0 --number 12
    """
    with io.client() as client:
        job_id = find_job(client, job_id)
        client.delete_checkpoints(job_id, rank=rank, number=number)
    io.show({"job": job_id, "rank": rank, "number": number}, "forgotten")


@click.group()
def checkpoint() -> None:
    """From inside a job: save a file for the next attempt, or find the one that was saved.

    Outside a job nothing happens.

    \b
    Examples:
      holdfast checkpoint save state.tar --step 12
      [ -n "$(holdfast checkpoint path)" ] && tar xf "$(holdfast checkpoint path)"
    """


@checkpoint.command()
@click.argument("file", type=click.Path(exists=True, dir_okay=False))
@click.option("--step", type=COUNT, help="The step that the work has reached.")
def save(file: str, step: int | None) -> int:
    """Save a file for the next attempt of this rank. It is copied, and uploaded in the background.

    \b
    Example:
      holdfast checkpoint save state.tar --step 12
    """
    inside = bool(os.environ.get("HOLDFAST_CHECKPOINT_OUT"))
    return 0 if library.save(file, step) or not inside else 1


@checkpoint.command()
def path() -> None:
    """Print the path of the file that the attempt before saved; nothing if there is none.

    \b
    Example:
      tar xf "$(holdfast checkpoint path)"
    """
    found = library.path()
    if found:
        click.echo(found)
