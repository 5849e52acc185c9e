"""Calls of Python functions: submitted in sets, handed out in batches, their results kept.

CALLSET-1  A call's result is written once. An end counts only while its batch is that executor's
        (job, epoch, host) and the call has no end in it; a new batch needs a current lease.
CALLSET-2  A batch is leased with its executor's task: when that task is over, its calls are ready
        again. Only the call that ran is charged; the others keep their places.
CALLSET-3  A call is ready, backing off, in one open batch, or ended; never two of these.
CALLSET-4  A repeat of any request changes nothing: the client chooses the ids of sets and the
           indices,
        ends name their batch, and a batch that its executor does not list is sent again.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Literal, Protocol

from holdfast.core.calls.decide import PolicyOf
from holdfast.core.calls.feeds import ColdWaitOf
from holdfast.core.calls.unable import AppHosts
from holdfast.core.calls.values import CallState, Family, FunctionSpec
from holdfast.core.endings.rules import OperatorRule
from holdfast.core.ids import TaskKey
from holdfast.moves.values import StoreValue
from holdfast.store.port.clock import Now
from holdfast.wire.calls import Batch, CallResult, CallSetView, ExecutorReport


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

    head_priority, head_age_seconds: of the first call in order. unserved_seconds: approximate time
    since a batch of the feed was handed out.
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


class CallStore(Protocol):
    """Both stores pass `tests/store/conformance/test_calls.py`."""

    async def create_set(
        self,
        set_id: str,
        spec: FunctionSpec,
        queue: str,
        *,
        count: int | None = None,
        args: Sequence[str] = (),
        singles: bool = False,
        origin: CallSetOrigin | None = None,
        owner: str = "",
        now: Now = None,
    ) -> CallSetView:
        """Create a set with its first calls, which are ready at once. Raises Conflict where a set
        with this id has another spec. singles: as in `wire.calls.NewCallSet`."""

    async def append_calls(
        self,
        set_id: str,
        first: int,
        args: Sequence[str],
        *,
        count: int | None = None,
        cut: str = "",
        now: Now = None,
    ) -> CallSetView:
        """Add calls at indices from `first`; those of a cancelled set are cancelled at once. A call
        without `args` only notes that the client lives. A set that was closed because its client
        was silent is open again. cut: with a count, why the set has fewer calls than its client
        intended. Raises NotFound, or Conflict where the set is complete."""

    async def close_absent(
        self, silent_seconds: float, *, limit: int = 1000, now: Now = None
    ) -> list[str]:
        """Close the sets, except those of workflows, whose client has been silent for so long and
        has not given the total number of calls. All but sets of single calls count as cut short.
        Return their ids."""

    async def exchange(
        self,
        turns: Sequence[ExecutorTurn],
        *,
        policy_of: PolicyOf | None = None,
        rules: Sequence[OperatorRule] = (),
        cold_wait_of: ColdWaitOf | None = None,
        now: Now = None,
    ) -> list[ExecutorTurned]:
        """Record ends and hand out batches, for many executors in one transaction.

        policy_of, rules: for decisions on failures; None: a function's own fields over the
        defaults. cold_wait_of: queue → the bound for functions that set none; None: the default.
        The caller fills in `SetInfo.watch` of the batches.
        """

    async def return_batches(
        self,
        leading_since: datetime,
        *,
        policy_of: PolicyOf | None = None,
        rules: Sequence[OperatorRule] = (),
        now: Now = None,
    ) -> int:
        """Return the calls of batches whose executor's task is over without a closing report; the
        first without an end is charged to infra. Returns how many batches.

        A closing report may come a little later than the end of its task, so a batch is returned
        `CLOSING_SECONDS` after it was first found so.
        """

    async def release_due(
        self, *, limit: int = 10_000, policy_of: PolicyOf | None = None, now: Now = None
    ) -> int:
        """Make calls ready whose back-off is over, unless a kill switch holds them (RETRY-5)."""

    async def find_due(self) -> datetime | None:
        """Return the next time at which `release_due` has something to do."""

    async def cancel_calls(
        self,
        set_id: str,
        indices: Sequence[int] | None = None,
        *,
        reason: str = "",
        hard: bool = False,
        now: Now = None,
    ) -> CallSetView:
        """Cancel these calls, or all. Waiting calls are cancelled at once; running ones are asked
        to stop, or, with `hard`, ended with their executors."""

    async def retry_calls(
        self, set_id: str, indices: Sequence[int] | None = None, *, now: Now = None
    ) -> CallSetView:
        """Make failed and cancelled calls ready again, with fresh budgets."""

    async def read_set(self, set_id: str) -> CallSetView:
        """Return a set. Raises NotFound."""

    async def list_sets(
        self,
        *,
        before: str | None = None,
        limit: int = 100,
        project: str | None = None,
        owner: str | None = None,
    ) -> list[CallSetView]:
        """Return sets, the newest first."""

    async def read_results(
        self,
        set_id: str,
        *,
        first: int = 0,
        limit: int = 1000,
        indices: Sequence[int] | None = None,
        states: Sequence[CallState] = (),
    ) -> list[CallResult]:
        """Return the ended calls from `first` up to the first one that has not ended; or those of
        `indices` that ended; or those in `states`, by index."""

    async def read_call(self, set_id: str, index: int) -> CallStanding:
        """Return the state of one call, for `why`. Raises NotFound."""

    async def read_failures(self, set_id: str, index: int) -> list[Mapping[str, object]]:
        """Return a call's failed attempts: number, host, cause, reason, began and ended."""

    async def find_outputs(self, set_id: str, index: int, attempt: int) -> list[CallOutput]:
        """Return the parts of executors' logs in which one attempt of a call may have printed, by
        executor and stream, in order; only logs of executors that may run calls of its set."""

    async def read_feeds(
        self, *, cold_wait_of: ColdWaitOf | None = None, now: Now = None
    ) -> list[Feed]:
        """Return every feed with a ready call, for the executors' loop and for `why`."""

    async def read_running(self) -> list[RunningCalls]:
        """Return how many calls run, by family and model; those without running calls are
        missing."""

    async def read_busy(self) -> list[BusyCall]:
        """Return the calls whose executors accept no others, the longest handed out first; at most
        10 000."""

    async def prune_sets(self, history_days: float, *, limit: int = 1000, now: Now = None) -> int:
        """Delete sets that ended longer ago, with their calls; sets of a workflow run go after the
        run (HISTORY-1). Return how many sets."""

    async def find_known_values(self, names: Collection[str]) -> set[str]:
        """Return which of these values, named by SHA-256, are an argument or a result of a call, or
        of a workflow's node, on record (VALUE-1)."""
