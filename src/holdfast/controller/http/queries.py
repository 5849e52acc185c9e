"""The queries of the API: one struct per route, its fields the parameters."""

from typing import Annotated, Literal

import msgspec
from msgspec import Meta

from holdfast.core.causes import Cause
from holdfast.core.spec import Name
from holdfast.core.states import JobState

Limit = Annotated[int, Meta(ge=1, le=1000)]
Attempt = Annotated[int, Meta(ge=1, le=2**31 - 1)]
Offset = Annotated[int, Meta(ge=0, le=2**62)]
Flag = Literal["0", "1", "false", "true"]
Count = Annotated[int, Meta(ge=0, le=2**31 - 1)]
Text = Annotated[str, Meta(min_length=1, max_length=256)]
Owner = Annotated[str, Meta(min_length=1, max_length=128)]
ME = "@me"
"""As an owner: the user that the caller's token acts for. No user's name begins with @."""


class Query(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The root of the queries. An unknown parameter is refused: a misspelt filter must not list
    everything."""


class JobsQuery(Query, frozen=True, kw_only=True):
    """Which jobs, newest first. owner: a user, or `@me`. label: `name=value`; state and label may
    be repeated. host: an id or a name. parent: the job that submitted
    them. match: a part of the name, in any case. since: submitted
    then (Unix seconds) or later. prefix: the beginning of the id. array: an array's id, or
    "none". retries_min, retries_max: how many retries it was charged, both included. executors:
    of the jobs that Holdfast submits itself to run calls: none (hide), nothing else (only), or
    beside the others (show)."""

    state: tuple[JobState, ...] = ()
    queue: Name | None = None
    project: Name | None = None
    owner: Owner | None = None
    parent: Text | None = None
    name: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    match: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    since: Annotated[int, Meta(ge=0, le=32_503_680_000)] | None = None
    prefix: Annotated[str, Meta(pattern=r"^[0-9a-hjkmnp-tv-z]{1,20}$")] | None = None
    label: Annotated[
        tuple[Annotated[str, Meta(max_length=400, pattern=r"^[^=]+=")], ...], Meta(max_length=64)
    ] = ()
    cause: Cause | None = None
    array: Text | None = None
    retries_min: Count | None = None
    retries_max: Count | None = None
    host: Text | None = None
    executors: Literal["hide", "only", "show"] = "hide"
    limit: Limit = 100
    cursor: Text | None = None


class ArraysQuery(Query, frozen=True, kw_only=True):
    """Which arrays, newest first. state: with a member in this state; may be repeated."""

    state: tuple[JobState, ...] = ()
    queue: Name | None = None
    project: Name | None = None
    owner: Owner | None = None
    name: Annotated[str, Meta(min_length=1, max_length=128)] | None = None
    prefix: Annotated[str, Meta(pattern=r"^[0-9a-hjkmnp-tv-z]{1,20}$")] | None = None
    limit: Limit = 100
    cursor: Text | None = None


class SchedulesQuery(Query, frozen=True, kw_only=True):
    """Which schedules, by name."""

    owner: Owner | None = None


class NextQuery(Query, frozen=True, kw_only=True):
    """How many times to come."""

    count: Annotated[int, Meta(ge=1, le=1000)] = 5


class RunsOfScheduleQuery(Query, frozen=True, kw_only=True):
    """How many runs, newest first."""

    limit: Limit = 100


class AttemptQuery(Query, frozen=True, kw_only=True):
    """One attempt's number; absent means all, or the last."""

    attempt: Attempt | None = None


class AttemptsQuery(Query, frozen=True, kw_only=True):
    """Only the attempts that ended of this cause."""

    cause: Cause | None = None


class LogsQuery(Query, frozen=True, kw_only=True):
    """Which bytes. `attempt`: absent means the last one, and with `follow` those that come after it,
    too. `since`: with `follow`, the attempt to begin with. `tail`: the last n bytes of each stream,
    instead of `offset`. `full`: what the controller did not keep comes from the host that ran it;
    always a stream of events. `events`: what there is as a stream of events, with its times."""

    attempt: Attempt | None = None
    since: Attempt | None = None
    rank: Annotated[int, Meta(ge=0, le=65_535)] | None = None
    stream: Literal["stdout", "stderr", "both"] = "both"
    offset: Offset = 0
    follow: Flag = "0"
    tail: Offset | None = None
    full: Flag = "0"
    events: Flag = "0"


class TelemetryQuery(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """Of `GET /v1/hosts/{host}/telemetry`: minutes of the last day, or hours of the last 90 days."""

    step: Literal["minute", "hour"] = "minute"
    seconds: Annotated[int, Meta(ge=60, le=90 * 86_400)] = 3600


class HostsQuery(Query, frozen=True, kw_only=True):
    """`dead=1`: only hosts flagged dead. `all=1`: terminated ones too."""

    dead: Flag = "0"
    all: Flag = "0"


class ConfigQuery(Query, frozen=True, kw_only=True):
    """As in force for jobs of that queue, of that project, or of both."""

    queue: Name | None = None
    project: Name | None = None


class EventsQuery(Query, frozen=True, kw_only=True):
    """after: an event's id. kind: may be repeated; `job.*` takes every kind with that beginning.
    tail: the last n."""

    after: Text | None = None
    limit: Limit = 500
    job: Text | None = None
    kind: Annotated[
        tuple[Annotated[str, Meta(min_length=1, max_length=64, pattern=r"^[a-z_.]+\*?$")], ...],
        Meta(max_length=32),
    ] = ()
    tail: Annotated[int, Meta(ge=0, le=1000)] = 0


def is_on(flag: str) -> bool:
    """Read a `Flag`."""
    return flag in ("1", "true")
