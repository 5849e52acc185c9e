"""The ranks of a gang: short arrays that the page draws as a grid, and rows of ranks that are alike."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from datetime import datetime

import msgspec
from starlette.responses import Response

from holdfast.core.placement.ranks import say_ranks
from holdfast.core.records import AttemptRecord, MemberRecord, TaskRecord
from holdfast.core.stragglers.records import SuspectRecord
from holdfast.web.page import PageRequest, together
from holdfast.wire.states import find_hue

EACH_RANKS = 16
"""A gang of at most so many ranks has a row for each in its table."""
FAR_STEPS, FAR_PART = 5, 0.02
"""A rank is far behind that lags by more than so many steps and by more than this part of them."""
MAX_ROWS = 200
NAMED_RANKS = 6
BEAT_SECONDS = 5

_EVIDENCE = {
    "own_seconds": "{} s of its own in each step",
    "others_seconds": "{} s in those of the other ranks",
    "before_seconds": "{} s a step before",
    "step_seconds": "{} s a step now",
    "since_step": "since step {}",
    "at_step": "seen at step {}",
}


class GangGrid(msgspec.Struct, frozen=True, kw_only=True):
    """A gang's ranks, in order.

    hues: the colours; hue: of each rank a letter, A for the first of them. step: the furthest step;
    lags: the steps by which each rank is behind that. beats: the units of five seconds by which each
    rank's last beat is older than the newest, at `beat_at`. hosts: each rank's place in `names`; both
    are left out where the page has them. -1: there is none. slow: ranks about which there is evidence.
    first, followed: the ranks that fell.
    """

    hues: list[str]
    hue: str
    step: int
    lags: list[int]
    beat_at: int
    beats: list[int]
    place: str
    hosts: list[int] | None
    names: list[str] | None
    slow: list[int]
    first: int = -1
    followed: list[int] = []


class RankState(msgspec.Struct, frozen=True, kw_only=True):
    """A rank, live or ended, as the page shows it."""

    rank: int
    state: str
    host: str
    step: int | None = None
    beat_at: datetime | None = None
    devices: tuple[int, ...] = ()
    section: str = ""
    exit_code: int | None = None
    said: str = ""


class RankGroup(msgspec.Struct, frozen=True, kw_only=True):
    """Ranks that are alike, as one row of the table."""

    ranks: str
    count: int
    hosts: str
    one: RankState
    steps: tuple[int, int] | None
    beat_at: datetime | None


def view_task(task: TaskRecord) -> RankState:
    """Return a task of the present attempt as the page shows a rank."""
    return RankState(
        rank=task.rank,
        state=str(task.state),
        host=task.host_name or "",
        step=task.step,
        beat_at=task.beat_at,
        devices=task.devices,
        section=task.section or "",
        said=task.stop_reason or "",
    )


def view_member(member: MemberRecord) -> RankState:
    """Return a member of an ended attempt as the page shows a rank."""
    said = member.message
    if member.trigger:
        said = f"fell first: {said}" if said else "fell first"
    elif member.cascade:
        said = "fell because another rank did"
    return RankState(
        rank=member.rank,
        state=str(member.state),
        host=member.host or "",
        exit_code=member.exit_code,
        said=said,
    )


def group_ranks(ranks: Sequence[RankState]) -> list[RankGroup]:
    """Return the rows of the table: one for each rank, or in a larger gang one for those that are
    alike; those far behind are not like the others."""
    groups: dict[object, list[RankState]] = {}
    most = max((each.step for each in ranks if each.step is not None), default=0)
    far = most - max(FAR_STEPS, FAR_PART * most)
    for each in ranks:
        lags = each.step is not None and each.step < far
        alike = (each.state, each.exit_code, each.said, each.section, lags)
        key = each.rank if len(ranks) <= EACH_RANKS else alike
        groups.setdefault(key, []).append(each)
    return [_join(found) for found in list(groups.values())[:MAX_ROWS]]


def _join(found: Sequence[RankState]) -> RankGroup:
    hosts = list(dict.fromkeys(each.host for each in found if each.host))
    steps = [each.step for each in found if each.step is not None]
    return RankGroup(
        ranks=say_ranks([each.rank for each in found], most=NAMED_RANKS),
        count=len(found),
        hosts=", ".join(hosts) if len(hosts) <= 2 else f"{len(hosts):,} hosts",
        one=found[0],
        steps=(min(steps), max(steps)) if steps else None,
        beat_at=min((each.beat_at for each in found if each.beat_at), default=None),
    )


def say_fall(members: Sequence[MemberRecord]) -> str:
    """Return the sentence of which rank fell first, and which followed; "" where none did."""
    first = next((member for member in members if member.trigger), None)
    if first is None:
        return ""
    followed = [member.rank for member in members if member.cascade]
    where = f" on {first.host}" if first.host else ""
    said = f"Rank {first.rank}{where} fell first"
    said += f": {first.message}" if first.message else ""
    if not followed:
        return said
    word = "Rank" if len(followed) == 1 else "Ranks"
    return f"{said.rstrip('.')}. {word} {say_ranks(followed, most=NAMED_RANKS)} fell with it."


def make_grid(
    ranks: Sequence[RankState],
    *,
    first: int | None = None,
    followed: Sequence[int] = (),
    slow: Sequence[int] = (),
    known: str = "",
) -> GangGrid:
    """Return the grid of a gang's ranks. known: the `place` that the page has already."""
    names: dict[str, int] = {}
    hues: dict[str, int] = {}
    ordered = sorted(ranks, key=lambda each: each.rank)
    hosts = [names.setdefault(each.host, len(names)) if each.host else -1 for each in ordered]
    hue = [hues.setdefault(find_hue(each.state), len(hues)) for each in ordered]
    step = max((each.step for each in ordered if each.step is not None), default=-1)
    beats = [each.beat_at for each in ordered if each.beat_at is not None]
    newest = max(beats, default=None)
    place = hashlib.sha256(msgspec.json.encode([hosts, list(names)])).hexdigest()[:16]
    return GangGrid(
        hues=list(hues),
        hue="".join(chr(65 + number) for number in hue),
        step=step,
        lags=[-1 if each.step is None else step - each.step for each in ordered],
        beat_at=-1 if newest is None else int(newest.timestamp()) // BEAT_SECONDS * BEAT_SECONDS,
        beats=[
            -1
            if each.beat_at is None or newest is None
            else int((newest - each.beat_at).total_seconds()) // BEAT_SECONDS
            for each in ordered
        ],
        place=place,
        hosts=None if place == known else hosts,
        names=None if place == known else list(names),
        slow=list(slow),
        first=-1 if first is None else first,
        followed=list(followed),
    )


