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

from collections.abc import Mapping, Sequence
from datetime import datetime, timedelta
from typing import Any

from holdfast.core.calls.decide import HELD_SECONDS, PolicyOf, default_policy
from holdfast.core.calls.feeds import ColdWaitOf
from holdfast.core.calls.values import Family, FunctionSpec, find_family
from holdfast.core.endings.rules import OperatorRule
from holdfast.moves.calls.calls import CALL_LOST, CallMoves
from holdfast.moves.calls.pieces import Piece, Ranges, list_ranges, make_pages, subtract_ranges
from holdfast.moves.calls.sets import (
    ABSENT,
    ask_to_stop,
    check_growth,
    check_same,
    check_same_owner,
    no_set,
    split_pieces,
    view_set,
)
from holdfast.moves.events import calls_event
from holdfast.moves.rows import clean_text
from holdfast.store.clock import Now
from holdfast.store.postgres.calls.exchange import CallExchanges, make_judge
from holdfast.store.postgres.calls.reads import PostgresCallReads, get_set, show_set
from holdfast.store.postgres.calls.rows import (
    Steps,
    encode_rows,
    index_sets,
    judge_moves,
    list_counts,
    list_writes,
    name_calls,
    place_rows,
    read_batch,
    read_piece,
    ready_step,
)
from holdfast.store.postgres.calls.values import (
    CLOSING_SECONDS,
    CallSetOrigin,
    ExecutorTurn,
    ExecutorTurned,
)
from holdfast.store.postgres.connection.parts import reads_planned, transacts_planned
from holdfast.store.postgres.connection.session import Rows, Session, Tx, to_json
from holdfast.store.postgres.moves import write_events
from holdfast.wire.calls import CallSetView


