"""`cancel` and `retry`, each for several jobs at once: named one by one, or selected by filters."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

from holdfast.cli import declare
from holdfast.cli.jobs.find import act_on
from holdfast.cli.options import add_options, read_pairs
from holdfast.cli.output import Face, count_of, note, paint, print_text, talks
from holdfast.errors import HoldfastError, ValidationError

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.core.records import JobRecord
    from holdfast.core.series.records import ArrayRecord


class Acts(NamedTuple):
    """What is done to a job, and to an array."""

    job: Callable[[str], JobRecord | ArrayRecord]
    array: Callable[[ArrayRecord], JobRecord | ArrayRecord]


_UNFINISHED = ("waiting", "queued", "reserved", "running", "draining")
_RETRIABLE = ("failed", "cancelled")


def _selects(states: Sequence[str]) -> Callable[..., Any]:
    """Return a decorator that adds the words and the filters that select jobs in `states`."""
    return add_options(
        declare.argument("words", metavar="[JOB]...", nargs=-1),
        declare.option("--name", help="All jobs of this name."),
        declare.option(
            "--state",
            "states",
            multiple=True,
            type=declare.Choice(states),
            help="All jobs in this state; repeatable.",
        ),
        declare.option(
            "--label",
            "labels",
            multiple=True,
            metavar="K=V",
            help="All jobs with this label; repeatable.",
        ),
        declare.option("--all", "every", is_flag=True, help="All jobs of all projects."),
        declare.option("--yes", "-y", is_flag=True, help="Do not ask."),
    )


@declare.command()
@_selects(_UNFINISHED)
@declare.option("--reason", default="", help="Kept with the job.")
@declare.option("--hard", is_flag=True, help="Kill at once, without TERM and grace.")
@talks
def cancel(face: Face, words: Sequence[str], reason: str, hard: bool, **chosen: Any) -> None:
    """Cancel jobs. Running tasks get TERM, their grace, then KILL.

    With --name, --state, --label or --all, it cancels every unfinished job that has all of these,
    after a question.

    \b
    Examples:
      holdfast cancel 06ch2v8wq1m4kz7d9x3t --reason "wrong data"
      holdfast cancel --label sweep=7 --state queued
      holdfast cancel my-array                      every member; one is my-array[7]
    """
    with face.client() as client:

        def act(job_id: str) -> JobRecord:
            return client.cancel(job_id, reason, hard=hard)

        def act_on_array(array: ArrayRecord) -> ArrayRecord:
            return client.cancel_array(array.id, reason, hard=hard)

        _act(face, client, "cancel", words, _UNFINISHED, chosen, Acts(act, act_on_array))


@declare.command()
@_selects(_RETRIABLE)
@declare.option("--counted", is_flag=True, help="As one of its retries; refused if they are spent.")
@declare.option(
    "--from-checkpoint/--from-scratch",
    "keep",
    default=True,
    help="With its checkpoints, or without.",
)
@talks
def retry(face: Face, words: Sequence[str], counted: bool, keep: bool, **chosen: Any) -> None:
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
    with face.client() as client:

        def act(job_id: str) -> JobRecord:
            return client.retry(job_id, counted=counted, from_scratch=not keep)

        def act_on_array(array: ArrayRecord) -> ArrayRecord:
            if counted or not keep:
                raise ValidationError(
                    "an array's failed members are retried with new budgets, from their "
                    f"checkpoints; name one as {array.id}[N] for --counted or --from-scratch"
                )
            return client.retry_array(array.id)

        _act(face, client, "retry", words, _RETRIABLE, chosen, Acts(act, act_on_array))


def _act(
    face: Face,
    client: Client,
    verb: str,
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
            raise declare.usage_error(
                "give either jobs, or --name, --state, --label or --all to select them"
            )
        _each(face, client, words, acts, as_list=len(words) > 1)
        return
    if not filters and not every:
        raise declare.usage_error(
            "give a JOB, or select jobs with --name, --state, --label or --all"
        )
    pairs = read_pairs("--label", chosen["labels"], "label")
    found = client.jobs(states=chosen["states"] or states, name=name, labels=pairs, page_size=500)
    job_ids = [job.id for job in found]
    if not job_ids:
        face.show([], "no such jobs")
        return
    if not yes:
        _ask(f"{verb.capitalize()} {count_of(len(job_ids), 'job')}?")
    _each(face, client, job_ids, acts, as_list=True)


def _say_outcome(job: JobRecord | ArrayRecord) -> str:
    """Write what became of it. A job that had succeeded or failed before is left as it was."""
    from holdfast.core.records import JobRecord

    state, reason = job.state.value, job.reason
    if isinstance(job, JobRecord) and state in ("succeeded", "failed"):
        reason = "it had ended before" + f": {reason}" * (reason not in ("", state))
    return f"{paint(state)}  {reason}".rstrip()


def _ask(question: str) -> None:
    """Ask on stderr. Raises ClickException unless the answer is yes."""
    import click

    try:
        agreed = click.confirm(question, err=True)
    except click.Abort:
        click.echo(err=True)
        raise ValidationError("there was no answer; --yes goes on without the question") from None
    if not agreed:
        raise ValidationError("nothing was changed")


def _each(face: Face, client: Client, words: Sequence[str], acts: Acts, *, as_list: bool) -> None:
    """Act on every job, even after a refusal; the first refusal decides the exit code."""
    done: list[JobRecord | ArrayRecord] = []
    refused: HoldfastError | None = None
    for word in words:
        try:
            job: JobRecord | ArrayRecord = act_on(client, word, acts.job, acts.array)
        except HoldfastError as error:
            if refused is not None and not face.as_json:
                note(f"{word}: {error}")
            refused = refused or error
            continue
        done.append(job)
        if not face.as_json:
            print_text(f"{job.id}  {_say_outcome(job)}")
    if face.as_json and done:
        face.show_json(done if as_list else done[0])
    if refused is not None:
        raise refused
