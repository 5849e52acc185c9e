"""Rows of calls: read them as the values of moves, and make the statements for the moves'
changes."""

import functools
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.calls.decide import CallJudge
from holdfast.core.calls.values import CallCharges, Family, FunctionSpec
from holdfast.moves.calls.calls import CallMoves, CallSetRow, OpenBatch
from holdfast.moves.calls.pieces import Piece
from holdfast.moves.calls.sets import name_running
from holdfast.moves.rows import clean_text
from holdfast.store.postgres.calls.values import BusyCall
from holdfast.store.postgres.connection.session import Rows, Tx, to_json
from holdfast.wire.calls import BUSY_LONG

Steps = list[tuple[str, dict[str, Any]]]


def read_piece(row: Mapping[str, Any]) -> Piece:
    """Read a row of a range."""
    return Piece(
        row["set_n"],
        row["first"],
        row["last"],
        row["page"],
        row["rank"],
        row["ord"],
        row["attempts"],
        row["since"],
    )


def read_batch(row: Mapping[str, Any]) -> OpenBatch:
    """Read a batch's row."""
    return msgspec.convert(row, OpenBatch)


def read_busy(row: Mapping[str, Any]) -> BusyCall:
    """Read the row of a batch whose running call keeps its executor from accepting others."""
    batch = read_batch(row)
    names = {int(n): set_id for n, set_id in (row["names"] or {}).items()}
    return BusyCall(
        call=name_running(batch, names),
        waits_for="" if batch.busy == BUSY_LONG else batch.busy,
        family=msgspec.convert(row["family"], Family),
        host_id=batch.host_id,
        job_id=batch.job_id,
        batch=batch.id,
    )


read_page = msgspec.json.Decoder(list[str]).decode
"""Read the arguments of a page."""


@functools.lru_cache(maxsize=4096)
def _read_spec(text: str) -> FunctionSpec:
    return msgspec.json.decode(text, type=FunctionSpec)


def index_sets(rows: Rows) -> dict[int, CallSetRow]:
    """Return the rows of sets by the number of the set."""
    return {
        row["n"]: CallSetRow(
            n=row["n"],
            id=row["id"],
            spec=_read_spec(row["spec"]),
            queue=row["queue"],
            cancelled_at=row["cancelled_at"],
            cancel_reason=row["cancel_reason"],
            out_dir=row["out_dir"],
        )
        for row in rows
    }


# ---- writes


async def judge_moves(tx: Tx, moves: CallMoves, judge: CallJudge) -> None:
    """Decide on calls that failed or returned to their feed, with their sets locked."""
    if not moves.needs_judging:
        return
    calls = moves.judged_calls
    named = {"sets": [n for n, _ in calls], "indices": [index for _, index in calls]}
    sets, charges, kept = await tx.many(
        ("lock_call_sets", {"sets": moves.judged_sets}),
        ("read_call_charges", named),
        ("list_saved_calls", named),
    )
    known = {
        (row["set_n"], row["index"]): msgspec.convert(row["charges"], CallCharges)
        for row in charges
    }
    saved = {(row["set_n"], row["index"]) for row in kept}
    moves.judge(index_sets(sets), known, judge, saved)


def list_writes(moves: CallMoves) -> Steps:
    """Return the statements for the changes of the moves, except the statement for the counts of
    sets."""
    steps: Steps = []
    if moves.runs or moves.changed or moves.gone:
        steps.append(("write_call_ends", end_columns(moves)))
    return steps + list_backs(moves)


def count_host_calls(moves: CallMoves) -> Steps:
    """Return the statement that adds to the counts of calls that ended on each host."""
    return [
        ("count_host_calls", {"host": host, **msgspec.structs.asdict(calls)})
        for host, calls in sorted(moves.counted.items())
    ]


