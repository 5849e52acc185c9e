"""Calls of Python functions: submitted in sets, handed out in batches, their results kept.

CALLSET-1  A call's result is written once. An end counts only while its batch is that executor's
        (job, epoch, host) and the call has no end in it; a new batch needs a current lease.
CALLSET-2  A batch is leased with its executor's task: when that task is over, its calls are ready
        again. Only the call that ran is charged; the others keep their places.
CALLSET-3  A call is ready, backing off, in one open batch, or ended; never two of these.
CALLSET-4  A repeat of any request changes nothing: sets and indices are the client's, ends name their
        batch, and a batch that was not heard of is sent again.
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
    """The workflow node that a set belongs to: its end is an outbox row in the same transaction.

    out_dir: the node's folder; each call has one of its own below it.
    """

    run: str
    node: int
    out_dir: str = ""


CLOSING_SECONDS = 10.0
"""How long a closing report may come after its executor's task was found to be over."""


class ExecutorTurn(StoreValue, frozen=True, kw_only=True):
    """One executor's report and its host, as the route heard it. hosts: those that may run its family,
    where a call of the report could not be run on this one (ABLE-2)."""

    host_id: str
    incarnation: str
    report: ExecutorReport
    family: str = ""
    hosts: AppHosts = AppHosts()


class ExecutorTurned(StoreValue, frozen=True, kw_only=True):
    """The answer to one turn. lost: no current lease. touched_sets: with the first of an exchange, ids
    of all sets that have new ends, whose results may be waited for. ready_again: calls came back, so
    that other executors may be woken."""

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
    """Calls that wait for one family and one model. ready: how many, at most counted to a bound.

    head_priority, head_age_seconds: of the first in order. unserved_seconds: about how long ago a
    batch of it was last handed out.
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
    """Executors of a family that have calls of one model in hand. Each runs one call at a time."""

    family: Family
    model: str | None
    calls: int


class BusyCall(StoreValue, frozen=True, kw_only=True):
    """A call that keeps its executor from others. family: of the call. waits_for: the call that it
    waits for; "" where it only runs for long. batch: its batch's number."""

    call: str
    waits_for: str
    family: Family
    host_id: str
    job_id: str
    batch: int


class CallStanding(StoreValue, frozen=True, kw_only=True):
    """Where one call stands now.

    phase: "ended" with every state but PENDING. ahead: ready calls of its feed before it, at most
    counted to 10 000. due_at: of a back-off. executor: the job whose batch holds it.
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
        """Create a set with its first calls, ready at once. Raises Conflict where the id is taken by
        another spec. singles: of single calls, whose client never means to submit more."""

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
        """Add calls at indices from `first`; those of a set that was cancelled are cancelled as they
        come. Without any, its client is heard of. A set that was closed because that was silent is
        open again. cut: with a count, why the set has fewer calls than its client meant to submit.
        Raises NotFound, or Conflict where the set is whole."""

    async def close_absent(
        self, silent_seconds: float, *, limit: int = 1000, now: Now = None
    ) -> list[str]:
        """Close sets of no workflow whose client was not heard of for so long and has not said how
        many calls there are; those of no single calls are cut short. Returns their ids."""

    async def exchange(
        self,
        turns: Sequence[ExecutorTurn],
        *,
        policy_of: PolicyOf | None = None,
        rules: Sequence[OperatorRule] = (),
        cold_wait_of: ColdWaitOf | None = None,
        now: Now = None,
    ) -> list[ExecutorTurned]:
        """Take ends and hand out batches, of many executors in one transaction.

        policy_of, rules: what decides about failures; None: a function's own fields over the
        defaults. cold_wait_of: of functions that set none; None: the default.
        The batches' `SetInfo.watch` is the caller's to fill in.
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
        """The next time at which `release_due` has something to do."""

    async def cancel_calls(
        self,
        set_id: str,
        indices: Sequence[int] | None = None,
        *,
        reason: str = "",
        hard: bool = False,
        now: Now = None,
    ) -> CallSetView:
        """Cancel these calls, or all: at once those that wait; those that run cooperatively, or hard:
        with their executors."""

    async def retry_calls(
        self, set_id: str, indices: Sequence[int] | None = None, *, now: Now = None
    ) -> CallSetView:
        """Make failed and cancelled calls ready again, with fresh budgets."""

    async def read_set(self, set_id: str) -> CallSetView:
        """Raises NotFound."""

    async def list_sets(
        self,
        *,
        before: str | None = None,
        limit: int = 100,
        project: str | None = None,
        owner: str | None = None,
    ) -> list[CallSetView]:
        """The newest first."""

    async def read_results(
        self,
        set_id: str,
        *,
        first: int = 0,
        limit: int = 1000,
        indices: Sequence[int] | None = None,
        states: Sequence[CallState] = (),
    ) -> list[CallResult]:
        """The ended calls from `first` without a gap; or of `indices` those that ended; or those in
        `states`, by index."""

    async def read_call(self, set_id: str, index: int) -> CallStanding:
        """Where one call stands, for `why`. Raises NotFound."""

    async def read_failures(self, set_id: str, index: int) -> list[Mapping[str, object]]:
        """A call's failed attempts: number, host, cause, reason, began and ended."""

    async def find_outputs(self, set_id: str, index: int, attempt: int) -> list[CallOutput]:
        """Where one attempt of a call may have printed, by executor and stream, in order; only in
        logs of executors that may run calls of its set."""

    async def read_feeds(
        self, *, cold_wait_of: ColdWaitOf | None = None, now: Now = None
    ) -> list[Feed]:
        """Every feed with a ready call, for the executors' loop and for `why`."""

    async def read_running(self) -> list[RunningCalls]:
        """How many calls run, by feed; nothing of feeds without any."""

    async def read_busy(self) -> list[BusyCall]:
        """Calls whose executors take no others, the first that was handed out first; 10 000 at most."""

    async def prune_sets(self, history_days: float, *, limit: int = 1000, now: Now = None) -> int:
        """Delete sets that ended longer ago, with their calls; those of a run after it (HISTORY-1).
        Returns how many sets."""

    async def find_known_values(self, names: Collection[str]) -> set[str]:
        """Return those of these values, by their SHA-256, that an argument or a result names, of a
        call or of a node of a workflow that is on record (VALUE-1)."""
