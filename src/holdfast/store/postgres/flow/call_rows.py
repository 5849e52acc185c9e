"""Rows of calls: read as the values that moves work on, and the writes of what moves gathered."""

import functools
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import msgspec

from holdfast.core.calls.decide import CallJudge
from holdfast.core.calls.values import CallCharges, FunctionSpec
from holdfast.moves.flow.calls import CallMoves, CallSetRow, OpenBatch
from holdfast.moves.flow.pieces import Piece
from holdfast.moves.rows import clean_text
from holdfast.store.postgres.connection.session import Rows, Tx, to_json

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


read_page = msgspec.json.Decoder(list[str]).decode
"""A page's arguments."""


@functools.lru_cache(maxsize=4096)
def _read_spec(text: str) -> FunctionSpec:
    return msgspec.json.decode(text, type=FunctionSpec)


def index_sets(rows: Rows) -> dict[int, CallSetRow]:
    """Return rows of sets by number."""
    return {
        row["n"]: CallSetRow(
            n=row["n"],
            id=row["id"],
            spec=_read_spec(row["spec"]),
            queue=row["queue"],
            cancelled_at=row["cancelled_at"],
            cancel_reason=row["cancel_reason"],
        )
        for row in rows
    }


# ---- writes


async def judge_moves(tx: Tx, moves: CallMoves, judge: CallJudge) -> None:
    """Decide about calls that failed or were taken back, with their sets locked."""
    if not moves.needs_judging:
        return
    calls = moves.judged_calls
    sets, charges = await tx.many(
        ("lock_call_sets", {"sets": moves.judged_sets}),
        (
            "read_call_charges",
            {"sets": [n for n, _ in calls], "indices": [index for _, index in calls]},
        ),
    )
    known = {
        (row["set_n"], row["index"]): msgspec.convert(row["charges"], CallCharges)
        for row in charges
    }
    moves.judge(index_sets(sets), known, judge)


def list_writes(moves: CallMoves) -> Steps:
    """Return the writes of what was gathered, without the sets' counts."""
    steps: Steps = []
    if moves.runs or moves.changed or moves.gone:
        steps.append(("write_call_ends", {**run_columns(moves), **batch_columns(moves)}))
    return steps + list_backs(moves)


def list_backs(moves: CallMoves) -> Steps:
    """Return the writes of calls that come back, and of their failures."""
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
    """Return the write of the sets' counts, which is to be the last. also: a set that is counted
    though none of its calls ended."""
    counts = moves.count()
    if also is not None:
        counts.setdefault(also, (0, 0, 0))
    if not counts:
        return []
    columns = [list(column) for column in zip(*counts.values(), strict=True)]
    named = dict(zip(("succeeded", "failed", "cancelled"), columns, strict=True))
    return [("count_call_ends", {"sets": list(counts), **named, "now": moves.now})]


def run_columns(moves: CallMoves) -> dict[str, Any]:
    """Return the columns of ended calls."""
    runs = moves.runs
    return {
        "sets": [run.set_n for run in runs],
        "firsts": [run.first for run in runs],
        "lasts": [run.last for run in runs],
        "states": [int(run.state) for run in runs],
        "attempts": [run.attempts for run in runs],
        "results": [
            None if run.results is None else msgspec.json.encode(run.results).decode()
            for run in runs
        ],
        "reasons": [clean_text(run.reason) for run in runs],
        "now": moves.now,
    }


def batch_columns(moves: CallMoves) -> dict[str, Any]:
    """Return the columns of batches that are over, or of which more has ended."""
    return {
        "changed": list(moves.changed),
        "ended": [msgspec.json.encode(b.ended).decode() for b in moves.changed.values()],
        "gone": sorted(moves.gone),
    }


def place_columns(pieces: Iterable[tuple[int, Piece]]) -> dict[str, Any]:
    """Return the columns that find ready ranges, with their feeds."""
    given = list(pieces)
    return {
        "feeds": [feed for feed, _ in given],
        "ranks": [piece.rank for _, piece in given],
        "ords": [piece.ord for _, piece in given],
        "sets": [piece.set_n for _, piece in given],
        "lasts": [piece.last for _, piece in given],
    }


def name_calls(pieces: Iterable[Piece]) -> dict[str, Any]:
    """Return the columns of calls that back off, one in each piece."""
    given = list(pieces)
    return {"sets": [p.set_n for p in given], "indices": [p.first for p in given]}


def ready_step(pieces: Sequence[tuple[int, Piece]]) -> tuple[str, dict[str, Any]]:
    """Return the write of ranges that are ready."""
    return "insert_call_ready", {
        **place_columns(pieces),
        "firsts": [piece.first for _, piece in pieces],
        "pages": [piece.page for _, piece in pieces],
        "attempts": [piece.attempts for _, piece in pieces],
        "sinces": [piece.since for _, piece in pieces],
    }


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
