"""Call sets: the checks of additions to them, and the views of sets and of their results."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.arrays.differences import say_differences
from holdfast.core.calls.values import MAX_SET_CALLS, CallState, FunctionSpec
from holdfast.errors import Conflict, NotFound, ValidationError
from holdfast.moves.calls.calls import OpenBatch, StopRange
from holdfast.moves.calls.pieces import (
    Piece,
    Ranges,
    add_ranges,
    find_position,
    place_pieces,
    subtract_ranges,
)
from holdfast.moves.rows import NewEvent
from holdfast.wire.calls import CallResult, CallSetView

ABSENT = "its client went away before it had said how many there are"


def no_set(set_id: str) -> NotFound:
    """Return the error for an unknown call set."""
    return NotFound(f"there is no call set {set_id}; `holdfast calls` lists them")


def check_same(set_id: str, before: FunctionSpec | Mapping[str, Any], spec: FunctionSpec) -> None:
    """Raise Conflict where a set's id was taken by another spec."""
    kept = before if isinstance(before, FunctionSpec) else msgspec.convert(before, FunctionSpec)
    if kept != spec:
        raise Conflict(
            f"call set {set_id} is there already, and this one differs from it in "
            f"{say_differences(kept, spec)}; use a new id for a new set",
            code="call_set_taken",
        )


def check_same_owner(set_id: str, owner: str, asking: str) -> None:
    """Raise Conflict for a set of that id that belongs to another user (OWNER-1)."""
    if owner not in ("", asking):
        raise Conflict(f"call set {set_id} is there already and belongs to {owner}")


def check_growth(found: CallSetView, spans: Ranges, count: int | None) -> None:
    """Raise Conflict where the set is complete and further calls are added. spans: the indices of
    the added calls. count: the size that the client gives the set, None: not known yet."""
    whole = found.count if found.count is not None else count
    if found.count is not None and count not in (None, found.count):
        text = f"call set {found.id} has {found.count} calls, not {count}"
        raise Conflict(text, code="call_set_whole")
    more = sum(last - first for first, last in spans)
    end = max((last for _, last in spans), default=0)
    if whole is not None and (end > whole or found.submitted + more > whole):
        text = f"call set {found.id} has {whole} calls, and call {end - 1} is none of them"
        raise Conflict(text, code="call_set_whole")
    if end > MAX_SET_CALLS:
        text = f"a call set has at most {MAX_SET_CALLS} calls; begin another"
        raise ValidationError(text, field="first")


def view_set(row: Mapping[str, Any]) -> CallSetView:
    """Return a set's row as it is shown."""
    ended = row["ended_at"]
    spec = row["spec"]
    return CallSetView(
        id=row["id"],
        owner=row["owner"],
        spec=spec if isinstance(spec, FunctionSpec) else msgspec.convert(spec, FunctionSpec),
        state="open" if ended is None else "ended",
        count=row["count"],
        submitted=row["submitted"],
        succeeded=row["succeeded"],
        failed=row["failed"],
        cancelled=row["cancelled"],
        created_at=row["created_at"].timestamp(),
        ended_at=None if ended is None else ended.timestamp(),
        running=bool(row.get("running")),
        cut=row["cut"],
    )


def expand_runs(
    rows: Sequence[Mapping[str, Any]],
    *,
    first: int = 0,
    last: int | None = None,
    gapless: bool = False,
    wanted: frozenset[int] | None = None,
) -> list[CallResult]:
    """Return the ended calls of runs one by one: those in [first, last), or in `wanted`.

    gapless: stop where a call has not ended.
    """
    found: list[CallResult] = []
    expected = first
    for row in rows:
        begin = max(row["first"], first)
        end = row["last"] if last is None else min(row["last"], last)
        if begin >= end:
            continue
        if gapless and begin != expected:
            break
        expected = end
        state, attempts, reason = row["state"], row["attempts"], row["reason"]
        texts = None if row["results"] is None else _texts.decode(row["results"])
        base = row["first"]
        found += [
            CallResult(i, state, "" if texts is None else texts[i - base], attempts, reason)
            for i in range(begin, end)
            if wanted is None or i in wanted
        ]
    return found


