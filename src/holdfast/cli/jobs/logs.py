"""`logs`: a job's output; one rank's byte for byte, several ranks' line by line."""

from __future__ import annotations

import signal
import sys
import time
from collections.abc import Iterator, Sequence
from datetime import UTC, datetime
from typing import TYPE_CHECKING, Any, NamedTuple

import click
import msgspec

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.endings import EXIT_FAILED, EXIT_INTERRUPTED
from holdfast.cli.find.jobs import act_on, one_job
from holdfast.cli.jobs.ranks_output import Excerpt, RankPrefixer, find_last_lines
from holdfast.cli.live.progress import StepLine
from holdfast.cli.options import COUNT, JOB, POSITIVE, read_since
from holdfast.cli.output import note, say_state, table, write_stream
from holdfast.core.logs.likeness import say_group
from holdfast.core.records import JobRecord
from holdfast.core.words import count_of, short_bytes
from holdfast.wire.logs.lines import LogLine

if TYPE_CHECKING:
    from holdfast.cli.jobs.narrator import Narrator
    from holdfast.client import Client
    from holdfast.core.arrays.records import ArrayRecord
    from holdfast.core.logs.likeness import ErrorGroup
    from holdfast.core.records import LogStreamRecord
# Jobs run on while their controller is away for long, so only Ctrl-C gives up the following.
_LINE_BYTES = 4096  # as many are read at first for each line of `-n`
FOLLOW_RETRY_SECONDS = 24 * 3600.0


class Gaps:
    """The bytes that were not printed: said where the first are missing, and counted at the end."""

    def __init__(self, job_id: str, *, full: bool) -> None:
        self._job_id, self._full = job_id, full
        self._missing: dict[str, int] = {}
        self._reasons: dict[str, str] = {}

    def note_gap(self, line: LogLine) -> None:
        """Note how many bytes are missing before a line."""
        if line.stream not in self._missing and not self._full:
            note(f"{line.stream} is faster than its log is kept (log_keep_mb): a gap is here")
        self._missing[line.stream] = self._missing.get(line.stream, 0) + line.gap
        self._reasons[line.stream] = line.reason

    def print_gap(self) -> None:
        """Say how many bytes are missing, and which command fetches them."""
        for stream, lost in self._missing.items():
            if self._full:
                missing = f"{count_of(lost, 'byte')} of {stream} are missing"
                note(f"{missing}: {self._reasons[stream] or 'the host did not say why'}")
            else:
                tell_missing(self._job_id, lost, stream)

    @property
    def exit_code(self) -> int:
        """1 where all bytes were asked for and some are missing, else 0."""
        return EXIT_FAILED if self._full and self._missing else 0


def tell_missing(job_id: str, size: int, whose: str) -> None:
    """Name the command that fetches what the controller did not keep."""
    note(
        f"{count_of(size, 'byte')} of {whose} are not in the controller's copy (log_keep_mb): "
        f"`holdfast logs --full {job_id}` fetches them from the host, for an hour after the end"
    )


def tell_end(job: JobRecord) -> None:
    """Say how a job ended, unless it succeeded and there is nothing that its owner should know."""
    if job.state.value != "succeeded" or ";" in job.reason:
        note(f"{say_state(job.state.value, job.reason)}. See `holdfast show {job.id}`")


def exit_code_of_job(job: JobRecord, interrupt: int | None = None) -> int:
    """Return the job's own code: 75 to 79 for a watchdog, 128 + n for a signal, 1 if it has none."""
    if job.state.value == "succeeded":
        return 0
    if job.state.value == "cancelled" and interrupt is not None:
        return EXIT_INTERRUPTED if interrupt == signal.SIGINT else 128 + interrupt
    return job.exit_code or EXIT_FAILED


def copy_output(
    client: Client,
    job: JobRecord,
    narrator: Narrator | None,
    excerpt: Excerpt | None = None,
    *,
    progress: StepLine,
    **which: Any,
) -> tuple[JobRecord, Gaps]:
    """Write the job's output to stdout and stderr until it has ended, with its progress below, and
    return the ended job, and what could not be written."""
    prefixer = RankPrefixer(job.tasks) if job.tasks > 1 and which.get("rank") is None else None
    gaps = Gaps(job.id, full=which.get("full", False))
    for item in client.follow(job.id, retry_seconds=FOLLOW_RETRY_SECONDS, **which):
        if not isinstance(item, LogLine):
            job = item
            if narrator is not None:
                with progress.output():
                    narrator.print_change(item)
            continue
        if narrator is not None:
            narrator.started()
        if item.gap:
            with progress.output():
                gaps.note_gap(item)
        data = item.data if excerpt is None else excerpt.choose_bytes(item)
        if prefixer is not None:
            data = prefixer.feed(item.attempt, item.rank, item.stream, data)
        with progress.output(data):
            write_stream(item.stream, data)
    with progress.output():
        for stream, data in prefixer.close() if prefixer is not None else ():
            write_stream(stream, data)
        gaps.print_gap()
    return job, gaps


