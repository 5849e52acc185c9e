"""`show` and `why`: one job, and what holds it up."""

from __future__ import annotations

import shlex
import textwrap
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from typing import TYPE_CHECKING

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.extras import find_docs
from holdfast.cli.find.arrays import say_parameters
from holdfast.cli.find.jobs import act_on
from holdfast.cli.jobs.arrays import show_array
from holdfast.cli.jobs.attempts import attempts_table, policy_text
from holdfast.cli.operate.events import event_text
from holdfast.cli.options import JOB, POSITIVE
from holdfast.cli.output import age, facts, paint, print_text, say_state, shorten
from holdfast.core.placement.ranks import name_ranks, say_names
from holdfast.core.progress.pace import find_still, say_unbeaten
from holdfast.core.spec import JobSpec
from holdfast.core.states import JobState
from holdfast.core.words import count_of, short_bytes, split_span
from holdfast.errors import NotFound

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.core.arrays.records import ArrayRecord
    from holdfast.core.records import AttemptRecord, JobRecord, TaskRecord
    from holdfast.wire.api import ForensicsView, JobLimits, JobView, Why

SHOWN_CHILDREN = 3
SHOWN_ERRORS = 5


@click.command()
@JOB
@click.option("--forensics", is_flag=True, help="The evidence gathered before a watchdog's kill.")
@click.option("--attempt", type=POSITIVE, help="One attempt and its ranks.")
@click.option("--ranks", is_flag=True, help="Give each rank of a gang a row.")
@click.option("--events", is_flag=True, help="Its events.")
@click.option("--indices", is_flag=True, help="Of an array: every member.")
@click.option("--policy", is_flag=True, help="Its retry policy, field by field, with each source.")
@talks
def show(
    io: CommandIO,
    job_id: str,
    forensics: bool,
    attempt: int | None,
    ranks: bool,
    events: bool,
    policy: bool,
    indices: bool,
) -> None:
    """Show one job: its state and reason, its attempts, what holds it up, the ranks of a gang.

    Of an array: how many of its members are in which state, and those that run or failed.

    In a large gang, ranks that are alike share a row; --ranks gives each its own. With --forensics,
    --attempt selects one attempt's.

    \b
    Examples:
      holdfast show 06ch2v8wq1m4kz7d9x3t
      holdfast show 06ch2v8wq1m4kz7d9x3t --attempt 2
      holdfast show 06ch2v8wq1m4kz7d9x3t --policy
      holdfast show 06ch2v8wq1m4kz7d9x3t --forensics
    """
    if attempt is not None and (events or policy):
        raise click.UsageError("--attempt goes with neither --events nor --policy")
    with io.client() as client:
        act_on(
            client,
            job_id,
            lambda found: _show_job(io, client, found, forensics, attempt, ranks, events, policy),
            lambda array: _show_array(io, client, array, indices),
        )


def _show_job(
    io: CommandIO,
    client: Client,
    job_id: str,
    forensics: bool,
    attempt: int | None,
    ranks: bool,
    events: bool,
    policy: bool,
) -> None:
    if forensics:
        views = client.forensics(job_id, attempt)
        text = "\n\n".join(map(_forensics_text, views))
        io.show(views, text or "no forensics: no watchdog ended an attempt of it")
        return
    if policy:
        view = client.policy(job_id)
        io.show(view, policy_text(view))
        return
    if events:
        happened = list(client.events(job_id=job_id))
        if not happened:
            client.job(job_id)  # raises NotFound for an unknown job
        io.show(happened, "\n".join(map(event_text, happened)))
        return
    if attempt is not None:
        _show_attempt(io, client, job_id, attempt, ranks)
        return
    job = client.job(job_id)
    if io.as_json:
        io.show_json(job)
        return
    attempts, tasks = client.attempts(job_id), client.tasks(job_id)
    gang = _draw_gang(client, job, attempts, tasks, ranks)
    reasons = None if job.state.terminal else client.why(job_id)
    print_text(_job_text(job, attempts, tasks, gang))
    if job.tasks > 1 and job.state.value == "failed":
        print_errors(client, job_id)
    if reasons is not None:
        print_text("\n" + why_text(reasons))


def print_errors(client: Client, job_id: str) -> None:
    """Print the error lines of a gang's ranks, grouped by their likeness."""
    from holdfast.cli.jobs.logs import errors_text

    with suppress(NotFound):  # a server that has no such route yet
        text = errors_text(client.errors(job_id), SHOWN_ERRORS)
        if text:
            print_text("\nerrors in its logs\n" + textwrap.indent(text, "  "))


def _show_array(io: CommandIO, client: Client, array: ArrayRecord, indices: bool) -> None:
    show_array(io, client, array, indices=indices)


