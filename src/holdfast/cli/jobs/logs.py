"""`logs`: a job's output; one rank's byte for byte, several ranks' line by line."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.jobs.find import find_job
from holdfast.cli.jobs.ranks_output import RankPrefixer
from holdfast.cli.options import COUNT, JOB, POSITIVE
from holdfast.cli.output import Face, count_of, note, talks

if TYPE_CHECKING:
    from holdfast.cli.jobs.narrator import Narrator
    from holdfast.client import Client
    from holdfast.core.records import JobRecord

# Jobs run on while their controller is away for long, so only Ctrl-C gives up the following.
FOLLOW_RETRY_SECONDS = 24 * 3600.0


def copy_output(
    client: Client, job: JobRecord, narrator: Narrator | None, **which: Any
) -> JobRecord:
    """Write the job's output to stdout and stderr until it has ended, and return the ended job."""
    from holdfast.wire.api import LogLine

    prefixer = RankPrefixer(job.tasks) if job.tasks > 1 and which.get("rank") is None else None
    dropped: dict[str, int] = {}
    for item in client.follow(job.id, retry_seconds=FOLLOW_RETRY_SECONDS, **which):
        if not isinstance(item, LogLine):
            job = item
            if narrator is not None:
                narrator.take(item)
            continue
        if narrator is not None:
            narrator.started()
        if item.gap:
            if item.stream not in dropped:  # later gaps are summed up at the end
                note(
                    f"{item.stream} is faster than its log is kept: bytes were dropped here "
                    "(log_keep_mb)"
                )
            dropped[item.stream] = dropped.get(item.stream, 0) + item.gap
        data = item.data
        if prefixer is not None:
            data = prefixer.feed(item.attempt, item.rank, item.stream, data)
        _write(item.stream, data)
    for stream, data in prefixer.close() if prefixer is not None else ():
        _write(stream, data)
    for stream, size in dropped.items():
        note(
            f"{count_of(size, 'byte')} of {stream} were dropped in all, and are gone unless they "
            f"came late: `holdfast logs {job.id}` prints all that is kept. A job that writes a file "
            "loses none"
        )
    return job


@click.command()
@JOB
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has ended.")
@click.option("--attempt", type=POSITIVE, help="The attempt. [default: the last]")
@click.option("--rank", type=COUNT, help="Only this rank of a gang.")
@click.option("--stream", type=click.Choice(["stdout", "stderr", "both"]), default="both")
@click.option("--tail", type=COUNT, metavar="BYTES", help="Only the end of each stream.")
@talks
def logs(face: Face, job_id: str, follow: bool, **which: Any) -> None:
    """Print a job's output: its stdout to stdout, its stderr to stderr, byte for byte.

    A gang's output comes line by line, after the rank's number; --rank shows one rank's, byte for
    byte.

    \b
    Examples:
      holdfast logs -f 06ch2v8wq1m4kz7d9x3t
      holdfast logs 06ch2v8wq1m4kz7d9x3t --attempt 1 --stream stderr --tail 4000
      holdfast logs -f 06ch2v8wq1m4kz7d9x3t --rank 3
    """
    with face.client() as client:
        job_id = find_job(client, job_id)
        if follow:
            if face.as_json:
                for item in client.follow(job_id, retry_seconds=FOLLOW_RETRY_SECONDS, **which):
                    face.show_json_line(item)
                return
            copy_output(client, client.job(job_id), None, **which)
            return
        job = client.job(job_id) if which["rank"] is None else None
        read = _read(client, job_id, which, _ranks_of(client, job, which))
        if face.as_json:
            face.show_json(
                [{"stream": stream, "rank": rank, "data": data} for rank, stream, data in read]
            )
            return
        prefixer = RankPrefixer(job.tasks) if job is not None and job.tasks > 1 else None
        for rank, stream, data in read:
            _write(stream, data if prefixer is None else prefixer.feed(0, rank, stream, data))
        for stream, data in prefixer.close() if prefixer is not None else ():
            _write(stream, data)
        if which["tail"] is None:
            _tell_dropped(client, client.job(job_id), which)


def _tell_dropped(client: Client, job: JobRecord, which: dict[str, Any]) -> None:
    """Say how many bytes of what was printed are missing in its middle or at its end."""
    for found in client.log_streams(job.id, which["attempt"] or max(1, job.attempts)):
        asked = which["stream"] in ("both", found.stream) and which["rank"] in (None, found.rank)
        if asked and found.size > found.kept:
            whose = f"{found.stream} of rank {found.rank}" if job.tasks > 1 else found.stream
            note(
                f"{count_of(found.size - found.kept, 'byte')} of {whose} were dropped: its log is "
                f"kept up to log_keep_mb, its head and its tail, here {found.kept} of {found.size}"
            )


def _write(stream: str, data: bytes) -> None:
    sink = (sys.stderr if stream == "stderr" else sys.stdout).buffer
    sink.write(data)
    sink.flush()


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
