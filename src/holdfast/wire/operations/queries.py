"""The queries of the API: one struct per route, its fields the parameters."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.core.causes import Cause
from holdfast.core.readings.points import MAX_RANKS
from holdfast.core.spec import Name
from holdfast.core.states import JobState
from holdfast.wire.operations.operation import Query

Limit = Annotated[int, Meta(ge=1, le=1000)]
Attempt = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Offset = Annotated[int, Meta(ge=0, le=2**62)]
Flag = Literal["0", "1", "false", "true"]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Rank = Annotated[int, Meta(ge=0, le=65_535)]
Number = Annotated[int, Meta(ge=1, le=2**62)]
JobId = Annotated[str, Meta(min_length=1, max_length=64)]
Step = Annotated[int, Meta(ge=0, le=2**53)]
Moment = Annotated[int, Meta(ge=0, le=32_503_680_000)]
Micros = Annotated[int, Meta(ge=0, le=32_503_680_000_000_000)]
Text = Annotated[str, Meta(min_length=1, max_length=256)]
Owner = Annotated[str, Meta(min_length=1, max_length=128)]
JobName = Annotated[str, Meta(min_length=1, max_length=128)]
Names = Annotated[tuple[Name, ...], Meta(max_length=64)]
ME = "@me"
"""The value of `owner` that stands for the caller's own user. No user's name begins with @."""


class DepthsQuery(Query, frozen=True, kw_only=True):
    """How full queues were: in the last `seconds`, in stretches of `step` seconds."""

    seconds: Annotated[int, Meta(ge=60, le=8 * 86_400)] = 86_400
    step: Annotated[int, Meta(ge=60, le=86_400)] = 1800


class JobsQuery(Query, frozen=True, kw_only=True):
    """The filters of the list of jobs, newest first.

    Any of the states, queues, projects, owners, names, causes and hosts that are given, and all of the
    labels; each may be repeated. owner: a user, or `@me`. label: `name=value`. host: an id or a name.
    parent: the id of the job that submitted the jobs. match: a part of the name, in any case. since:
    the earliest time of submission, in Unix seconds. prefix: the beginning of the id. array: an
    array's id, or "none". retries_min, retries_max: bounds of the retries that a job was charged,
    both included. executors: what becomes of the jobs that Holdfast itself submits to run calls: they
    are left out (hide), listed alone (only), or listed beside the others (show). supervised: only the
    jobs that a script supervises.
    """

    state: tuple[JobState, ...] = ()
    queue: Names = ()
    project: Names = ()
    owner: Annotated[tuple[Owner, ...], Meta(max_length=64)] = ()
    parent: Text | None = None
    name: Annotated[tuple[JobName, ...], Meta(max_length=64)] = ()
    match: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    since: Annotated[int, Meta(ge=0, le=32_503_680_000)] | None = None
    prefix: Annotated[str, Meta(pattern=r"^[0-9a-hjkmnp-tv-z]{1,20}$")] | None = None
    label: Annotated[
        tuple[Annotated[str, Meta(max_length=400, pattern=r"^[^=]+=")], ...], Meta(max_length=64)
    ] = ()
    cause: tuple[Cause, ...] = ()
    array: Text | None = None
    retries_min: Count | None = None
    retries_max: Count | None = None
    host: Annotated[tuple[Text, ...], Meta(max_length=64)] = ()
    executors: Literal["hide", "only", "show"] = "hide"
    supervised: Flag = "0"
    limit: Limit = 100
    cursor: Text | None = None


class ArraysQuery(Query, frozen=True, kw_only=True):
    """The filters of the list of arrays, newest first. Any of the states, queues,
    projects, owners and names that are given; each may be repeated. state: that of at least one member."""

    state: tuple[JobState, ...] = ()
    queue: Names = ()
    project: Names = ()
    owner: Annotated[tuple[Owner, ...], Meta(max_length=64)] = ()
    name: Annotated[tuple[JobName, ...], Meta(max_length=64)] = ()
    prefix: Annotated[str, Meta(pattern=r"^[0-9a-hjkmnp-tv-z]{1,20}$")] | None = None
    limit: Limit = 100
    cursor: Text | None = None


class SchedulesQuery(Query, frozen=True, kw_only=True):
    """The filters of the list of schedules, by name."""

    owner: Owner | None = None


class NextQuery(Query, frozen=True, kw_only=True):
    """count: the number of coming times to list."""

    count: Annotated[int, Meta(ge=1, le=1000)] = 5


class RunsOfScheduleQuery(Query, frozen=True, kw_only=True):
    """limit: the most runs to list, newest first."""

    limit: Limit = 100


class AttemptQuery(Query, frozen=True, kw_only=True):
    """attempt: the number of one attempt; absent means all of them, or the last."""

    attempt: Attempt | None = None


class AttemptsQuery(Query, frozen=True, kw_only=True):
    """cause: the cause of the attempts to list. members: "0" to leave out how each rank ended, of which
    a large gang has thousands in each attempt. last: with `members=0`, the most attempts to list, the newest."""

    cause: Cause | None = None
    members: Flag = "1"
    last: Limit = 1000


class LogsQuery(Query, frozen=True, kw_only=True):
    """The bytes of a log to send.

    attempt: the attempt's number; absent means the last one, and with `follow` also the later ones.
    since: with `follow`, the attempt to begin with. tail: the number of last bytes of each stream
    to send, instead of those from `offset`. full: "1" to fetch bytes that the controller did not
    keep from the host that ran the job; the answer is always a stream of events. events: "1" to
    send the stored bytes as a stream of events, with their times. begin_us, until_us: with `events`,
    only what the controller was given between these times, in microseconds since 1970; `tail` counts
    from the end of that.
    """

    attempt: Attempt | None = None
    since: Attempt | None = None
    rank: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    stream: Literal["stdout", "stderr", "both"] = "both"
    offset: Offset = 0
    follow: Flag = "0"
    tail: Offset | None = None
    full: Flag = "0"
    events: Flag = "0"
    begin_us: Micros | None = None
    until_us: Micros | None = None


class LogSearchQuery(Query, frozen=True, kw_only=True):
    """The search of logs. Without jobs, array or project, all logs are searched, the newest job
    first.

    pattern: as RE2 reads it, or a text with `fixed`. job: the id of a job; may be repeated. since:
    only what the controller was given then or later, in Unix seconds. context: the lines to send
    before and after each match. max: the most matches to send.
    """

    pattern: Annotated[str, Meta(min_length=1, max_length=1000)]
    job: Annotated[tuple[Text, ...], Meta(max_length=200)] = ()
    array: Text | None = None
    project: Name | None = None
    since: Annotated[int, Meta(ge=0, le=32_503_680_000)] | None = None
    attempt: Attempt | None = None
    rank: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    stream: Literal["stdout", "stderr", "both"] = "both"
    ignore_case: Flag = "0"
    fixed: Flag = "0"
    context: Annotated[int, Meta(ge=0, le=100)] = 0
    max: Annotated[int, Meta(ge=1, le=100_000)] = 1000


class TelemetryQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The readings to return of `GET /v1/hosts/{host}/telemetry`: minutes of the last day, or hours
    of the last 90 days."""

    step: Literal["minute", "hour"] = "minute"
    seconds: Annotated[int, Meta(ge=60, le=90 * 86_400)] = 3600


