"""The hot path of calls: an exchange with executors is one transaction of two round trips, and one
more round trip where a call failed."""

import random
from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any

import msgspec

from holdfast.core.calls.decide import CallJudge, PolicyOf, default_policy
from holdfast.core.calls.feeds import ColdWaitOf, find_cold_wait
from holdfast.core.endings.rules import OperatorRule
from holdfast.moves.calls.calls import CallMoves, CallSetRow, OpenBatch
from holdfast.moves.calls.exchange import Exchange, Head, Standing
from holdfast.moves.calls.pieces import Piece
from holdfast.moves.rows import clean_text
from holdfast.store.postgres.calls.rows import (
    Steps,
    count_columns,
    count_host_calls,
    encode_rows,
    end_columns,
    index_sets,
    judge_moves,
    list_backs,
    list_writes,
    place_rows,
    read_page,
)
from holdfast.store.postgres.calls.values import ExecutorTurn, ExecutorTurned
from holdfast.store.postgres.connection.session import Rows, Tx

MAX_HEADS = 256
"""Most ranges of a feed that an exchange reads."""


class FeedRow(msgspec.Struct, kw_only=True):
    """A feed of the families of an exchange."""

    id: int
    family_name: str
    model: str | None
    vram_gb: float
    own_wait_seconds: float | None
    queue: str
    served_at: datetime | None


class CallExchanges:
    """A runner of exchanges. Between them it keeps the fields of sets, which never change, and
    sizes of calls, which serve as estimates only."""

    def __init__(self) -> None:
        self._sets: dict[int, CallSetRow] = {}
        self._calls_of_range = 1.0

    async def run(
        self,
        tx: Tx,
        turns: Sequence[ExecutorTurn],
        judge: CallJudge,
        cold_wait_of: ColdWaitOf | None,
        now: datetime | None,
    ) -> list[ExecutorTurned]:
        """Record ends of calls and hand out batches, as `PostgresCalls.exchange` says."""
        look = self._look(turns, now)
        ((seen,),) = await tx.many(look)
        at: datetime = seen["now"]
        found = {
            i: Standing(live=True, takes=takes) for i, takes in _leases(seen["leases"] or "[]")
        }
        standings = [found.get(i, Standing()) for i in range(len(turns))]
        ex = Exchange(at, turns, standings, _batches(seen["batches"] or "[]"))
        ex.record_reports()
        await judge_moves(tx, ex.moves, judge)
        backs = list_backs(ex.moves)
        if ex.moves.ready:  # returned calls may be handed out at once
            *_, (seen,) = await tx.many(*list_writes(ex.moves), look)
            ends = end_columns(CallMoves(at))
        else:
            if backs:
                await tx.many(*backs)
            ends = end_columns(ex.moves)
        ex.choose(self._read_heads(seen, at, cold_wait_of))
        counts = count_columns(ex.moves)
        pages = sorted({(piece.set_n, piece.page) for piece in ex.sent_pieces})
        sets = self._list_unknown({n for n, _ in pages})
        texts: dict[tuple[int, int], list[str]] = {}
        touched: tuple[str, ...] = ()
        if pages or counts["sets"] or ex.moves.gone or ex.moves.changed:
            given = {**ends, **_claim_columns(ex), **counts}
            given["pages"] = encode_rows([{"set_n": n, "first": page} for n, page in pages])
            told = count_host_calls(ex.moves)
            rows, *more = await tx.last(("exchange_calls", given), *told, *sets)
            del more[: len(told)]
            ex.number(_numbers(rows[0]["batches"] or "[]"))
            texts = {(r["set_n"], r["first"]): read_page(r["args"]) for r in rows if r["args"]}
            touched = _names(rows[0]["touched"] or "[]")
            for found_sets in more:
                self._sets |= index_sets(found_sets)
        elif not backs:
            await tx.last(("commit_soon", None))  # it only holds locks, so no wait for the disk
        known = self._sets
        return [_turn_back(ex, i, standings[i], known, texts, touched) for i in range(len(turns))]

    def _look(
        self, turns: Sequence[ExecutorTurn], now: datetime | None
    ) -> tuple[str, dict[str, Any]]:
        want = sum(turn.report.want for turn in turns)
        families = {turn.family for turn in turns if turn.report.want and turn.family}
        most = min(MAX_HEADS, int(want / self._calls_of_range) + 2)
        keys = [turn.report.key for turn in turns]
        return "look_at_calls", {
            "now": now,
            "families": sorted(families),
            "most": most,
            "jobs": sorted({clean_text(key.job_id) for key in keys}),
            "keys": [clean_text(key.job_id) for key in keys],
            "ranks": [key.rank for key in keys],
            "epochs": [key.epoch for key in keys],
            "hosts": [turn.host_id for turn in turns],
            "incarnations": [clean_text(turn.incarnation) for turn in turns],
        }

    def _read_heads(
        self, seen: Mapping[str, Any], at: datetime, cold_wait_of: ColdWaitOf | None
    ) -> list[Head]:
        pieces: dict[int, list[Piece]] = {}
        for feed, piece in _heads(seen["heads"] or "[]"):
            pieces.setdefault(feed, []).append(piece)
        found = [
            _make_head(feed, pieces[feed.id], at, cold_wait_of)
            for feed in _feeds(seen["feeds"] or "[]")
            if feed.id in pieces
        ]
        if found:
            ranges = sum(len(head.pieces) for head in found)
            self._calls_of_range = sum(head.ready for head in found) / ranges
        return found

    def _list_unknown(self, sets: Collection[int]) -> Steps:
        """Return the query that reads the sets which this process does not know yet."""
        if len(self._sets) > MAX_KNOWN_SETS:
            self._sets.clear()
        unknown = sorted(n for n in sets if n not in self._sets)
        return [("read_call_sets", {"sets": unknown})] if unknown else []


