"""The rows that moves change, in both stores: mutable, with columns that readers do not see."""

from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.ids import TaskKey
from holdfast.core.ledger.tally import Tally
from holdfast.core.records import JobFields, MemberRecord, TaskFields
from holdfast.core.retry import RetryPolicy
from holdfast.core.states import AttemptState, Outcome

MAX_BIGINT = 2**63 - 1
MAX_INT = 2**31 - 1
BACK_OFF = "back_off"
RETRIES_HELD = "retries_held"
"""The causes of a job's wait after an attempt, besides `core.states.PARKED`: its due time, a kill
switch."""
START_TIME = "start_time"
DEPENDENCY = "dependency"
"""The causes of a job's wait before its first attempt: a start time, the ends of other jobs."""


class Row(msgspec.Struct, kw_only=True):
    """Root of the mutable rows."""


class JobRow(JobFields, kw_only=True):
    """A job as moves change it.

    origin_run, origin_node: the workflow node that it belongs to. supervised: from its spec.
    array_limited: its array limits how many members run at once; neither of these is written.
    awaited: another job, or the next member of its array, waits for its end. retry_events: its
    policy wants job.retry_* events. to_place: "front" or "back": the store gives it a new place in
    its queue.
    """

    origin_run: str | None = None
    origin_node: int | None = None
    barred_hosts: tuple[str, ...] = ()
    supervised: bool = False
    array_limited: bool = False
    awaited: bool = False
    retry_events: bool = True
    drain_hard: bool = False
    drain_operator_stop: bool = False
    to_place: str | None = None


class TaskRow(TaskFields, kw_only=True):
    """A task of a live attempt as moves change it."""

    queue: str = ""
    gpus: int = 0
    cpu_slots: int = 0
    memory_bytes: int = 0
    stop_hard: bool = False


class LeaseEnd(Row, kw_only=True):
    """The end of a lease whose task's row is deleted, or given to another host, in this move.
    ended_at: None where it ends now."""

    job_id: str
    rank: int
    started_at: datetime | None = None
    ended_at: datetime | None = None
    tally: Tally | None = None


class AttemptChange(Row, kw_only=True):
    """A move's changes of an attempt's row; None leaves a column as it is."""

    job_id: str
    number: int
    state: AttemptState
    outcome: Outcome | None = None
    cause: Cause | None = None
    rule: str | None = None
    charged_to: str | None = None
    policy: RetryPolicy | None = None
    next_at: datetime | None = None
    exit_code: int | None = None
    reason: str | None = None
    trigger_rank: int | None = None
    members: tuple[MemberRecord, ...] | None = None
    step: int | None = None
    total: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None


class EndedWork(Row, kw_only=True):
    """A job of a workflow node that has ended: a post of the outbox (POST-1)."""

    run: str
    node: int
    kind: str = "job"
    ref: str


class NewEvent(Row, kw_only=True):
    """An event to be written in the transaction of the change that it reports (STORE-1)."""

    kind: str
    job_id: str | None = None
    attempt: int | None = None
    epoch: int | None = None
    rank: int | None = None
    host_id: str | None = None
    queue: str | None = None
    project: str | None = None
    message: str = ""
    data: dict[str, Any] = {}


def clean_text(text: str) -> str:
    """Return `text` with U+FFFD for NUL, which a database cannot store: a report must not fail for
    one byte."""
    return text.replace("\x00", "�") if "\x00" in text else text


def is_storable_key(key: TaskKey) -> bool:
    """Return whether a row can hold the key; a key that none can hold is stale."""
    return 0 <= key.rank <= MAX_INT and 0 <= key.epoch <= MAX_BIGINT and "\x00" not in key.job_id


def clamp_count(count: int | None) -> int | None:
    """Return `count` within the range of bigint, because a beat's step may be any integer."""
    return None if count is None else max(-MAX_BIGINT, min(count, MAX_BIGINT))
