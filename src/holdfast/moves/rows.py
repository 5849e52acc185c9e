"""The rows as a store works on them: mutable, with the columns nobody outside sees. Both stores
share them."""

from __future__ import annotations

from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.causes import Cause
from holdfast.core.facts import TaskFacts
from holdfast.core.ids import TaskKey
from holdfast.core.records import MemberRecord, RankCharges
from holdfast.core.retry import RetryPolicy
from holdfast.core.states import AttemptState, JobState, Outcome, TaskState

MAX_BIGINT = 2**63 - 1
MAX_INT = 2**31 - 1
BACK_OFF = "back_off"
RETRIES_HELD = "retries_held"
PARKED = "parked"
"""What a job waits for after an attempt: its due time, a kill switch, a person."""


class Row(msgspec.Struct, kw_only=True):
    """Root of the mutable rows."""


class JobRow(Row, kw_only=True):
    """The columns of a job that moves read and write. `to_place`: "front" or "back" asks the writer
    for a new place.

    supervised is its spec's, and never written.
    """

    id: str
    project: str
    queue: str
    tasks: int
    created_at: datetime
    state: JobState
    reason: str
    epoch: int = 0
    attempts: int = 0
    retries_charged: int = 0
    watchdog_charged: int = 0
    infra_charged: int = 0
    avoid_hosts: tuple[str, ...] = ()
    barred_hosts: tuple[str, ...] = ()
    supervised: bool = False
    wait_cause: str | None = None
    wait_until: datetime | None = None
    retry_at: datetime | None = None
    retry_events: bool = True
    best_step: int | None = None
    no_progress: int = 0
    rank_charges: dict[str, RankCharges] = {}
    start_failures: int = 0
    drain_cause: Cause | None = None
    drain_reason: str | None = None
    drain_since: datetime | None = None
    drain_hard: bool = False
    drain_operator_stop: bool = False
    trigger_rank: int | None = None
    outcome: Outcome | None = None
    cause: Cause | None = None
    exit_code: int | None = None
    step: int | None = None
    total: int | None = None
    beat_at: datetime | None = None
    queued_at: datetime | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    revision: int = 0
    to_place: str | None = None


class TaskRow(Row, kw_only=True):
    """A task of a live attempt."""

    job_id: str
    rank: int
    epoch: int
    attempt: int
    state: TaskState
    queue: str = ""
    gpus: int = 0
    cpu_slots: int = 0
    memory_bytes: int = 0
    host_id: str | None = None
    host_name: str | None = None
    incarnation: str | None = None
    devices: tuple[int, ...] = ()
    lease_ttl_seconds: float = 300.0
    lease_until: datetime | None = None
    offered_at: datetime | None = None
    claimed_at: datetime | None = None
    barrier: bool = True
    port: int | None = None
    started_at: datetime | None = None
    ended_at: datetime | None = None
    step: int | None = None
    total: int | None = None
    beat_at: datetime | None = None
    section: str | None = None
    facts: TaskFacts | None = None
    replaced: int = 0
    reserved_at: datetime | None = None
    ready_at: datetime | None = None
    start_failures: int = 0
    stop_cause: Cause | None = None
    stop_reason: str | None = None
    stop_hard: bool = False

    @property
    def key(self) -> TaskKey:
        """What reports about this task carry."""
        return TaskKey(self.job_id, self.rank, self.epoch)


class AttemptChange(Row, kw_only=True):
    """What a move writes into an attempt's row; None leaves a column as it is."""

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


class NewEvent(Row, kw_only=True):
    """An event to be written with the change it tells of (STORE-1)."""

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
    """`text` without what a database cannot store: NUL. A report must never fail for a byte in
    it."""
    return text.replace("\x00", "�") if "\x00" in text else text


def is_storable_key(key: TaskKey) -> bool:
    """False for a key whose numbers or text no row could hold: such a key is stale by nature."""
    return 0 <= key.rank <= MAX_INT and 0 <= key.epoch <= MAX_BIGINT and "\x00" not in key.job_id


def clamp_count(count: int | None) -> int | None:
    """`count` within what a bigint column holds; a beat's step may be any integer."""
    return None if count is None else max(-MAX_BIGINT, min(count, MAX_BIGINT))