MAX_KNOWN_SETS = 20_000
_leases = msgspec.json.Decoder(list[tuple[int, bool]]).decode
_batches = msgspec.json.Decoder(list[OpenBatch]).decode
_numbers = msgspec.json.Decoder(list[tuple[str, int]]).decode
_names = msgspec.json.Decoder(tuple[str, ...]).decode
_heads = msgspec.json.Decoder(list[tuple[int, Piece]]).decode
_feeds = msgspec.json.Decoder(list[FeedRow]).decode


def _make_head(
    feed: FeedRow, pieces: list[Piece], at: datetime, cold_wait_of: ColdWaitOf | None
) -> Head:
    first, served = pieces[0], feed.served_at
    return Head(
        id=feed.id,
        family_name=feed.family_name,
        model=feed.model,
        vram_gb=feed.vram_gb,
        head_priority=100 - first.rank,
        head_age_seconds=max(0.0, at.timestamp() - first.since),
        unserved_seconds=1e9 if served is None else max(0.0, (at - served).total_seconds()),
        cold_wait_seconds=find_cold_wait(feed.own_wait_seconds, feed.queue, cold_wait_of),
        pieces=pieces,
    )


def fill_waits(rows: Rows, cold_wait_of: ColdWaitOf | None) -> Rows:
    """Fill in `cold_wait_seconds` in rows of feeds whose function sets none."""
    for row in rows:
        own = row["cold_wait_seconds"]
        row["cold_wait_seconds"] = find_cold_wait(own, row["queue"], cold_wait_of)
    return rows


def make_judge(policy_of: PolicyOf | None, rules: Sequence[OperatorRule]) -> CallJudge:
    """Return the inputs of the decisions on failed calls."""
    return CallJudge(policy_of or default_policy, rules, random.random)


def _turn_back(
    ex: Exchange,
    i: int,
    standing: Standing,
    infos: Mapping[int, CallSetRow],
    texts: Mapping[tuple[int, int], Sequence[str]],
    touched: tuple[str, ...],
) -> ExecutorTurned:
    return ExecutorTurned(
        key=ex.turns[i].report.key,
        **ex.answer(i, infos, texts),
        lost=not standing.live,
        touched_sets=touched if i == 0 else (),
        ready_again=bool(ex.moves.ready),
    )


def _claim_columns(ex: Exchange) -> dict[str, Any]:
    rows = [
        {
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
    return {
        "taken": encode_rows(place_rows(ex.taken)),
        "cut": encode_rows(place_rows(ex.cut)),
        "batches": encode_rows(rows),
        "served": sorted({t.head.id for t in ex.takings if t.head.unserved_seconds > 1}),
    }
