"""The blocking client."""

from __future__ import annotations

import random
import time
from collections.abc import Iterator, Mapping, Sequence
from types import TracebackType
from typing import Any, TypeVar

from holdfast.client import calls
from holdfast.client.calls import Call, Page
from holdfast.client.checkpoints import CheckpointMethods
from holdfast.client.follow import Ended, EventFollower, LogFollower, Patience
from holdfast.client.http_library import httpx
from holdfast.client.locate import Place, locate
from holdfast.client.rules import RulesMethods
from holdfast.client.specs import keyed, merge_spec
from holdfast.client.sse import EventReader, ServerEvent
from holdfast.client.transport import (
    LOST,
    client_options,
    is_worth_retrying,
    refuse,
    request_options,
    stream_options,
    unreachable,
)
from holdfast.client.webhooks import WebhookMethods
from holdfast.core.records import (
    AttemptRecord,
    EventRecord,
    JobRecord,
    LogStreamRecord,
    ProjectRecord,
    QueueRecord,
    TaskRecord,
    TokenRecord,
)
from holdfast.core.settings.resolve import Effective, Value
from holdfast.core.spec import JobSpec, check_spec
from holdfast.errors import Unavailable
from holdfast.wire.api import (
    ForensicsView,
    HostView,
    JobView,
    LogLine,
    PolicyView,
    RetriesView,
    TokenCreated,
    Why,
)

T = TypeVar("T")


