"""What `why` says of pools."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.controller.why.circumstances import Circumstances
from holdfast.controller.why.explain import explain
from holdfast.controller.why.pools import explain_pools
from holdfast.core.fleet.instances import Offer
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.fleet.records import PoolRecord
from holdfast.core.placement.possible import HostShape
from holdfast.core.records import QueueRecord
from tests.unit.cli.stub import host_record, job_record

NOW = datetime(2026, 5, 4, 12, tzinfo=UTC)
SPEC = PoolSpec(name="a100", provider="local", offers=(Offer(name="one"),))


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({}, ["pool a100 rents a host within 30 s"]),
        ({"blocked": "pool a100 at its max"}, ["waiting for capacity: pool a100 at its max"]),
        (
            {"paused_at": NOW, "paused_reason": "a bill", "blocked": "an older word"},
            ["waiting for capacity: pool a100 is paused: a bill"],
        ),
        ({"paused_at": NOW, "deleted_at": NOW}, ["pool a100 is being deleted"]),
    ],
)
def test_what_holds_a_pool_back(changes: dict[str, Any], says: list[str]) -> None:
    pool = PoolRecord(name="a100", spec=SPEC, created_at=NOW, **changes)
    job = job_record(state="queued")
    found = Circumstances(job=job, queue=None, tasks=(), hosts=(), place=1, now=NOW, pools=(pool,))
    assert [line.message for line in explain_pools(found)] == says


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        (
            {"blocked": "pool a100 at its max of 2 hosts"},
            ["waiting for capacity: pool a100 at its max of 2 hosts", "there is no host yet"],
        ),
        ({}, ["there is no host yet", "pool a100 rents a host within 30 s"]),
        (
            {"paused_at": NOW, "paused_reason": "a bill"},
            ["waiting for capacity: pool a100 is paused: a bill", "there is no host at all"],
        ),
    ],
)
def test_a_job_that_a_pool_brings_a_host_for_needs_no_agent(
    changes: dict[str, Any], says: list[str]
) -> None:
    """Its user had been told to start an agent."""
    pool = PoolRecord(name="a100", spec=SPEC, created_at=NOW, **changes)
    job = job_record(state="queued", attempts=0)
    queue = QueueRecord(name="cpu", settings={}, created_at=NOW)
    found = Circumstances(job=job, queue=queue, tasks=(), hosts=(), place=0, now=NOW, pools=(pool,))
    told = explain(found)
    assert [line.message for line in told.lines] == says
    assert told.summary == says[0]
    starts = any("holdfast agent" in line.hint for line in told.lines)
    assert starts == ("paused_at" in changes)


def test_the_words_of_a_provider_about_a_host_that_starts_are_told() -> None:
    pool = PoolRecord(name="a100", spec=SPEC, created_at=NOW)
    hosts = tuple(
        host_record(id=f"h{n}", name=f"h{n}", state="spawning", pool="a100", provider_says=words)
        for n, words in enumerate(("PENDING (Resources)", "PENDING (Resources)", ""))
    )
    job = job_record(state="queued")
    found = Circumstances(
        job=job, queue=None, tasks=(), hosts=hosts, place=1, now=NOW, pools=(pool,)
    )
    assert [line.message for line in explain_pools(found)] == [
        "3 hosts are starting in pool a100; its provider says: PENDING (Resources)"
    ]


def test_of_several_empty_pools_one_rents_the_host() -> None:
    pools = tuple(PoolRecord(name=name, spec=SPEC, created_at=NOW) for name in ("a", "b"))
    job = job_record(state="queued")
    found = Circumstances(job=job, queue=None, tasks=(), hosts=(), place=1, now=NOW, pools=pools)
    assert [line.message for line in explain_pools(found)] == [
        "pool a or b rents a host within 30 s"
    ]


def test_a_pool_whose_offers_are_too_small_brings_no_host() -> None:
    """It had been said to rent one within 30 s, for as long as the job waited."""
    pool = PoolRecord(name="a100", spec=SPEC, created_at=NOW)
    job = job_record(state="queued", attempts=0, tasks=2)
    for count, brings in ((2, True), (1, False)):
        size = HostShape(
            name="a100/one", queues=frozenset(), cpu_slots=1, memory_bytes=1, gpus=(), pool="a100",
            count=count,
        )  # fmt: skip
        found = Circumstances(
            job=job, queue=None, tasks=(), hosts=(), place=0, now=NOW, pools=(pool,), sizes=(size,)
        )
        assert bool(list(explain_pools(found))) is brings


def test_a_pool_with_other_labels_brings_no_host() -> None:
    pool = PoolRecord(name="a100", spec=SPEC, created_at=NOW)
    spec = {"argv": ["echo"], "host_labels": {"rack": "b"}}
    job = job_record(state="queued", spec=spec)
    found = Circumstances(job=job, queue=None, tasks=(), hosts=(), place=1, now=NOW, pools=(pool,))
    assert list(explain_pools(found)) == []


@pytest.mark.parametrize(
    ("after", "waited", "says"),
    [
        (30.0, 12, ", or in 18 s for this job, because it has then waited 30 s"),
        (30.0, 40, ", or within 30 s for this job, because it has waited 30 s"),
        (None, 40, ""),
    ],
)
def test_a_pool_behind_busy_hosts_says_when_it_rents_one_for_the_job(
    after: float | None, waited: int, says: str
) -> None:
    """DEMAND-5"""
    spec = msgspec.structs.replace(SPEC, rent_after_seconds=after)
    pool = PoolRecord(name="a100", spec=spec, created_at=NOW)
    job = job_record(state="queued", queued_at=NOW - timedelta(seconds=waited))
    hosts = (host_record(id="h", name="h", state="active", pool="a100"),)
    found = Circumstances(
        job=job, queue=None, tasks=(), hosts=hosts, place=1, now=NOW, pools=(pool,)
    )
    first = "pool a100 has 1 host, and rents more when over 3 jobs wait"
    assert [line.message for line in explain_pools(found)] == [first + says]
