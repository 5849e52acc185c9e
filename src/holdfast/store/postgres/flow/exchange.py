"""The hot path of calls: an exchange with executors, one transaction of two round trips where nothing
is handed out, and three where something is; another one where a call failed."""

import random
from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.calls.decide import CallJudge, PolicyOf, default_policy
from holdfast.core.calls.feeds import ColdWaitOf, find_cold_wait
from holdfast.core.endings.rules import OperatorRule
from holdfast.moves.flow.calls import CallSetRow
from holdfast.moves.flow.exchange import Exchange, Head, Standing
from holdfast.moves.rows import clean_text
from holdfast.store.port.flow.calls import ExecutorTurn, ExecutorTurned
from holdfast.store.postgres.connection.session import Rows, Tx, to_json
from holdfast.store.postgres.flow.call_rows import (
    Steps,
    index_sets,
    judge_moves,
    list_counts,
    list_writes,
    place_columns,
    read_batch,
    read_page,
    read_piece,
)

MAX_HEADS = 256
"""Ranges that are looked at in each feed."""


async def run_exchange(
    tx: Tx,
    turns: Sequence[ExecutorTurn],
    judge: CallJudge,
    cold_wait_of: ColdWaitOf | None,
    now: datetime | None,
) -> list[ExecutorTurned]:
    """Take ends and hand out batches."""
    families = sorted({turn.family for turn in turns if turn.report.want and turn.family})
    look: tuple[str, dict[str, Any]] = (
        "read_call_heads",
        {"families": families, "now": now, "most": MAX_HEADS},
    )
    jobs = sorted({clean_text(turn.report.key.job_id) for turn in turns})
    at_rows, leases, held, heads = await tx.many(
        ("read_now", {"now": now}),
        ("read_executors", _key_columns(turns)),
        ("lock_call_batches", {"jobs": jobs}),
        look,
    )
    at: datetime = next(iter(at_rows[0].values()))
    found = {row["n"] - 1: Standing(live=True, takes=row["takes"]) for row in leases}
    standings = [found.get(i, Standing()) for i in range(len(turns))]
    ex = Exchange(at, turns, standings, [read_batch(row) for row in held])
    ex.take()
    await judge_moves(tx, ex.moves, judge)
    steps, counting = list_writes(ex.moves), list_counts(ex.moves)
    if ex.moves.ready:  # what came back may be handed out at once
        *_, heads = await tx.many(*steps, look)
        steps = []
    ex.choose(msgspec.convert(fill_waits(heads, cold_wait_of), list[Head]))
    if ex.takings:
        steps = await _claim(tx, ex, steps, at)
    reads = _list_reads(ex)
    rows = await tx.last(*steps, *reads, *counting) if steps or reads or counting else []
    texts, infos = _index_reads(rows[len(steps) : len(steps) + len(reads)])
    touched = tuple(row["id"] for row in rows[-1]) if counting else ()
    return [_turn_back(ex, i, standings[i], infos, texts, touched) for i in range(len(turns))]


def fill_waits(rows: Rows, cold_wait_of: ColdWaitOf | None) -> Rows:
    """Put the bound in force in rows of feeds whose function sets none."""
    for row in rows:
        own = row["cold_wait_seconds"]
        row["cold_wait_seconds"] = find_cold_wait(own, row["queue"], cold_wait_of)
    return rows


def make_judge(policy_of: PolicyOf | None, rules: Sequence[OperatorRule]) -> CallJudge:
    """Return what failures are decided by."""
    return CallJudge(policy_of or default_policy, rules, random.random)


def _key_columns(turns: Sequence[ExecutorTurn]) -> dict[str, Any]:
    keys = [turn.report.key for turn in turns]
    return {
        "jobs": [clean_text(key.job_id) for key in keys],
        "ranks": [key.rank for key in keys],
        "epochs": [key.epoch for key in keys],
        "hosts": [turn.host_id for turn in turns],
        "incarnations": [clean_text(turn.incarnation) for turn in turns],
    }


def _turn_back(
    ex: Exchange,
    i: int,
    standing: Standing,
    infos: Mapping[int, CallSetRow],
    texts: Mapping[tuple[int, int], Sequence[str]],
    touched: tuple[str, ...],
) -> ExecutorTurned:
    batches, recorded, dropped, cancelled = ex.answer(i, infos, texts)
    return ExecutorTurned(
        key=ex.turns[i].report.key,
        batches=batches,
        recorded=recorded,
        dropped=dropped,
        cancelled=cancelled,
        lost=not standing.live,
        touched_sets=touched if i == 0 else (),
        ready_again=bool(ex.moves.ready),
    )


async def _claim(tx: Tx, ex: Exchange, steps: Steps, at: datetime) -> Steps:
    """Lock the heads of the chosen feeds and cut the batches out of them; return what writes that. The
    writes gathered so far go along."""
    counts = ex.count_heads()
    locks: Steps = [
        ("lock_call_heads", {"feed": feed, "limit": count})
        for feed, count in sorted(counts.items())
    ]
    numbers = ("take_call_batch_numbers", {"count": len(ex.takings)})
    found = await tx.many(*steps, *locks, numbers)
    heads = {
        feed: [read_piece(row) for row in rows]
        for feed, rows in zip(sorted(counts), found[len(steps) : -1], strict=True)
    }
    ex.cut(heads, [row["id"] for row in found[-1]])
    return _list_takings(ex, at)


def _list_takings(ex: Exchange, at: datetime) -> Steps:
    steps: Steps = []
    gone = [(feed, piece) for feed, pieces in ex.taken_heads.items() for piece in pieces]
    left = [(feed, piece) for feed, pieces in ex.left_heads.items() for piece in pieces]
    if gone:
        steps.append(("delete_call_heads", place_columns(gone)))
    if left:
        firsts = [piece.first for _, piece in left]
        steps.append(("cut_call_heads", {**place_columns(left), "firsts": firsts}))
    if ex.takings:
        rows = [
            {
                "id": taking.batch,
                "job_id": ex.turns[taking.turn].report.key.job_id,
                "task_rank": ex.turns[taking.turn].report.key.rank,
                "epoch": ex.turns[taking.turn].report.key.epoch,
                "host_id": ex.turns[taking.turn].host_id,
                "feed": taking.head.id,
                "sets": sorted({piece.set_n for piece in taking.pieces}),
                "pieces": taking.pieces,
            }
            for taking in ex.takings
        ]
        steps.append(("insert_call_batches", {"rows": to_json(rows), "now": at}))
        stale = {t.head.id for t in ex.takings if t.head.unserved_seconds > 1}
        if stale:
            steps.append(("note_served_feeds", {"feeds": sorted(stale), "now": at}))
    return steps


def _list_reads(ex: Exchange) -> Steps:
    """Return the reads of the arguments and the sets of what goes out."""
    pages = sorted({(piece.set_n, piece.page) for piece in ex.sent_pieces})
    if not pages:
        return []
    sets = sorted({n for n, _ in pages})
    given = {"sets": [n for n, _ in pages], "pages": [page for _, page in pages]}
    return [("read_call_pages", given), ("read_call_sets", {"sets": sets})]


def _index_reads(
    rows: Sequence[Rows],
) -> tuple[dict[tuple[int, int], list[str]], dict[int, CallSetRow]]:
    if not rows:
        return {}, {}
    pages, sets = rows
    texts = {(row["set_n"], row["first"]): read_page(row["args"]) for row in pages}
    return texts, index_sets(sets)
