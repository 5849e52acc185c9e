"""What `why` says of retries, quotas and a lack of progress. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from holdfast.controller.why.circumstances import Circumstances
from holdfast.controller.why.retry_state import count_charged
from holdfast.wire.api import WhyLine


def explain_retry(found: Circumstances) -> Iterator[WhyLine]:
    """A job that waits for its next attempt: which retry it is, when, and what holds it longer."""
    job = found.job
    allowed = found.policy.retry.max_retries
    charged = count_charged(job)
    which = f"retry {charged} of {allowed}" if 0 < charged <= allowed else "its next attempt"
    after = f" after {job.cause}" if job.cause else ""
    due = job.retry_at or job.wait_until
    when = "" if due is None else f" at {due:%Y-%m-%d %H:%M:%S} UTC"
    late = 0.0 if due is None else (found.now - due).total_seconds()
    backs_off = job.wait_cause == "back_off" or found.policy.held is None
    if backs_off:
        left = (
            ""
            if due is None
            else f" ({say_span(-late)} from now)"
            if late < 0
            else " (any moment now)"
        )
        yield WhyLine(
            code="back_off",
            message=f"it backs off, {which}{after}{when}{left}: {job.reason}",
            hint=f"holdfast show --policy {job.id}",
        )
    yield from explain_hold(
        found, "it will be held" if backs_off else f"it is held, {which}{after}, due{when}"
    )
    if (
        found.policy.held is None
        and job.wait_cause == "back_off"
        and late > 2.0
        and found.rate_limit is not None
    ):
        yield WhyLine(
            code="retry_rate_limit",
            message=f"it has been due for {say_span(late)}: at most {found.rate_limit:g} retries "
            "a second are let through, "
            "and those due before it go first",
            hint="holdfast config set retry_rate_limit N",
        )


def explain_hold(found: Circumstances, what: str) -> Iterator[WhyLine]:
    """Every kill switch that holds this job's retry, and how to release each."""
    job = found.job
    for source, project, given in found.holders:
        if project not in (None, job.project):
            continue
        because = f": {given}" if given else ""
        if source == "environment":
            hint = (
                "unset HOLDFAST_RETRIES_ENABLED where the controller is started, and start it again"
            )
        else:
            hint = "holdfast retries release" + (f" --project {project}" if project else "")
        whose = f"project {project}" if project else f"the {source}"
        yield WhyLine(
            code="retries_held", message=f"{what}: {whose} holds all retries{because}", hint=hint
        )


def explain_quota(found: Circumstances) -> Iterator[WhyLine]:
    """A project that already runs as much as it may."""
    job, project = found.job, found.project
    if project is None:
        return
    name = project.name
    if isinstance(found.quota_jobs, int) and project.running >= found.quota_jobs:
        yield WhyLine(
            code="quota",
            message=f"project {name} runs {project.running} of the {found.quota_jobs} jobs it may "
            "run at once",
            hint=f"it starts when one of them ends; or holdfast projects set {name} quota_jobs=N",
        )
    needed = job.gpus * job.tasks
    if needed and isinstance(found.quota_gpus, int) and project.gpus + needed > found.quota_gpus:
        yield WhyLine(
            code="quota",
            message=f"project {name} holds {project.gpus} of the {found.quota_gpus} GPUs it may "
            f"hold at once, and this job needs {needed}",
            hint=f"it starts when enough of them are free; or holdfast projects set {name} "
            "quota_gpus=N",
        )


def explain_progress(found: Circumstances) -> Iterator[WhyLine]:
    """Attempts in a row that got no further."""
    job, limit = found.job, found.policy.no_progress_limit
    if not job.no_progress or limit is None:
        return
    rows = f"{job.no_progress} attempts in a row" if job.no_progress > 1 else "its last attempt"
    yield WhyLine(
        code="no_progress",
        message=f"{rows} got no further than step {job.best_step}; it fails after {limit} in a "
        "row that do not",
        hint="save and load a checkpoint, or submit it with --no-progress-limit off",
    )


def say_span(seconds: float) -> str:
    """A span of time as people say it."""
    seconds = max(0.0, seconds)
    if seconds < 120:
        return f"{seconds:.0f} s"
    if seconds < 7200:
        return f"{seconds / 60:.0f} min"
    return f"{seconds / 3600:.1f} h" if seconds < 172_800 else f"{seconds / 86_400:.1f} days"
