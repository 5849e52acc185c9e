"""Jobs: submit them, look at them, wait for them, follow them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.client.follow import (
    FOLLOW_RETRY_SECONDS,
    EventFollower,
    Follow,
    LogFollower,
    OutputFollower,
    follow_log,
)
from holdfast.client.jobs.finding import find_job
from holdfast.client.jobs.waiting import wait_for_end, wait_for_jobs
from holdfast.client.late import LateModule, on_events, on_jobs, wire
from holdfast.client.rest import (
    PageCall,
    RestCall,
    ResultPage,
    ask,
    path_to,
    query_of,
    read_nothing,
)
from holdfast.client.scripts import Script, gives_each, gives_list, gives_one, runs, take_answer
from holdfast.client.specs import keyed, merge_spec
from holdfast.core.readings.records import JobTelemetryView
from holdfast.core.records import AttemptRecord, EventRecord, JobRecord, LogStreamRecord, TaskRecord
from holdfast.core.settings.resolve import Effective
from holdfast.core.spec import JobSpec, check_spec
from holdfast.core.stragglers.records import SuspectRecord
from holdfast.wire.logs.lines import LogLine

if TYPE_CHECKING:
    from typing import Unpack

    from holdfast.client.jobs.fields import SubmitFields
    from holdfast.client.locate import ControllerPlace
    from holdfast.core.logs.likeness import ErrorGroup
    from holdfast.wire.forecasts import values as forecast_wire
    from holdfast.wire.logs import search as log_wire
else:
    forecast_wire = LateModule("holdfast.wire.forecasts.values")


def make_job(spec: JobSpec | Sequence[str] | None, fields: Mapping[str, Any]) -> Script[JobSpec]:
    """Return the spec of a submission, with a key, once the folder that goes with it was sent."""
    plain = dict(fields)
    workdir = plain.pop("workdir", None)
    made = keyed(merge_spec(spec, plain))
    if workdir is not None:
        from holdfast.client.methods.code import send_code_once

        code = yield from send_code_once(workdir, made.project)
        made = check_spec(msgspec.structs.replace(made, code=code))
    return made


def _micros(seconds: float | None) -> int | None:
    return None if seconds is None else round(seconds * 1e6)


class JobMethods:
    """The client's methods about jobs, their output and the events."""

    place: ControllerPlace

    @runs
    def submit(
        self, /, spec: JobSpec | Sequence[str] | None = None, **fields: Unpack[SubmitFields]
    ) -> Script[wire.SubmittedJob]:
        """Submit a job, given as the words of its command (`submit(["python", "train.py"],
        gpus=1)`), as a `JobSpec`, as the fields of one (`argv=…`, `expected="2h"`), or as a spec
        and fields over it. workdir: a folder that goes with it, as `send_code` sends one. The
        answer's `limits` list the limits that will stop the job.

        A job without an idempotency key gets one, so that sending it again after a lost answer
        never doubles the job.
        """
        made = yield from make_job(spec, fields)
        job: wire.SubmittedJob = yield from take_answer(ask(on_jobs.SUBMIT_JOB, body=made))
        return job

    @runs
    def run(
        self,
        /,
        spec: JobSpec | Sequence[str] | None = None,
        *,
        timeout_seconds: float | None = None,
        check: bool = True,
        **fields: Unpack[SubmitFields],
    ) -> Script[wire.JobView]:
        """Submit a job as `submit` does, wait until it has ended, and return it.

        Raises:
            JobFailed: the job failed or was cancelled, unless `check` is False.
            TimeoutError: the job has not ended after `timeout_seconds`; it goes on.
        """
        made = yield from make_job(spec, fields)
        job: wire.SubmittedJob = yield from take_answer(ask(on_jobs.SUBMIT_JOB, body=made))
        ended = yield from wait_for_end(job.id, timeout_seconds, check=check)
        return ended

    @runs
    def find(self, word: str) -> Script[JobRecord]:
        """Return the job that a word names: an id, the beginning of one, a name, `ARRAY[7]`, or
        `@last`, the job that the command line submitted last from here.

        Raises:
            NotFound: no job has this name, or an id that begins with the word.
            ValidationError: several jobs do; the message lists them.
        """
        job = yield from find_job(word, self.place.url)
        return job

    @gives_list
    def submit_many(self, specs: Sequence[JobSpec]) -> PageCall[JobRecord]:
        """Submit up to 1000 jobs together: all or none."""
        body = {"jobs": [keyed(check_spec(spec)) for spec in specs]}
        return ask(on_jobs.SUBMIT_BATCH, body=body)

    @gives_one
    def job(self, job_id: str) -> RestCall[wire.JobView]:
        """Return one job, its chain of attempts and its place in the chain (`retry_state`)."""
        return ask(on_jobs.GET_JOB, job_id)

    @gives_each
    def jobs(
        self,
        *,
        states: Sequence[str] = (),
        queue: str | Sequence[str] | None = None,
        project: str | Sequence[str] | None = None,
        owner: str | Sequence[str] | None = None,
        parent: str | None = None,
        name: str | Sequence[str] | None = None,
        match: str | None = None,
        since: float | None = None,
        prefix: str | None = None,
        labels: Mapping[str, str] | None = None,
        cause: str | Sequence[str] | None = None,
        min_retries: int | None = None,
        max_retries: int | None = None,
        host: str | Sequence[str] | None = None,
        array: str | None = None,
        executors: str | None = None,
        supervised: bool | None = None,
        page_size: int | None = None,
    ) -> PageCall[JobRecord]:
        """Yield jobs, newest first. match: a part of the name. prefix: the beginning of the id.
        since: the earliest time of submission, in Unix seconds. owner: a user, or `@me`.
        Of a queue, project, owner, name, cause or host several may be given: any of them.

        array: an array's id for its members only, or "none" for jobs of no array. executors: "show"
        or "only" for the jobs that run calls, which are left out by default. supervised: True for
        the jobs that a script supervises.
        """
        return ask(
            on_jobs.LIST_JOBS,
            state=list(states),
            queue=queue,
            project=project,
            owner=owner,
            parent=parent,
            name=name,
            match=match,
            since=None if since is None else int(since),
            prefix=prefix,
            label=[f"{key}={value}" for key, value in (labels or {}).items()],
            cause=cause,
            retries_min=min_retries,
            retries_max=max_retries,
            host=host,
            array=array,
            executors=executors,
            supervised=supervised or None,
            limit=page_size,
        )

    @gives_list
    def attempts(
        self, job_id: str, cause: str | None = None, *, last: int | None = None
    ) -> PageCall[AttemptRecord]:
        """Return the attempts, oldest first, the running one included. cause: only attempts that
        ended of it. last: only so many of the newest, without how each rank ended."""
        members = None if last is None else 0
        return ask(on_jobs.LIST_ATTEMPTS, job_id, cause=cause, members=members, last=last)

    @gives_one
    def policy(self, job_id: str) -> RestCall[wire.PolicyView]:
        """Return the retry policy in force for the job, and the source of each field."""
        return ask(on_jobs.GET_POLICY, job_id)

    @gives_list
    def tasks(self, job_id: str) -> PageCall[TaskRecord]:
        """Return the tasks of the attempt that is running now."""
        return ask(on_jobs.LIST_TASKS, job_id)

    @gives_list
    def suspects(self, job_id: str) -> PageCall[SuspectRecord]:
        """Return the slow and wrong ranks of all attempts of a gang, with the evidence."""
        return ask(on_jobs.LIST_SUSPECTS, job_id)

    @gives_one
    def job_telemetry(
        self,
        job_id: str,
        *,
        step: str = "minute",
        seconds: int = 3600,
        ranks: Sequence[int] = (),
        attempt: int | None = None,
    ) -> RestCall[JobTelemetryView]:
        """Return the processors and the memory of a job's ranks: minutes (of a day) or hours (of 90
        days).

        ranks: at most 64; without any, the first 64. attempt: only this one.
        """

        return ask(
            on_jobs.GET_JOB_TELEMETRY,
            job_id,
            step=step,
            seconds=seconds,
            rank=[str(rank) for rank in ranks],
            attempt=attempt,
        )

    @gives_one
    def why(self, job_id: str) -> RestCall[wire.Why]:
        """Return the reasons for the job's present state, and what to do about each."""
        return ask(on_jobs.GET_WHY, job_id)

    @gives_list
    def forecasts(self) -> PageCall[forecast_wire.JobForecast]:
        """Return the first queued jobs in their order, each with its place in line and when it should
        start."""
        return ask(on_jobs.LIST_FORECASTS)

    @gives_list
    def settings(self, job_id: str) -> PageCall[Effective]:
        """Return every setting in force for the job, and its source."""
        return ask(on_jobs.LIST_SETTINGS, job_id)

    @gives_list
    def forensics(self, job_id: str, attempt: int | None = None) -> PageCall[wire.ForensicsView]:
        """Return the diagnostics gathered before a watchdog's kill."""

        return ask(on_jobs.LIST_FORENSICS, job_id, attempt=attempt)

    @gives_one
    def cancel(self, job_id: str, reason: str = "", *, hard: bool = False) -> RestCall[JobRecord]:
        """Cancel the job; `hard` kills without TERM and grace. A job that has ended stays as it
        is."""
        body = wire.CancelRequest(reason=reason, hard=hard)
        return ask(on_jobs.CANCEL_JOB, job_id, body=body)

    @gives_one
    def retry(
        self, job_id: str, *, counted: bool = False, from_scratch: bool = False
    ) -> RestCall[JobRecord]:
        """Queue a failed or cancelled job again, with new budgets. counted: True to count it as one
        more retry.

        Each rank starts from its newest checkpoint; `from_scratch` forgets them. The call is not
        repeated after a lost answer, because a job that runs again refuses the second call.

        Raises:
            Conflict: the job's state forbids a retry, or the retry is to be counted and the retries
            are spent.
        """
        body = wire.RetryRequest(counted=counted, from_scratch=from_scratch)

        return ask(on_jobs.RETRY_JOB, job_id, body=body)

    @gives_list
    def cancel_many(
        self, job_ids: Sequence[str], reason: str = "", *, hard: bool = False
    ) -> PageCall[wire.JobOutcome]:
        """Cancel up to 1000 jobs in one call, as `cancel` does; return the outcome of each, in the
        order of the ids. A refused job delays no other."""
        body = wire.CancelManyRequest(ids=list(job_ids), reason=reason, hard=hard)
        return ask(on_jobs.CANCEL_JOBS, body=body)

    @gives_list
    def retry_many(
        self, job_ids: Sequence[str], *, counted: bool = False, from_scratch: bool = False
    ) -> PageCall[wire.JobOutcome]:
        """Queue up to 1000 jobs again in one call, as `retry` does; return the outcome of each, in
        the order of the ids. A refused job delays no other."""
        body = wire.RetryManyRequest(ids=list(job_ids), counted=counted, from_scratch=from_scratch)
        return ask(on_jobs.RETRY_JOBS, body=body)

    @runs
    def wait(
        self, job_id: str, timeout_seconds: float | None = None, *, check: bool = False
    ) -> Script[wire.JobView]:
        """Wait until the job has ended, and return it.

        Raises:
            JobFailed: the job failed or was cancelled, where `check` is True.
            TimeoutError: the job has not ended after `timeout_seconds`.
        """
        ended = yield from wait_for_end(job_id, timeout_seconds, check=check)
        return ended

    @runs
    def wait_many(
        self,
        job_ids: Sequence[str],
        timeout_seconds: float | None = None,
        *,
        first: bool = False,
        check: bool = False,
    ) -> Script[list[wire.JobView]]:
        """Wait until all of the jobs have ended, and return them in their order. first: True to wait
        for the first end only.

        Raises:
            JobFailed: one of those that ended failed or was cancelled, where `check` is True.
            TimeoutError: the ends have not come after `timeout_seconds`.
        """
        jobs = yield from wait_for_jobs(job_ids, timeout_seconds, first=first, check=check)
        return jobs

    @gives_each
    def logs(
        self,
        job_id: str,
        *,
        follow: bool = False,
        attempt: int | None = None,
        rank: int | None = None,
        stream: str = "both",
        tail: int | None = None,
        full: bool = False,
    ) -> PageCall[bytes] | Follow[bytes]:
        """Yield the bytes of the job's output; `follow` continues until the job has ended.

        full: True to fetch bytes that the controller did not keep from the host that ran the job.
        Raises NotFound where bytes are missing there, too.
        """
        which = {"attempt": attempt, "rank": rank, "stream": stream, "tail": tail}
        if follow or full:
            call = follow_log(job_id, full=full, wait=follow, **which)
            return Follow(OutputFollower(call, whole=full))
        query = query_of(**which, follow=0)
        return RestCall(
            "GET", path_to(on_jobs.GET_LOGS, job_id), lambda data: ResultPage([data]), query
        )

    @gives_each
    def follow(
        self,
        job_id: str,
        *,
        attempt: int | None = None,
        since: int | None = None,
        rank: int | None = None,
        stream: str = "both",
        tail: int | None = None,
        full: bool = False,
        wait: bool = True,
        begin: float | None = None,
        until: float | None = None,
        retry_seconds: float = FOLLOW_RETRY_SECONDS,
    ) -> Follow[LogLine | JobRecord]:
        """Yield output and state changes as they happen; the last item is the ended job.

        The stream begins with the current attempt, or with the attempt `since`, and continues with
        later ones. attempt: the number of the only attempt to show.

        full: True to fetch bytes that the controller did not keep from the host that ran the job; a
        line's `reason` says why bytes before it are missing there, too. wait: False for only the
        bytes that are there now, and then, with begin and until, for those that the controller was
        given between two times, in Unix seconds.

        A lost connection is tried again for `retry_seconds`; no byte is yielded twice.
        """
        which = {"attempt": attempt, "since": since, "rank": rank, "stream": stream, "tail": tail,
                 "begin_us": _micros(begin), "until_us": _micros(until)}  # fmt: skip
        call = follow_log(job_id, full=full, wait=wait, **which)
        return Follow(LogFollower(call), retry_seconds)

    @gives_each
    def search_logs(
        self,
        pattern: str,
        job_ids: Sequence[str] = (),
        *,
        array: str | None = None,
        project: str | None = None,
        since: float | None = None,
        attempt: int | None = None,
        rank: int | None = None,
        stream: str = "both",
        ignore_case: bool = False,
        fixed: bool = False,
        context: int = 0,
        max_matches: int = 1000,
        retry_seconds: float = FOLLOW_RETRY_SECONDS,
    ) -> Follow[log_wire.LogFound | log_wire.LogSearchEnd]:
        """Yield the lines of logs that match a pattern, as it finds them; the last item says what was
        searched.

        pattern: as RE2 reads it; a text with `fixed`. job_ids, array, project: what is searched;
        without them all jobs, the newest first. since: only what the controller was given then or
        later, in Unix seconds. context: lines before and after each match, which have `match` false.
        A lost connection begins the search anew and gives no line twice.
        """
        from holdfast.client.log_search import LogSearchFollower

        query = query_of(
            pattern=pattern,
            job=list(job_ids) or None,
            array=array,
            project=project,
            since=None if since is None else int(since),
            attempt=attempt,
            rank=rank,
            stream=stream,
            ignore_case=ignore_case or None,
            fixed=fixed or None,
            context=context,
            max=max_matches,
        )
        call = RestCall("GET", path_to(on_jobs.SEARCH_LOGS), read_nothing, query)
        return Follow(LogSearchFollower(call), retry_seconds)

    @gives_list
    def errors(self, job_id: str, attempt: int | None = None) -> PageCall[ErrorGroup]:
        """Return the error lines at the ends of the logs of all ranks, grouped by their likeness: those
        of the most ranks first. attempt: the attempt's number; absent means the last one."""

        return ask(on_jobs.LIST_ERRORS, job_id, attempt=attempt)

    @gives_list
    def log_streams(self, job_id: str, attempt: int | None = None) -> PageCall[LogStreamRecord]:
        """Return how much output each stream has, and how much of it is kept."""

        return ask(on_jobs.LIST_STREAMS, job_id, attempt=attempt)

    @gives_each
    def events(
        self,
        *,
        follow: bool = False,
        after: str | None = None,
        job_id: str | None = None,
        kinds: Sequence[str] = (),
        tail: int | None = None,
        retry_seconds: float = FOLLOW_RETRY_SECONDS,
    ) -> PageCall[EventRecord] | Follow[EventRecord]:
        """Yield the records of events, oldest first; `follow` never ends.

        after: the id of the event to continue after. tail: the number of last events to yield.
        """
        query = {"after": after, "job": job_id, "kind": list(kinds), "tail": tail}
        call = ask(on_events.LIST_EVENTS, cursor_name="after", **query)
        return Follow(EventFollower(call), retry_seconds) if follow else call
