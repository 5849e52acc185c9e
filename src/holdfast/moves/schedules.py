"""The errors and events about schedules, the same in both stores."""

from collections.abc import Mapping

import msgspec

from holdfast.core.arrays.schedules import ScheduleSpec
from holdfast.errors import NotFound
from holdfast.moves.rows import NewEvent
from holdfast.moves.values import ScheduledRun


def no_schedule(name: str) -> NotFound:
    """Return the error for an unknown schedule."""
    return NotFound(f"there is no schedule {name[:128]!r}; `holdfast schedules list` lists them")


def hide_secrets(spec: ScheduleSpec) -> ScheduleSpec:
    """Return the spec as it may be stored and shown."""
    return msgspec.structs.replace(spec, job=spec.job.without_secrets())


def schedule_event(
    what: str, name: str, project: str, queue: str, message: str, **data: object
) -> NewEvent:
    """Return the event `schedule.<what>`."""
    said = {"schedule": name, **{key: value for key, value in data.items() if value is not None}}
    return NewEvent(
        kind=f"schedule.{what}", queue=queue, project=project, message=message, data=said
    )


def run_event(row: Mapping[str, str], run: ScheduledRun) -> NewEvent:
    """Return the event that reports one run; `row` has the schedule's name, project and queue."""
    said = {
        "submitted": "has run" if run.job is None else f"submitted job {run.job.id}",
        "skipped": "was skipped",
        "refused": "was refused",
    }[run.outcome]
    because = f": {run.reason}" if run.reason else ""
    event = schedule_event(
        run.outcome,
        row["name"],
        row["project"],
        row["queue"],
        f"schedule {row['name']} {said}{because}",
        due_at=run.due_at.isoformat(),
        job=run.job and run.job.id,
    )
    event.job_id = run.job.id if run.job else None
    return event