def _show_attempt(io: CommandIO, client: Client, job_id: str, number: int, ranks: bool) -> None:
    """Show one attempt from its tasks, or from their record once it has ended."""
    from holdfast.cli.jobs.gang_view import draw_attempt

    found = client.attempts(job_id)
    chosen = next((attempt for attempt in found if attempt.number == number), None)
    if chosen is None:
        had = f"it had {len(found)}" if found else "it has had none yet"
        raise NotFound(f"job {job_id} has no attempt {number}; {had}")
    goes_on = chosen.state.value != "ended"
    tasks = [task for task in client.tasks(job_id) if task.attempt == number] if goes_on else []
    if io.as_json:
        io.show_json({"attempt": chosen, "tasks": tasks})
    elif goes_on and tasks:
        print_text(_draw_running(client, client.job(job_id), tasks, ranks))
    else:
        print_text(draw_attempt(chosen, every=ranks))


def _draw_running(client: Client, job: JobRecord, tasks: Sequence[TaskRecord], ranks: bool) -> str:
    """Draw the attempt that is on; the operators' rules find the cause of a failure in it."""
    from holdfast.cli.jobs.gang_view import draw_tasks, has_fallen

    rules = client.rules().rules if has_fallen(job, tasks) else ()
    return draw_tasks(job, tasks, rules, every=ranks)


def _draw_gang(
    client: Client,
    job: JobRecord,
    attempts: Sequence[AttemptRecord],
    tasks: Sequence[TaskRecord],
    ranks: bool,
) -> str:
    """Draw the running ranks of a gang, or those of its last attempt."""
    if job.tasks == 1:
        return ""
    if tasks:
        return _draw_running(client, job, tasks, ranks)
    from holdfast.cli.jobs.gang_view import draw_attempt

    over = [attempt for attempt in attempts if attempt.members]
    return draw_attempt(over[-1], every=ranks, reason=False) if over else ""


def _name_children(job: JobView) -> str:
    """Name the jobs that a job submitted itself, the newest first."""
    more = f", …: holdfast jobs --parent {job.id}" if len(job.children) > SHOWN_CHILDREN else ""
    return ", ".join(job.children[:SHOWN_CHILDREN]) + more


def _job_text(
    job: JobView, attempts: Sequence[AttemptRecord], tasks: Sequence[TaskRecord], gang: str
) -> str:
    spec = job.spec
    command = spec.shell if spec.shell is not None else shlex.join(spec.argv)
    wants = [
        count_of(job.gpus, "GPU") if job.gpus else "",
        count_of(job.cpu_slots, "CPU slot") if job.cpu_slots else "",
        short_bytes(job.memory_bytes) if job.memory_bytes else "",
        f"for each of {job.tasks} tasks, {spec.placement}" if job.tasks > 1 else "",
    ]
    steps = ended = ""
    if job.step is not None:
        steps = f"{job.step}{f'/{job.total}' if job.total else ''}, beat {age(job.beat_at)} ago"
        if still := find_still(job.beat_at, job.moved_at):
            steps += f", the step has stood for {split_span(still)}"
    elif job.state is JobState.RUNNING and job.started_at is not None and not spec.executor:
        waited = age(job.started_at)
        steps = say_unbeaten(waited, beats=job.best_step is not None)
    if job.ended_at is not None:
        ended = f"{age(job.ended_at)} ago"
        if job.started_at is not None:
            ended += f" after {split_span((job.ended_at - job.started_at).total_seconds())}"
    lines = [
        ("id", job.id),
        ("name", job.name),
        ("state", paint(job.state.value)),
        ("reason", job.reason if job.reason != job.state.value else ""),
        ("cause", job.cause.value if job.cause else ""),
        ("its page", f"holdfast docs {job.cause}" if job.cause and find_docs() else ""),
        ("exit code", "" if job.exit_code is None else str(job.exit_code)),
        ("queue", f"{job.queue}, priority {job.priority}, project {job.project}"),
        ("owner", job.owner),
        ("submitted by", f"job {spec.parent}" if spec.parent else ""),
        ("its jobs", _name_children(job)),
        ("command", shorten(command, 400)),
        ("folder", spec.cwd or ("a fresh one each attempt" if spec.fresh_workdir else "")),
        ("fails on", spec.fail_on or ""),
        ("code", spec.code.describe() if spec.code else ""),
        ("wants", ", ".join(filter(None, wants))),
        ("only on hosts", " ".join(f"{k}={v}" for k, v in spec.host_labels.items())),
        ("preemptible", _say_preemptible(spec)),
        ("parameters", say_parameters(job)),
        ("labels", " ".join(f"{k}={v}" for k, v in job.labels.items())),
        ("secrets", " ".join(spec.secrets)),
        ("step", steps),
        ("peak memory", _say_peak(job, attempts)),
        ("host", say_names(t.host_name or "-" for t in tasks)),
        ("charged", _charges(job)),
        ("retries", job.retry_state.sentence if job.retry_state else ""),
        ("submitted", f"{age(job.created_at)} ago"),
        ("started", f"{age(job.started_at)} ago" if job.started_at is not None else ""),
        ("time limit", "" if spec.executor else _say_limit(job.limits)),
        ("expected", _say_expected(job.limits)),
        ("ended", ended),
    ]
    parts = [facts(lines), gang, attempts_table(attempts) if attempts else ""]
    return "\n\n".join(filter(None, parts))