def find_slow(suspects: Sequence[SuspectRecord], attempt: int) -> list[SuspectRecord]:
    """Return the suspects of an attempt that were not cleared since."""
    return [each for each in suspects if each.attempt == attempt and each.ended_at is None]


def say_evidence(suspect: SuspectRecord) -> str:
    """Return a suspect's evidence in words, without what its message says already."""
    found = suspect.evidence
    strain = str(found.get("strain") or "")
    said = [] if strain in suspect.message else [strain]
    for name, words in _EVIDENCE.items():
        value = found.get(name)
        if isinstance(value, int | float):
            said.append(words.format(f"{value:.3g}" if name.endswith("seconds") else f"{value:,}"))
    known = {*_EVIDENCE, "strain", "ratio", "measure"}
    said += [
        f"{name.replace('_', ' ')} {value}"
        for name, value in found.items()
        if name not in known and value not in (None, "")
    ]
    return ", ".join(said)


def find_shown(attempts: Sequence[AttemptRecord]) -> AttemptRecord | None:
    """Return the last attempt whose ranks' ends are known."""
    return next((each for each in reversed(attempts) if each.members), None)


async def read_ranks(ask: PageRequest) -> tuple[list[RankState], Sequence[MemberRecord], int]:
    """Return the ranks of a job now, or of the last attempt that ended; its members; its number."""
    reader, job_id = ask.reader, ask.params["job"]
    tasks = await reader.tasks(job_id)
    if tasks:
        return [view_task(task) for task in tasks], (), tasks[0].attempt
    ended = find_shown(await reader.attempts(job_id))
    if ended is None:
        return [], (), 0
    return [view_member(member) for member in ended.members], ended.members, ended.number


async def send_grid(ask: PageRequest) -> Response:
    """Send the grid of a job as JSON; 304 where it is as the page has it. Raises NotFound."""
    job, suspects, (ranks, members, attempt) = await together(
        ask.reader.job(ask.params["job"]), ask.reader.suspects(ask.params["job"]), read_ranks(ask)
    )
    first = next((m.rank for m in members if m.trigger), None if members else job.trigger_rank)
    grid = make_grid(
        ranks,
        first=first,
        followed=[m.rank for m in members if m.cascade],
        slow=[each.rank for each in find_slow(suspects, attempt) if each.rank is not None],
        known=ask.query.get("place", ""),
    )
    body = msgspec.json.encode(grid)
    tag = hashlib.sha256(body).hexdigest()[:16]
    if ask.query.get("tag") == tag:
        return Response(status_code=304)
    headers = {"Cache-Control": "no-store", "Holdfast-Tag": tag}
    return Response(body, 200, headers, "application/json")