class RanksTelemetryQuery(TelemetryQuery, frozen=True, kw_only=True):
    """The readings to return of `GET /v1/jobs/{id}/telemetry`. rank: may be repeated; without it the
    first ranks. attempt: only this one. A point covers several minutes or hours where an answer would
    be too long."""

    rank: Annotated[
        tuple[Annotated[int, Meta(ge=0, le=65_535)], ...], Meta(max_length=MAX_RANKS)
    ] = ()
    attempt: Attempt | None = None


class QueuesQuery(Query, frozen=True, kw_only=True):
    """waiting: "0" to count running jobs alone, because to count a million that wait takes seconds."""

    waiting: Flag = "1"


class ProjectsQuery(Query, frozen=True, kw_only=True):
    """waiting: "0" to leave out how many jobs are unfinished, because to count a million takes seconds."""

    waiting: Flag = "1"


class HostsQuery(Query, frozen=True, kw_only=True):
    """dead: "1" to list only hosts flagged dead. all: "1" to list terminated ones too. match: a part
    of the name in any case, or the beginning of the id. trouble: "1" to list only hosts that do not
    simply serve: flagged dead, in a state other than active, or with a part that does not work. gpus:
    "1" to list only hosts with GPUs. limit: the most hosts to list; absent: all."""

    dead: Flag = "0"
    trouble: Flag = "0"
    gpus: Flag = "0"
    all: Flag = "0"
    match: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    limit: Limit | None = None


class ConfigQuery(Query, frozen=True, kw_only=True):
    """queue, project: the queue, the project, or both, of the jobs whose settings are shown."""

    queue: Name | None = None
    project: Name | None = None


class EventsQuery(Query, frozen=True, kw_only=True):
    """after: the id of the event after which the list begins. kind: a kind to list, may be
    repeated; `job.*` means every kind with that beginning. tail: the number of last events to
    list."""

    after: Text | None = None
    limit: Limit = 500
    job: Text | None = None
    kind: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-z_.]+\*?$")], ...],
        Meta(max_length=32),
    ] = ()
    tail: Annotated[int, Meta(ge=0, le=1000)] = 0


class LedgerQuery(Query, frozen=True, kw_only=True):
    """The sums of the ledger. since, until: Unix seconds; by default the last day. by: what to sum
    by, may be repeated: job, owner, project, queue, pool, host, time or `label:KEY`. where:
    `field=value`, may be repeated. step: the length of the stretches of `time`. zone: whose days they are."""

    since: Annotated[int, Meta(ge=0, le=32_503_680_000)] | None = None
    until: Annotated[int, Meta(ge=0, le=32_503_680_000)] | None = None
    by: Annotated[tuple[Text, ...], Meta(max_length=8)] = ()
    where: Annotated[
        tuple[Annotated[str, Meta(max_length=400, pattern=r"^[^=]+=")], ...], Meta(max_length=16)
    ] = ()
    unit: Literal["gpu", "cpu"] = "gpu"
    step: Literal["minute", "hour", "day"] = "hour"
    zone: Text = "UTC"


def is_on(flag: str) -> bool:
    """Return whether a `Flag` is "1"."""
    return flag in ("1", "true")