class PostgresCalls(PostgresCallReads):
    """Sets of calls, their batches and their results."""

    def __init__(self, session: Session) -> None:
        super().__init__(session)
        self._exchanges = CallExchanges()

    @transacts_planned
    async def create_set(
        self,
        tx: Tx,
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
        """Create a set with its first calls, which are ready at once. Raises Conflict where the set
        of this id has another spec. singles: as in `wire.calls.NewCallSet`."""
        at, feed = await _find_feed(tx, find_family(spec, queue), spec, now)
        given = to_json(spec)
        new = {
            "id": set_id,
            "owner": owner,
            "feed": feed,
            "queue": queue,
            "project": spec.project,
            "function": spec.function,
            "priority": spec.priority,
            "spec": given,
            "run": None if origin is None else origin.run,
            "node": None if origin is None else origin.node,
            "out_dir": "" if origin is None else origin.out_dir,
            "singles": singles,
            "now": at,
        }
        _, (row,), there = await tx.many(
            ("insert_call_set", new), *_look_at_set(set_id, 0, len(args), given)
        )
        check_same(set_id, row["spec"], spec)
        check_same_owner(set_id, row["owner"], owner)
        return await _grow(tx, row, there, 0, args, count, at)

    @transacts_planned
    async def append_calls(
        self,
        tx: Tx,
        set_id: str,
        first: int,
        args: Sequence[str],
        *,
        count: int | None = None,
        cut: str = "",
        now: Now = None,
    ) -> CallSetView:
        """Append calls to a set, at indices from `first`; calls of a cancelled set are cancelled at
        once. Without `args`, the request only notes that the client lives. A set that was closed
        because its client was silent is open again. cut: with a count, why the set has fewer calls
        than its client intended. Raises NotFound, or Conflict where the set is complete."""
        clock, rows, there = await tx.many(
            ("read_now", {"now": now}), *_look_at_set(set_id, first, len(args))
        )
        if not rows:
            raise no_set(set_id)
        return await _grow(tx, rows[0], there, first, args, count, _read_clock(clock), cut)

    @transacts_planned
    async def close_absent(
        self, tx: Tx, silent_seconds: float, *, limit: int = 1000, now: Now = None
    ) -> list[str]:
        """Close the sets, except those of workflows, whose client has been silent for
        `silent_seconds` and has not given the total number of calls. All of them but sets of single
        calls count as cut short. Return the ids of the closed sets."""
        given = {"seconds": silent_seconds, "cut": ABSENT, "limit": limit, "now": now}
        return [row["id"] for row in await tx.rows("close_absent_call_sets", **given)]

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

        policy_of, rules: the policies and rules by which failures are decided; None: a function's
        own fields over the defaults. cold_wait_of: queue → the bound for functions that set none;
        None: the default. The caller fills in `SetInfo.watch` of the batches.
        """
        if not turns:
            return []
        return await self.session.transact_hot(
            lambda tx: self._exchanges.run(
                tx, turns, make_judge(policy_of, rules), cold_wait_of, now
            )
        )

    @transacts_planned
    async def return_batches(
        self,
        tx: Tx,
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
        at = await tx.now(now)
        patience = (
            CLOSING_SECONDS if (at - leading_since).total_seconds() > CLOSING_SECONDS else 1e9
        )
        rows = await tx.rows("find_left_batches", now=at, patience=patience)
        moves = CallMoves(at)
        for batch in map(read_batch, rows):
            moves.return_batch(batch, batch.left[0][0] if batch.left else -1, CALL_LOST)
        await judge_moves(tx, moves, make_judge(policy_of, rules))
        steps = [*list_writes(moves), *list_counts(moves)]
        if steps:
            await tx.many(*steps)
        return len(rows)

    @transacts_planned
    async def release_due(
        self, tx: Tx, *, limit: int = 10_000, policy_of: PolicyOf | None = None, now: Now = None
    ) -> int:
        """Make the calls ready whose back-off is over, unless a kill switch holds them
        (RETRY-5)."""
        at = await tx.now(now)
        rows = await tx.rows("lock_due_calls", now=at, limit=limit)
        if not rows:
            return 0
        numbers = sorted({row["set_n"] for row in rows})
        sets = index_sets(await tx.rows("lock_call_sets", sets=numbers))
        moves = CallMoves(at)
        held = moves.release(
            [(row["feed"], row["held"], read_piece(row)) for row in rows],
            sets,
            policy_of or default_policy,
        )
        still = {(piece.set_n, piece.first) for piece in held}
        free = [row for row in rows if (row["set_n"], row["first"]) not in still]
        steps: Steps = [("delete_call_waiting", name_calls(map(read_piece, free)))]
        if held:
            until = at + timedelta(seconds=HELD_SECONDS)
            steps.append(("defer_held_calls", {**name_calls(held), "until": until}))
        await tx.many(*steps, *list_writes(moves), *list_counts(moves))
        return len(free)

    @reads_planned
    async def find_due(self, tx: Tx) -> datetime | None:
        """Return the next instant at which `release_due` has something to do."""
        due: datetime | None = await tx.value("find_due_call")
        return due

    @transacts_planned
    async def cancel_calls(
        self,
        tx: Tx,
        set_id: str,
        indices: Sequence[int] | None = None,
        *,
        reason: str = "",
        hard: bool = False,
        now: Now = None,
    ) -> CallSetView:
        """Cancel the calls with these indices, or all calls of a set. Waiting calls are cancelled
        at once; running calls are asked to stop, or, with `hard`, ended with their executors."""
        at = await tx.now(now)
        row = await get_set(tx, set_id)
        asked = None if indices is None else list_ranges(indices)
        if row["ended_at"] is not None:
            return view_set(row)
        n, moves = row["n"], CallMoves(at)
        await _take_waiting(tx, row, moves, asked, reason, "lock_")
        batches = [read_batch(b) for b in await tx.rows("lock_batches_of_set", n=n)]
        why = clean_text(reason)
        stopped = [b for b in batches if ask_to_stop(b, n, asked, why, hard=hard)]
        await tx.rows("lock_call_sets", sets=[n])
        await _take_waiting(tx, row, moves, asked, reason, "lock_free_")
        steps: Steps = []
        if stopped:
            rows = [{"id": b.id, "cancelled": b.cancelled, "killed": b.killed} for b in stopped]
            steps.append(("stop_call_batches", {"rows": encode_rows(rows)}))
        if asked is None:
            steps.append(("close_call_set", {"n": n, "reason": why, "now": at}))
        await tx.many(*steps, *list_writes(moves), *list_counts(moves, also=n))
        view = await show_set(tx, set_id)
        await _tell(tx, "cancelling", view, indices, at, f": {why}" if why else "")
        return view

    @transacts_planned
    async def retry_calls(
        self, tx: Tx, set_id: str, indices: Sequence[int] | None = None, *, now: Now = None
    ) -> CallSetView:
        """Make failed and cancelled calls ready again, with fresh budgets."""
        at = await tx.now(now)
        row = await tx.one("lock_call_set", id=set_id, spec=None)
        if row is None:
            raise no_set(set_id)
        asked = None if indices is None else list_ranges(indices)
        spans = {
            "firsts": None if asked is None else [first for first, _ in asked],
            "lasts": None if asked is None else [last for _, last in asked],
        }
        runs = await tx.rows("take_call_results", n=row["n"], **spans)
        moves = CallMoves(at)
        freed = moves.revive(row["n"], row["feed"], 100 - row["priority"], row["ord"], runs, asked)
        if freed:
            given = {"firsts": [p.first for p in freed], "lasts": [p.last for p in freed]}
            again: Steps = [("delete_call_charges", {"n": row["n"], **given})]
            again.append(("reopen_call_set", {"n": row["n"]}))
            await tx.many(*again, *list_writes(moves), *list_counts(moves))
        view = await show_set(tx, set_id)
        await _tell(tx, "retried", view, indices, at)
        return view

    @transacts_planned
    async def prune_sets(
        self, tx: Tx, history_days: float, *, limit: int = 1000, now: Now = None
    ) -> int:
        """Delete sets that ended more than `history_days` ago, with their calls; sets of a workflow
        run are deleted after the run (HISTORY-1). Return how many sets."""
        before = await tx.now(now) - timedelta(days=history_days)
        rows = await tx.rows("find_old_sets", before=before, limit=limit)
        if rows:
            sets = [row["n"] for row in rows]
            await tx.many(*((f"prune_call_{what}", {"sets": sets}) for what in _PRUNED))
        return len(rows)


_PRUNED = ("pages", "results", "charges", "failures", "sets")


# ---- sets


async def _tell(
    tx: Tx, what: str, view: CallSetView, indices: Sequence[int] | None, at: datetime, why: str = ""
) -> None:
    some = "" if indices is None else "1 call" if len(indices) == 1 else f"{len(indices)} calls"
    said = {"cancelling": "asked to stop", "retried": "made ready again"}[what]
    which = f"{some or 'all calls'} of {view.spec.function} in call set {view.id}"
    text = f"{which} {'was' if some == '1 call' else 'were'} {said}{why}"
    await write_events(tx, [calls_event(what, view.id, view.spec.project, text)], at)


async def _take_waiting(
    tx: Tx, row: Mapping[str, Any], moves: CallMoves, asked: Ranges | None, reason: str, lock: str
) -> None:
    """Cancel the ready calls of a set, and its calls that wait for a retry. asked: the indices to
    cancel, None for all."""
    n, feed = row["n"], row["feed"]
    ready = [
        read_piece(r)
        for r in await tx.rows(f"{lock}ready_of_set", feed=feed, rank=100 - row["priority"], n=n)
    ]
    found, rest = split_pieces(ready, asked)
    waiting, _ = split_pieces(
        [read_piece(r) for r in await tx.rows(f"{lock}waiting_of_set", n=n)], asked
    )
    for piece in (*found, *waiting):
        moves.cancel_piece(piece, reason)
    steps: Steps = []
    if found:
        gone = place_rows((feed, piece) for piece in ready)
        steps.append(("delete_call_ready", {"rows": encode_rows(gone)}))
        steps.append(ready_step([(feed, piece) for piece in rest]))
    if waiting:
        steps.append(("delete_call_waiting", name_calls(waiting)))
    if steps:
        await tx.many(*steps)


async def _find_feed(tx: Tx, family: Family, spec: FunctionSpec, now: Now) -> tuple[datetime, int]:
    """Return the time and the number of the feed for a function, and make the feed if it is new."""
    key = {"family_name": family.name, "model": spec.model or ""}
    wanted = {"vram_gb": spec.vram_gb, "cold_wait_seconds": spec.cold_wait_seconds}
    clock, found = await tx.many(("read_now", {"now": now}), ("find_call_feed", key))
    if found and all(found[0][name] == value for name, value in wanted.items()):
        return _read_clock(clock), int(found[0]["id"])
    feed = await tx.value("put_call_feed", family=to_json(family), **key, **wanted)
    return _read_clock(clock), int(feed)


def _read_clock(rows: Rows) -> datetime:
    at: datetime = rows[0]["now"]
    return at


def _look_at_set(set_id: str, first: int, calls: int, spec: str | None = None) -> Steps:
    """Return the statements that lock a set and then read which of these calls it has already."""
    pages = {"id": set_id, "first": first, "last": first + calls}
    return [("lock_call_set", {"id": set_id, "spec": spec}), ("find_call_pages", pages)]


async def _grow(
    tx: Tx,
    row: dict[str, Any],
    there: Rows,
    first: int,
    args: Sequence[str],
    count: int | None,
    at: datetime,
    cut: str = "",
) -> CallSetView:
    """Add the calls that the set lacks, commit, and close the set where its total count is given.
    there: the pages that hold calls of these indices already."""
    n, last = row["n"], first + len(args)
    spans = subtract_ranges((first, last), [(p["first"], p["last"]) for p in there])
    more = sum(end - begin for begin, end in spans)
    if row["absent"]:
        row = {**row, "count": None, "ended_at": None, "cut": ""}
        await tx.many(("open_absent_call_set", {"n": n, "now": at}))
    check_growth(view_set(row), spans, count)
    if not more and row["count"] is not None:
        return view_set(row)
    pages = make_pages(args, first, spans)
    since, rank = at.timestamp(), 100 - row["priority"]
    pieces = [Piece(n, begin, end, begin, rank, row["ord"], 0, since) for begin, end, _ in pages]
    steps: Steps = []
    if pages:
        rows = [{"first": begin, "last": end, "args": texts} for begin, end, texts in pages]
        steps = [("insert_call_pages", {"n": n, "pages": encode_rows(rows)})]
    given = {
        "n": n,
        "more": more,
        "count": count,
        "cut": cut if count is not None else "",
        "now": at,
    }
    grow: Steps = [("grow_call_set", given)]
    if row["cancelled_at"] is not None:
        moves = CallMoves(at)
        for piece in pieces:
            moves.cancel_piece(piece, row["cancel_reason"])
        await tx.many(*steps, *grow, *list_writes(moves), *list_counts(moves))
        return view_set(await get_set(tx, row["id"]))
    if pieces:
        steps.append(ready_step([(row["feed"], piece) for piece in pieces]))
    grown = await tx.last(*steps, *grow)
    return view_set(grown[-1][0])