def _say_peak(job: JobView, attempts: Sequence[AttemptRecord]) -> str:
    """Return, as text, the highest peak of memory among the ranks of the newest attempt whose
    peaks are known."""
    limit = f" of {short_bytes(job.memory_bytes)}" if job.memory_bytes else ""
    each = f" of the rank that held most, of {job.tasks}" if job.tasks > 1 else ""
    for attempt in reversed(attempts):
        peaks = [m.facts.max_memory_bytes for m in attempt.members if m.facts is not None]
        if any(peaks):
            return f"{short_bytes(max(peaks))}{limit}{each}"
    return ""


def _say_preemptible(spec: JobSpec) -> str:
    """Return whether and when another job may take its place, "" where none may."""
    if not spec.preemptible:
        return ""
    least, notice = spec.preempt_min_run_seconds, spec.notice_seconds
    after = "" if least is None else f", after {split_span(least)} of running"
    return f"yes{after}" + ("" if notice is None else f", with {split_span(notice)} to save")


_SOURCES = {"job": "its submission's", "history": "as the last jobs of its name"}


def _say_limit(limits: JobLimits) -> str:
    if limits.time_limit_seconds is None:
        return "none"
    source = limits.time_limit_source
    text = f"{split_span(limits.time_limit_seconds)}, {_SOURCES.get(source, f'of the {source}')}"
    if limits.stops_at is not None:
        text += f", {split_span(max(0.0, -_seconds_since(limits.stops_at)))} left"
    return text


def _say_expected(limits: JobLimits) -> str:
    if limits.expected_seconds is None:
        return ""
    text = f"{split_span(limits.expected_seconds)}, {_SOURCES.get(limits.expected_source, '')}"
    if limits.expected_at is not None:
        over = _seconds_since(limits.expected_at)
        text += f", {split_span(abs(over))} {'over, and it goes on' if over > 0 else 'left'}"
    return text


def _seconds_since(moment: datetime) -> float:
    return (datetime.now(UTC) - moment).total_seconds()


def _charges(job: JobRecord) -> str:
    counts = (
        ("failure", job.retries_charged),
        ("trip", job.watchdog_charged),
        ("infra failure", job.infra_charged),
    )
    text = ", ".join(count_of(count, name) for name, count in counts if count)
    charged = sorted(int(rank) for rank in job.rank_charges)
    if text and charged:
        text += f" (to {name_ranks(charged)}; each rank has its own budget)"
    return text


def _forensics_text(view: ForensicsView) -> str:
    head = f"attempt {view.attempt}, rank {view.rank}, epoch {view.epoch}: {view.reason}"
    sections = (f"\n\n--- {title}\n{text.rstrip()}" for title, text in view.sections.items())
    return f"{head} (gathered in {view.seconds:.1f} s)" + "".join(sections)


@click.command()
@JOB
@talks
def why(io: CommandIO, job_id: str) -> None:
    """Say what holds a job up, and what to do about it.

    \b
    Example:
      holdfast why 06ch2v8wq1m4kz7d9x3t
    """
    with io.client() as client:
        act_on(
            client,
            job_id,
            lambda found: _show_reasons(io, client.why(found)),
            lambda array: _show_array_reasons(io, client, array),
        )


def _show_reasons(io: CommandIO, reasons: Why) -> None:
    io.show(reasons, why_text(reasons))


def _show_array_reasons(io: CommandIO, client: Client, array: ArrayRecord) -> None:
    """Say how far an array is, and what holds up the first of its members that waits for a host."""
    text = say_state(array.state, array.reason)
    if array.counts.get("queued") and not io.as_json:
        job = next(iter(client.jobs(array=array.id, states=("queued",), page_size=1)), None)
        if job is not None:
            text += f"\n{job.name}: {why_text(client.why(job.id))}"
    io.show(array, text)


def why_text(reasons: Why) -> str:
    """Write the answer of `why` for a person."""
    lines = [say_state(reasons.state, reasons.summary)]
    for line in reasons.lines:
        if line.message != reasons.summary:
            lines.append(f"- {line.message}")
        if line.hint:
            lines.append(f"  {line.hint}")
    return "\n".join(lines)
