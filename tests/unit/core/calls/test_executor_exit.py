"""When an executor gives its slot to another family: LEAVE-1…3."""

from typing import Any

import pytest

from holdfast.core.calls.executor_exit import (
    Queues,
    WantedSlot,
    find_job_for_room,
    find_waiting_jobs,
    list_claims,
    list_roomy,
    yields_when_busy,
    yields_when_idle,
)
from holdfast.core.placement.types import Candidate, Capacity, QuotaLeft
from holdfast.core.spec import JobSpec


def slot(**fields: Any) -> WantedSlot:
    plain: dict[str, Any] = {
        "family": "b",
        "host_labels": {"app/films": "yes"},
        "queue": "cpu",
        "gpus": 0,
        "waited_seconds": 5.0,
        "alone": True,
    }
    return WantedSlot(**{**plain, **fields})


@pytest.mark.parametrize(
    ("fields", "claims"),
    [
        ({}, True),
        ({"family": "a"}, False),
        ({"gpus": 1}, False),
        ({"host_labels": {"app/elsewhere": "yes"}}, False),
        ({"host_labels": {"app/films": "yes", "rack": "b12"}}, True),
        ({"host_labels": {"app/films": "yes", "rack": "!b12"}}, False),
        ({"queue": "video"}, False),
    ],
)
def test_only_such_a_slot_is_claimed(fields: dict[str, Any], claims: bool) -> None:
    labels = {"app/mytasks": "yes", "app/films": "yes", "rack": "b12"}
    found = list_claims([slot(**fields)], "a", 0, labels, {"cpu"})
    assert yields_when_idle(found) == claims


def test_an_executor_that_is_being_placed_is_no_reason_to_leave() -> None:
    assert not yields_when_idle([slot(waited_seconds=0.5)])


def test_a_busy_executor_leaves_late_and_never_the_last_of_its_family() -> None:
    late = [slot(waited_seconds=31.0)]
    assert yields_when_busy(late, running=2)
    assert not yields_when_busy(late, running=1)
    assert not yields_when_busy([slot()], running=2)
    assert not yields_when_busy([slot(waited_seconds=31.0, alone=False)], running=2)
    assert not yields_when_busy([], running=2)


def candidate(job_id: str, **fields: Any) -> Candidate:
    plain: dict[str, Any] = {
        "epoch": 0, "queue": "cpu", "priority": 50, "tasks": 1, "gpus": 0, "cpu_slots": 1,
        "memory_bytes": 0,
    }  # fmt: skip
    return Candidate(**{"job_id": job_id, **plain, **fields})


def room(host_id: str, slots: int, queues: frozenset[str] = frozenset()) -> Capacity:
    return Capacity(
        host_id=host_id, name=host_id, incarnation="i", queues=queues, free_cpu_slots=slots,
        free_memory_bytes=1 << 40, free_devices=(),
    )  # fmt: skip


@pytest.mark.parametrize(
    ("job", "free", "headroom", "leaves"),
    [
        ({}, 0, {}, True),
        ({}, 1, {}, False),  # it starts on the other host
        ({"cpu_slots": 2}, 0, {}, False),  # the executor's slot is not enough
        ({"tasks": 2}, 0, {}, False),
        ({"queue": "video"}, 0, {}, False),  # which this host does not serve
        ({"host_labels": {"app/films": "yes"}}, 0, {}, False),  # an executor
        ({}, 0, {"cpu": 0}, True),  # the limit of the executor's own queue (LEAVE-4)
        ({"queue": "gpu"}, 1, {"gpu": 0}, False),  # what holds it up is not room
        ({"gpus": 1}, 0, {}, False),
    ],
)
def test_an_idle_executor_leaves_for_a_job_that_waits_for_its_room(
    job: dict[str, Any], free: int, headroom: dict[str, int], leaves: bool
) -> None:
    hosts = [room("h1", 0, frozenset({"cpu"})), room("h2", free)]
    queues = Queues(candidates=[candidate("j", **job)], hosts=hosts, headroom=headroom, quotas={})
    jobs = find_waiting_jobs(queues)
    found = find_job_for_room(jobs, queues, "h1", JobSpec(executor="f", queue="cpu"))
    assert found == (("j", 1) if leaves else None)


