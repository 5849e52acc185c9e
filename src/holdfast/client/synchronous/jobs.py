# Made from client/asynchronous/jobs.py by `python -m holdfast.client.generate`.
"""Jobs: submit them, look at them, wait for them, follow them."""

from __future__ import annotations

import time
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from holdfast.client.calls import RestCall, ResultPage, get, get_pages, path_of, query_of, send
from holdfast.client.follow import EventFollower, LogFollower, follow_log
from holdfast.client.specs import keyed, merge_spec
from holdfast.client.synchronous.connection import RestConnection
from holdfast.core.records import AttemptRecord, EventRecord, JobRecord, LogStreamRecord, TaskRecord
from holdfast.core.settings.resolve import Effective
from holdfast.core.spec import JobSpec, check_spec
from holdfast.wire.api import (
    CancelRequest,
    ForensicsView,
    JobView,
    LogLine,
    PolicyView,
    RetryRequest,
    Why,
)


class JobMethods(RestConnection):
    """The client's methods about jobs, their output and the events."""

    def submit(self, spec: JobSpec | None = None, **fields: Any) -> JobRecord:
        """Submit a job: a `JobSpec`, its fields (`argv=…`, `gpus=1`, `time_limit="2h"`), or both.

        A job without an idempotency key gets one, so that sending it again after a lost answer
        never doubles the job.
        """
        made = keyed(merge_spec(spec, fields))
        return self.call(send("POST", path_of("jobs"), JobRecord, made))

    def submit_many(self, specs: Sequence[JobSpec]) -> list[JobRecord]:
        """Submit up to 1000 jobs together: all or none."""
        body = {"jobs": [keyed(check_spec(spec)) for spec in specs]}
        kind = ResultPage[JobRecord]
        return (self.call(send("POST", path_of("jobs", "batch"), kind, body))).items

    def job(self, job_id: str) -> JobView:
        """Return one job, its chain of attempts and its place in it (`retry_state`)."""
        return self.call(get(path_of("jobs", job_id), JobView))

    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        queue: str | None = None,
        project: str | None = None,
        name: str | None = None,
        prefix: str | None = None,
        labels: Mapping[str, str] | None = None,
        cause: str | None = None,
        min_retries: int | None = None,
        max_retries: int | None = None,
        host: str | None = None,
        page_size: int | None = None,
    ) -> Iterator[JobRecord]:
        """Yield jobs, newest first; `prefix` is the beginning of their ids."""
        call = get_pages(
            path_of("jobs"),
            JobRecord,
            state=list(states),
            queue=queue,
            project=project,
            name=name,
            prefix=prefix,
            label=[f"{key}={value}" for key, value in (labels or {}).items()],
            cause=cause,
            retries_min=min_retries,
            retries_max=max_retries,
            host=host,
            limit=page_size,
        )
        return self.pages(call)

    def attempts(self, job_id: str, cause: str | None = None) -> list[AttemptRecord]:
        """Return the attempts, oldest first, the running one included; `cause` selects."""
        path = path_of("jobs", job_id, "attempts")
        return self._list(get_pages(path, AttemptRecord, cause=cause))

    def policy(self, job_id: str) -> PolicyView:
        """Return the retry policy in force for the job, and the source of each field."""
        return self.call(get(path_of("jobs", job_id, "policy"), PolicyView))

    def tasks(self, job_id: str) -> list[TaskRecord]:
        """Return the tasks of the attempt that is running now."""
        return self._list(get_pages(path_of("jobs", job_id, "tasks"), TaskRecord))

    def why(self, job_id: str) -> Why:
        """Return what holds the job where it is, and what to do about it."""
        return self.call(get(path_of("jobs", job_id, "why"), Why))

    def settings(self, job_id: str) -> list[Effective]:
        """Return every setting in force for the job, and its source."""
        return self._list(get_pages(path_of("jobs", job_id, "settings"), Effective))

    def forensics(self, job_id: str, attempt: int | None = None) -> list[ForensicsView]:
        """Return what was gathered before a watchdog's kill."""
        path = path_of("jobs", job_id, "forensics")
        return self._list(get_pages(path, ForensicsView, attempt=attempt))

    def cancel(self, job_id: str, reason: str = "", *, hard: bool = False) -> JobRecord:
        """Cancel; `hard` kills without TERM and grace. A job that has ended stays as it is."""
        body = CancelRequest(reason=reason, hard=hard)
        return self.call(send("POST", path_of("jobs", job_id, "cancel"), JobRecord, body))

    def retry(self, job_id: str, *, counted: bool = False, from_scratch: bool = False) -> JobRecord:
        """Queue a failed or cancelled job again, with new budgets; `counted`: as one more retry.

        Each rank starts from its newest checkpoint; `from_scratch` forgets them. A lost answer is
        not asked for again, because a job that runs again refuses the second call.

        Raises:
            Conflict: its state forbids it, or it is to be counted and its retries are spent.
        """
        body = RetryRequest(counted=counted, from_scratch=from_scratch)
        path = path_of("jobs", job_id, "retry")
        return self.call(send("POST", path, JobRecord, body, repeatable=False))

    def wait(self, job_id: str, timeout_seconds: float | None = None) -> JobView:
        """Wait until the job has ended, and return it. TimeoutError after `timeout_seconds`."""
        until = None if timeout_seconds is None else time.monotonic() + timeout_seconds
        delay = 0.02
        while True:
            job = self.job(job_id)
            if job.state.terminal:
                return job
            left = delay if until is None else until - time.monotonic()
            if left <= 0:
                raise TimeoutError(
                    f"job {job_id} is still {job.state.value} after {timeout_seconds:g} s"
                )
            time.sleep(min(delay, left))
            delay = min(delay * 1.5, 1.0)

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
        """Yield the bytes of the job's output; `follow` goes on until the job has ended."""
        if follow:
            found = self.follow(job_id, attempt=attempt, rank=rank, stream=stream, tail=tail)
            for item in found:
                if isinstance(item, LogLine):
                    yield item.data
            return
        query = query_of(attempt=attempt, rank=rank, stream=stream, tail=tail, follow=0)
        yield self.call(RestCall("GET", path_of("jobs", job_id, "logs"), bytes, query))

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
        """Yield output and state changes as they happen; the last item is the ended job.

        A lost connection is tried again for `retry_seconds`; no byte is given twice.
        """
        call = follow_log(job_id, attempt=attempt, rank=rank, stream=stream, tail=tail)
        yield from self._follow(LogFollower(call), retry_seconds)

    def log_streams(self, job_id: str, attempt: int | None = None) -> list[LogStreamRecord]:
        """Return how much output each stream has, and how much of it is kept."""
        path = path_of("jobs", job_id, "logs", "streams")
        return self._list(get_pages(path, LogStreamRecord, attempt=attempt))

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
        """Yield the record of what happened, oldest first; `follow` never ends.

        `after` resumes behind an event's id; `tail` gives the last so many.
        """
        query = {"after": after, "job": job_id, "kind": list(kinds), "tail": tail}
        call = get_pages(path_of("events"), EventRecord, cursor_name="after", **query)
        found = self._follow(EventFollower(call), retry_seconds) if follow else self.pages(call)
        yield from found