_texts = msgspec.json.Decoder(list[str])


def split_pieces(pieces: Iterable[Piece], asked: Ranges | None) -> tuple[list[Piece], list[Piece]]:
    """Return the parts of `pieces` at the asked indices (None: all), and the parts that are
    left."""
    found: list[Piece] = []
    rest: list[Piece] = []
    for piece in pieces:
        kept = [] if asked is None else subtract_ranges((piece.first, piece.last), asked)
        rest += [piece.cut(*span) for span in kept]
        found += [piece.cut(*span) for span in subtract_ranges((piece.first, piece.last), kept)]
    return found, rest


def ask_to_stop(batch: OpenBatch, n: int, asked: Ranges | None, reason: str, *, hard: bool) -> bool:
    """Order calls of a batch to stop, and return whether there were any. A call that was ordered to
    stop before keeps its first reason.

    n: the set's number. asked: indices of the calls, None for all. hard: without grace.
    """
    more: Ranges = []
    for at, piece in place_pieces(batch.pieces):
        if piece.set_n == n:
            stopped, _ = split_pieces([piece], asked)
            more += [(at + p.first - piece.first, at + p.last - piece.first) for p in stopped]
    known = batch.stopping
    fresh = [span for part in more for span in subtract_ranges(part, known)]
    batch.cancelled = [*batch.cancelled, *(StopRange(*span, reason) for span in fresh)]
    if hard:
        batch.killed = add_ranges(batch.killed, more)
    return bool(more)


def stand_call(
    set_id: str,
    index: int,
    ended: Sequence[CallResult],
    waiting: Sequence[Mapping[str, Any]],
    ready: Sequence[Piece],
    batches: Sequence[OpenBatch],
    n: int,
) -> dict[str, Any]:
    """Return the state of a call as fields of its view: it is ended, waiting for a retry, ready, or
    in a batch, and only one of these holds it (CALLSET-3). Raises NotFound."""
    if ended:
        found = ended[0]
        return {
            "phase": "ended",
            "state": CallState(found.state),
            "attempts": found.attempts,
            "reason": found.reason,
            "value": found.value,
        }
    pending: dict[str, Any] = {"state": CallState.PENDING}
    if waiting:
        (row,) = waiting
        return {
            **pending,
            "phase": "backing_off",
            "attempts": row["attempts"],
            "due_at": row["due_at"],
        }
    if ready:
        return {**pending, "phase": "ready", "attempts": ready[0].attempts}
    for batch in batches:
        for at, piece in place_pieces(batch.pieces):
            position = at + index - piece.first
            open_ = not any(first <= position < last for first, last in batch.ended)
            if piece.set_n == n and piece.first <= index < piece.last and open_:
                attempts = piece.attempts + 1
                return {
                    **pending,
                    "phase": "running",
                    "attempts": attempts,
                    "executor": batch.job_id,
                }
    raise NotFound(f"call set {set_id} has no call {index} (yet)")


def name_running(batch: OpenBatch, names: Mapping[int, str]) -> str:
    """Return the name, `SET.INDEX`, of the call that an executor runs of a batch, or will run next.
    names: number → id of a set."""
    found = find_position(batch.pieces, batch.left[0][0]) if batch.left else None
    return "" if found is None else f"{names.get(found[0].set_n, '')}.{found[1]}"


def tell_end(view: CallSetView, queue: str) -> NewEvent:
    """Return the event that reports a set's end."""
    failed = view.failed or view.cut
    what = "failed" if failed else "cancelled" if view.cancelled else "succeeded"
    return NewEvent(
        kind=f"calls.{what}",
        queue=queue,
        project=view.spec.project,
        message=(
            f"{view.succeeded} of {view.count} calls of {view.spec.function} succeeded, "
            f"{view.failed} failed, {view.cancelled} were cancelled"
            f"{f'; {view.cut}' if view.cut else ''}"
        ),
        data={
            "set": view.id,
            "function": view.spec.function,
            "succeeded": view.succeeded,
            "failed": view.failed,
            "cancelled": view.cancelled,
            **({"cut": view.cut} if view.cut else {}),
        },
    )