@pytest.mark.parametrize(
    ("job", "beside", "count"),
    [
        ({"tasks": 2}, 1, 2),  # a gang, in the room of both
        ({"tasks": 2}, 0, None),
        ({"tasks": 2}, 3, 2),  # and of no more than it needs
        ({"tasks": 2, "placement": "spread"}, 3, 2),
        ({"cpu_slots": 3}, 2, 3),
        ({"tasks": 2, "gpus": 1, "cpu_slots": 0}, 1, 2),
        ({"tasks": 5}, 3, None),
    ],
)
def test_idle_executors_leave_together_for_a_job_that_needs_the_room_of_several(
    job: dict[str, Any], beside: int, count: int | None
) -> None:
    gpus = job.get("gpus", 0)
    one = JobSpec(executor="f", queue="cpu", gpus=gpus)
    queues = Queues(
        candidates=[candidate("j", **job)], hosts=[room("h1", 0)], headroom={}, quotas={}
    )
    jobs = find_waiting_jobs(queues)
    found = find_job_for_room(jobs, queues, "h1", one, [one] * beside)
    assert found == (None if count is None else ("j", count))


@pytest.mark.parametrize(
    ("tasks", "elsewhere", "count"), [(4, 2, 2), (3, 2, 1), (5, 2, None), (4, 1, None)]
)
def test_idle_executors_leave_for_a_gang_that_has_room_on_other_hosts_too(
    tasks: int, elsewhere: int, count: int | None
) -> None:
    hosts = [room("h1", 0), room("h2", elsewhere)]
    gang = candidate("j", tasks=tasks)
    queues = Queues(candidates=[gang], hosts=hosts, headroom={}, quotas={}, roomy=list_roomy(hosts))
    one = JobSpec(executor="f", queue="cpu")
    found = find_job_for_room(find_waiting_jobs(queues), queues, "h1", one, [one])
    assert found == (None if count is None else ("j", count))


def test_the_hosts_with_the_most_room_are_looked_at() -> None:
    many = [room(f"h{n}", n) for n in range(200)]
    assert [host.host_id for host in list_roomy(many)] == [f"h{n}" for n in range(199, 135, -1)]


@pytest.mark.parametrize(
    ("headroom", "quotas", "leaves"),
    [
        ({"cpu": 0}, {}, ("j", 1)),
        ({"cpu": 3}, {}, None),
        ({"gpu": 0}, {}, None),
        ({}, {"default": QuotaLeft(jobs=0)}, ("j", 1)),
        ({}, {"default": QuotaLeft(jobs=0, gpus=0)}, ("j", 1)),
        ({}, {"other": QuotaLeft(jobs=0)}, None),
        ({"cpu": 0}, {"default": QuotaLeft(jobs=0)}, ("j", 1)),
    ],
)
def test_an_idle_executor_leaves_for_a_job_whose_limit_it_uses_up(
    headroom: dict[str, int], quotas: dict[str, QuotaLeft], leaves: tuple[str, int] | None
) -> None:
    """LEAVE-4: on whichever host that would start."""
    hosts = [room("h1", 0), room("h2", 3)]
    queues = Queues(
        candidates=[candidate("j", cpu_slots=2)],
        hosts=hosts,
        headroom=headroom,
        quotas=quotas,
        roomy=list_roomy(hosts),
    )
    spec = JobSpec(queue="cpu", cpus=1)
    jobs = find_waiting_jobs(queues)
    assert bool(jobs) is (leaves is not None)
    assert find_job_for_room(jobs, queues, "h1", spec) == leaves


def test_a_job_whose_limit_others_use_up_gets_no_executors_room() -> None:
    queues = Queues(
        candidates=[candidate("j", queue="gpu")], hosts=[room("h1", 3)], headroom={"gpu": 0},
        quotas={},
    )  # fmt: skip
    jobs = find_waiting_jobs(queues)
    assert find_job_for_room(jobs, queues, "h1", JobSpec(queue="cpu", cpus=1)) is None
