"""The lines of `why` about retries, quotas and a lack of progress. Pure."""

from collections.abc import Iterator

from holdfast.controller.why.circumstances import Circumstances
from holdfast.controller.why.words import line, say_due, say_moment
from holdfast.core.causes import CHARGED_TO, Budget
from holdfast.core.words import say_span
from holdfast.wire.api import WhyLine


def explain_retry(found: Circumstances) -> Iterator[WhyLine]:
    """Explain which retry a job waits for, when it is due, and what holds it longer."""
    job, held = found.job, found.policy.held
    allowed, charged = found.policy.retry.max_retries, job.counted_retries
    counted = job.cause is None or CHARGED_TO[job.cause] is Budget.RETRIES
    known = counted and 0 < charged <= allowed
    which = f"retry {charged} of {allowed}" if known else "its next attempt"
    after = f" after {job.cause}" if job.cause else ""
    due = job.retry_at or job.wait_until
    if job.wait_cause == "back_off" or held is None:
        when = "" if due is None else f", due{say_due(due, found.now)}"
        yield line(
            "back_off",
            f"it waits for {which}{after}{when}: {job.reason}",
            f"holdfast show --policy {job.id}",
        )
        what = "its retry will be held"
    else:
        what = f"{which}{after} is held" + (f", due at {say_moment(due)}" if due else "")
    yield from explain_hold(found, what)
    late = 0.0 if due is None else (found.now - due).total_seconds()
    limit = found.rate_limit
    if held is None and job.wait_cause == "back_off" and late > 2.0 and limit is not None:
        yield line(
            "retry_rate_limit",
            f"it has been due for {say_span(late)}: at most {limit:g} retries start each second, "
            "and those due before it go first",
            "holdfast config set retry_rate_limit N",
        )


def explain_hold(found: Circumstances, what: str) -> Iterator[WhyLine]:
    """Name every kill switch that holds this job's retry, and how to release each."""
    for source, project, given in found.holders:
        if project not in (None, found.job.project):
            continue
        because = f": {given}" if given else ""
        if source == "environment":
            hint = "unset HOLDFAST_RETRIES_ENABLED where the controller starts, and restart it"
        else:
            hint = "holdfast retries release" + (f" --project {project}" if project else "")
        holder = f"project {project}" if project else f"the {source}"
        yield line("retries_held", f"{what}: {holder} holds all retries{because}", hint)


def explain_quota(found: Circumstances) -> Iterator[WhyLine]:
    """Name the budget and the quotas of the job's project that are used up."""
    job, project = found.job, found.project
    if project is None:
        return
    name = project.name
    if project.held:
        raised = f"holdfast projects set {name} budget_usd_per_month=N"
        yield line(
            "budget",
            f"{project.held}, so it waits for the next month or for a higher budget",
            f"{raised}, or at_budget=notice",
        )
    jobs, gpus, needed = found.quota_jobs, found.quota_gpus, job.gpus * job.tasks
    if isinstance(jobs, int) and project.running >= jobs:
        yield line(
            "quota",
            f"project {name} runs {project.running} job{'s' * (project.running != 1)}, and may run "
            f"{jobs} at once",
            _say_way(project.running + 1 - jobs, "ends", jobs >= 1, f"{name} quota_jobs"),
        )
    if needed and isinstance(gpus, int) and project.gpus + needed > gpus:
        yield line(
            "quota",
            f"project {name} holds {project.gpus} GPU{'s' * (project.gpus != 1)} and may hold "
            f"{gpus} at once, and this job needs {needed}",
            _say_way(project.gpus + needed - gpus, "is free", gpus >= needed, f"{name} quota_gpus"),
        )


def _say_way(over: int, verb: str, possible: bool, quota: str) -> str:
    """Return, in words, how a job comes under a quota again: by the ends of others, or only by a
    larger quota."""
    raised = f"holdfast projects set {quota}=N"
    if not possible:
        return f"no end of others makes it start, only a higher quota: {raised}"
    many = {"ends": "end", "is free": "are free"}[verb]
    what = f"one of them {verb}" if over == 1 else f"{over} of them {many}"
    return f"it starts when {what}; or {raised}"


def explain_progress(found: Circumstances) -> Iterator[WhyLine]:
    """Count the last attempts that made no progress."""
    job, limit = found.job, found.policy.no_progress_limit
    if not job.no_progress or limit is None:
        return
    rows = f"{job.no_progress} attempts in a row" if job.no_progress > 1 else "its last attempt"
    yield line(
        "no_progress",
        f"{rows} got no further than step {job.best_step}; the job fails after {limit} such "
        "attempts in a row",
        "save and load a checkpoint, or submit it with --no-progress-limit off",
    )
