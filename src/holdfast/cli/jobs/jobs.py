"""`jobs`, `show`, `why`, `cancel`, `retry`."""

from __future__ import annotations

import itertools
import sys
from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import click

from holdfast.cli.jobs.attempts import attempts_table, policy_text
from holdfast.cli.jobs.gang_view import draw_attempt, draw_tasks
from holdfast.cli.output import (
    Face,
    age,
    facts,
    note,
    paint,
    print_text,
    shorten,
    size,
    span,
    table,
    talks,
)
from holdfast.core.placement.ranks import name_ranks, say_names
from holdfast.errors import HoldfastError, NotFound, ValidationError

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.core.records import AttemptRecord, EventRecord, JobRecord, TaskRecord
    from holdfast.wire.api import ForensicsView, JobView, Why


@click.command()
@click.option(
    "--state",
    "states",
    multiple=True,
    help="waiting, queued, reserved, running, draining, succeeded, …",
)
@click.option("--queue", help="Only this queue.")
@click.option("--project", help="Only this project.")
@click.option("--name", help="Only this name.")
@click.option(
    "--label", "labels", multiple=True, metavar="K=V", help="Only with this label; repeatable."
)
@click.option("--cause", help="Only those that ended of this cause.")
@click.option(
    "--min-retries", type=click.IntRange(0), help="Only those charged at least this many retries."
)
@click.option("--max-retries", type=click.IntRange(0), help="Only those charged at most this many.")
@click.option("--host", help="Only those with a task on this host now.")
@click.option(
    "--limit", type=click.IntRange(1), default=50, show_default=True, help="At most this many."
)
@click.option("--all", "everything", is_flag=True, help="However many there are.")
@talks
def jobs(
    face: Face,
    states: Sequence[str],
    labels: Sequence[str],
    limit: int,
    everything: bool,
    **only: Any,
) -> None:
    """List jobs, newest first.

    \b
    Examples:
      holdfast jobs --state running --state queued
      holdfast jobs --cause oom_killed --min-retries 2
      holdfast jobs --label team=vision --json | jq -r '.[].id'
    """
    pairs = {}
    for label in labels:
        name, equals, value = label.partition("=")
        if not equals:
            raise ValidationError(f"--label {label!r} is not K=V", field="label")
        pairs[name] = value
    with face.client() as client:
        found = client.jobs(
            states=states,
            labels=pairs,
            page_size=min(limit, 500) if not everything else 500,
            **only,
        )
        rows = list(found if everything else itertools.islice(found, min(limit, sys.maxsize)))
    face.show(rows, jobs_table(rows) if rows else "no jobs")


def jobs_table(rows: Sequence[JobRecord]) -> str:
    """The table of `jobs`."""
    return table(
        ("ID", "STATE", "QUEUE", "NAME", "TRY", "AGE", "REASON"),
        [
            (
                j.id,
                j.state.value,
                j.queue,
                shorten(j.name, 16),
                str(j.attempts),
                age(j.created_at),
                j.reason or "-",
            )
            for j in rows
        ],
    )


@click.command()
@click.argument("job_id", metavar="JOB")
@click.option("--forensics", is_flag=True, help="What was gathered before a watchdog's kill.")
@click.option(
    "--attempt", type=click.IntRange(1), help="One attempt: its ranks, and who began its fall."
)
@click.option("--ranks", is_flag=True, help="A row for each rank of a gang, however many.")
@click.option("--events", is_flag=True, help="Everything that happened to it.")
@click.option(
    "--policy", is_flag=True, help="Its retry policy, field by field, and where each comes from."
)
@talks
def show(
    face: Face,
    job_id: str,
    forensics: bool,
    attempt: int | None,
    ranks: bool,
    events: bool,
    policy: bool,
) -> None:
    """Show one job: its state and reason, its attempts, what holds it; of a gang, its ranks.

    Ranks of a large gang that are alike share a row; --ranks draws each. With --forensics,
    --attempt chooses whose.

    \b
    Examples:
      holdfast show 06ch2v8wq1m4kz7d9x3t
      holdfast show 06ch2v8wq1m4kz7d9x3t --attempt 2
      holdfast show 06ch2v8wq1m4kz7d9x3t --policy
      holdfast show 06ch2v8wq1m4kz7d9x3t --forensics
    """
    if attempt is not None and (events or policy):
        raise click.UsageError("--attempt goes with neither --events nor --policy")
    with face.client() as client:
        if forensics:
            views = client.forensics(job_id, attempt)
            face.show(
                views,
                "\n\n".join(map(_forensics_text, views))
                or "no forensics: no watchdog ended an attempt of it",
            )
            return
        if policy:
            view = client.policy(job_id)
            face.show(view, policy_text(view))
            return
        if events:
            happened = list(client.events(job_id=job_id))
            if not happened:
                client.job(job_id)  # says so when there is no such job
            face.show(happened, "\n".join(map(event_text, happened)))
            return
        if attempt is not None:
            _show_attempt(face, client, job_id, attempt, ranks)
            return
        job = client.job(job_id)
        if face.as_json:
            face.show_json(job)
            return
        text = _job_text(job, client.attempts(job_id), client.tasks(job_id), ranks)
        reasons = None if job.state.terminal else client.why(job_id)
    print_text(text)
    if reasons is not None:
        print_text("\n" + why_text(reasons))