@click.command()
@JOB
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has ended.")
@click.option("--attempt", type=POSITIVE, help="The attempt. [default: the last]")
@click.option("--rank", type=COUNT, help="Only this rank of a gang.")
@click.option("--stream", type=click.Choice(["stdout", "stderr", "both"]), default="both")
@click.option(
    "--tail", "--lines", "-n", "lines", type=COUNT, help="Only the last lines of each stream."
)
@click.option(
    "--tail-bytes", "tail", type=COUNT, metavar="BYTES", help="Only the last bytes of each stream."
)
@click.option(
    "--timestamps", "-t", is_flag=True, help="Before each line, when the controller got it, in UTC."
)
@click.option(
    "--since", metavar="TIME", help="Only what came then or later: 10m ago, or an ISO time."
)
@click.option("--full", is_flag=True, help="Fetch what the controller did not keep from the host.")
@click.option(
    "--errors", is_flag=True, help="The error lines of all ranks, alike ones as one line."
)
@click.option("--sizes", is_flag=True, help="How much each stream has, and how much is kept.")
@talks
def logs(
    io: CommandIO,
    job_id: str,
    follow: bool,
    full: bool,
    lines: int | None,
    timestamps: bool,
    since: str | None,
    errors: bool,
    sizes: bool,
    **which: Any,
) -> None:
    """Print a job's output: its stdout to stdout, its stderr to stderr, byte for byte.

    A gang's output comes line by line, by time, after the rank's number; --rank shows one rank's, byte for
    byte. An array's comes member by member, each line after the member's index.

    -t and --since use the time at which the controller got a piece of output, mostly less than a second
    after the program wrote it, and later where the controller was away.

    The controller keeps log_keep_mb of each stream, its head and its tail. --full fetches what is
    between them from the host that ran the job, which keeps it for an hour after the end; it exits
    with 1 if bytes are missing there, too.

    -f goes on until the job has ended, says on stderr how, and exits with the job's code, as `run`
    does; with --attempt it ends with that attempt, and exits with 0.

    --errors looks at the last 32 KiB of each rank's streams for lines that tell of an error, and
    shows lines that differ in numbers alone as one, with how many ranks wrote it and which was
    first.

    \b
    Examples:
      holdfast logs -f 06ch2v8wq1m4kz7d9x3t
      holdfast logs 06ch2v8wq1m4kz7d9x3t --attempt 1 --stream stderr --tail 40
      holdfast logs -f 06ch2v8wq1m4kz7d9x3t --rank 3
      holdfast logs -n 20 -t @last
      holdfast logs --since 10m 06ch2v8wq1m4kz7d9x3t
      holdfast logs --errors 06ch2v8wq1m4kz7d9x3t
    """
    if lines is not None and which["tail"] is not None:
        raise click.UsageError("give either --tail or --tail-bytes, not both")
    cut = LinesCut(lines, None if since is None else _read_time(since), timestamps)
    with io.client() as client:
        if errors or sizes:
            with one_job(client, job_id) as job_id:
                _show_sums(io, client, job_id, which["attempt"], errors=errors)
            return
        if follow or full:
            with one_job(client, job_id) as job_id:
                asked = {**which, "full": full, "wait": follow}
                sys.exit(_follow(io, client, client.job(job_id), asked, cut))
        act_on(
            client,
            job_id,
            lambda found: _show_job(io, client, found, which, cut),
            lambda array: _show_array(io, client, array, which, cut),
        )


def _show_sums(
    io: CommandIO, client: Client, job_id: str, attempt: int | None, *, errors: bool
) -> None:
    """Show the error lines of all ranks, or how much each stream has written."""
    if errors:
        groups = client.errors(job_id, attempt)
        io.show(groups, errors_text(groups) or "no line tells of an error")
        return
    streams = client.log_streams(job_id, attempt)
    io.show(streams, sizes_text(streams) if streams else "it has written nothing")


def errors_text(groups: Sequence[ErrorGroup], first: int | None = None) -> str:
    """Return groups of error lines, a line for each. first: how many are written out."""
    lines = [say_group(group) for group in groups[:first]]
    if first is not None and len(groups) > first:
        lines.append(f"and {len(groups) - first} more: holdfast logs --errors")
    return "\n".join(lines)


def sizes_text(streams: Sequence[LogStreamRecord]) -> str:
    """Return a table of streams with their sizes, and the sum of what is kept."""
    rows = [
        (
            str(s.attempt),
            str(s.rank),
            s.stream,
            short_bytes(s.size),
            short_bytes(s.kept),
            "no" if s.ended else "yes",
        )
        for s in streams
    ]
    kept = f"{short_bytes(sum(s.kept for s in streams))} are kept, until history_days after the job's end"
    return table(("ATTEMPT", "RANK", "STREAM", "WRITTEN", "KEPT", "OPEN"), rows) + f"\n{kept}"


class LinesCut(NamedTuple):
    """Which part of an output is asked for, and whether with times."""

    lines: int | None
    since: datetime | None
    stamps: bool


