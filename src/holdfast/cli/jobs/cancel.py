"""`cancel` and `retry`, each for several jobs at once: named one by one, or selected by filters."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.find.jobs import act_on, find_instead, find_job
from holdfast.cli.options import add_options, ask, read_pairs
from holdfast.cli.output import note, paint, print_text
from holdfast.client.rest import error_of
from holdfast.core.records import JobRecord
from holdfast.core.words import count_of
from holdfast.errors import HoldfastError, NotFound, ValidationError

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.core.arrays.records import ArrayRecord
    from holdfast.wire.api import JobOutcome

PAGE_JOBS = 500
"""How many jobs go to the controller in one call; after Ctrl-C the last of them are in doubt."""
PROGRESS_SECONDS = 1.0
"""From when on a terminal is told how many are done."""


class Acts(NamedTuple):
    """The change of one job, of many, and of an array, and the verb that names it."""

    verb: str
    done: str
    job: Callable[[str], JobRecord | ArrayRecord]
    jobs: Callable[[Sequence[str]], Sequence[JobOutcome]]
    array: Callable[[ArrayRecord], JobRecord | ArrayRecord]


_UNFINISHED = ("waiting", "queued", "reserved", "running", "draining")
_RETRIABLE = ("failed", "cancelled")


def _selects(states: Sequence[str]) -> Callable[..., Any]:
    """Return a decorator that adds the words and the filters that select jobs in `states`."""
    return add_options(
        click.argument("words", metavar="[JOB]...", nargs=-1),
        click.option("--name", help="All jobs of this name."),
        click.option(
            "--state",
            "states",
            multiple=True,
            type=click.Choice(states),
            help="All jobs in this state; repeatable.",
        ),
        click.option(
            "--label",
            "labels",
            multiple=True,
            metavar="K=V",
            help="All jobs with this label; repeatable.",
        ),
        click.option("--all", "every", is_flag=True, help="All jobs of all projects."),
        click.option("--yes", "-y", is_flag=True, help="Do not ask."),
    )


@click.command()
@_selects(_UNFINISHED)
@click.option("--reason", default="", help="Kept with the job.")
@click.option("--hard", is_flag=True, help="Kill at once, without TERM and grace.")
@talks
def cancel(io: CommandIO, words: Sequence[str], reason: str, hard: bool, **chosen: Any) -> None:
    """Cancel jobs. Running tasks get TERM, their grace, then KILL.

    With --name, --state, --label or --all, it cancels every unfinished job that has all of these,
    after a question.

    \b
    Examples:
      holdfast cancel 06ch2v8wq1m4kz7d9x3t --reason "wrong data"
      holdfast cancel --label sweep=7 --state queued
      holdfast cancel my-array        every member; one is my-array[7]
    """
    with io.client() as client:

        def act(job_id: str) -> JobRecord:
            return client.cancel(job_id, reason, hard=hard)

        def act_on_many(job_ids: Sequence[str]) -> Sequence[JobOutcome]:
            return client.cancel_many(job_ids, reason, hard=hard)

        def act_on_array(array: ArrayRecord) -> ArrayRecord:
            return client.cancel_array(array.id, reason, hard=hard)

        acts = Acts("cancel", "cancelled", act, act_on_many, act_on_array)
        _act(io, client, words, _UNFINISHED, chosen, acts)


@click.command()
@_selects(_RETRIABLE)
@click.option("--counted", is_flag=True, help="As one of its retries; refused if they are spent.")
@click.option(
    "--from-checkpoint/--from-scratch",
    "keep",
    default=True,
    help="With its checkpoints, or without.",
)
@talks
def retry(io: CommandIO, words: Sequence[str], counted: bool, keep: bool, **chosen: Any) -> None:
    """Queue failed or cancelled jobs again.

    Without --counted all budgets begin anew. Each rank starts from its newest checkpoint. A parked
    job goes on, and a job in back-off stops waiting. If a supervised job runs, its parked ranks get
    hosts again. With --name, --state, --label or --all, it retries every failed or cancelled job
    that has all of these, after a question.

    \b
    Examples:
      holdfast retry 06ch2v8wq1m4kz7d9x3t
      holdfast retry --counted 06ch2v8wq1m4kz7d9x3t
      holdfast retry --from-scratch 06ch2v8wq1m4kz7d9x3t
      holdfast retry --label sweep=7 --state failed --yes
      holdfast retry my-array                       its failed members alone
    """
    with io.client() as client:

        def act(job_id: str) -> JobRecord:
            return client.retry(job_id, counted=counted, from_scratch=not keep)

        def act_on_many(job_ids: Sequence[str]) -> Sequence[JobOutcome]:
            return client.retry_many(job_ids, counted=counted, from_scratch=not keep)

        def act_on_array(array: ArrayRecord) -> ArrayRecord:
            if counted or not keep:
                raise ValidationError(
                    "an array's failed members are retried with new budgets, from their "
                    f"checkpoints; name one as {array.id}[N] for --counted or --from-scratch"
                )
            return client.retry_array(array.id)

        acts = Acts("retry", "retried", act, act_on_many, act_on_array)
        _act(io, client, words, _RETRIABLE, chosen, acts)


def _act(
    io: CommandIO,
    client: Client,
    words: Sequence[str],
    states: Sequence[str],
    chosen: dict[str, Any],
    acts: Acts,
) -> None:
    """Act on the jobs that the words name, or on those that the filters select."""
    name, yes, every = chosen["name"], chosen["yes"], chosen["every"]
    filters = bool(name or chosen["states"] or chosen["labels"])
    if words:
        if filters or every:
            raise click.UsageError(
                "give either jobs, or --name, --state, --label or --all to select them"
            )
        _act_on_words(io, client, words, acts)
        return
    if not filters and not every:
        raise click.UsageError("give a JOB, or select jobs with --name, --state, --label or --all")
    pairs = read_pairs("--label", chosen["labels"], "label")
    found = client.jobs(states=chosen["states"] or states, name=name, labels=pairs, page_size=500)
    job_ids = [job.id for job in found]
    if acts.verb == "retry":
        job_ids.reverse()  # they are queued in the order of their submission
    if not job_ids:
        io.show([], "no such jobs")
        return
    if not yes:
        ask(f"{acts.verb.capitalize()} {count_of(len(job_ids), 'job')}?")
    _act_on_selected(io, job_ids, acts)


def _say_outcome(job: JobRecord | ArrayRecord) -> str:
    """Write the state of a job after its cancel. A job that had succeeded or failed before is left
    as it was."""
    state, reason = job.state.value, job.reason
    if isinstance(job, JobRecord) and state in ("succeeded", "failed"):
        reason = "it had ended before" + f": {reason}" * (reason not in ("", state))
    return f"{paint(state)}  {reason}".rstrip()


class Results:
    """Prints what became of each job, even after a refusal; the first refusal decides the exit
    code."""

    def __init__(self, io: CommandIO) -> None:
        self._io = io
        self._done: list[JobRecord | ArrayRecord] = []
        self._refused: HoldfastError | None = None

    def print_result(self, job: JobRecord | ArrayRecord) -> None:
        """Print a job or an array that is now as the user asked."""
        self._done.append(job)
        if not self._io.as_json:
            print_text(f"{job.id}  {_say_outcome(job)}")

    def refuse(self, word: str, error: HoldfastError) -> None:
        """Print that the controller refused to act on the job or array `word`, and remember the
        first such error."""
        if self._refused is not None and not self._io.as_json:
            note(f"{word}: {error}")
        self._refused = self._refused or error

    def show(self, *, as_list: bool) -> None:
        """Print the outcomes as JSON, if the user asked for it: as a list, or without `as_list` as
        one object, because there is one outcome only. Raises the error of the first cancel that was
        refused."""
        if self._io.as_json and self._done:
            self._io.show_json(self._done if as_list else self._done[0])
        if self._refused is not None:
            raise self._refused


class DoneCount:
    """Says on stderr how many jobs are done, where that takes long and no lines tell of it, and when
    it ends too early: by Ctrl-C, or by an error."""

    def __init__(self, io: CommandIO, total: int, done_word: str) -> None:
        self._done = self._asked = 0
        self._total, self._done_word = count_of(total, "job"), done_word
        self._shows = sys.stderr.isatty() and (io.as_json or not sys.stdout.isatty())
        self._shown = False
        self._since = time.monotonic()

    def __enter__(self) -> DoneCount:
        return self

    def __exit__(self, kind: type[BaseException] | None, *more: object) -> None:
        if self._shown:
            print_text("", err=True)
        if kind is not None and (self._done or kind is KeyboardInterrupt):
            said = f"ended early: {self._done} of {self._total} {self._done_word}"
            note(said + f"; perhaps up to {self._asked} more" * (self._asked > 0))

    def ask(self, count: int) -> None:
        """Note that requests for so many jobs are on their way to the controller."""
        self._asked = count

    def add(self, outcomes: Sequence[JobOutcome]) -> None:
        """Count what became of these jobs."""
        self._asked = 0
        self._done += sum(outcome.job is not None for outcome in outcomes)
        if self._shows and time.monotonic() - self._since >= PROGRESS_SECONDS:
            self._shown = True
            sys.stderr.write(f"\rholdfast: {self._done} of {self._total} {self._done_word}")
            sys.stderr.flush()


def _act_on_pages(job_ids: Sequence[str], acts: Acts, count: DoneCount) -> Iterator[JobOutcome]:
    """Act on many jobs, a page at a time, and yield what became of each, in order."""
    for start in range(0, len(job_ids), PAGE_JOBS):
        page = job_ids[start : start + PAGE_JOBS]
        count.ask(len(page))
        outcomes = acts.jobs(page)
        count.add(outcomes)
        yield from outcomes


def _act_on_selected(io: CommandIO, job_ids: Sequence[str], acts: Acts) -> None:
    results = Results(io)
    try:
        with DoneCount(io, len(job_ids), acts.done) as count:
            for outcome in _act_on_pages(job_ids, acts, count):
                try:
                    results.print_result(_read(outcome))
                except HoldfastError as error:
                    results.refuse(outcome.id, error)
    except HoldfastError as error:
        results.refuse("the others", error)
    results.show(as_list=True)


def _read(outcome: JobOutcome) -> JobRecord:
    """Return the job of an outcome. Raises the error that its problem tells of."""
    from holdfast.wire.api import Problem

    if outcome.job is None:
        problem = outcome.problem or Problem()
        raise error_of(problem, problem.status)
    return outcome.job


def _act_on_words(io: CommandIO, client: Client, words: Sequence[str], acts: Acts) -> None:
    """Act on the jobs and arrays that the words name; on several jobs in one call."""
    results = Results(io)
    if len(words) == 1:
        results.print_result(act_on(client, words[0], acts.job, acts.array))
        results.show(as_list=False)
        return
    found: dict[str, str | HoldfastError] = {}
    for word in words:
        try:
            found[word] = find_job(client, word)
        except HoldfastError as error:
            found[word] = error
    ids = [job_id for job_id in dict.fromkeys(found.values()) if isinstance(job_id, str)]
    with DoneCount(io, len(ids), acts.done) as count:
        outcomes = {outcome.id: outcome for outcome in _act_on_pages(ids, acts, count)}
    for word in words:
        job_id = found[word]
        try:
            try:
                if not isinstance(job_id, str):
                    raise job_id
                results.print_result(_read(outcomes[job_id]))
            except NotFound as missing:
                results.print_result(acts.array(find_instead(client, word, missing)))
        except HoldfastError as error:
            results.refuse(word, error)
    results.show(as_list=True)
