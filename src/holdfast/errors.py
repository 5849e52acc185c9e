"""The one error tree.

    HoldfastError
    ├── ValidationError      the input cannot be used; says which field and what to give instead
    ├── NotFound             no such job, queue, host, token
    ├── Conflict             the thing is in a state that forbids this
    │   └── Stale            a request of an old epoch or incarnation (FENCE-1); nothing was changed
    ├── Unauthorized         no token, or an unknown one
    ├── QuotaExceeded        the project's quota forbids it; never retried by itself
    ├── Forbidden            a known token that may not do this
    ├── TooLarge             a body, header or stream over its limit
    ├── JobFailed            a job that a script waited for failed or was cancelled
    ├── Unavailable          the store or the controller cannot be reached; trying again later is right
    │   └── ConnectionLost   a connection broke, or was silent for too long
    │       └── NeverConnected  no connection was made, so nothing was sent
    └── InvalidTransition    a (state, event) pair no table holds: a bug in Holdfast, never the user's

Every error says what happened, with which ids, and what to do. `code` is the stable word that
scripts match on and that RFC 9457 problems carry; `status` is the HTTP status the API answers with.
"""


class HoldfastWarning(UserWarning):
    """A warning about a request that was carried out, such as a job that no host can run."""


class HoldfastError(Exception):
    """The base of every error that Holdfast raises on purpose."""

    code = "error"
    status = 500

    def __init_subclass__(cls, *, code: str | None = None, status: int | None = None) -> None:
        cls.code, cls.status = code or cls.code, status or cls.status

    def __init__(self, message: str, *, code: str | None = None, field: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.field = field
        if code is not None:
            self.code = code


class ValidationError(HoldfastError, code="validation_error", status=422):
    """The input cannot be used. `field` is a JSON pointer-like path such as `spec.priority`."""


class NotFound(HoldfastError, code="not_found", status=404):
    """No such job, queue, host or token."""


class Conflict(HoldfastError, code="conflict", status=409):
    """The thing exists but is in a state that forbids the request."""


class Stale(Conflict, code="stale"):
    """A request came from an old epoch or incarnation; nothing was changed (FENCE-1)."""


class Unauthorized(HoldfastError, code="unauthorized", status=401):
    """No token, or one that no row matches."""


class QuotaExceeded(HoldfastError, code="quota_exceeded", status=403):
    """The project's quota forbids the request. The message names the quota, its use and what
    fits."""


class Forbidden(HoldfastError, code="forbidden", status=403):
    """The role of a known token does not allow this, or the lease is another host's."""


class TooLarge(HoldfastError, code="too_large", status=413):
    """A body, header or stream is over its limit."""


class Unavailable(HoldfastError, code="unavailable", status=503):
    """The store or the controller cannot be reached; nothing is known to have changed."""


class ConnectionLost(Unavailable, code="unreachable"):
    """The connection broke, or was silent for too long, before the answer was whole."""


class NeverConnected(ConnectionLost):
    """No connection was made, so the request has changed nothing and may be sent again."""


class JobFailed(HoldfastError, code="job_failed"):
    """A job that a script waited for failed or was cancelled. `job` is the job as it ended, with its
    reason, its cause and its exit code."""

    def __init__(self, message: str, job: object) -> None:
        super().__init__(message)
        self.job = job


class InvalidTransition(HoldfastError, code="invalid_transition", status=500):
    """A (state, event) pair that no table holds. Always a bug in Holdfast."""
