"""What both stores make of a `NewJob` before they write it."""

from __future__ import annotations

import hashlib

import msgspec

from holdfast.core.spec import JobSpec
from holdfast.core.states import JobEvent, JobState
from holdfast.core.transitions import JOB, sources
from holdfast.errors import Conflict, NotFound, ValidationError
from holdfast.moves.rows import BACK_OFF, PARKED
from holdfast.moves.values import NewJob

SUBMITTED = "submitted"
WAITS_FOR_START = "waits for its start time"
DUE = "its time has come"
_encoder = msgspec.json.Encoder(order="deterministic")


def hash_spec(spec: JobSpec) -> str:
    """SHA-256 of the whole spec, secrets included: two submissions under one idempotency key must
    agree in it."""
    return hashlib.sha256(_encoder.encode(spec)).hexdigest()


def list_secrets(job: NewJob) -> dict[str, str]:
    """Everything that is kept apart of a new job: its user's secrets, and what was minted for it,
    which stands over them."""
    return {**job.spec.secrets, **job.minted}


def refuse_mismatch(project: str, key: str, job_id: str) -> Conflict:
    """The error for a key that names another spec."""
    return Conflict(
        f"idempotency key {key!r} of project {project} named job {job_id}, whose spec differs "
        "from this one; "
        "use a new key for a new job",
        code="idempotency_mismatch",
    )


def refuse_queue(name: str) -> ValidationError:
    """The error for a queue that is not there."""
    return ValidationError(
        f"there is no queue {name!r}; `holdfast queues` lists them",
        code="unknown_queue",
        field="queue",
    )


def no_job(job_id: str) -> NotFound:
    """The error for an id no job has."""
    return NotFound(f"there is no job {job_id}; `holdfast jobs` lists them")


def check_revivable(job_id: str, state: JobState, wait_cause: str | None) -> None:
    """Raise Conflict unless a person's `retry` is possible. A parked job waits for nothing else."""
    if state is JobState.WAITING and wait_cause in (PARKED, BACK_OFF):
        return
    if state not in sources(JOB, JobEvent.REVIVE):
        raise refuse_retry(job_id, state)


def refuse_retry(job_id: str, state: JobState) -> Conflict:
    """The error for a `retry` of a job that nothing holds up."""
    return Conflict(
        f"job {job_id} is {state}; only one that failed, was cancelled, is parked or backs off "
        "can be retried"
    )