class Client(WebhookMethods, RulesMethods, CheckpointMethods):
    """A connection to a controller. Safe to share between threads; use as a context manager or
    `close()` it.

    Args:
        url, token: where and as whom; found by `holdfast.client.locate` when left out.
        timeout_seconds: for one answer.
        retry_seconds: how long lost connections are tried again, for calls where that is harmless.
        ca_file: certificates to trust instead of the system's.
        transport: an `httpx.BaseTransport`, for tests.

    Raises (every method): the errors of `holdfast.errors`; `Unavailable` when the controller cannot
    be reached.
    """

    def __init__(
        self,
        url: str | None = None,
        token: str | None = None,
        *,
        timeout_seconds: float = 30.0,
        retry_seconds: float = 10.0,
        ca_file: str | None = None,
        transport: httpx.BaseTransport | None = None,
    ) -> None:
        self.place: Place = locate(url, token)
        self._timeout_seconds = timeout_seconds
        self._retry_seconds = retry_seconds
        self._http = httpx.Client(
            transport=transport, **client_options(self.place, timeout_seconds, ca_file)
        )

    def __enter__(self) -> Client:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()

    def close(self) -> None:
        """Close the connections."""
        self._http.close()

    # ---- transport
    def call(self, call: Call[T]) -> T:
        """Send one call, again where that is harmless, and return its answer."""
        patience = Patience(self._retry_seconds)
        while True:
            try:
                return self._send(call)
            except (*LOST, Unavailable) as error:
                delay = (
                    patience.next_delay(random.random()) if is_worth_retrying(call, error) else None
                )
                if delay is None:
                    raise (
                        error if isinstance(error, Unavailable) else unreachable(self.place, error)
                    ) from error
            time.sleep(delay)

    def _send(self, call: Call[T]) -> T:
        answer = self._http.request(call.method, call.path, **request_options(call))
        if answer.status_code >= 300:
            raise refuse(self.place, answer.status_code, answer.content)
        return call.read(answer.content)

    def pages(self, call: Call[Page[T]]) -> Iterator[T]:
        """Every item of a list, page by page as they are asked for."""
        while True:
            page = self.call(call)
            yield from page.items
            if page.next is None:
                return
            call = call.at(page.next)

    def _stream(self, call: Call[Any], headers: Mapping[str, str]) -> Iterator[ServerEvent]:
        reader = EventReader()
        options = stream_options(call, headers, self._timeout_seconds)
        with self._http.stream(call.method, call.path, **options) as answer:
            if answer.status_code >= 300:
                raise refuse(self.place, answer.status_code, answer.read())
            for data in answer.iter_bytes():
                yield from reader.feed(data)

    # ---- jobs
    def submit(self, spec: JobSpec | None = None, **fields: Any) -> JobRecord:
        """Submit a job: a `JobSpec`, or its fields (`argv=…`, `gpus=1`, `time_limit="2h"`,
        `memory="4G"`).

        Without an idempotency key one is made, so that a retry after a lost answer never doubles
        the job.
        """
        return self.call(calls.submit(keyed(merge_spec(spec, fields))))

    def submit_many(self, specs: Sequence[JobSpec]) -> list[JobRecord]:
        """Submit up to 1000 jobs together: all or none."""
        return self.call(calls.submit_batch([keyed(check_spec(spec)) for spec in specs])).items

    def job(self, job_id: str) -> JobView:
        """One job, its chain of attempts and where it stands in it (`retry_state`)."""
        return self.call(calls.job(job_id))

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        queue: str | None = None,
        project: str | None = None,
        name: str | None = None,
        labels: Mapping[str, str] | None = None,
        cause: str | None = None,
        min_retries: int | None = None,
        max_retries: int | None = None,
        host: str | None = None,
        page_size: int | None = None,
    ) -> Iterator[JobRecord]:
        """Jobs, newest first, fetched page by page as they are asked for."""
        return self.pages(
            calls.jobs(
                states=states,
                queue=queue,
                project=project,
                name=name,
                labels=labels,
                cause=cause,
                min_retries=min_retries,
                max_retries=max_retries,
                host=host,
                limit=page_size,
            )
        )

    def attempts(self, job_id: str, cause: str | None = None) -> list[AttemptRecord]:
        """The chain of attempts, oldest first, the running one included; those that ended of
        `cause` only."""
        return list(self.pages(calls.attempts(job_id, cause)))

    def policy(self, job_id: str) -> PolicyView:
        """The retry policy in force for the job, and where each of its fields comes from."""
        return self.call(calls.policy(job_id))

    def tasks(self, job_id: str) -> list[TaskRecord]:
        """The tasks of the attempt that is running now."""
        return list(self.pages(calls.tasks(job_id)))

    def why(self, job_id: str) -> Why:
        """What holds the job where it is, and what to do about it."""
        return self.call(calls.why(job_id))

    def settings(self, job_id: str) -> list[Effective]:
        """Every setting in force for the job, and where it came from."""
        return list(self.pages(calls.job_settings(job_id)))

    def forensics(self, job_id: str, attempt: int | None = None) -> list[ForensicsView]:
        """What was gathered before a watchdog's kill."""
        return list(self.pages(calls.forensics(job_id, attempt)))

    def cancel(self, job_id: str, reason: str = "", *, hard: bool = False) -> JobRecord:
        """Cancel; `hard` kills without TERM and grace. A job that has ended is returned as it
        is."""
        return self.call(calls.cancel(job_id, reason, hard=hard))

    def retry(self, job_id: str, *, counted: bool = False, from_scratch: bool = False) -> JobRecord:
        """Queue a failed or cancelled job again: all its budgets begin anew, or `counted`, as one
        more of its retries.

        Each rank starts from its newest checkpoint; `from_scratch` forgets them.

        Raises:
            Conflict: its state forbids it, or it is to be counted and its retries are spent.
        """
        return self.call(calls.retry(job_id, counted=counted, from_scratch=from_scratch))

    def wait(self, job_id: str, timeout_seconds: float | None = None) -> JobView:
        """Wait until the job has ended, and return it. TimeoutError after `timeout_seconds`."""
        started = time.monotonic()
        delay = 0.02
        while True:
            job = self.call(calls.job(job_id))
            if job.state.terminal:
                return job
            left = (
                None if timeout_seconds is None else timeout_seconds - (time.monotonic() - started)
            )
            if left is not None and left <= 0:
                raise TimeoutError(
                    f"job {job_id} is still {job.state.value} after {timeout_seconds:g} s"
                )
            time.sleep(delay if left is None else min(delay, left))
            delay = min(delay * 1.5, 1.0)

    # ---- logs
    def logs(
        self,
        job_id: str,
        *,
        follow: bool = False,
        attempt: int | None = None,
        rank: int | None = None,
        stream: str = "both",
        tail: int | None = None,
    ) -> Iterator[bytes]:
        """The bytes of the job's output. `follow` goes on until the job has ended, through lost
        connections."""
        if not follow:
            yield self.call(
                calls.log_bytes(job_id, attempt=attempt, rank=rank, stream=stream, tail=tail)
            )
            return
        for item in self.follow(job_id, attempt=attempt, rank=rank, stream=stream, tail=tail):
            if isinstance(item, LogLine):
                yield item.data

    def follow(
        self,
        job_id: str,
        *,
        attempt: int | None = None,
        rank: int | None = None,
        stream: str = "both",
        tail: int | None = None,
        retry_seconds: float = 300.0,
    ) -> Iterator[LogLine | JobRecord]:
        """Output and state changes as they happen; the last item is the ended job.

        A lost connection is tried again for `retry_seconds`; no byte is given twice.
        """
        follower = LogFollower(
            calls.follow_logs(job_id, attempt=attempt, rank=rank, stream=stream, tail=tail)
        )
        patience = Patience(retry_seconds)
        while True:
            call, headers = follower.request()
            failure: Exception | None = None
            try:
                for event in self._stream(call, headers):
                    patience.succeed()
                    for item in follower.take(event):
                        if isinstance(item, Ended):
                            yield item.job
                            return
                        yield item
            except (*LOST, Unavailable) as error:
                failure = error
            self._pause(patience, failure)

    def log_streams(self, job_id: str, attempt: int | None = None) -> list[LogStreamRecord]:
        """How much output each stream has, and how much of it is kept."""
        return list(self.pages(calls.log_streams(job_id, attempt)))

    def _pause(self, patience: Patience, failure: Exception | None) -> None:
        delay = patience.next_delay(random.random())
        if delay is None:
            if isinstance(failure, Unavailable):
                raise failure
            raise unreachable(self.place, failure or EOFError("the stream was closed")) from failure
        time.sleep(delay)

    # ---- events
    def events(
        self,
        *,
        follow: bool = False,
        after: str | None = None,
        job_id: str | None = None,
        kinds: Sequence[str] = (),
        tail: int | None = None,
        retry_seconds: float = 300.0,
    ) -> Iterator[EventRecord]:
        """The record of what happened, oldest first; `after` an event's id resumes. `follow` never
        ends."""
        call = calls.events(after=after, job_id=job_id, kinds=kinds, tail=tail)
        if not follow:
            yield from self.pages(call)
            return
        follower = EventFollower(call)
        patience = Patience(retry_seconds)
        while True:
            request, headers = follower.request()
            failure: Exception | None = None
            try:
                for event in self._stream(request, headers):
                    patience.succeed()
                    yield from follower.take(event)
            except (*LOST, Unavailable) as error:
                failure = error
            self._pause(patience, failure)

    # ---- queues
    def queues(self) -> list[QueueRecord]:
        """Every queue, with what is in it."""
        return list(self.pages(calls.queues()))

    def queue(self, name: str) -> QueueRecord:
        """One queue."""
        return self.call(calls.queue(name))

    def put_queue(
        self, name: str, changes: Mapping[str, Value], unset: Sequence[str] = ()
    ) -> QueueRecord:
        """Create a queue or change its settings."""
        return self.call(calls.put_queue(name, changes, unset))

    def delete_queue(self, name: str) -> None:
        """Delete a queue that has no unfinished jobs."""
        self.call(calls.delete_queue(name))

    def pause_queue(self, name: str, reason: str = "", *, hard: bool = False) -> QueueRecord:
        """Start nothing more from it; `hard` also stops what runs."""
        return self.call(calls.pause_queue(name, reason, hard=hard))

    def resume_queue(self, name: str) -> QueueRecord:
        """Start jobs from it again."""
        return self.call(calls.resume_queue(name))

    # ---- projects and retries
    def projects(self) -> list[ProjectRecord]:
        """Projects that have settings or unfinished jobs, and what of their quotas is in use."""
        return list(self.pages(calls.projects()))

    def project(self, name: str) -> ProjectRecord:
        """One project; one that nobody has named yet is an empty one."""
        return self.call(calls.project(name))

    def put_project(
        self, name: str, changes: Mapping[str, Value], unset: Sequence[str] = ()
    ) -> ProjectRecord:
        """Create a project or change its settings: quotas, retry defaults, its kill switch."""
        return self.call(calls.put_project(name, changes, unset))

    def delete_project(self, name: str) -> None:
        """Forget a project's settings."""
        self.call(calls.delete_project(name))

    def retries(self) -> RetriesView:
        """Who holds retries back, and how many jobs wait for theirs."""
        return self.call(calls.retries())

    def hold_retries(self, project: str | None = None, reason: str = "") -> RetriesView:
        """Hold every retry back, of the cluster or of one project, until `release_retries`. None is
        lost."""
        self.call(calls.hold_retries(project, reason))
        return self.retries()

    def release_retries(self, project: str | None = None) -> RetriesView:
        """Let retries go again. What fell due meanwhile goes as fast as the rate limit lets it."""
        self.call(calls.release_retries(project))
        return self.retries()

    # ---- hosts
    def hosts(self, *, dead: bool = False, include_terminated: bool = False) -> list[HostView]:
        """Hosts and their slots; `dead` lists only those flagged dead."""
        return list(self.pages(calls.hosts(dead=dead, include_terminated=include_terminated)))

    def host(self, host: str) -> HostView:
        """One host, by id or name."""
        return self.call(calls.host(host))

    def act_on_host(
        self,
        host: str,
        action: str,
        reason: str = "",
        *,
        hard: bool = False,
        deadline_seconds: float | None = None,
        scale_down: bool = False,
    ) -> HostView:
        """`action`: drain, undrain, quarantine, release or terminate. `hard` also stops what runs
        there, now; `deadline_seconds`, with drain, lets it run for so long. scale_down, with drain:
        the host is not needed any more; what runs there is stopped with its grace, now or at the
        deadline."""
        call = calls.act_on_host(
            host,
            action,
            reason,
            hard=hard,
            deadline_seconds=deadline_seconds,
            scale_down=scale_down,
        )
        return self.call(call)

    # ---- settings
    def config(self, queue: str | None = None, project: str | None = None) -> list[Effective]:
        """Every setting's value in force, for the cluster, a queue or a project, and where it came
        from."""
        return list(self.pages(calls.config(queue, project)))

    def set_config(
        self, changes: Mapping[str, Value], unset: Sequence[str] = ()
    ) -> list[Effective]:
        """Change the cluster's settings."""
        return self.call(calls.patch_config(changes, unset)).items

    # ---- tokens
    def tokens(self) -> list[TokenRecord]:
        """Every token, without its secret."""
        return list(self.pages(calls.tokens()))

    def create_token(
        self, role: str, name: str = "", expires_seconds: float | None = None
    ) -> TokenCreated:
        """Make a token: `role` is admin, submit, read or join. Its secret is in the answer and
        shown never again."""
        return self.call(calls.create_token(role, name, expires_seconds))

    def revoke_token(self, token_id: str) -> None:
        """End a token."""
        self.call(calls.revoke_token(token_id))

    def whoami(self) -> TokenRecord:
        """The token this client uses."""
        return self.call(calls.whoami())
