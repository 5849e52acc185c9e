"""Schedules: the times at which a job is submitted again, and what happens to times that were
missed.

TIME-1  A time of a schedule makes at most one run, and its run is on record in the transaction that
        submits its job: under two leaders, and after a crash.
TIME-2  A day has each local time of a cron schedule once: a time that the clock skips comes right
        after the gap, and one that it repeats comes the first time. Steps of minutes or hours go on
        through both.
"""

from __future__ import annotations

from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.core.spec import JobSpec
from holdfast.errors import ValidationError

if TYPE_CHECKING:
    import zoneinfo

LATE_SECONDS = 60.0  # a time that was longer ago than this was missed
MAX_CAUGHT_UP = 100
LOOKED_BACK = timedelta(days=7)  # earlier missed times are not even counted

Outcome = Literal["submitted", "skipped", "refused"]


class ScheduleSpec(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """A schedule as its user wrote it.

    job: the job that each run submits. cron: five fields, in `time_zone`; or every_seconds: an
    interval, counted from the creation of the schedule, which has no time zone.
    catch_up: the runs that are made for times missed while no controller ran: none, the newest, or
    all (at most the last 100). overlap: what happens at a time while the run before has not ended:
    skip the new run, queue it behind the old one, or cancel the old one.
    """

    job: JobSpec
    cron: Annotated[str, Meta(min_length=1, max_length=256)] | None = None
    every_seconds: Annotated[float, Meta(ge=1, le=366 * 86_400)] | None = None
    time_zone: Annotated[str, Meta(min_length=1, max_length=64)] = "UTC"
    catch_up: Literal["none", "one", "all"] = "one"
    overlap: Literal["skip", "queue", "cancel_running"] = "skip"

    @property
    def timing(self) -> tuple[object, ...]:
        """Return the fields that decide the schedule's times."""
        return self.cron, self.every_seconds, self.time_zone


class PlannedRun(msgspec.Struct, frozen=True, kw_only=True):
    """The decision on one time of a schedule. waits: its job waits for the run before it to end."""

    due_at: datetime
    outcome: Outcome = "submitted"
    waits: bool = False
    reason: str = ""


class SchedulePlan(msgspec.Struct, frozen=True, kw_only=True):
    """The decisions on all times of a schedule that have come. missed: number of times that make no
    run because they are too old. cancels: the run before is cancelled. next_at: the next time."""

    runs: tuple[PlannedRun, ...]
    missed: int
    cancels: bool
    next_at: datetime


def check_schedule(spec: ScheduleSpec, now: datetime) -> ScheduleSpec:
    """Check the rules that types cannot express, and return the spec. Raises ValidationError."""
    if (spec.cron is None) == (spec.every_seconds is None):
        text = "a schedule has either `cron`, as '0 3 * * *', or `every_seconds`"
        raise ValidationError(text, field="cron")
    if spec.every_seconds is not None and spec.time_zone != "UTC":
        text = (
            "an interval counts seconds and has no time zone; write a cron line for a time of day"
        )
        raise ValidationError(f"{text}, as '0 3 * * *'", field="time_zone")
    for field in ("idempotency_key", "start_at", "after"):
        if getattr(spec.job, field):
            text = f"a schedule sets {field} by itself; leave it out of its job"
            raise ValidationError(text, field=f"job.{field}")
    next_after(spec, now, now)
    return spec


def next_after(spec: ScheduleSpec, anchor: datetime, after: datetime) -> datetime:
    """Return the first time after `after`, in UTC. anchor: the time from which intervals count.

    Raises:
        ValidationError: the cron line or the time zone cannot be read, or no time ever comes.
    """
    return next(list_times(spec, anchor, after))


def list_times(spec: ScheduleSpec, anchor: datetime, after: datetime) -> Iterator[datetime]:
    """Yield the times after `after`, in UTC. Raises ValidationError as `next_after`."""
    if spec.every_seconds is not None:
        step = timedelta(seconds=spec.every_seconds)
        count = max(0, (after - anchor) // step)
        while True:
            count += 1
            yield anchor + count * step
    from cronsim import CronSim, CronSimError

    try:
        if len((spec.cron or "").split()) != 5:
            raise CronSimError("a cron line has five fields")
        times = CronSim(spec.cron or "", after.astimezone(read_zone(spec.time_zone)))
    except CronSimError as error:
        raise ValidationError(
            f"cron {spec.cron!r}: {error}; write minute, hour, day of month, month and day of "
            "week, as '*/15 9-17 * * 1-5'",
            field="cron",
        ) from None
    last = after
    for found in times:
        moment = found.astimezone(UTC)
        if moment > last:
            last = moment
            yield moment
    raise ValidationError(f"cron {spec.cron!r} names a time that never comes", field="cron")


def read_zone(name: str, field: str = "time_zone") -> zoneinfo.ZoneInfo:
    """Return a time zone by its name. Raises ValidationError that names the field."""
    import zoneinfo  # most readers of schedules only show them

    try:
        return zoneinfo.ZoneInfo(name)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise ValidationError(
            f"there is no time zone {name!r}; write UTC or a name as Europe/Berlin (the controller "
            "reads the system's tzdata)",
            field=field,
        ) from None


def plan_runs(
    spec: ScheduleSpec, next_at: datetime, now: datetime, *, anchor: datetime, busy: bool
) -> SchedulePlan:
    """Decide about every time from `next_at` to `now`. busy: the last run's job has not ended."""
    if next_at > now:
        return SchedulePlan(runs=(), missed=0, cancels=False, next_at=next_at)
    start = max(next_at, now - LOOKED_BACK)
    due = [next_at] if start == next_at else []
    following = next_at
    for following in list_times(spec, anchor, start):
        if following > now:
            break
        due.append(following)
    chosen = _choose(spec, due, now)
    runs: list[PlannedRun] = []
    cancels = busy and bool(chosen) and spec.overlap == "cancel_running"
    for due_at in chosen:
        if busy and spec.overlap == "skip":
            text = "the run before it has not ended"
            runs.append(PlannedRun(due_at=due_at, outcome="skipped", reason=text))
            continue
        late = (now - due_at).total_seconds()
        said = f"{late:.0f} s late" if late > LATE_SECONDS else ""
        runs.append(PlannedRun(due_at=due_at, waits=busy, reason=said))
        busy = True
    missed = len(due) - len(chosen)
    return SchedulePlan(runs=tuple(runs), missed=missed, cancels=cancels, next_at=following)


def _choose(spec: ScheduleSpec, due: list[datetime], now: datetime) -> list[datetime]:
    """Return the times that get a run on record, whether it is submitted or skipped."""
    if not due:
        return []
    if spec.catch_up == "all" and spec.overlap != "cancel_running":
        return due[-MAX_CAUGHT_UP:]
    if spec.catch_up == "none" and (now - due[-1]).total_seconds() > LATE_SECONDS:
        return []
    return due[-1:]


def make_key(schedule_id: str, due_at: datetime) -> str:
    """Return the idempotency key of a run's job (TIME-1)."""
    return f"schedule:{schedule_id}:{due_at.astimezone(UTC).isoformat()}"
