"""RetryPolicy: whether another attempt follows one that failed, and when. Pure.

RETRY-1  `max_retries` is a count: a job has at most 1 + max_retries attempts that are charged to
         retries.
RETRY-2  A cause that is never retried cannot be made eligible, by any layer.
RETRY-3  A delay is never over its ceiling: `max_retry_delay`, or 24 h where there is none.
"""

import math
from collections.abc import Mapping
from typing import Annotated, Any, Literal

import msgspec
from msgspec import UNSET, Meta, UnsetType

from holdfast.core.causes import ELIGIBLE, Cause, parse_causes
from holdfast.errors import ValidationError

HARD_CEILING_SECONDS = 86_400.0
MAX_RETRIES = 10_000

Backoff = Literal["fixed", "exponential"]
Jitter = Literal["none", "deterministic", "random"]
Count = Annotated[int, Meta(ge=0, le=MAX_RETRIES)]
Delay = Annotated[float, Meta(ge=0, le=HARD_CEILING_SECONDS)]
Ceiling = Annotated[float, Meta(gt=0, le=HARD_CEILING_SECONDS)]
Multiplier = Annotated[float, Meta(ge=1, le=100)]
Ratio = Annotated[float, Meta(ge=0, le=1)]


class RetryPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """A whole policy, every field decided. Delays in seconds.

    max_retries: number of retries after the first attempt. retry_delay: delay before the first
    retry, and before each one where `backoff` is fixed. backoff_multiplier: factor by which an
    exponential delay grows with every retry. max_retry_delay: longest delay; None: the hard ceiling
    of 24 h. jitter: none; deterministic (from the job's id and the count, so it can be computed
    again); or random. It is added to the delay, and at most `jitter_ratio` of it.
    eligible_causes: causes that are followed by another attempt, those of infrastructure and
    watchdogs included.
    emit_retry_events: write job.retry_scheduled, job.retry_exhausted and job.retry_succeeded.
    """

    max_retries: Count = 0
    retry_delay: Delay = 60.0
    backoff: Backoff = "fixed"
    backoff_multiplier: Multiplier = 2.0
    max_retry_delay: Ceiling | None = 3600.0
    jitter: Jitter = "none"
    jitter_ratio: Ratio = 0.25
    eligible_causes: tuple[Cause, ...] = ELIGIBLE
    emit_retry_events: bool = True


class RetryFields(
    msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True, omit_defaults=True
):
    """The part of a policy that one job sets itself; the layers below decide a field left out."""

    max_retries: Count | UnsetType = UNSET
    retry_delay: Delay | UnsetType = UNSET
    backoff: Backoff | UnsetType = UNSET
    backoff_multiplier: Multiplier | UnsetType = UNSET
    max_retry_delay: Ceiling | UnsetType | None = UNSET
    jitter: Jitter | UnsetType = UNSET
    jitter_ratio: Ratio | UnsetType = UNSET
    eligible_causes: Annotated[tuple[Cause, ...], Meta(max_length=64)] | UnsetType = UNSET
    emit_retry_events: bool | UnsetType = UNSET


SETTING_OF: Mapping[str, str] = {
    "max_retries": "max_retries",
    "retry_delay": "retry_delay_seconds",
    "backoff": "retry_backoff",
    "backoff_multiplier": "retry_multiplier",
    "max_retry_delay": "max_retry_delay_seconds",
    "jitter": "retry_jitter",
    "jitter_ratio": "retry_jitter_ratio",
    "eligible_causes": "retry_on",
    "emit_retry_events": "retry_events",
}
"""A policy's field → the name of the setting for it in projects and the cluster."""


def check_fields(fields: RetryFields) -> RetryFields:
    """Check the rules that types cannot express; raise ValidationError naming the field."""
    causes = fields.eligible_causes
    if causes is not UNSET:
        refused = sorted(str(c) for c in causes if c not in ELIGIBLE)
        if refused:
            never = f"{', '.join(refused)} is never retried and cannot be opted in"
            text = f"{never}; eligible are {', '.join(ELIGIBLE)}"
            raise ValidationError(text, field="retry.eligible_causes")
    delay, ceiling = fields.retry_delay, fields.max_retry_delay
    if delay is not UNSET and isinstance(ceiling, float | int) and delay > ceiling:
        over = f"retry_delay {delay:g} s is over max_retry_delay {ceiling:g} s"
        hint = "raise the one or lower the other"
        raise ValidationError(f"{over}; {hint}", field="retry.retry_delay")
    return fields


def fields_layer(fields: RetryFields | None) -> dict[str, Any]:
    """Return the settings that a job's own retry fields set."""
    layer: dict[str, Any] = {}
    if fields is None:
        return layer
    for field, name in SETTING_OF.items():
        value = getattr(fields, field)
        if value is UNSET:
            continue
        layer[name] = ",".join(value) or "none" if field == "eligible_causes" else value
    return layer


def make_policy(settings: Mapping[str, Any]) -> RetryPolicy:
    """Return the policy that follows from the settings in force."""
    values: dict[str, Any] = {field: settings[name] for field, name in SETTING_OF.items()}
    values["eligible_causes"] = parse_causes(str(values["eligible_causes"]))
    return RetryPolicy(**values)


def retry_delay_seconds(
    policy: RetryPolicy, retry_count: int, *, job_id: str, chance: float
) -> float:
    """Return the seconds to wait before the retry after `retry_count` earlier ones (RETRY-3).

    chance: uniform in [0, 1), for random jitter.
    """
    ceiling = policy.max_retry_delay or HARD_CEILING_SECONDS
    base = policy.retry_delay if policy.backoff == "fixed" else _grow(policy, retry_count, ceiling)
    span = base * policy.jitter_ratio
    if policy.jitter == "deterministic":
        jitter = _spread(job_id, retry_count, span)
    else:
        jitter = chance * span if policy.jitter == "random" else 0.0
    return min(base + jitter, ceiling)


def _grow(policy: RetryPolicy, retry_count: int, ceiling: float) -> float:
    """Return retry_delay × multiplier ** retry_count, at most the ceiling; by logarithms first,
    because a float's power overflows."""
    if policy.retry_delay == 0:
        return 0.0
    grown = math.log(policy.retry_delay) + retry_count * math.log(policy.backoff_multiplier)
    if grown >= math.log(ceiling):
        return ceiling
    return float(min(policy.retry_delay * policy.backoff_multiplier**retry_count, ceiling))


def _spread(job_id: str, retry_count: int, span: float) -> float:
    """Return SHA-1 of job id and count, modulo `span`, in microseconds: the same everywhere."""
    micros = int(span * 1_000_000)
    import hashlib  # loads OpenSSL, which most commands do without

    digest = hashlib.sha1(f"{job_id}{retry_count}".encode(), usedforsecurity=False).digest()
    return int.from_bytes(digest) % micros / 1_000_000 if micros else 0.0
