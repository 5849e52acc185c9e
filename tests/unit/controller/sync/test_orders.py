"""Orders of alike jobs: one for all of them says the same as one for each."""

from __future__ import annotations

from typing import Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.runtime.hosts.orders import GangLayouts, make_orders
from holdfast.controller.runtime.settings import Settings
from holdfast.core.ids import TaskKey
from holdfast.core.spec import JobSpec
from holdfast.moves.values import GangSeat, OfferedJob, OfferedTask, SettingsLayers, TaskOffer
from holdfast.wire import agent as wire

SETTINGS = Settings(
    SettingsLayers(cluster={}, queues={"cpu": {}}, projects={}, revision=1, rules=""), {}
)
JOBS = tuple(
    OfferedJob(
        name=name,
        queue="cpu",
        project="default",
        memory_bytes=0,
        tasks=1,
        spec=JobSpec(argv=("run", name)),
    )
    for name in ("a", "b")
)
ALONE = GangSeat(rank=0, host_id="h1", host_name="one", address="10.0.0.1", port=4711)


@st.composite
def offers(draw: st.DrawFn) -> list[TaskOffer]:
    """Offers of jobs that are alike or not, some with a secret, some a rank of a gang."""
    found = []
    for number in range(draw(st.integers(0, 8))):
        devices = tuple(draw(st.lists(st.integers(0, 7), unique=True, max_size=2)))
        task = OfferedTask(
            key=TaskKey(f"job{number}", 0, draw(st.integers(1, 9))),
            attempt=1,
            host_id="h1",
            devices=devices,
            lease_ttl_seconds=draw(st.sampled_from([60.0, 300.0])),
        )
        secrets = draw(st.sampled_from([{}, {"TOKEN": "hush"}]))
        seats = draw(st.sampled_from([(), (ALONE,)]))
        job = draw(st.sampled_from(JOBS))
        found.append(TaskOffer(task=task, job=job, secrets=secrets, seats=seats))
    return found


async def order(found: list[TaskOffer]) -> list[wire.LaunchOrder]:
    no_store = cast(Any, None)  # no offer ran before, so no checkpoint is asked for
    return await make_orders(no_store, found, SETTINGS, GangLayouts())


def run(coroutine: Any) -> Any:
    try:
        coroutine.send(None)
    except StopIteration as done:
        return done.value
    raise AssertionError("it waited")


@given(offers())
def test_a_shared_order_says_what_an_order_each_says(found: list[TaskOffer]) -> None:
    each = [one for offer in found for one in run(order([offer]))]
    shared = run(order(found))
    heard = wire.decode_sync_answer(wire.encode(wire.SyncAnswer(launch=shared)))
    told = [one for order in heard.launch for one in order.list_all()]
    assert sorted(told, key=lambda one: one.key) == sorted(each, key=lambda one: one.key)


def test_alike_jobs_are_launched_by_one_order() -> None:
    found = [
        TaskOffer(
            task=OfferedTask(
                key=TaskKey(f"job{n}", 0, 1),
                attempt=1,
                host_id="h1",
                devices=(),
                lease_ttl_seconds=60.0,
            ),
            job=JOBS[0],
            secrets={},
        )
        for n in range(3)
    ]
    (shared,) = run(order(found))
    assert [one.key.job_id for one in shared.also] == ["job1", "job2"]


@pytest.mark.parametrize(
    ("hosts", "supervised", "together"),
    [(("h1", "h1"), False, True), (("h1", "h2"), False, False), (("h1", "h1"), True, False)],
)
def test_a_gang_falls_together_only_where_it_is_whole_on_one_host(
    hosts: tuple[str, str], supervised: bool, together: bool
) -> None:
    """FALL-1: a member of a supervised job is replaced by itself, and over several hosts the
    store's order alone stops ranks."""
    spec = JobSpec(argv=("run",), tasks=2, supervised=supervised)
    job = OfferedJob(name="g", queue="cpu", project="default", memory_bytes=0, tasks=2, spec=spec)
    seats = tuple(
        GangSeat(rank=rank, host_id=host, host_name=host, address="10.0.0.1", port=4711)
        for rank, host in enumerate(hosts)
    )
    task = OfferedTask(
        key=TaskKey("gang", 0, 1), attempt=1, host_id="h1", devices=(), lease_ttl_seconds=60.0
    )
    (told,) = run(order([TaskOffer(task=task, job=job, secrets={}, seats=seats)]))
    assert told.falls_together is together


@pytest.mark.parametrize(("saved", "asked"), [(False, []), (True, [[("gang", 0)]])])
def test_checkpoints_are_asked_for_only_where_the_job_may_have_some(
    saved: bool, asked: list[object]
) -> None:
    found: list[object] = []

    class Checkpoints:
        async def find_newest_checkpoints(self, ranks: list[object]) -> dict[object, object]:
            found.append(ranks)
            return {}

    class Store:
        checkpoints = Checkpoints()

    task = OfferedTask(
        key=TaskKey("gang", 0, 3), attempt=2, host_id="h1", devices=(), lease_ttl_seconds=60.0
    )
    offer = TaskOffer(task=task, job=JOBS[0], secrets={}, saved=saved)
    run(make_orders(cast(Any, Store()), [offer], SETTINGS, GangLayouts()))
    assert found == asked