def _show_attempt(face: Face, client: Client, job_id: str, number: int, ranks: bool) -> None:
    """One attempt: while it is on, from its tasks, and afterwards from what was kept of them."""
    found = client.attempts(job_id)
    chosen = next((attempt for attempt in found if attempt.number == number), None)
    if chosen is None:
        had = f"it had {len(found)}" if found else "it has had none yet"
        raise NotFound(f"job {job_id} has no attempt {number}; {had}")
    goes_on = chosen.state.value != "ended"
    tasks = [task for task in client.tasks(job_id) if task.attempt == number] if goes_on else []
    if face.as_json:
        face.show_json({"attempt": chosen, "tasks": tasks})
    elif goes_on and tasks:
        print_text(draw_tasks(client.job(job_id), tasks, every=ranks))
    else:
        print_text(draw_attempt(chosen, every=ranks))


def _draw_gang(
    job: JobRecord, attempts: Sequence[AttemptRecord], tasks: Sequence[TaskRecord], ranks: bool
) -> str:
    """The ranks of a gang: those that are on, or those of its last attempt."""
    if job.tasks == 1:
        return ""
    if tasks:
        return draw_tasks(job, tasks, every=ranks)
    over = [attempt for attempt in attempts if attempt.members]
    return draw_attempt(over[-1], every=ranks, reason=False) if over else ""


def _job_text(
    job: JobView, attempts: Sequence[AttemptRecord], tasks: Sequence[TaskRecord], ranks: bool
) -> str:
    spec = job.spec
    command = spec.shell if spec.shell is not None else " ".join(spec.argv)
    wants = [
        f"{job.gpus} GPUs" if job.gpus else "",
        f"{job.cpu_slots} CPU slots" if job.cpu_slots else "",
    ]
    wants += [size(job.memory_bytes) if job.memory_bytes else ""]
    wants += [f"for each of {job.tasks} tasks, {spec.placement}" if job.tasks > 1 else ""]
    steps = (
        ""
        if job.step is None
        else f"{job.step}{f'/{job.total}' if job.total else ''}, beat {age(job.beat_at)} ago"
    )
    took = (
        span((job.ended_at - job.started_at).total_seconds())
        if job.ended_at and job.started_at
        else ""
    )
    lines = [
        ("id", job.id),
        ("name", job.name),
        ("state", paint(job.state.value)),
        ("reason", job.reason),
        ("cause", job.cause.value if job.cause else ""),
        ("exit code", "" if job.exit_code is None else str(job.exit_code)),
        ("queue", f"{job.queue}, priority {job.priority}, project {job.project}"),
        ("command", shorten(command, 400)),
        ("folder", spec.cwd or ""),
        ("wants", ", ".join(filter(None, wants))),
        ("only on hosts", " ".join(f"{k}={v}" for k, v in spec.host_labels.items())),
        ("preemptible", "yes" if spec.preemptible else ""),
        ("labels", " ".join(f"{k}={v}" for k, v in job.labels.items())),
        ("secrets", " ".join(spec.secrets)),
        ("step", steps),
        ("host", say_names(t.host_name or "-" for t in tasks)),
        ("charged", _charges(job)),
        ("retries", job.retry_state.sentence if job.retry_state else ""),
        ("submitted", f"{age(job.created_at)} ago"),
        (
            "ended",
            f"{age(job.ended_at)} ago{f' after {took}' if took else ''}" if job.ended_at else "",
        ),
    ]
    parts = [
        facts(lines),
        _draw_gang(job, attempts, tasks, ranks),
        attempts_table(attempts) if attempts else "",
    ]
    return "\n\n".join(filter(None, parts))


