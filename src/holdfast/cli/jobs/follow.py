"""`run` and `logs`: a job's output as it comes, and its exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator, Sequence
from types import FrameType
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.endings import EXIT_FAILED, EXIT_INTERRUPTED
from holdfast.cli.jobs.ranks_output import RankPrefixer
from holdfast.cli.jobs.submit import submit_spec, takes_spec
from holdfast.cli.output import Face, note, talks
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.core.records import JobRecord

# A job that has not started by then gets a word on what it waits for.
WAIT_NOTICE_SECONDS = 1.5
# A controller may be away for long while its jobs run on; only Ctrl-C ends the following of one.
FOLLOW_RETRY_SECONDS = 24 * 3600.0


class Interrupts:
    """The first Ctrl-C (or TERM) cancels the job and waits for its end; the second leaves at once.

    The cancel is sent by a thread of its own, so the stream that is being read is never cut in two.
    """

    def __init__(self, face: Face) -> None:
        self._face = face
        self._job_id: str | None = None
        self.signal: int | None = None

    def __enter__(self) -> Interrupts:
        self._old = {
            number: signal.signal(number, self._take) for number in (signal.SIGINT, signal.SIGTERM)
        }
        return self

    def __exit__(self, *exception: object) -> None:
        for number, handler in self._old.items():
            signal.signal(number, handler)

    def arm(self, job_id: str) -> None:
        """The job is known. An interrupt that came while it was being submitted cancels it now."""
        self._job_id = job_id
        if self.signal is not None:
            self._cancel(job_id)

    def _take(self, number: int, frame: FrameType | None) -> None:
        if self.signal is not None:
            raise KeyboardInterrupt
        self.signal = number
        if self._job_id is not None:
            self._cancel(self._job_id)

    def _cancel(self, job_id: str) -> None:
        note(f"cancelling {job_id}; Ctrl-C again leaves at once")
        threading.Thread(target=self._send_cancel, args=(job_id,), daemon=True).start()

    def _send_cancel(self, job_id: str) -> None:
        try:
            with self._face.client(retry_seconds=60.0) as client:
                client.cancel(job_id, "Ctrl-C in `holdfast run`")
        except HoldfastError as error:
            note(f"the job could not be cancelled: {error}")


class Narrator:
    """Says on stderr what happens to the job between its lines of output."""

    def __init__(self, face: Face, job: JobRecord) -> None:
        self._face = face
        self._attempt = self._requeued = 0
        self._state = ""
        self._job_id = job.id
        self._timer = threading.Timer(WAIT_NOTICE_SECONDS, self._say_why)
        self._timer.daemon = True

    def __enter__(self) -> Narrator:
        self._timer.start()
        return self

    def __exit__(self, *exception: object) -> None:
        self._timer.cancel()

    def started(self) -> None:
        """Output came: it runs."""
        self._timer.cancel()

    def take(self, job: JobRecord) -> None:
        """The job's state, as often as it is told."""
        state = job.state.value
        if state not in ("waiting", "queued"):
            self._timer.cancel()
        if (state, job.attempts) == (self._state, self._attempt):
            return
        self._state, self._attempt = state, job.attempts
        if state in ("waiting", "queued") and job.attempts:
            if job.attempts != self._requeued:  # its back-off being over is no second one
                note(f"requeued after attempt {job.attempts}: {job.reason}")
            self._requeued = job.attempts
        elif state == "running" and job.attempts > 1:
            note(f"attempt {job.attempts} is running")
        elif state == "draining" and not _ended_by_itself(job):
            note(f"attempt {job.attempts} is being stopped: {job.drain_reason or job.reason}")

    def _say_why(self) -> None:
        with contextlib.suppress(HoldfastError), self._face.client() as client:
            reasons = client.why(self._job_id)
            if reasons.state in ("waiting", "queued"):
                first = reasons.lines[0].message if reasons.lines else reasons.summary
                note(f"{self._job_id} is {reasons.state}: {first}")


def _ended_by_itself(job: JobRecord) -> bool:
    """Whether the drain only writes down a failure of the job's own, which its end will tell
    anyway."""
    from holdfast.core.causes import CHARGED_TO, Budget

    return job.drain_cause is not None and CHARGED_TO[job.drain_cause] is Budget.RETRIES


def exit_code_of_job(job: JobRecord, interrupt: int | None) -> int:
    """The job's own code: 75–79 of a watchdog, 128 + n of a signal, 1 for a failure without one."""
    if job.state.value == "succeeded":
        return 0
    if job.state.value == "cancelled" and interrupt is not None:
        return EXIT_INTERRUPTED if interrupt == signal.SIGINT else 128 + interrupt
    return job.exit_code or EXIT_FAILED


