"""The ranks of a gang as short arrays, which the page draws as a grid."""

from __future__ import annotations

from datetime import datetime

import msgspec

from holdfast.core.records import TaskRecord
from holdfast.web.page import PageRequest, together
from holdfast.web.words import find_hue


class GangGrid(msgspec.Struct, frozen=True, kw_only=True):
    """A gang's ranks, in order. hues, steps, beats, hosts: of each rank its colour, its step, the
    seconds since its last beat, and its host's place in `names`; -1 where there is none. slow: ranks
    about which there is evidence. first: the rank that began the fall, -1 where none did."""

    hues: list[str]
    steps: list[int]
    beats: list[int]
    hosts: list[int]
    names: list[str]
    slow: list[int]
    first: int = -1


def make_grid(
    tasks: list[TaskRecord], now: datetime, first: int | None = None, slow: tuple[int, ...] = ()
) -> GangGrid:
    """Return the grid of a gang's ranks."""
    names: dict[str, int] = {}
    ranks = sorted(tasks, key=lambda task: task.rank)
    hosts = [
        -1 if t.host_name is None else names.setdefault(t.host_name, len(names)) for t in ranks
    ]
    return GangGrid(
        hues=[find_hue(task.state) for task in ranks],
        steps=[-1 if task.step is None else task.step for task in ranks],
        beats=[-1 if t.beat_at is None else int((now - t.beat_at).total_seconds()) for t in ranks],
        hosts=hosts,
        names=list(names),
        slow=list(slow),
        first=-1 if first is None else first,
    )


async def read_grid(ask: PageRequest) -> bytes:
    """Return the grid of a job as JSON. Raises NotFound."""
    job, tasks = await together(
        ask.reader.job(ask.params["job"]), ask.reader.tasks(ask.params["job"])
    )
    return msgspec.json.encode(make_grid(tasks, ask.now, job.trigger_rank))
