"""`cp`: files from a task to this machine, or from this machine to a task."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Annotated, NamedTuple

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.data.outputs import note_missing
from holdfast.cli.find.jobs import find_job
from holdfast.cli.live.live_line import LiveLine
from holdfast.cli.options import Count
from holdfast.cli.output import note
from holdfast.client.data.session_pipe import CopySessions
from holdfast.core.words import count_of, short_bytes, split_span
from holdfast.errors import Conflict, NotFound, ValidationError

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.client.data.copy import Copier, CopyProgress

_SHOWN = 20


@click.command()
@click.argument("words", nargs=-1, required=True, metavar="SOURCE... TARGET")
@talks
def cp(
    io: CommandIO,
    words: tuple[str, ...],
    rank: Count | None,
    attempt: Annotated[int, click.IntRange(1)] | None,
) -> int:
    """Copy files and folders from a running task, or to it.

    The side of the task is written JOB:PATH. A path without a / in front is below the folder of its
    program; `*` and `?` choose several names, `**` also below folders. The task's own user, container and
    mounts decide what can be opened. What arrives here is written below TARGET alone.

    A copy that breaks off goes on by itself, and so does the same command after it was killed. Each
    file is compared by its SHA-256 before it gets its name. Of a job that is over, JOB:PATH stands
    for its kept outputs. The exit code is 1 where a name was left out.

    \b
    Examples:
      holdfast cp @last:out/model.pt .
      holdfast cp "train-7:out/*.png" plots/
      holdfast cp --rank 3 @last:/tmp/trace.json trace-3.json
      holdfast cp data.csv config/ @last:inputs/

    rank: The task of a gang. [default: 0]
    attempt: Kept outputs of this attempt.
    """
    *sources, target = words
    if not sources:
        raise click.UsageError("give what to copy and where to, as in `holdfast cp @last:out .`")
    there = [_split(word) for word in sources]
    to_job, to_path = _split(target)
    jobs = {job for job, _ in there}
    fetches = len(jobs) == 1 and jobs != {""} and not to_job
    if not fetches and not (jobs == {""} and to_job):
        raise click.UsageError(
            "one side is of one job, as JOB:PATH, and the other is of this machine"
        )
    job_word = jobs.pop() if fetches else to_job
    asked = _Asked(
        [path for _, path in there], to_path if not fetches else target, rank or 0, attempt
    )
    with io.client() as client:
        return _copy(io, client, find_job(client, job_word), asked, words, fetches=fetches)


class _Asked(NamedTuple):
    """The files to copy, and the place to copy them to."""

    paths: list[str]
    to: str
    rank: int
    attempt: int | None


def _copy(
    io: CommandIO,
    client: Client,
    job_id: str,
    asked: _Asked,
    words: Sequence[str],
    *,
    fetches: bool,
) -> int:
    if fetches and asked.attempt is not None:
        return _fetch_kept(io, client, job_id, asked)
    line, began = LiveLine(wanted=not io.as_json), time.monotonic()
    copier = _make_copier(client, job_id, asked.rank, words, lambda p: line.show(_say(p, began)))
    try:
        done = (copier.fetch if fetches else copier.send)(asked.paths, asked.to)
    except (Conflict, NotFound) as error:
        job = client.job(job_id)
        if error.code == "no_file" or not fetches or not job.spec.outputs or not job.state.terminal:
            raise
        line.clear()
        note("the job is over, so its kept outputs are copied")
        return _fetch_kept(io, client, job_id, asked)
    except OSError as error:
        path = copier.progress.path
        what = f"{path} of the task cannot be written here, to {asked.to}"
        if not fetches:
            what = f"{error.filename or path} cannot be read here"
        raise ValidationError(
            f"{what}: {error.strerror}; what has arrived stays, so the same command goes on",
            field="target",
        ) from error
    finally:
        line.clear()
        copier.close()
    for path, why in done.left[:_SHOWN]:
        note(f"{path} is not copied: {why}")
    if len(done.left) > _SHOWN:
        note(f"{len(done.left) - _SHOWN} more are not copied; see --json")
    io.show(
        done,
        f"{count_of(done.files, 'file')}, {short_bytes(done.done)} in {split_span(time.monotonic() - began)}",
    )
    return 1 if done.left else 0


def _split(word: str) -> tuple[str, str]:
    """Return the job and the path of a word JOB:PATH. A path of this machine, which has a / in
    front of any colon, has no job."""
    job, colon, path = word.partition(":")
    return (job, path) if colon and job and "/" not in job else ("", word)


def _make_copier(
    client: Client,
    job_id: str,
    rank: int,
    words: Sequence[str],
    tell: Callable[[CopyProgress], None],
) -> Copier:
    from holdfast.client.data.copy import Copier

    return Copier(CopySessions(client, job_id, rank, ["cp", *words]).open, tell=tell)


def _say(progress: CopyProgress, began: float) -> str:
    seconds = max(0.001, time.monotonic() - began)
    rate = progress.done / seconds
    left = split_span((progress.whole - progress.done) / rate) if rate else "?"
    part = f"{100 * progress.done / progress.whole:.0f} %" if progress.whole else ""
    name = os.path.basename(progress.path)
    return (
        f"{name} {part} of {short_bytes(progress.whole)}, {short_bytes(int(rate))}/s, {left} left"
    )


def _fetch_kept(io: CommandIO, client: Client, job_id: str, asked: _Asked) -> int:
    """Copy kept outputs of a job that is over."""
    names = [os.path.normpath(path) for path in asked.paths if path]
    found = client.get_outputs(
        job_id, asked.to, attempt=asked.attempt, rank=asked.rank, names=names, strip=True
    )
    if not found.files:
        raise NotFound(f"no kept output of job {job_id} is named {' or '.join(names)}")
    note_missing(client, job_id, found.attempt, asked.rank)
    for path in found.refused:
        note(f"{path} is not copied: it is a link that may lead out of {asked.to}")
    io.show(found, f"{count_of(found.files, 'file')}, {short_bytes(found.bytes)} came")
    return 1 if found.refused else 0
