"""Every call of the REST API as a value: what to send and how to read the answer. Pure; two thin
transports send them.

`repeatable` says that sending the call twice leaves the same state as sending it once, so that a
lost answer may be asked for again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

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
from holdfast.core.spec import JobSpec
from holdfast.errors import (
    Conflict,
    Forbidden,
    HoldfastError,
    NotFound,
    QuotaExceeded,
    Stale,
    TooLarge,
    Unauthorized,
    Unavailable,
    ValidationError,
)
from holdfast.wire.api import (
    CancelRequest,
    ForensicsView,
    HostActionRequest,
    HostView,
    JobView,
    PauseRequest,
    PolicyView,
    Problem,
    RetriesView,
    RetryRequest,
    SettingsPatch,
    TokenCreated,
    TokenRequest,
    Why,
)

T = TypeVar("T")


class Page(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list; `next` is the cursor of the one after it, None at the end."""

    items: list[T]
    next: str | None = None


@dataclass(frozen=True)
class Call(Generic[T]):
    """One request. `path` is under the controller's URL; `cursor_name` is the query parameter that
    pages."""

    method: str
    path: str
    read: Callable[[bytes], T]
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    repeatable: bool = True
    cursor_name: str = "cursor"

    def at(self, cursor: str) -> Call[T]:
        """The same list from `cursor` on."""
        kept = tuple(pair for pair in self.query if pair[0] not in (self.cursor_name, "tail"))
        return replace(self, query=(*kept, (self.cursor_name, cursor)))


def _reader(kind: Any) -> Callable[[bytes], Any]:
    def read(data: bytes) -> Any:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise HoldfastError(
                f"the controller's answer is not understood ({error}); its version may differ "
                "from this client's",
                code="bad_answer",
            ) from error

    return read


def _nothing(data: bytes) -> None:
    return None


def _bytes(data: bytes) -> bytes:
    return data


def _query(**given: object) -> tuple[tuple[str, str], ...]:
    pairs: list[tuple[str, str]] = []
    for name, value in given.items():
        if value is None or value == "":
            continue
        values: Iterable[object] = value if isinstance(value, (list, tuple)) else (value,)
        pairs += [(name, str(int(v)) if isinstance(v, bool) else _text(str(v))) for v in values]
    return tuple(pairs)


def _part(text: str) -> str:
    """One segment of a path. An empty one would name another resource."""
    if not text or text in (".", ".."):
        raise NotFound(f"{text!r} names nothing")
    return quote(_text(text), safe="")


