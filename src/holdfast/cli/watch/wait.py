"""`wait`: until jobs, arrays and runs of workflows have ended, with an exit code that says how."""

from __future__ import annotations

import time
from collections import Counter
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.data.outputs import list_missing
from holdfast.cli.endings import EXIT_FAILED, EXIT_OK, EXIT_TIMEOUT
from holdfast.cli.find.jobs import act_on
from holdfast.cli.live.live_line import LiveLine
from holdfast.cli.options import read_seconds
from holdfast.cli.output import note, say_state
from holdfast.client.jobs.waiting import Work, wait_for_ends
from holdfast.client.late import LateModule
from holdfast.client.rest import RestCall, ask
from holdfast.core.ids import ID_PATTERN
from holdfast.core.words import split_span
from holdfast.errors import NotFound

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.wire.operations.work import arrays as on_arrays
    from holdfast.wire.operations.work import jobs as on_jobs
    from holdfast.wire.operations.work import workflows as on_workflows
else:
    on_arrays = LateModule("holdfast.wire.operations.work.arrays")
    on_jobs = LateModule("holdfast.wire.operations.work.jobs")
    on_workflows = LateModule("holdfast.wire.operations.work.workflows")


def choose_exit_code(works: Sequence[Work], *, first: bool) -> int:
    """Return the exit code of `wait`: 0 where all works that ended succeeded, 1 where one did not,
    124 where the awaited ends have not come."""
    ended = [work.state.value for work in works if work.state.terminal]
    if len(ended) < (min(1, len(works)) if first else len(works)):
        return EXIT_TIMEOUT
    return EXIT_OK if all(state == "succeeded" for state in ended) else EXIT_FAILED


@click.command()
@click.argument("words", metavar="JOB...", nargs=-1, required=True)
@click.option("--any/--all", "first", default=False, help="Until one has ended, or all have.")
@click.option("--timeout", metavar="TIME", help="Give up after this time, with exit code 124.")
@click.option("--outputs", is_flag=True, help="Also until their outputs are collected.")
@talks
def wait(
    io: CommandIO, words: Sequence[str], first: bool, timeout: str | None, outputs: bool
) -> int:
    """Wait until jobs have ended; each JOB may be an array or a run of a workflow, too.

    The jobs go on however the waiting ends. Exit codes: 0 all of them succeeded (with --any: all
    that have ended); 1 one failed or was cancelled; 3 there is no such job; 124 the timeout came
    first; 130 Ctrl-C. --json prints what was waited for as a list, also at a timeout.

    \b
    Examples:
      holdfast wait @last
      holdfast wait 06ch2v8wq1m4kz7d9x3t 06ch2vb3t0k5nn2r8y1a --timeout 2h
      holdfast wait train-a train-b --any
      holdfast submit -- make test && holdfast wait @last && ./deploy
    """
    seconds = None if timeout is None else read_seconds("--timeout", timeout)
    found: list[Work] = []
    line, began = LiveLine(wanted=not io.as_json), time.monotonic()

    def tell(works: Sequence[Work]) -> None:
        found[:] = works
        line.show(_say_progress(works, time.monotonic() - began))

    with io.client() as client:
        calls = list({call.path: call for call in (_find(client, word) for word in words)}.values())
        try:
            client.perform(lambda: wait_for_ends(calls, seconds, first=first, tell=tell))
            if outputs:
                left = None if seconds is None else max(0.0, seconds - time.monotonic() + began)
                _wait_outputs(client, found, left)
        except TimeoutError as error:
            line.clear()
            note(str(error))
        finally:
            line.clear()
    io.show(found, "\n".join(_say_end(work) for work in found if work.state.terminal))
    return choose_exit_code(found, first=first)


def _wait_outputs(client: Client, works: Sequence[Work], seconds: float | None) -> None:
    """Wait until the outputs of jobs that ended are collected. Raises TimeoutError."""
    until = None if seconds is None else time.monotonic() + seconds
    for work in works:
        spec = getattr(work, "spec", None)
        if work.state.terminal and getattr(spec, "outputs", None):
            left = None if until is None else max(0.0, until - time.monotonic())
            for one in client.wait_outputs(work.id, timeout_seconds=left):
                for line in list_missing(one):
                    note(f"rank {one.rank} of {work.id}: {line}")


def _find(client: Client, word: str) -> RestCall[Work]:
    """Return the call that reads the job, the array or the run that a word names. Raises
    NotFound."""

    def find_job(job_id: str) -> RestCall[Work]:
        if ID_PATTERN.fullmatch(word):  # the only word that was taken unseen
            client.job(job_id)
        return ask(on_jobs.GET_JOB, job_id)

    try:
        return act_on(client, word, find_job, lambda array: ask(on_arrays.GET_ARRAY, array.id))
    except NotFound:
        if not ID_PATTERN.fullmatch(word):
            raise
        try:
            return ask(on_workflows.GET_RUN, client.workflow(word).id)
        except NotFound:
            pass
        raise


def _say_progress(works: Sequence[Work], seconds: float) -> str:
    if len(works) == 1:
        (work,) = works
        return f"{work.id} {say_state(work.state.value, getattr(work, 'reason', ''))}, {split_span(seconds)}"
    counts = Counter(work.state.value for work in works)
    ended = sum(work.state.terminal for work in works)
    states = ", ".join(f"{state} {count}" for state, count in sorted(counts.items()))
    return f"{ended} of {len(works)} have ended ({states}), {split_span(seconds)}"


def _say_end(work: Work) -> str:
    return f"{work.id} {say_state(work.state.value, getattr(work, 'reason', ''))}"
