"""The store reads of one query: one call for each kind of record, however many records it asks for.

Loaders gather the requests of all fields of one level and read them together. The time, the
settings, and the lists of queues and projects are read once for the whole query.
"""

import asyncio
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec
from strawberry.dataloader import DataLoader

from holdfast.controller.runtime.context import Controller
from holdfast.controller.runtime.settings import Settings
from holdfast.controller.why.explain import explain
from holdfast.controller.why.reads import find_circumstances
from holdfast.controller.why.retry_state import make_retry_state, policy_of_end
from holdfast.core.causes import Cause
from holdfast.core.records import (
    AttemptRecord,
    EventRecord,
    HostRecord,
    JobRecord,
    MemberRecord,
    ProjectRecord,
    QueueRecord,
    TaskRecord,
)
from holdfast.core.retry import RetryPolicy
from holdfast.errors import NotFound, TooLarge
from holdfast.web.reader import ApiReader
from holdfast.wire.api import RetryState, Why

T = TypeVar("T")
ENDING = 2  # the newest attempts of a job that tell how its retries stand


class Chain(NamedTuple):
    """A part of a job's chain of attempts, as a query asks for it."""

    job_id: str
    last: int
    before: int | None = None
    cause: Cause | None = None


class Ranks(NamedTuple):
    """A part of a job's tasks, as a query asks for it."""

    job_id: str
    first: int
    after: int


class Members(NamedTuple):
    """A part of an attempt's members, as a query asks for it."""

    attempt: tuple[str, int]
    first: int
    after: int


class Tail(NamedTuple):
    """A part of a job's events, as a query asks for it."""

    job_id: str
    last: int


K = TypeVar("K", Chain, Members, Ranks, Tail)