def _text(text: str) -> str:
    """`text`, unless it came of bytes that are none (a file's name or an argument in no UTF-8),
    which cannot be sent."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise ValidationError(f"{ascii(text)[:80]} is not UTF-8 text") from None
    return text


_encoder = msgspec.json.Encoder()


def _encode(value: object) -> bytes:
    try:
        return _encoder.encode(value)
    except UnicodeEncodeError as error:
        raise ValidationError(f"{ascii(error.object)[:80]} is not UTF-8 text") from None


_JOB = _reader(JobRecord)


class _Items(msgspec.Struct, frozen=True):
    items: list[JobRecord]


# ---- jobs
def submit(spec: JobSpec) -> Call[JobRecord]:
    """Repeatable only when an idempotency key makes it so."""
    return Call(
        "POST", "/v1/jobs", _JOB, body=_encode(spec), repeatable=spec.idempotency_key is not None
    )


def submit_batch(specs: Sequence[JobSpec]) -> Call[_Items]:
    """All or none."""
    keyed = all(spec.idempotency_key is not None for spec in specs)
    body = _encode({"jobs": list(specs)})
    return Call("POST", "/v1/jobs/batch", _reader(_Items), body=body, repeatable=keyed)


def job(job_id: str) -> Call[JobView]:
    """One job with its chain of attempts."""
    return Call("GET", f"/v1/jobs/{_part(job_id)}", _reader(JobView))


def jobs(
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
    limit: int | None = None,
) -> Call[Page[JobRecord]]:
    """Newest first."""
    pairs = [f"{key}={value}" for key, value in (labels or {}).items()]
    query = _query(
        state=list(states),
        queue=queue,
        project=project,
        name=name,
        label=pairs,
        cause=cause,
        retries_min=min_retries,
        retries_max=max_retries,
        host=host,
        limit=limit,
    )
    return Call("GET", "/v1/jobs", _reader(Page[JobRecord]), query)


def attempts(job_id: str, cause: str | None = None) -> Call[Page[AttemptRecord]]:
    """The chain of attempts, oldest first; those of one cause only."""
    return Call(
        "GET",
        f"/v1/jobs/{_part(job_id)}/attempts",
        _reader(Page[AttemptRecord]),
        _query(cause=cause),
    )


def policy(job_id: str) -> Call[PolicyView]:
    """The retry policy in force for the job."""
    return Call("GET", f"/v1/jobs/{_part(job_id)}/policy", _reader(PolicyView))


def tasks(job_id: str) -> Call[Page[TaskRecord]]:
    """The tasks of the current attempt."""
    return Call("GET", f"/v1/jobs/{_part(job_id)}/tasks", _reader(Page[TaskRecord]))


def why(job_id: str) -> Call[Why]:
    """What holds the job."""
    return Call("GET", f"/v1/jobs/{_part(job_id)}/why", _reader(Why))


def job_settings(job_id: str) -> Call[Page[Effective]]:
    """Settings in force for the job."""
    return Call("GET", f"/v1/jobs/{_part(job_id)}/settings", _reader(Page[Effective]))


def forensics(job_id: str, attempt: int | None = None) -> Call[Page[ForensicsView]]:
    """What was gathered before a kill."""
    return Call(
        "GET",
        f"/v1/jobs/{_part(job_id)}/forensics",
        _reader(Page[ForensicsView]),
        _query(attempt=attempt),
    )


def log_bytes(
    job_id: str,
    *,
    attempt: int | None = None,
    rank: int | None = None,
    stream: str = "both",
    offset: int | None = None,
    tail: int | None = None,
) -> Call[bytes]:
    """The bytes of a log as they are now."""
    query = _query(attempt=attempt, rank=rank, stream=stream, offset=offset, tail=tail, follow=0)
    return Call("GET", f"/v1/jobs/{_part(job_id)}/logs", _bytes, query)


def follow_logs(
    job_id: str,
    *,
    attempt: int | None = None,
    rank: int | None = None,
    stream: str = "both",
    tail: int | None = None,
) -> Call[None]:
    """The stream of a log; read by `follow.LogFollower`."""
    query = _query(attempt=attempt, rank=rank, stream=stream, tail=tail, follow=1)
    return Call("GET", f"/v1/jobs/{_part(job_id)}/logs", _nothing, query)


def log_streams(job_id: str, attempt: int | None = None) -> Call[Page[LogStreamRecord]]:
    """How far each stream goes."""
    return Call(
        "GET",
        f"/v1/jobs/{_part(job_id)}/logs/streams",
        _reader(Page[LogStreamRecord]),
        _query(attempt=attempt),
    )


def cancel(job_id: str, reason: str = "", *, hard: bool = False) -> Call[JobRecord]:
    """Cancel; `hard` without TERM and grace."""
    body = _encode(CancelRequest(reason=reason, hard=hard))
    return Call("POST", f"/v1/jobs/{_part(job_id)}/cancel", _JOB, body=body)


def retry(job_id: str, *, counted: bool = False, from_scratch: bool = False) -> Call[JobRecord]:
    """Not repeatable: a job that runs again refuses the second."""
    body = _encode(RetryRequest(counted=counted, from_scratch=from_scratch))
    return Call("POST", f"/v1/jobs/{_part(job_id)}/retry", _JOB, body=body, repeatable=False)


# ---- queues
def queues() -> Call[Page[QueueRecord]]:
    """Every queue."""
    return Call("GET", "/v1/queues", _reader(Page[QueueRecord]))


def queue(name: str) -> Call[QueueRecord]:
    """One queue."""
    return Call("GET", f"/v1/queues/{_part(name)}", _reader(QueueRecord))


def put_queue(
    name: str, changes: Mapping[str, Value], unset: Sequence[str] = ()
) -> Call[QueueRecord]:
    """Create or change a queue."""
    body = _encode(SettingsPatch(set=dict(changes), unset=list(unset)))
    return Call("PUT", f"/v1/queues/{_part(name)}", _reader(QueueRecord), body=body)


def delete_queue(name: str) -> Call[None]:
    """Delete an empty queue. Not repeatable: the second would find nothing."""
    return Call("DELETE", f"/v1/queues/{_part(name)}", _nothing, repeatable=False)


def pause_queue(name: str, reason: str = "", *, hard: bool = False) -> Call[QueueRecord]:
    """Start nothing more from it."""
    body = _encode(PauseRequest(reason=reason, hard=hard))
    return Call("POST", f"/v1/queues/{_part(name)}/pause", _reader(QueueRecord), body=body)


def resume_queue(name: str) -> Call[QueueRecord]:
    """Start from it again."""
    return Call("POST", f"/v1/queues/{_part(name)}/resume", _reader(QueueRecord), body=b"{}")


# ---- projects and retries
def projects() -> Call[Page[ProjectRecord]]:
    """Projects with settings or unfinished jobs."""
    return Call("GET", "/v1/projects", _reader(Page[ProjectRecord]))


def project(name: str) -> Call[ProjectRecord]:
    """One project."""
    return Call("GET", f"/v1/projects/{_part(name)}", _reader(ProjectRecord))


def put_project(
    name: str, changes: Mapping[str, Value], unset: Sequence[str] = ()
) -> Call[ProjectRecord]:
    """Create or change a project."""
    body = _encode(SettingsPatch(set=dict(changes), unset=list(unset)))
    return Call("PUT", f"/v1/projects/{_part(name)}", _reader(ProjectRecord), body=body)


def delete_project(name: str) -> Call[None]:
    """Forget a project's settings. Not repeatable: the second would find nothing."""
    return Call("DELETE", f"/v1/projects/{_part(name)}", _nothing, repeatable=False)