def _charges(job: JobRecord) -> str:
    counts = (
        ("failures", job.retries_charged),
        ("trips", job.watchdog_charged),
        ("infra failures", job.infra_charged),
    )
    text = ", ".join(f"{count} {name}" for name, count in counts if count)
    charged = sorted(int(rank) for rank in job.rank_charges)
    return (
        f"{text} (to {name_ranks(charged)}; each rank has its own budget)"
        if text and charged
        else text
    )


def _forensics_text(view: ForensicsView) -> str:
    head = f"attempt {view.attempt}, rank {view.rank}, epoch {view.epoch}: {view.reason} (gathered in {view.seconds:.1f} s)"
    return head + "".join(
        f"\n\n--- {title}\n{text.rstrip()}" for title, text in view.sections.items()
    )


def event_text(event: EventRecord) -> str:
    """One event, one line."""
    when = event.at.astimezone().strftime("%m-%d %H:%M:%S.%f")[:-3]
    what = f"{event.kind}{f' #{event.attempt}' if event.attempt else ''}"
    return f"{when}  {event.job_id or event.host_id or event.queue or '-':20}  {what:20}  {event.message}".rstrip()


@click.command()
@click.argument("job_id", metavar="JOB")
@talks
def why(face: Face, job_id: str) -> None:
    """Say what holds a job where it is, and what to do about it.

    \b
    Example:
      holdfast why 06ch2v8wq1m4kz7d9x3t
    """
    with face.client() as client:
        reasons = client.why(job_id)
    face.show(reasons, why_text(reasons))


def why_text(reasons: Why) -> str:
    """The answer of `why` for a person."""
    lines = [f"{paint(reasons.state)}: {reasons.summary}"]
    for line in reasons.lines:
        if line.message != reasons.summary:
            lines.append(f"- {line.message}")
        if line.hint:
            lines.append(f"  {line.hint}")
    return "\n".join(lines)


@click.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@click.option("--reason", default="", help="Kept with the job.")
@click.option("--hard", is_flag=True, help="Kill at once, without TERM and grace.")
@talks
def cancel(face: Face, job_ids: Sequence[str], reason: str, hard: bool) -> None:
    """Cancel jobs. What runs gets TERM, its grace, then KILL.

    \b
    Example:
      holdfast cancel 06ch2v8wq1m4kz7d9x3t --reason "wrong data"
    """
    with face.client() as client:
        _each(face, job_ids, lambda job_id: client.cancel(job_id, reason, hard=hard))


@click.command()
@click.argument("job_ids", metavar="JOB...", nargs=-1, required=True)
@click.option(
    "--counted",
    is_flag=True,
    help="As one more of the retries it has; refused when they are spent.",
)
@click.option(
    "--from-checkpoint/--from-scratch",
    "keep",
    default=True,
    help="With the checkpoints it saved (the default), or without.",
)
@talks
def retry(face: Face, job_ids: Sequence[str], counted: bool, keep: bool) -> None:
    """Queue failed or cancelled jobs again, and say whether it counted.

    Without --counted it does not count: all budgets begin anew. Each rank starts from the newest
    checkpoint it saved. A parked job goes on, and one that backs off does not wait any longer; of a
    supervised job that runs, the ranks that are parked are given hosts again.

    \b
    Examples:
      holdfast retry 06ch2v8wq1m4kz7d9x3t
      holdfast retry --counted 06ch2v8wq1m4kz7d9x3t
      holdfast retry --from-scratch 06ch2v8wq1m4kz7d9x3t
    """
    with face.client() as client:
        _each(
            face,
            job_ids,
            lambda job_id: client.retry(job_id, counted=counted, from_scratch=not keep),
        )


def _each(face: Face, job_ids: Sequence[str], act: Any) -> None:
    """Do it to every job, also after one refused; the first refusal decides the exit code."""
    done = []
    refused: HoldfastError | None = None
    for job_id in job_ids:
        try:
            job = act(job_id)
        except HoldfastError as error:
            if refused is not None and not face.as_json:
                note(f"{job_id}: {error}")
            refused = refused or error
            continue
        done.append(job)
        if not face.as_json:
            print_text(f"{job.id}  {paint(job.state.value)}  {job.reason}".rstrip())
    if face.as_json and done:
        face.show_json(done[0] if len(job_ids) == 1 else done)
    if refused is not None:
        raise refused