class Reads:
    """One query's reads, closed when it is answered or given up. api: REST, for the same caller."""

    def __init__(
        self, controller: Controller, api: ApiReader, calls_at_once: int, answer_bytes: int
    ) -> None:
        self.controller, self.api = controller, api
        store = self.store = controller.store
        self._turns = asyncio.Semaphore(calls_at_once)
        self._closed = False
        self._bytes_left = answer_bytes
        self._single: dict[str, asyncio.Task[Any]] = {}
        self._policies: dict[str, RetryPolicy] = {}
        self.jobs: DataLoader[str, JobRecord] = DataLoader(self._load_jobs)
        self.hosts: DataLoader[str, HostRecord | None] = DataLoader(self._load_hosts)
        self.attempts: DataLoader[Chain, list[AttemptRecord]] = self._load_parts(
            store.jobs.list_attempts_of
        )
        self.attempt: DataLoader[tuple[str, int], AttemptRecord | None] = DataLoader(
            self._load_attempt
        )
        self.members: DataLoader[Members, list[MemberRecord]] = self._load_parts(
            store.jobs.list_members_of
        )
        self.tasks: DataLoader[Ranks, list[TaskRecord]] = self._load_parts(store.jobs.list_tasks_of)
        self.events: DataLoader[Tail, list[EventRecord]] = self._load_parts(
            store.events.list_events_of
        )
        self.whys: DataLoader[JobRecord, Why] = DataLoader(
            self._load_whys, cache_key_fn=lambda job: job.id
        )

    def close(self) -> None:
        """Read nothing more, and cancel the reads under way."""
        self._closed = True
        for task in self._single.values():
            task.cancel()

    def pack(self, value: object) -> msgspec.Raw:
        """Return a value as JSON and count its bytes, which the query's cost ignores. Raises
        TooLarge."""
        raw = msgspec.json.encode(value)
        self._bytes_left -= len(raw)
        if self._bytes_left < 0:
            raise TooLarge(
                "the answer is too large; ask for fewer jobs at once, or leave specs and facts out"
            )
        return msgspec.Raw(raw)

    async def call(self, read: Callable[[], Awaitable[T]]) -> T:
        """Make one call of the store, waiting for a free turn, because a wide query must not take
        every connection."""
        async with self._turns:
            if self._closed:
                raise asyncio.CancelledError
            return await read()

    async def once(self, name: str, read: Callable[[], Awaitable[T]]) -> T:
        """Return a value that is read once for the whole query; `name` identifies it."""
        task = self._single.get(name)
        if task is None:
            task = self._single[name] = asyncio.ensure_future(self.call(read))
        found: T = await asyncio.shield(task)
        return found

    async def settings(self) -> Settings:
        """Return the settings, the same for the whole query."""
        return await self.once("settings", self.controller.settings.current)

    async def queues(self) -> dict[str, QueueRecord]:
        """Return every queue by name, in order."""
        return {
            queue.name: queue
            for queue in await self.once("queues", self.store.settings.list_queues)
        }

    async def projects(self) -> dict[str, ProjectRecord]:
        """Return every project that has settings or unfinished jobs, by name, in order."""
        found = await self.once("projects", self.store.settings.list_projects)
        return {project.name: project for project in found}

    async def policy(self, job: JobRecord) -> RetryPolicy:
        """Return the retry policy in force for a job, or the one an ended job ended under."""
        found = self._policies.get(job.id)
        if found is None:
            ended = policy_of_end(job, await self.ending(job)) if job.state.terminal else None
            found = ended or (await self.settings()).policy(job.queue, job.spec).retry
            self._policies[job.id] = found
        return found

    async def ending(self, job: JobRecord) -> list[AttemptRecord]:
        """Return the job's newest attempts, oldest first: enough to work out the state of its
        retries."""
        return await self.attempts.load(Chain(job.id, ENDING)) if job.attempts else []

    async def retry_state(self, job: JobRecord) -> RetryState:
        """Return the job's place in its chain of retries."""
        policy, settings = await self.policy(job), await self.settings()
        now = await self.once("now", self.store.now)
        return make_retry_state(job, policy, held=settings.retries_held(job.project), now=now)

    async def _load_jobs(self, job_ids: list[str]) -> Sequence[JobRecord | BaseException]:
        found = await self.call(lambda: self.store.jobs.get_jobs(job_ids))
        return [found.get(job_id) or NotFound(f"there is no job {job_id}") for job_id in job_ids]

    async def _load_hosts(self, host_ids: list[str]) -> Sequence[HostRecord | None]:
        found = await self.call(lambda: self.store.hosts.get_hosts(host_ids))
        return [found.get(host_id) for host_id in host_ids]

    async def _load_attempt(self, keys: list[tuple[str, int]]) -> Sequence[AttemptRecord | None]:
        found = await self.call(lambda: self.store.jobs.get_attempts(keys))
        return [found.get(key) for key in keys]

    async def _load_whys(self, jobs: list[JobRecord]) -> Sequence[Why]:
        all_found = await self.call(lambda: find_circumstances(self.controller, jobs))
        return [explain(found) for found in all_found]

    def _load_parts(
        self, read: Callable[..., Awaitable[dict[Any, list[T]]]]
    ) -> DataLoader[K, list[T]]:
        """Make a loader of composite keys. The first part of a key names the owner of the rows, and
        the other parts are keyword arguments of `read`; keys that differ only in the first part are
        read together."""

        async def load(keys: list[K]) -> Sequence[list[T]]:
            alike: dict[tuple[Any, ...], list[K]] = {}
            for key in keys:
                alike.setdefault(key[1:], []).append(key)

            async def read_group(group: list[K]) -> dict[Any, list[T]]:
                _, *words = type(group[0]).__annotations__
                asked = dict(zip(words, group[0][1:], strict=True))
                return await self.call(lambda: read([key[0] for key in group], **asked))

            answers = await asyncio.gather(*(read_group(group) for group in alike.values()))
            found = dict(zip(alike, answers, strict=True))
            return [found[key[1:]].get(key[0], []) for key in keys]

        return DataLoader(load)
