"""Caches in placement: a preference and never a constraint (CACHE-2)."""

from __future__ import annotations

from collections.abc import Sequence

import msgspec

from holdfast.core.placement.plan import Candidate, Capacity, plan_admission
from holdfast.core.placement.takes import TakeTerms, group_alike, plan_takes
from tests.unit.core.placement.test_plan import host, job


def warm(name: str, *keys: str, cpu: int = 4) -> Capacity:
    return msgspec.structs.replace(host(name, cpu), caches=frozenset(keys))


def wanting(name: str, *caches: str, tasks: int = 1, project: str = "p") -> Candidate:
    return msgspec.structs.replace(job(name, tasks=tasks), caches=caches, project=project)


def place(candidate: Candidate, hosts: Sequence[Capacity]) -> list[str]:
    plan = plan_admission([candidate], hosts, {})
    return [task.host_id for placed in plan.placements for task in placed.list_ranks()]


def test_a_job_goes_where_its_cache_is_warm() -> None:
    hosts = [warm("a", cpu=1), warm("b", "p/hf"), warm("c", "q/hf", "p/pip")]
    assert place(wanting("j", "hf:/x"), hosts) == ["b"]
    assert place(wanting("j", "hf", project="q"), hosts) == ["c"]
    assert place(job("j"), hosts) == ["a"]


def test_of_several_caches_the_most_count_and_a_cold_host_is_used_when_no_warm_one_has_room() -> (
    None
):
    hosts = [warm("a", "p/hf"), warm("b", "p/hf", "p/pip"), warm("c", "p/hf", "p/pip", cpu=0)]
    assert place(wanting("j", "hf", "pip"), hosts) == ["b"]
    assert place(wanting("j", "hf"), [warm("cold"), warm("full", "p/hf", cpu=0)]) == ["cold"]


def test_a_gang_takes_the_warm_hosts_and_as_many_cold_ones_as_it_needs() -> None:
    hosts = [warm("cold", cpu=9), warm("b", "p/hf", cpu=2), warm("c", "p/hf", cpu=2)]
    assert sorted(place(wanting("j", "hf", tasks=4), hosts)) == ["b", "b", "c", "c"]
    assert len(place(wanting("j", "hf", tasks=12), hosts)) == 12


def test_a_host_takes_only_jobs_whose_caches_are_warm_there() -> None:
    """TAKE-1: whether another host is warm is a view of the cluster."""
    terms = TakeTerms(revision=1, ttls={"q": 60.0}, whole=True)
    queued = group_alike([wanting("j", "hf")])
    taken = plan_takes(queued, [warm("cold")], terms, (), cut=False)
    assert (taken.placements, taken.settled) == ((), frozenset())  # the leader places it
    assert plan_takes(queued, [warm("b", "p/hf")], terms, (), cut=False).placements
