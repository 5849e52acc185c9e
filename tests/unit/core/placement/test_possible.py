"""What could never run is refused, and what cannot run with the hosts as they are is told."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.gpus import Gpu
from holdfast.core.placement.plan import Candidate
from holdfast.core.placement.possible import HostShape, count_all_tasks, find_impossible, foresee

GIB = 1 << 30


def job(name: str, *, cpu: int = 1, **changes: Any) -> Candidate:
    fields: dict[str, Any] = {"epoch": 0, "queue": "cpu", "priority": 50, "tasks": 1, "gpus": 0}
    return Candidate(job_id=name, cpu_slots=cpu, memory_bytes=0, **{**fields, **changes})


def size(name: str = "h", **changes: Any) -> HostShape:
    fields: dict[str, Any] = {
        "queues": frozenset(),
        "cpu_slots": 2,
        "memory_bytes": GIB,
        "gpus": (),
    }
    return HostShape(name=name, **{**fields, **changes})


POOL = size("p/small", pool="p", count=3, labels={"zone": "a"}, gpus=(Gpu(index=0),))
ONE_OF_IT = size("p-1", pool="p", labels={"zone": "a"}, gpus=(Gpu(index=0),))


def test_impossible_says_what_there_is() -> None:
    one = size(gpus=(Gpu(index=0),))
    assert find_impossible(job("a", gpus=1, cpu=0), [one]) is None
    sentence = find_impossible(job("a", gpus=9, cpu=0), [one])
    assert sentence is not None
    assert "9 GPUs" in sentence
    assert "1 GPU," in sentence
    assert find_impossible(job("a", gpus=9), []) is None


@pytest.mark.parametrize(
    ("wanted", "sizes", "says"),
    [
        (job("a"), [size()], None),
        (job("a", tasks=2), [size()], None),
        (job("a", tasks=4), [size()], "hold 2, so it waits until more hosts join"),
        (job("a", tasks=4), [size(), size("g")], None),
        (job("a", tasks=4), [size(queues=frozenset({"gpu"})), size("g")], "hold 2"),
        (job("a"), [], "no host serves queue cpu now"),
        (job("a"), [size(queues=frozenset({"gpu"}))], "no host serves queue cpu now"),
        (job("a", host_labels={"rack": "b"}), [size()], "has the labels rack=b, and no pool rents"),
        (job("a", host_labels={"rack": "!b"}), [size()], None),
        (job("a", host_labels={"zone": "a"}), [size(), POOL], None),
        (
            job("a", host_labels={"zone": "a"}, cpu=3),
            [size(cpu_slots=4), POOL],
            "no host with these",
        ),
        # A pool that could rent such hosts counts, once: its hosts are of its offers.
        (job("a", gpus=1, cpu=0, tasks=3), [POOL], None),
        (job("a", gpus=1, cpu=0, tasks=3), [POOL, ONE_OF_IT], None),
        (job("a", gpus=1, cpu=0, tasks=4), [POOL, ONE_OF_IT], "hold 3"),
        (job("a", gpus=1, cpu=0, tasks=2), [ONE_OF_IT, size("x", gpus=(Gpu(index=0),))], None),
    ],
)
def test_a_job_that_waits_for_another_host_is_told_so_at_once(
    wanted: Any, sizes: list[HostShape], says: str | None
) -> None:
    told = foresee(wanted, sizes)
    assert told is None if says is None else told is not None and says in told


def test_offers_of_one_pool_are_alternatives() -> None:
    large = size("p/large", pool="p", count=2, gpus=tuple(Gpu(index=n) for n in range(4)))
    assert count_all_tasks(job("a", gpus=1, cpu=0, tasks=99), [POOL, large]) == 8