def list_backs(moves: CallMoves) -> Steps:
    """Return the statements for calls that become ready or wait again, and for their failures."""
    steps: Steps = []
    if moves.ready:
        steps.append(ready_step(moves.ready))
    if moves.waiting:
        steps.append(("insert_call_waiting", waiting_columns(moves)))
    if moves.failures:
        steps.append(("insert_call_failures", {"rows": to_json(moves.failures)}))
    if moves.charges:
        given = {
            "sets": [n for n, _ in moves.charges],
            "indices": [index for _, index in moves.charges],
            "charges": [msgspec.json.encode(c).decode() for c in moves.charges.values()],
        }
        steps.append(("put_call_charges", given))
    return steps


def list_counts(moves: CallMoves, *, also: int | None = None) -> Steps:
    """Return the statement for the counts of sets, which must be the last one, because it locks
    them. also: a set to count even if none of its calls ended."""
    counts = count_columns(moves, also=also)
    return [("count_call_ends", {**counts, "now": moves.now})] if counts["sets"] else []


def count_columns(moves: CallMoves, *, also: int | None = None) -> dict[str, Any]:
    """Return the columns of what is added to each set's counts, and the totals."""
    counts = moves.count()
    if also is not None:
        counts.setdefault(also, (0, 0, 0))
    named = {str(n): (*found, sum(found)) for n, found in counts.items()}
    return {"sets": sorted(counts), "counts": encode_rows(named)}


def encode_rows(rows: object) -> str:
    """Return rows as JSON for `json_to_recordset`, because lists of arrays cost the driver several
    times as much. NUL, which PostgreSQL cannot store, becomes U+FFFD."""
    raw = msgspec.json.encode(rows)
    if b"\\u0000" in raw:  # most often in a text's own escape, `\\\\u0000`
        raw = _NUL.sub(rb"\1\\ufffd", raw)
    return raw.decode()


_NUL = re.compile(rb"(?<!\\)((?:\\\\)*)\\u0000")


def end_columns(moves: CallMoves) -> dict[str, Any]:
    """Return the columns of ended calls, of finished batches, and of batches with new ends."""
    for run in moves.runs:
        run.reason = clean_text(run.reason)
    changed = [{"id": b.id, "ended": b.ended, "busy": b.busy} for b in moves.changed.values()]
    return {
        "runs": encode_rows(moves.runs),
        "changed": encode_rows(changed),
        "gone": sorted(moves.gone),
        "now": moves.now,
    }


def place_rows(pieces: Iterable[tuple[int, Piece]]) -> list[dict[str, int]]:
    """Return the rows that name ready ranges, with the parts of the ranges that are left."""
    return [
        {
            "feed": feed,
            "rank": piece.rank,
            "ord": piece.ord,
            "set_n": piece.set_n,
            "last": piece.last,
            "first": piece.first,
        }
        for feed, piece in pieces
    ]


def name_calls(pieces: Iterable[Piece]) -> dict[str, Any]:
    """Return the columns of calls that back off, one in each piece."""
    given = list(pieces)
    return {"sets": [p.set_n for p in given], "indices": [p.first for p in given]}


def ready_step(pieces: Sequence[tuple[int, Piece]]) -> tuple[str, dict[str, Any]]:
    """Return the statement that writes ready ranges, by feed."""
    rows = [
        {**row, "page": piece.page, "attempts": piece.attempts, "since": piece.since}
        for row, (_, piece) in zip(place_rows(pieces), pieces, strict=True)
    ]
    return "insert_call_ready", {"rows": encode_rows(rows)}


def waiting_columns(moves: CallMoves) -> dict[str, Any]:
    """Return the columns of calls that back off."""
    calls = moves.waiting
    return {
        "sets": [call.piece.set_n for call in calls],
        "indices": [call.piece.first for call in calls],
        "dues": [call.due_at for call in calls],
        "feeds": [call.feed for call in calls],
        "ranks": [call.piece.rank for call in calls],
        "ords": [call.piece.ord for call in calls],
        "pages": [call.piece.page for call in calls],
        "attempts": [call.piece.attempts for call in calls],
        "held": [call.held for call in calls],
    }