def copy_output(
    client: Client, job: JobRecord, narrator: Narrator | None, **which: Any
) -> JobRecord:
    """Write the job's output to stdout and stderr until it has ended; the ended job.

    As bytes, exactly; of several ranks as lines, each with its rank before it.
    """
    from holdfast.wire.api import LogLine

    sinks = {"stdout": sys.stdout.buffer, "stderr": sys.stderr.buffer}
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
            if (
                item.stream not in dropped
            ):  # a job that outruns its log does so again and again: the rest is summed up
                note(
                    f"{item.stream} is faster than its log is kept: bytes were dropped here "
                    "(log_keep_mb)"
                )
            dropped[item.stream] = dropped.get(item.stream, 0) + item.gap
        sink = sinks.get(item.stream, sinks["stdout"])
        data = (
            item.data
            if prefixer is None
            else prefixer.feed(item.attempt, item.rank, item.stream, item.data)
        )
        sink.write(data)
        sink.flush()
    for stream, data in prefixer.close() if prefixer is not None else ():
        sinks[stream].write(data)
        sinks[stream].flush()
    for stream, size in dropped.items():
        note(
            f"{size} bytes of {stream} were dropped in all; what a job must not lose belongs in a "
            "file"
        )
    return job


@click.command(context_settings={"allow_interspersed_args": False})
@click.option("--detach", "-d", is_flag=True, help="Submit only, and print the id.")
@click.option(
    "--rank",
    type=click.IntRange(0),
    help="With --tasks: show the output of this rank only, byte for byte.",
)
@takes_spec
@talks
def run(face: Face, detach: bool, rank: int | None, **options: Any) -> None:
    """Run a command as a job, show its output, and exit with its code.

    Output goes to stdout and stderr byte for byte; of several ranks line by line, each with its
    rank before it. Notices go to stderr. Ctrl-C cancels the job and waits for
    its end (exit 130); a second one leaves at once. A lost terminal (HUP) leaves the job running.

    \b
    Examples:
      holdfast run -- python train.py
      holdfast run --gpus 2 --stall-timeout 5m -- torchrun train.py
      holdfast run --tasks 8 --gpus 1 -- python train_ddp.py
      holdfast run --shell "echo $HOME | tr a-z A-Z"
    """
    with face.client() as client:
        follow_job(face, client, lambda: submit_spec(client, options, rank), rank, detach=detach)


def follow_job(
    face: Face,
    client: Client,
    submit: Callable[[], JobRecord],
    rank: int | None,
    *,
    detach: bool = False,
) -> None:
    """Submit a job, show its output (of one rank, byte for byte), and exit with its code. `detach`:
    print its id instead."""
    with Interrupts(face) as interrupts:
        job = submit()
        if detach:
            face.show(job, job.id)
            return
        interrupts.arm(job.id)
        try:
            with Narrator(face, job) as narrator:
                job = copy_output(client, job, narrator, rank=rank)
        except KeyboardInterrupt:
            note(
                f"left. The job may still be running: holdfast show {job.id}, holdfast cancel "
                f"--hard {job.id}"
            )
            _leave(EXIT_INTERRUPTED)
        except BrokenPipeError:
            note(f"nobody reads the output any more; the job goes on: holdfast logs -f {job.id}")
            raise
    if face.as_json:
        sys.stderr.write(_job_json(job) + "\n")
    elif job.state.value != "succeeded":
        note(f"{job.state.value}: {job.reason}. See `holdfast show {job.id}`")
    sys.exit(exit_code_of_job(job, interrupts.signal))


def _job_json(job: JobRecord) -> str:
    import msgspec

    return msgspec.json.encode(job).decode()


def _leave(code: int) -> None:
    """Exit without waiting for the thread that sends the cancel."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("--follow", "-f", is_flag=True, help="Go on until the job has ended.")
@click.option("--attempt", type=click.IntRange(1), help="Of this attempt; the last otherwise.")
@click.option("--rank", type=click.IntRange(0), help="Of this task of a gang.")
@click.option(
    "--stream", type=click.Choice(["stdout", "stderr", "both"]), default="both", show_default=True
)
@click.option(
    "--tail", type=click.IntRange(0), metavar="BYTES", help="Only the last bytes of each stream."
)
@talks
def logs(face: Face, job_id: str, follow: bool, **which: Any) -> None:
    """Print a job's output: its stdout to stdout, its stderr to stderr, byte for byte.

    Of a gang's ranks line by line, each with its rank before it; with --rank one of them, byte for
    byte.

    \b
    Examples:
      holdfast logs -f 06ch2v8wq1m4kz7d9x3t
      holdfast logs 06ch2v8wq1m4kz7d9x3t --attempt 1 --stream stderr --tail 4000
      holdfast logs -f 06ch2v8wq1m4kz7d9x3t --rank 3
    """
    with face.client() as client:
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


def _write(stream: str, data: bytes) -> None:
    sink = (sys.stdout if stream == "stdout" else sys.stderr).buffer
    sink.write(data)
    sink.flush()


def _read(
    client: Client, job_id: str, which: dict[str, Any], ranks: Sequence[int]
) -> Iterator[tuple[int, str, bytes]]:
    """Rank, stream and bytes, rank by rank."""
    streams = ("stdout", "stderr") if which["stream"] == "both" else (which["stream"],)
    for rank in ranks:
        for stream in streams:
            yield (
                rank,
                stream,
                b"".join(client.logs(job_id, **{**which, "rank": rank, "stream": stream})),
            )


def _ranks_of(client: Client, job: JobRecord | None, which: dict[str, Any]) -> Sequence[int]:
    """The rank that was asked for, or every one that has written."""
    if job is None:
        return [which["rank"]]
    if job.tasks == 1:
        return [0]
    return sorted(
        {s.rank for s in client.log_streams(job.id, which["attempt"] or max(1, job.attempts))}
    )
