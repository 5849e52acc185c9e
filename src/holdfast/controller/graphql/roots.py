"""The root of the schema: the fields that a query can begin with."""

from collections.abc import Iterable, Mapping
from typing import Any, Generic, TypeVar

import msgspec
import strawberry
from strawberry import ID, Info

from holdfast.controller.api.events import EventFeed
from holdfast.controller.api.jobs import read_jobs_page
from holdfast.controller.graphql.job_shapes import JobType
from holdfast.controller.graphql.shapes import EventType, HostType, ProjectType, QueueType, reads_of
from holdfast.controller.http.pages import check_job_id
from holdfast.controller.http.problems import explain_bad_value
from holdfast.core.causes import Cause
from holdfast.core.records import HostRecord, ProjectRecord, QueueRecord
from holdfast.core.spec import Name
from holdfast.core.states import JobState
from holdfast.errors import NotFound, ValidationError
from holdfast.wire.operations.queries import EventsQuery, JobsQuery

T = TypeVar("T")
Q = TypeVar("Q", JobsQuery, EventsQuery)


class Paged(msgspec.Struct, Generic[T], frozen=True):
    """The source of the schema's pages. next: the value for `after`; None at the end."""

    nodes: list[T]
    next: str | None


@strawberry.type(description="A page of jobs, newest first.")
class JobPage:
    """A page of jobs."""

    nodes: list[JobType]
    next: str | None


@strawberry.type(description="A page of hosts, by name.")
class HostPage:
    """A page of hosts."""

    nodes: list[HostType]
    next: str | None


@strawberry.type(description="A page of queues, by name.")
class QueuePage:
    """A page of queues."""

    nodes: list[QueueType]
    next: str | None


@strawberry.type(description="A page of projects, by name.")
class ProjectPage:
    """A page of projects."""

    nodes: list[ProjectType]
    next: str | None


@strawberry.type(description="A page of events, in the one order all readers see.")
class EventPage:
    """A page of events."""

    nodes: list[EventType]
    next: str | None


def _fill(query: type[Q], words: Mapping[str, str], values: Mapping[str, Any]) -> Q:
    """Make the struct of the REST route's query from the arguments of a GraphQL field, with REST's
    checks. words: REST's parameter name → the argument's name, where the two differ."""
    given = {name: value for name, value in values.items() if value not in (None, [], ())}
    for name, value in given.items():
        refuse_nul(words.get(name, name), value)
    try:
        return msgspec.convert(
            {name: list(v) if isinstance(v, list) else v for name, v in given.items()}, query
        )
    except msgspec.ValidationError as error:
        refused = explain_bad_value(error)
        field = words.get(refused.field or "", refused.field)
        raise ValidationError(refused.message, code=refused.code, field=field) from None


def refuse_nul(name: str, value: Any) -> None:
    """Raise ValidationError for a NUL, which no stored text contains."""
    texts: Iterable[Any] = value if isinstance(value, list | tuple) else (value,)
    if any(isinstance(text, str) and "\x00" in text for text in texts):
        raise ValidationError(f"{name}: a NUL character means nothing here", field=name)


async def _jobs(
    info: Info,
    first: int = 50,
    after: str | None = None,
    state: list[JobState] | None = None,
    queue: str | None = None,
    project: str | None = None,
    owner: str | None = None,
    name: str | None = None,
    prefix: str | None = None,
    label: list[str] | None = None,
    cause: Cause | None = None,
    retries_min: int | None = None,
    retries_max: int | None = None,
    host: str | None = None,
) -> Any:
    values: dict[str, Any] = {"limit": first, "cursor": after, "state": state, "label": label}
    one: dict[str, Any] = {"queue": queue, "project": project, "owner": owner, "name": name}
    one |= {"cause": cause, "host": host}
    values |= {"prefix": prefix} | {key: [each] for key, each in one.items() if each is not None}
    values |= {"retries_min": retries_min, "retries_max": retries_max}
    words = {"limit": "first", "cursor": "after"}
    words |= {"retries_min": "retriesMin", "retries_max": "retriesMax"}
    query = _fill(JobsQuery, words, values)
    reads = reads_of(info)
    items, cursor = await reads.call(lambda: read_jobs_page(reads.store, query))
    reads.jobs.prime_many({job.id: job for job in items})
    return Paged(items, cursor)


