"""The values that callers and the store exchange about calls: turns of executors, feeds,
standings."""

from collections.abc import Sequence
from datetime import datetime
from typing import Literal

from holdfast.core.calls.unable import AppHosts
from holdfast.core.calls.values import CallState, Family, FunctionSpec
from holdfast.core.ids import TaskKey
from holdfast.moves.values import StoreValue
from holdfast.wire.calls import Batch, ExecutorReport


class CallSetOrigin(StoreValue, frozen=True, kw_only=True):
    """The workflow node that a set belongs to. The set's end writes an outbox row for it in the
    same transaction.

    out_dir: the node's folder; each call has one of its own below it.
    """

    run: str
    node: int
    out_dir: str = ""


CLOSING_SECONDS = 10.0
"""How long the store waits for a closing report after an executor's task was found to be over."""


class ExecutorTurn(StoreValue, frozen=True, kw_only=True):
    """One executor's report and its host. hosts: the hosts that may run its family, needed where a
    call of the report could not be imported on this host (ABLE-2)."""

    host_id: str
    incarnation: str
    report: ExecutorReport
    family: str = ""
    hosts: AppHosts = AppHosts()


class ExecutorTurned(StoreValue, frozen=True, kw_only=True):
    """The answer to one executor's report; the fields are those of `wire.calls.ExecutorAnswer`.

    lost: the executor has no current lease. touched_sets: in the first answer of an exchange, the
    ids of all sets with new ends, for clients that wait for results. ready_again: calls are ready
    again, so that other executors should be woken.
    """

    key: TaskKey
    batches: Sequence[Batch] = ()
    recorded: Sequence[tuple[int, int]] = ()
    dropped: Sequence[int] = ()
    cancelled: Sequence[tuple[int, int]] = ()
    cancel_reasons: Sequence[str] = ()
    killed: Sequence[tuple[int, int]] = ()
    lost: bool = False
    touched_sets: Sequence[str] = ()
    ready_again: bool = False


class Feed(StoreValue, frozen=True, kw_only=True):
    """The calls that wait for one family and one model. ready: their number, counted up to a bound.

    head_priority, head_age_seconds: the priority and the age of the first call in order.
    unserved_seconds: approximate time since a batch of the feed was handed out.
    """

    id: int
    family: Family
    model: str | None
    vram_gb: float
    ready: int
    head_priority: int
    head_age_seconds: float
    cold_wait_seconds: float
    unserved_seconds: float = 1e9


class RunningCalls(StoreValue, frozen=True, kw_only=True):
    """The running calls of one family and one model. calls: number of executors that have such
    calls, which is the number of running calls, because each runs one at a time."""

    family: Family
    model: str | None
    calls: int


class BusyCall(StoreValue, frozen=True, kw_only=True):
    """A running call whose executor accepts no further calls. waits_for: the call that it waits
    for; "" where it only runs for long. batch: the number of its batch."""

    call: str
    waits_for: str
    family: Family
    host_id: str
    job_id: str
    batch: int


class CallStanding(StoreValue, frozen=True, kw_only=True):
    """The state of one call now.

    phase: "ended" with every state but PENDING. ahead: number of ready calls of its feed before it,
    counted up to 10 000. due_at: the end of its back-off. executor: the job that has it in a batch.
    """

    spec: FunctionSpec
    family: Family
    state: CallState
    phase: Literal["ready", "running", "backing_off", "ended"]
    attempts: int
    reason: str = ""
    value: str = ""
    ahead: int = 0
    due_at: datetime | None = None
    ended_at: datetime | None = None
    executor: str | None = None


class CallOutput(StoreValue, frozen=True, kw_only=True):
    """A part `[start, end)` of an executor's log in which the output of a call may begin, after the
    line that names the call; it may go on beyond."""

    job_id: str
    job_attempt: int
    stream: str
    start: int
    end: int
