"""Reads of calls, and of their sets, results, outputs and feeds, in PostgreSQL."""

from collections.abc import Collection, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.calls.feeds import ColdWaitOf
from holdfast.core.calls.values import MAX_SET_CALLS, CallState, Family, FunctionSpec
from holdfast.moves.calls.sets import expand_runs, no_set, stand_call, view_set
from holdfast.store.clock import Now
from holdfast.store.postgres.calls.exchange import MAX_HEADS, fill_waits
from holdfast.store.postgres.calls.rows import read_batch, read_busy, read_piece
from holdfast.store.postgres.calls.values import (
    BusyCall,
    CallOutput,
    CallStanding,
    Feed,
    RunningCalls,
)
from holdfast.store.postgres.connection.parts import OnSession, reads_planned
from holdfast.store.postgres.connection.session import Rows, Tx
from holdfast.wire.calls import CallResult, CallSetView

MAX_AHEAD = 10_000


class PostgresCallReads(OnSession):
    """Reads of calls, which change nothing."""

    async def find_known_values(self, names: Collection[str]) -> set[str]:
        """Return which of these values, named by SHA-256, are an argument or a result of a call, or
        of a workflow's node, on record (VALUE-1)."""
        rows = await self.session.rows("find_orphan_values", names=list(names))
        return {*names} - {row["sha256"] for row in rows}

    @reads_planned
    async def read_busy(self, tx: Tx) -> list[BusyCall]:
        """Return the running calls whose executors accept no other calls, the longest handed out
        first; at most 10 000."""
        return [read_busy(row) for row in await tx.rows("read_busy_calls")]

    @reads_planned
    async def read_set(self, tx: Tx, set_id: str) -> CallSetView:
        """Return a call set as its client sees it. Raises NotFound."""
        return await show_set(tx, set_id)

    @reads_planned
    async def list_sets(
        self,
        tx: Tx,
        *,
        before: str | None = None,
        limit: int = 100,
        project: str | None = None,
        owner: str | None = None,
    ) -> list[CallSetView]:
        """Return call sets, the newest first. before: only sets with ids below this one."""
        rows = await tx.rows(
            "list_call_sets", before=before, limit=limit, project=project, owner=owner
        )
        return [view_set(row) for row in rows]

    @reads_planned
    async def read_results(
        self,
        tx: Tx,
        set_id: str,
        *,
        first: int = 0,
        limit: int = 1000,
        indices: Sequence[int] | None = None,
        states: Sequence[CallState] = (),
    ) -> list[CallResult]:
        """Return the ended calls from `first` up to the first call that has not ended; or the ended
        calls among `indices`; or the calls in one of `states`. All by index."""
        if indices is not None:
            rows = await _read_of_set(tx, set_id, "find_call_results", indices=list(indices))
            return expand_runs(rows, wanted=frozenset(indices))[:limit]
        if states:
            given = {"states": [int(s) for s in states], "first": first, "limit": limit}
            rows = await _read_of_set(tx, set_id, "list_call_results", **given)
            return expand_runs(rows, first=first)[:limit]
        last = min(first + limit, MAX_SET_CALLS)
        rows = await _read_of_set(tx, set_id, "read_call_results", first=first, last=last)
        return expand_runs(rows, first=first, last=last, gapless=True)

    @reads_planned
    async def read_call(self, tx: Tx, set_id: str, index: int) -> CallStanding:
        """Return the state of one call, for `why`. Raises NotFound."""
        row = await get_set(tx, set_id)
        at = {"n": row["n"], "index": index}
        place = {**at, "feed": row["feed"], "rank": 100 - row["priority"]}
        runs, waiting, ready, batches = await tx.many(
            ("find_call_results", {"id": set_id, "indices": [index]}),
            ("read_waiting_call", at),
            ("read_ready_call", place),
            ("read_batches_of_set", {"n": row["n"]}),
        )
        family = msgspec.convert(await tx.value("read_call_family", id=row["feed"]), Family)
        found = stand_call(
            set_id,
            index,
            expand_runs(runs, wanted=frozenset([index])),
            waiting,
            [read_piece(r) for r in ready],
            [read_batch(b) for b in batches],
            row["n"],
        )
        if found["phase"] == "ended":
            found["ended_at"] = runs[0]["ended_at"]
        if found["phase"] == "ready":
            piece = read_piece(ready[0])
            given = {"ord": piece.ord, "set_n": piece.set_n, "last": piece.last}
            before = await tx.value("count_calls_ahead", **place, **given) or 0
            found["ahead"] = min(MAX_AHEAD, before + index - piece.first)
        spec = msgspec.convert(row["spec"], FunctionSpec)
        return CallStanding(spec=spec, family=family, **found)

    @reads_planned
    async def read_failures(self, tx: Tx, set_id: str, index: int) -> list[Mapping[str, object]]:
        """Return the failed attempts of a call, each as number, host, cause, reason, begin and
        end."""
        return list(await _read_of_set(tx, set_id, "list_call_failures", index=index))

    @reads_planned
    async def find_outputs(self, tx: Tx, set_id: str, index: int, attempt: int) -> list[CallOutput]:
        """Return the parts of executors' logs in which one attempt of a call may have printed, by
        executor and stream, in order; only logs of executors that may run calls of its set."""
        given = {"index": index, "attempt": attempt}
        rows = await _read_of_set(tx, set_id, "find_call_outputs", **given)
        return msgspec.convert(rows, list[CallOutput])

    @reads_planned
    async def read_feeds(
        self, tx: Tx, *, cold_wait_of: ColdWaitOf | None = None, now: Now = None
    ) -> list[Feed]:
        """Return every feed with a ready call, for the executors' loop and for `why`."""
        rows = await tx.rows("read_call_feeds", now=now, most=MAX_HEADS)
        return msgspec.convert(fill_waits(rows, cold_wait_of), list[Feed])

    @reads_planned
    async def read_running(self, tx: Tx) -> list[RunningCalls]:
        """Return the number of running calls by family and model; a family and model without
        running calls is missing."""
        rows = await tx.rows("read_running_calls")
        return msgspec.convert(rows, list[RunningCalls])


async def get_set(tx: Tx, set_id: str) -> dict[str, Any]:
    """Return the row of a call set. Raises NotFound."""
    row = await tx.one("read_call_set", id=set_id)
    if row is None:
        raise no_set(set_id)
    return row


async def show_set(tx: Tx, set_id: str) -> CallSetView:
    """Return a call set as its client sees it. Raises NotFound."""
    row = await tx.one("show_call_set", id=set_id)
    if row is None:
        raise no_set(set_id)
    return view_set(row)


async def _read_of_set(tx: Tx, set_id: str, name: str, **given: Any) -> Rows:
    """Read the rows that belong to a set, in one round trip. Raises NotFound."""
    found, rows = await tx.many(("read_call_set", {"id": set_id}), (name, {"id": set_id, **given}))
    if not found:
        raise no_set(set_id)
    return rows