async def _job(info: Info, id: ID) -> Any:
    return await reads_of(info).jobs.load(check_job_id(id))


async def _hosts(
    info: Info, first: int = 50, after: str | None = None, dead: bool = False, all: bool = False
) -> Any:
    reads = reads_of(info)
    hosts = await reads.once(
        f"hosts {dead} {all}",
        lambda: reads.store.hosts.list_hosts(include_terminated=all, dead=dead),
    )
    return _cut({f"{host.name} {host.id}": host for host in hosts}, first, after)


async def _host(info: Info, host: str) -> HostRecord | Any:
    reads = reads_of(info)
    refuse_nul("host", host)
    return await reads.call(lambda: reads.store.hosts.get_host(host))


async def _queues(info: Info, first: int = 50, after: str | None = None) -> Any:
    return _cut(await reads_of(info).queues(), first, after)


async def _queue(info: Info, name: str) -> QueueRecord | Any:
    found = (await reads_of(info).queues()).get(name)
    if found is None:
        raise NotFound(f"there is no queue {name[:64]!r}; `queues` has them all")
    return found


async def _projects(info: Info, first: int = 50, after: str | None = None) -> Any:
    return _cut(await reads_of(info).projects(), first, after)


async def _project(info: Info, name: str) -> ProjectRecord | Any:
    found = (await reads_of(info).projects()).get(name)
    if found is not None:
        return found
    try:
        return ProjectRecord(name=msgspec.convert(name, Name), settings={})
    except msgspec.ValidationError:
        raise NotFound(f"there can be no project {name[:64]!r}") from None


async def _events(
    info: Info,
    first: int = 50,
    after: str | None = None,
    job: ID | None = None,
    kind: list[str] | None = None,
) -> Any:
    query = _fill(
        EventsQuery, {"limit": "first"}, {"limit": first, "after": after, "job": job, "kind": kind}
    )
    if job is not None:
        check_job_id(job)
    reads = reads_of(info)
    reader = EventFeed(reads.store, query, query.after)
    nodes = await reads.call(reader.read)
    return Paged(nodes, reader.after if reader.more else None)


async def _last_events(
    info: Info, last: int = 50, job: ID | None = None, kind: list[str] | None = None
) -> Any:
    query = _fill(EventsQuery, {"tail": "last"}, {"tail": last, "job": job, "kind": kind})
    if job is not None:
        check_job_id(job)
    reads = reads_of(info)
    return await reads.call(EventFeed(reads.store, query, None).read)


def _cut(items: Mapping[str, T], first: int, after: str | None) -> Paged[T]:
    """Return a page of `items` in the order of the keys. The page continues after the key `after`
    even if that key is gone, so no item is shown twice."""
    names = sorted(name for name in items if after is None or name > after)
    more = len(names) > first
    return Paged([items[name] for name in names[:first]], names[first - 1] if more else None)


@strawberry.type(name="Query", description="The read side of Holdfast. Changes are made over REST.")
class QueryRoot:
    """The root of the schema."""

    jobs: JobPage | None = strawberry.field(
        resolver=_jobs,
        description="Jobs, newest first. `label` is name=value; several must all be there. "
        "`host`: an id or a name.",
    )
    job: JobType | None = strawberry.field(resolver=_job, description="One job.")
    hosts: HostPage | None = strawberry.field(
        resolver=_hosts,
        description="Hosts. `dead`: those flagged dead alone; `all`: terminated ones too.",
    )
    host: HostType | None = strawberry.field(resolver=_host, description="One host, by id or name.")
    queues: QueuePage | None = strawberry.field(
        resolver=_queues, description="Every queue and what is in it."
    )
    queue: QueueType | None = strawberry.field(resolver=_queue, description="One queue.")
    projects: ProjectPage | None = strawberry.field(
        resolver=_projects, description="Every project that has settings or unfinished jobs."
    )
    project: ProjectType | None = strawberry.field(
        resolver=_project, description="One project; it is empty if no job and no setting names it."
    )
    events: EventPage | None = strawberry.field(
        resolver=_events,
        description="What happened, from the beginning or after an event. `kind`: `job.*` takes "
        "all that begin so.",
    )
    last_events: list[EventType] | None = strawberry.field(
        resolver=_last_events, description="The last events, oldest first."
    )
