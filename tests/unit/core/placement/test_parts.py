"""split_by_hosts: a plan in parts that share no host."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.placement.parts import ROWS_OF_A_JOB, split_by_hosts
from holdfast.core.placement.types import JobPlacement, TaskPlacement


def place(number: int, hosts: list[int]) -> JobPlacement:
    return JobPlacement(
        job_id=f"job-{number}",
        epoch=0,
        queue="q",
        project="default",
        gpus=0,
        cpu_slots=1,
        memory_bytes=0,
        tasks=tuple(
            TaskPlacement(rank=rank, host_id=f"h{host}", incarnation="i", devices=())
            for rank, host in enumerate(hosts)
        ),
    )


plans = st.lists(st.lists(st.integers(0, 9), min_size=1, max_size=4), max_size=30).map(
    lambda rows: [place(number, hosts) for number, hosts in enumerate(rows)]
)


@given(plans, st.integers(1, 4))
def test_each_job_is_in_one_part_in_its_order_and_no_host_in_two(
    plan: list[JobPlacement], most: int
) -> None:
    parts = split_by_hosts(plan, most)
    assert len(parts) <= most
    assert all(parts)
    order = {placement.job_id: n for n, placement in enumerate(plan)}
    found = [[order[placement.job_id] for placement in part] for part in parts]
    assert sorted(n for numbers in found for n in numbers) == list(range(len(plan)))
    assert all(numbers == sorted(numbers) for numbers in found)
    hosts = [{task.host_id for p in part for task in p.tasks} for part in parts]
    assert sum(map(len, hosts)) == len(set().union(*hosts))


@given(st.lists(st.integers(0, 9), max_size=60), st.integers(1, 4))
def test_no_part_has_more_to_write_than_the_others_by_more_than_a_host(
    homes: list[int], most: int
) -> None:
    parts = split_by_hosts([place(n, [home]) for n, home in enumerate(homes)], most)
    weights = [len(part) * (1 + ROWS_OF_A_JOB) for part in parts] + [0] * (most - len(parts))
    of_a_host = max((homes.count(home) for home in homes), default=0) * (1 + ROWS_OF_A_JOB)
    assert max(weights) - min(weights) <= of_a_host
