"""The command `outputs`: list what the attempts of a job left, and fetch it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.find.jobs import find_job
from holdfast.cli.options import JOB, Count, Positive
from holdfast.cli.output import age, note, table
from holdfast.core.words import count_of, short_bytes
from holdfast.errors import ValidationError

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.core.data.outputs import OutputFile, OutputsRecord

_SHOWN = 20


@click.command()
@JOB
@click.argument("names", nargs=-1, metavar="[NAME]...")
@talks
def outputs(
    io: CommandIO,
    job_id: str,
    files: bool,
    to: str | None,
    attempt: Positive | None,
    rank: Count | None,
    wait: bool,
    names: tuple[str, ...],
) -> None:
    """Show what the attempts of a job left under its --outputs; list or fetch the files.

    STATE is collecting while the host sends them, complete, partial where something was left out
    (it says what and why), or lost with its host. What is fetched is written below DIR alone. NAME
    chooses files or folders, also as `out/*.pt`.

    \b
    Examples:
      holdfast run --outputs out/ -- python train.py
      holdfast outputs @last
      holdfast outputs @last --list
      holdfast outputs @last --get results out/model.pt

    files (--list): List the files, with sizes and digests.
    to (--get DIR): Fetch them into this folder.
    attempt: Of this attempt. [default: all; --get: the last]
    rank: Of this rank. [default: all; --get, --list: 0]
    wait: Wait until they are collected.
    """
    if to is not None and files:
        raise click.UsageError("--list shows files, and --get fetches them; give one of the two")
    if names and to is None:
        raise click.UsageError("names choose what --get fetches; give --get DIR with them")
    with io.client() as client:
        job_id = find_job(client, job_id)
        if wait:
            client.wait_outputs(job_id, attempt=attempt)
        if to is not None:
            _fetch(io, client, job_id, to, attempt, rank or 0, names)
        elif files:
            _list_files(io, client, job_id, attempt, rank or 0)
        else:
            rows = client.outputs(job_id, attempt=attempt, rank=rank)
            io.show(rows, outputs_table(rows))


def _fetch(
    io: CommandIO,
    client: Client,
    job_id: str,
    to: str,
    attempt: int | None,
    rank: int,
    names: Sequence[str],
) -> None:
    try:
        found = client.get_outputs(job_id, to, attempt=attempt, rank=rank, names=names)
    except OSError as error:
        raise ValidationError(
            f"{error.filename or to} cannot be written: {error.strerror}; what arrived stays, so the "
            "same command goes on",
            field="get",
        ) from error
    if names and not found.files:
        raise ValidationError(f"no output is named {' or '.join(names)}; see --list", field="names")
    note_missing(client, job_id, found.attempt, rank)
    for path in found.refused:
        note(f"{path} is not written: it is a link that may lead out of {to}")
    io.show(found, f"{count_of(found.files, 'file')} in {to}, {short_bytes(found.bytes)} came")


def note_missing(client: Client, job_id: str, attempt: int, rank: int) -> None:
    """Note what an attempt left that was not kept, because the kept outputs are not all."""
    for one in client.outputs(job_id, attempt=attempt, rank=rank):
        for line in list_missing(one):
            note(line)


def list_missing(one: OutputsRecord) -> list[str]:
    """Return a line for each name of a rank's outputs that is not kept, and for the reason."""
    lines = [f"the outputs are {one.state.value}: {one.reason}"] if one.reason else []
    lines += [f"{left.path} was not kept: {left.why}" for left in one.left_out[:_SHOWN]]
    more = max(0, len(one.left_out) - _SHOWN) + one.left_more
    return [*lines, *([f"{more} more were not kept; see --json"] if more else [])]


def _list_files(io: CommandIO, client: Client, job_id: str, attempt: int | None, rank: int) -> None:
    if attempt is None:
        rows = client.outputs(job_id, rank=rank)
        attempt = max([r.attempt for r in rows if r.digest] or [r.attempt for r in rows], default=1)
    rows_of = client.output_files(job_id, attempt, rank)
    io.show(rows_of, files_table(rows_of))


def files_table(rows: Sequence[OutputFile]) -> str:
    """Draw the table of `outputs --list`."""
    lines = []
    for one in rows:
        mode = {"folder": "d", "link": "l"}.get(one.kind, "-") + f"{one.bits:03o}"
        name = f"{one.path} -> {one.target}" if one.target else one.path
        digest = one.sha256[:12] or (f"{len(one.pieces)} pieces" if one.pieces else "")
        lines.append((mode, short_bytes(one.size) if one.kind == "file" else "", digest, name))
    return table(("MODE", "SIZE", "SHA256", "NAME"), lines)


def outputs_table(rows: Sequence[OutputsRecord]) -> str:
    """Draw the table of `outputs`, and below it what was left out."""
    if not rows:
        return "no attempt has begun yet, so there are no outputs"
    lines = [
        (
            str(o.attempt),
            str(o.rank),
            "expired" if o.expired_at is not None else o.state.value,
            str(o.files),
            short_bytes(o.bytes),
            o.host,
            age(o.updated_at) if o.updated_at is not None else "-",
        )
        for o in rows
    ]
    text = [table(("TRY", "RANK", "STATE", "FILES", "SIZE", "HOST", "AGE"), lines)]
    for o in rows:
        text += [f"attempt {o.attempt}, rank {o.rank}: {line}" for line in list_missing(o)]
    return "\n".join(text)