def retries() -> Call[RetriesView]:
    """Who holds retries back, and how many jobs wait."""
    return Call("GET", "/v1/retries", _reader(RetriesView))


def hold_retries(project_name: str | None, reason: str) -> Call[Any]:
    """Throw the kill switch of the cluster or of a project."""
    changes: dict[str, Value] = {"retries_enabled": False, "retries_hold_reason": reason}
    return patch_config(changes) if project_name is None else put_project(project_name, changes)


def release_retries(project_name: str | None) -> Call[Any]:
    """Let retries go again: the cluster's switch, or a project's."""
    names = ("retries_enabled", "retries_hold_reason")
    return patch_config({}, names) if project_name is None else put_project(project_name, {}, names)


# ---- hosts
def hosts(*, dead: bool = False, include_terminated: bool = False) -> Call[Page[HostView]]:
    """Hosts and their slots."""
    query = _query(dead=dead or None, all=include_terminated or None)
    return Call("GET", "/v1/hosts", _reader(Page[HostView]), query)


def host(host_name: str) -> Call[HostView]:
    """One host, by id or name."""
    return Call("GET", f"/v1/hosts/{_part(host_name)}", _reader(HostView))


def act_on_host(
    host_name: str,
    action: str,
    reason: str = "",
    *,
    hard: bool = False,
    deadline_seconds: float | None = None,
    scale_down: bool = False,
) -> Call[HostView]:
    """drain, undrain, quarantine, release, terminate."""
    body = _encode(
        HostActionRequest(
            reason=reason, hard=hard, deadline_seconds=deadline_seconds, scale_down=scale_down
        )
    )
    return Call(
        "POST", f"/v1/hosts/{_part(host_name)}/{_part(action)}", _reader(HostView), body=body
    )


# ---- settings
def config(queue_name: str | None = None, project_name: str | None = None) -> Call[Page[Effective]]:
    """Settings in force for the cluster, a queue or a project."""
    query = _query(queue=queue_name, project=project_name)
    return Call("GET", "/v1/config", _reader(Page[Effective]), query)


def patch_config(changes: Mapping[str, Value], unset: Sequence[str] = ()) -> Call[Page[Effective]]:
    """Change the cluster's settings."""
    body = _encode(SettingsPatch(set=dict(changes), unset=list(unset)))
    return Call("PATCH", "/v1/config", _reader(Page[Effective]), body=body)


# ---- events
def events(
    *,
    after: str | None = None,
    job_id: str | None = None,
    kinds: Sequence[str] = (),
    tail: int | None = None,
    limit: int | None = None,
) -> Call[Page[EventRecord]]:
    """Events after an id, or the last `tail`."""
    query = _query(after=after, job=job_id, kind=list(kinds), tail=tail, limit=limit)
    return Call("GET", "/v1/events", _reader(Page[EventRecord]), query, cursor_name="after")


# ---- tokens
def tokens() -> Call[Page[TokenRecord]]:
    """Every token."""
    return Call("GET", "/v1/tokens", _reader(Page[TokenRecord]))


def create_token(
    role: str, name: str = "", expires_seconds: float | None = None
) -> Call[TokenCreated]:
    """Not repeatable: every call makes another token."""
    given = {"role": role, "name": name, "expires_seconds": expires_seconds}
    try:
        request = msgspec.convert(given, TokenRequest)
    except msgspec.ValidationError as error:
        raise ValidationError(f"a token cannot be made like this: {error}") from error
    return Call(
        "POST", "/v1/tokens", _reader(TokenCreated), body=_encode(request), repeatable=False
    )


def revoke_token(token_id: str) -> Call[None]:
    """End a token. Not repeatable: the second would find nothing."""
    return Call("DELETE", f"/v1/tokens/{_part(token_id)}", _nothing, repeatable=False)


def whoami() -> Call[TokenRecord]:
    """The token that speaks."""
    return Call("GET", "/v1/whoami", _reader(TokenRecord))


# ---- answers
_BY_STATUS: Mapping[int, type[HoldfastError]] = {
    400: ValidationError,
    401: Unauthorized,
    403: Forbidden,
    404: NotFound,
    409: Conflict,
    413: TooLarge,
    422: ValidationError,
    429: Unavailable,
    431: TooLarge,
    502: Unavailable,
    503: Unavailable,
    504: Unavailable,
}


def read_problem(status: int, data: bytes) -> HoldfastError:
    """The error an answer of 400 or above stands for, in the controller's own sentence where it
    gave one."""
    try:
        problem = msgspec.json.decode(data, type=Problem)
    except msgspec.DecodeError:
        # A proxy answered, or something that is no Holdfast at all.
        text = data[:200].decode(errors="replace").strip()
        problem = Problem(
            status=status,
            detail=f"the answer was HTTP {status} without a reason{': ' + text if text else ''}",
        )
    kind = _BY_STATUS.get(status, HoldfastError)
    if problem.code == Stale.code:
        kind = Stale
    elif problem.code == QuotaExceeded.code:
        kind = QuotaExceeded
    detail = problem.detail or problem.title or f"HTTP {status}"
    code = problem.code if problem.code != "error" else None
    error = kind(detail, code=code, field=problem.field)
    error.status = status
    return error
