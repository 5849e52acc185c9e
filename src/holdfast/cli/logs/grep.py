"""`grep`: the lines of logs that match a pattern, found by the server."""

from __future__ import annotations

import sys
import time
from datetime import UTC
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.endings import EXIT_FAILED
from holdfast.cli.find.jobs import act_on
from holdfast.cli.options import COUNT, POSITIVE, read_since
from holdfast.cli.output import note, print_text, style
from holdfast.core.words import count_of, short_bytes
from holdfast.errors import ValidationError
from holdfast.wire.logs.search import LogFound, LogSearchEnd

if TYPE_CHECKING:
    from collections.abc import Sequence

    from holdfast.client import Client

_RED, _CYAN = 31, 36
MAX_JOBS = 200


@click.command()
@click.argument("pattern")
@click.argument("job_ids", metavar="[JOB]...", nargs=-1)
@click.option("--project", metavar="NAME", help="Only the jobs of this project.")
@click.option(
    "--since", metavar="TIME", help="Only what came then or later: 10m ago, or an ISO time."
)
@click.option("--rank", type=COUNT, help="Only this rank of gangs.")
@click.option("--attempt", type=POSITIVE, help="Only this attempt of each job. [default: all]")
@click.option("--stream", type=click.Choice(["stdout", "stderr", "both"]), default="both")
@click.option("--ignore-case", "-i", is_flag=True, help="Capital letters match small ones.")
@click.option("--fixed-strings", "-F", "fixed", is_flag=True, help="PATTERN is a plain text.")
@click.option(
    "--around", "-C", type=click.IntRange(0, 100), default=0, metavar="N",
    help="Show N lines before and after each match.",
)  # fmt: skip
@click.option("--timestamps", "-t", is_flag=True, help="Show when the controller got each line.")
@click.option(
    "--max", "-m", "max_matches", type=click.IntRange(1, 100_000), default=1000, metavar="N",
    show_default=True, help="End after N matches.",
)  # fmt: skip
@talks
def grep(
    io: CommandIO,
    pattern: str,
    job_ids: tuple[str, ...],
    since: str | None,
    timestamps: bool,
    around: int,
    **asked: Any,
) -> None:
    """Find lines in the logs of jobs: of all ranks, attempts and calls, also after the hosts are
    gone.

    Without JOB, the logs of all jobs are searched, the newest job first. Each line comes as
    `JOB:ATTEMPT:RANK:STREAM:text`, and what a call printed with the call, SET.INDEX, before the
    text; lines beside a match (-C) have dashes in place of the colons.
    PATTERN is written as RE2 reads it, which is as most programs do, without looking ahead or back.

    A text of four characters or more within PATTERN lets the server read only the parts of the logs
    that may hold it.

    Exits with 0 where a line matched, and with 1 where none did.

    \b
    Examples:
      holdfast grep "NCCL timeout" @last
      holdfast grep -i "out of memory" --project vision --since 2d
      holdfast grep -C 3 "loss=(nan|inf)" train-a train-b --rank 0
    """
    if job_ids and asked["project"] is not None:
        raise click.UsageError("--project goes without JOB")
    asked["since"] = None if since is None else read_since(since, time.time())
    printer = _Printer(timestamps)
    with io.client() as client:
        which = _find_work(client, job_ids)
        for found in client.search_logs(pattern, context=around, **which, **asked):
            if io.as_json:
                io.show_json_line(found)
            elif isinstance(found, LogFound):
                printer.show(found)
            if isinstance(found, LogSearchEnd):
                if not io.as_json:
                    _tell_end(found)
                sys.exit(0 if found.matches else EXIT_FAILED)


def _find_work(client: Client, words: Sequence[str]) -> dict[str, Any]:
    """Return the jobs that words name, or the one array."""
    jobs: list[str] = []
    arrays: list[str] = []
    for word in words:
        act_on(client, word, lambda job_id: jobs.append(client.job(job_id).id),
               lambda array: arrays.append(array.id))  # fmt: skip
    if arrays and (jobs or len(arrays) > 1):
        raise ValidationError("an array is searched by itself: name no other JOB beside it")
    if len(jobs) > MAX_JOBS:
        raise ValidationError(f"at most {MAX_JOBS} jobs can be named; name --project instead")
    return {"job_ids": jobs, "array": arrays[0] if arrays else None}


class _Printer:
    """Prints lines. stamps: with the times at which the controller got them."""

    def __init__(self, stamps: bool) -> None:
        self._stamps = stamps
        self._before: tuple[str, int, int, str] | None = None
        self._end = 0

    def show(self, line: LogFound) -> None:
        """Print one line; a line of dashes before it where its neighbour was not shown."""
        place = (line.job, line.attempt, line.rank, line.stream)
        adjacent = place == self._before and line.offset <= self._end + 2
        if self._before is not None and not adjacent and (not line.match or self._beside):
            print_text("--")
        self._beside = not line.match
        self._before = place
        self._end = line.offset + len(line.text.encode()) + line.cut
        mark = ":" if line.match else "-"
        head = mark.join(map(str, place)) + mark
        if self._stamps and line.at is not None:
            at = line.at.astimezone(UTC)
            head += f"{at:%Y-%m-%dT%H:%M:%S}.{at.microsecond // 1000:03d}Z{mark}"
        if line.call:
            head += f"{line.call}{mark}"
        text = line.text
        if line.match and line.end > line.start:
            found = style(text[line.start : line.end], _RED)
            text = text[: line.start] + found + text[line.end :]
        cut = (
            f" … (at least {count_of(line.cut, 'byte')} of this line are not shown)"
            if line.cut
            else ""
        )
        print_text(f"{style(head, _CYAN)}{text}{cut}")

    _beside = False


def _tell_end(end: LogSearchEnd) -> None:
    """Say what was searched, and what was not."""
    searched = f"{count_of(end.streams, 'stream')} of {count_of(end.jobs, 'job')}"
    note(
        f"{count_of(end.matches, 'match', 'matches')} in {searched}; {short_bytes(end.kept_bytes)} are kept, "
        f"of which {short_bytes(end.read_bytes)} were read"
    )
    if end.stopped == "max":
        note("there may be more: the search ended at --max")
    if end.stopped == "time":
        note("there may be more: the search ran out of time; name jobs, a project or --since")
    if end.missing_bytes:
        note(
            f"{short_bytes(end.missing_bytes)} were not searched, because they are not kept (log_keep_mb)"
        )
