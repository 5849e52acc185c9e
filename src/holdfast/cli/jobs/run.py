"""`run`: a job's output as it comes, notices of its changes, and its exit code."""

from __future__ import annotations

import contextlib
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from types import FrameType
from typing import TYPE_CHECKING, Any

import click
import msgspec

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.data.outputs import list_missing
from holdfast.cli.endings import EXIT_INTERRUPTED
from holdfast.cli.jobs.logs import copy_output, exit_code_of_job, tell_end
from holdfast.cli.jobs.narrator import Narrator
from holdfast.cli.jobs.submit import check_piped_input, submit_spec, takes_spec
from holdfast.cli.live.progress import StepLine
from holdfast.cli.options import Count
from holdfast.cli.output import note
from holdfast.cli.sessions.attach import come_to
from holdfast.core.words import count_of, short_bytes
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.core.records import JobRecord


_NAMES: dict[int | None, str] = {
    signal.SIGINT: "Ctrl-C",
    signal.SIGTERM: "a TERM signal",
    None: "an interrupt",
}
_LOOK_SECONDS = 0.25
_LOOKS = 8


class Interrupts:
    """The first Ctrl-C (or TERM) cancels the job and waits for its end; the second leaves at once.

    A thread of its own sends the cancel, so that the reading of the output goes on.
    """

    def __init__(self, io: CommandIO) -> None:
        self._io = io
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
        """Name the job; an interrupt during its submission cancels it now."""
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
        note(f"{_NAMES[self.signal]}: cancelling {job_id}; a second one leaves at once")
        threading.Thread(target=self._send_cancel, args=(job_id,), daemon=True).start()

    def _send_cancel(self, job_id: str) -> None:
        try:
            with self._io.client(retry_seconds=60.0) as client:
                client.cancel(job_id, f"{_NAMES[self.signal]} in `holdfast run`")
        except HoldfastError as error:
            note(f"the job could not be cancelled: {error}")


@click.command(context_settings={"allow_interspersed_args": False})
@talks
@takes_spec
def run(
    io: CommandIO, detach: bool, rank: Count | None, keys: bool, tty: bool, **options: Any
) -> None:
    """Run a command as a job, show its output, and exit with its code.

    The command may run as long as it needs: it has a time limit only where --time-limit, its queue or its
    project names one.

    Output goes to stdout and stderr byte for byte; with several ranks line by line, after the rank's
    number. Into a file or a pipe goes all of it: what the controller does not keep (log_keep_mb) is
    fetched from the host, and bytes that are missing there, too, are counted on stderr and make the
    exit code 1 at least. On a terminal such a gap is said instead. Notices go to stderr. Ctrl-C
    cancels the job and waits for its end (exit 130); a second one leaves at once. A lost terminal
    (HUP) leaves the job running.

    A job's standard input is empty, so input that is piped into this command is refused, unless
    --stdin gives it to the job. Each attempt, and each rank of a gang, reads it from its start.

    With -it the job has a terminal, which is this one. It is never run again by itself; Ctrl-P Ctrl-Q
    leaves it to go on, and `holdfast attach` comes back.

    \b
    Examples:
      holdfast run -- python train.py
      holdfast run --gpus 2 --stall-timeout 5m -- torchrun train.py
      holdfast run --tasks 8 --gpus 1 -- python train_ddp.py
      cat words | holdfast run --stdin - -- sort
      holdfast run --shell "echo $HOME | tr a-z A-Z"
      holdfast run -it --gpus 1 -- bash

    detach (--detach, -d): Only submit, and print the id.
    rank: With --tasks: only this rank's output.
    keys (-i, --keys): With -t: give it what is typed here.
    tty (-t, --tty): Give it a terminal, and come to it: -it.
    """
    options["terminal"] = keys or tty
    if options["terminal"]:
        with io.client() as client:
            sit_at(io, client, lambda: submit_spec(client, options), detach=detach)
        return
    check_piped_input(options["stdin"])
    with io.client() as client:
        follow_job(io, client, lambda: submit_spec(client, options, rank), rank, detach=detach)


def follow_job(
    io: CommandIO,
    client: Client,
    submit: Callable[[], JobRecord],
    rank: int | None,
    *,
    detach: bool = False,
) -> None:
    """Submit a job, show its output, and exit with its code; `detach`: only print its id."""
    with Interrupts(io) as interrupts:
        job = submit()
        if detach:
            io.show(job, job.id)
            return
        interrupts.arm(job.id)
        try:
            with Narrator(io, job) as narrator, StepLine(io, job.id) as progress:
                whole = not (sys.stdout.isatty() and sys.stderr.isatty())
                which: dict[str, Any] = {"rank": rank, "since": 1, "full": whole}
                job, gaps = copy_output(client, job, narrator, progress=progress, **which)
            if job.spec.outputs:
                wait_outputs(client, job)
        except KeyboardInterrupt:
            note(
                f"left. The job may still be running: holdfast show {job.id}, holdfast cancel "
                f"--hard {job.id}"
            )
            _leave(EXIT_INTERRUPTED)
        except BrokenPipeError:
            note(f"the output is not read any more; the job goes on: holdfast logs -f {job.id}")
            raise
    if io.as_json:
        sys.stderr.write(_job_json(job) + "\n")
    else:
        tell_end(job)
    sys.exit(exit_code_of_job(job, interrupts.signal) or gaps.exit_code)


def wait_outputs(client: Client, job: JobRecord) -> None:
    """Wait until the outputs of a job that ended are collected, and say where they are."""
    found = client.wait_outputs(job.id)
    for one in found:
        rank = f" of rank {one.rank}" if len(found) > 1 else ""
        note(f"outputs{rank} {one.state}: {count_of(one.files, 'file')}, {short_bytes(one.bytes)}")
        for line in list_missing(one):
            note(line + rank)
    if any(one.digest for one in found):
        note(f"fetch them: holdfast outputs {job.id} --get DIR")


def sit_at(io: CommandIO, client: Client, submit: Callable[[], JobRecord], *, detach: bool) -> None:
    """Submit a job with a terminal, come to it once it runs, and exit with the job's code."""
    with Interrupts(io) as interrupts:
        job = submit()
        if detach:
            io.show(job, job.id)
            return
        interrupts.arm(job.id)
        job = wait_to_run(client, job)
    if not job.state.terminal:
        come_to(client, job.id)
        job = client.job(job.id)
        if not job.state.terminal and not _is_ending(client, job):
            _leave(0)  # the person left, and the job goes on
        job = client.wait(job.id)
    tell_end(job)
    _leave(exit_code_of_job(job, interrupts.signal))


def wait_to_run(client: Client, job: JobRecord) -> JobRecord:
    """Wait until the job runs or is over, and show what it waits for."""
    shown = ""
    while job.state.value != "running" and not job.state.terminal:
        if job.reason and job.reason != shown:
            shown = job.reason
            note(f"{job.state.value}: {shown}")
        time.sleep(_LOOK_SECONDS)
        job = client.job(job.id)
    return job


def _is_ending(client: Client, job: JobRecord) -> bool:
    """Return whether a job whose terminal has closed comes to its end in a moment."""
    for _ in range(_LOOKS):
        if client.job(job.id).state.value != "running":
            return True
        time.sleep(_LOOK_SECONDS)
    return False


def _job_json(job: JobRecord) -> str:
    return msgspec.json.encode(job).decode()


def _leave(code: int) -> None:
    """Exit without waiting for the thread that sends the cancel."""
    with contextlib.suppress(OSError):
        sys.stdout.flush()
        sys.stderr.flush()
    os._exit(code)
