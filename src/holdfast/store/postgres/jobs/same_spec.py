"""The queued jobs that hosts may take, as columns. The fields that alike jobs share are read once,
which saves the controller 12 µs for each job of a batch (decision 39)."""

from collections.abc import Mapping, Sequence
from functools import lru_cache
from itertools import accumulate, groupby
from typing import Any

import msgspec

from holdfast.core.host_faults import find_runtime_word
from holdfast.core.placement.takes import AlikeGroup
from holdfast.core.placement.types import Candidate
from holdfast.core.spec import JobSpec
from holdfast.moves.values import OfferedJob
from holdfast.store.postgres.connection.session import Tx

MAX_ALIKE = 512
MAX_ALIKE_CHARS = 16_384
SpecKey = tuple[str, str]
"""A queue, and the name that `read_takes` gives a spec."""
_decode_spec = msgspec.json.Decoder(JobSpec).decode
_decode_shuns = msgspec.json.Decoder(tuple[tuple[str, ...], tuple[str, ...]]).decode


class SameSpecJob(msgspec.Struct, frozen=True):
    """The fields that alike jobs share. job: one of the alike jobs, for the plan, as if it had no
    attempt yet. offered: the fields for the orders of the jobs."""

    job: Candidate
    offered: OfferedJob


class Takable(msgspec.Struct, frozen=True):
    """Jobs that hosts may take, in their order. offered: id of an `AlikeGroup.job` → fields of its
    orders."""

    groups: Sequence[AlikeGroup]
    offered: Mapping[str, OfferedJob]

    def count(self) -> int:
        """Return the number of the jobs that hosts may take."""
        return sum(len(group.ids) for group in self.groups)


class SameSpecJobs:
    """A cache of the shared fields of jobs that this process has read, because most jobs are like
    one of them."""

    def __init__(self) -> None:
        self._known: dict[SpecKey, SameSpecJob] = {}

    async def group(self, tx: Tx, columns: Mapping[str, Any]) -> Takable:
        """Return the jobs that `read_takes` found as columns, without jobs that have gone
        since."""
        if not columns["ids"]:
            return Takable((), {})
        ids = columns["ids"]
        runs = _split_runs(columns, len(ids))
        known = await self._find(tx, {(queue, spec): ids[at] for (queue, spec, *_), at, _ in runs})
        epochs = _spread(columns["epochs"], len(ids))
        groups: list[AlikeGroup] = []
        offered: dict[str, OfferedJob] = {}
        for (queue, spec, shuns), at, end in runs:
            if (like := known.get((queue, spec))) is not None:
                offered[like.job.job_id] = like.offered
                job = like.job
                if shuns is not None:
                    job = _mark(job, shuns)
                groups.append(AlikeGroup(job, ids[at:end], epochs[at:end]))
        return Takable(groups, offered)

    async def _find(self, tx: Tx, some: Mapping[SpecKey, str]) -> Mapping[SpecKey, SameSpecJob]:
        """Return the shared fields for each spec in `some`, where each spec stands with one of its
        jobs."""
        new = {job_id: name for name, job_id in some.items() if name not in self._known}
        if not new:
            return self._known
        rows = await tx.rows("read_takable_specs", ids=list(new))
        found = {new[row["job_id"]]: _read_alike(row) for row in rows}
        known = {**self._known, **found}
        short = {new[row["job_id"]] for row in rows if len(row["spec"]) <= MAX_ALIKE_CHARS}
        kept = {name: like for name, like in known.items() if name in self._known or name in short}
        self._known = dict(list(kept.items())[-MAX_ALIKE:])  # the oldest are forgotten first
        return known


def _split_runs(columns: Mapping[str, Any], count: int) -> list[tuple[Any, int, int]]:
    """Return runs of neighbouring jobs with equal columns: the values, the begin and the end."""
    given = [columns[name] for name in ("queues", "specs", "shuns")]
    if all(len(column) == 1 for column in given):
        return [(tuple(column[0] for column in given), 0, count)]
    marks = zip(*(_spread(column, count) for column in given), strict=True)
    lengths = [(mark, len(list(same))) for mark, same in groupby(marks)]
    ends = list(accumulate(length for _, length in lengths))
    return [(mark, end - length, end) for (mark, length), end in zip(lengths, ends, strict=True)]


def _spread(column: Sequence[Any], count: int) -> Sequence[Any]:
    """Return a column with a value for each row, where it may have one value for all."""
    return [*column] * count if len(column) < count else column


def _read_alike(row: dict[str, Any]) -> SameSpecJob:
    offered = make_offered(row)
    spec = offered.spec
    job = Candidate(
        job_id=row["job_id"],
        epoch=0,
        queue=row["queue"],
        project=row["project"],
        priority=row["priority"],
        tasks=row["tasks"],
        gpus=row["gpus"],
        cpu_slots=row["cpu_slots"],
        memory_bytes=row["memory_bytes"],
        lease_ttl_seconds=spec.lease_ttl_seconds,
        host_labels=spec.host_labels,
        runtime=find_runtime_word(spec.image, spec.runtime),
        supervised=spec.supervised,
        caches=spec.caches,
    )
    return SameSpecJob(job, offered)


def _mark(job: Candidate, shuns: str) -> Candidate:
    """Return a job with the hosts that it avoids, or that it may not use."""
    avoid, barred = _decode_shuns(shuns)
    return msgspec.structs.replace(job, avoid_hosts=avoid, barred_hosts=barred)


def make_offered(row: dict[str, Any]) -> OfferedJob:
    """Return the fields of a job's row that orders need. Alike jobs, mostly of one submission,
    share them."""
    make = _make_alike if len(row["spec"]) <= MAX_ALIKE_CHARS else _make_alike.__wrapped__
    return make(
        row["name"],
        row["queue"],
        row["project"],
        row["memory_bytes"],
        row["cpu_slots"],
        row["tasks"],
        row["spec"],
    )


@lru_cache(MAX_ALIKE)
def _make_alike(
    name: str, queue: str, project: str, memory_bytes: int, cpu_slots: int, tasks: int, spec: str
) -> OfferedJob:
    return OfferedJob(
        name=name,
        queue=queue,
        project=project,
        memory_bytes=memory_bytes,
        cpu_slots=cpu_slots,
        tasks=tasks,
        spec=_decode_spec(spec),
    )