def _show_job(
    io: CommandIO, client: Client, job_id: str, which: dict[str, Any], cut: LinesCut
) -> None:
    """Print what there is of a job's output."""
    job = (
        client.job(job_id) if which["rank"] is None or cut != LinesCut(None, None, False) else None
    )
    by_time = job is not None and job.tasks > 1 and which["rank"] is None and not io.as_json
    if job is not None and (by_time or cut != LinesCut(None, None, False)):
        sys.exit(_follow(io, client, job, {**which, "wait": False}, cut))
    read = _read(client, job_id, which, _ranks_of(client, job, which))
    if io.as_json:
        io.show_json(
            [{"stream": stream, "rank": rank, "data": data} for rank, stream, data in read]
        )
        return
    for _, stream, data in read:
        write_stream(stream, data)
    if which["tail"] is None:
        _tell_dropped(client, client.job(job_id), which)


def _read_time(text: str) -> datetime:
    return datetime.fromtimestamp(read_since(text, time.time()), UTC)


def _make_excerpt(client: Client, job: JobRecord, which: dict[str, Any], cut: LinesCut) -> Excerpt:
    """Find where the last lines of each stream begin."""
    starts: dict[tuple[int, int, str], int] = {}
    attempt = which["attempt"] or max(1, job.attempts)
    for found in client.log_streams(job.id, attempt) if cut.lines is not None else ():
        place: dict[str, Any] = {"attempt": attempt, "rank": found.rank, "stream": found.stream}
        size = _LINE_BYTES * (cut.lines or 1)
        while True:
            data = b"".join(client.logs(job.id, **place, tail=min(size, found.size)))
            count = find_last_lines(data, cut.lines or 0)
            if count < len(data) or size >= found.size:
                break
            size *= 4
        starts[attempt, found.rank, found.stream] = found.size - count
    return Excerpt(starts, cut.since, stamps=cut.stamps)


def _show_array(
    io: CommandIO, client: Client, array: ArrayRecord, which: dict[str, Any], cut: LinesCut
) -> None:
    """Print the output of each member of an array that has run, each line after its index."""
    members = sorted(
        client.jobs(array=array.id, page_size=500), key=lambda job: job.array_index or 0
    )
    prefixer = RankPrefixer((members[-1].array_index or 0) + 1 if members else 1)
    for job in members:
        if not job.attempts:
            continue
        index = job.array_index or 0
        excerpt = _make_excerpt(client, job, which, cut)
        for item in client.follow(job.id, **which, wait=False):
            if not isinstance(item, LogLine):
                continue
            if io.as_json:
                io.show_json_line(item)
                continue
            data = prefixer.feed(0, index, item.stream, excerpt.choose_bytes(item))
            write_stream(item.stream, data)
        for stream, data in prefixer.close():
            write_stream(stream, data)
        if not io.as_json and which["tail"] is None and cut.lines is None:
            _tell_dropped(client, job, which)


def _follow(
    io: CommandIO, client: Client, job: JobRecord, which: dict[str, Any], cut: LinesCut
) -> int:
    """Print output as it comes; return the exit code."""
    missing, excerpt = 0, _make_excerpt(client, job, which, cut)
    if io.as_json:
        for item in client.follow(job.id, retry_seconds=FOLLOW_RETRY_SECONDS, **which):
            if isinstance(item, JobRecord):
                job = item
            else:
                item = msgspec.structs.replace(item, data=excerpt.choose_bytes(item))
            io.show_json_line(item)
    else:
        with StepLine(io, job.id, wanted=which["wait"]) as progress:
            job, gaps = copy_output(client, job, None, excerpt, progress=progress, **which)
        missing = gaps.exit_code
    if not which["wait"] or which["attempt"] is not None or not job.state.terminal:
        return missing
    if not io.as_json:
        tell_end(job)
    return exit_code_of_job(job) or missing


def _tell_dropped(client: Client, job: JobRecord, which: dict[str, Any]) -> None:
    """Say how many bytes of what was printed are missing in its middle or at its end."""
    for found in client.log_streams(job.id, which["attempt"] or max(1, job.attempts)):
        asked = which["stream"] in ("both", found.stream) and which["rank"] in (None, found.rank)
        if asked and found.size > found.kept:
            whose = f"{found.stream} of rank {found.rank}" if job.tasks > 1 else found.stream
            tell_missing(job.id, found.size - found.kept, whose)


def _read(
    client: Client, job_id: str, which: dict[str, Any], ranks: Sequence[int]
) -> Iterator[tuple[int, str, bytes]]:
    """Yield rank, stream and bytes, rank by rank."""
    streams = ("stdout", "stderr") if which["stream"] == "both" else (which["stream"],)
    for rank in ranks:
        for stream in streams:
            found = client.logs(job_id, **{**which, "rank": rank, "stream": stream})
            yield rank, stream, b"".join(found)


def _ranks_of(client: Client, job: JobRecord | None, which: dict[str, Any]) -> Sequence[int]:
    """Return the rank that was asked for, or every rank that has written."""
    if job is None:
        return [which["rank"]]
    if job.tasks == 1:
        return [0]
    streams = client.log_streams(job.id, which["attempt"] or max(1, job.attempts))
    return sorted({stream.rank for stream in streams})
