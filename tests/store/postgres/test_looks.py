"""LOOK-1: the leader's look names a loop wherever the loop has work, and no loop where there is none.
The world of tests/protocol asserts the same at every turn, for the loops of jobs and hosts."""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Collection
from datetime import timedelta

import msgspec
import pytest

from holdfast.controller.loops.leader import LOOPS
from holdfast.core.calls.executors import make_executor_spec
from holdfast.core.calls.values import find_family
from holdfast.core.causes import Cause
from holdfast.core.retry import RetryFields
from holdfast.core.states import HostEvent, OutputsEvent
from holdfast.core.workflows.check import check_workflow
from holdfast.core.workflows.values import JobWork, NodeSpec, WorkflowSpec
from holdfast.moves.values import NewJob
from holdfast.moves.workflows import NewRun
from holdfast.store.postgres.jobs.sessions import Visitor
from holdfast.wire.sessions.messages import SessionOrder, SessionRequest
from tests.store.postgres.test_arrays import _submit as submit_array
from tests.store.postgres.test_calls import DOUBLE, args, executor, raised, say
from tests.store.postgres.test_schedules import _put as put_schedule
from tests.store.postgres.test_webhooks import Hooks
from tests.store.rig import OK, Rig, fails
from tests.store.test_postgres_outputs import begin as begin_outputs
from tests.store.test_postgres_outputs import bundle as keep_bundle
from tests.store.test_postgres_outputs import put as put_outputs

BY_LOOK = [loop.name for loop in LOOPS if loop.by_look]
Make = Callable[[Rig], Awaitable[object]]


async def look(rig: Rig, asked: Collection[str] = BY_LOOK) -> set[str]:
    given = {"silent_seconds": 30.0, "keep_seconds": 86_400.0, "ahead": False}
    found = await rig.store.leadership.look(asked, **given, now=rig.now)
    assert found.revision == (await rig.store.settings.read_settings()).revision
    return set(found.due)


async def queue(rig: Rig) -> None:
    await rig.submit()


async def reserve(rig: Rig) -> None:
    await rig.host()
    await rig.submit()
    assert await rig.admit()


async def drain(rig: Rig) -> None:
    await rig.host()
    _, key = await rig.running()
    await rig.sync(ended=[(key, fails())])


async def fall(rig: Rig) -> None:
    job_id, keys = await rig.supervised()
    await rig.sync(await rig.where(job_id, 1), ended=[(keys[1], fails(9))])


async def lapse(rig: Rig) -> None:
    await rig.host()
    await rig.running()
    rig.tick(400)


async def fall_silent(rig: Rig) -> None:
    await rig.host()
    await rig.running()
    rig.tick(31)


async def back_off(rig: Rig) -> None:
    await drain(rig)
    await rig.complete(retry_delay=10.0, max_retries=1)
    assert "due" not in await look(rig), "it is not its time yet"
    rig.tick(11)


async def hold_retry(rig: Rig) -> None:
    await drain(rig)
    await rig.store.settings.put_project("default", {"retries_enabled": False}, now=rig.now)
    await rig.complete(held="project default", max_retries=1)
    rig.tick(11)
    await rig.release()


async def start_later(rig: Rig) -> None:
    await rig.submit(start_at=(rig.now + timedelta(seconds=5)).timestamp())
    assert "due" not in await look(rig), "it is not its time yet"
    rig.tick(6)


async def end_parent(rig: Rig) -> None:
    parent = await rig.submit()
    await rig.submit(after=(parent,))
    await rig.store.jobs.cancel_job(parent, "no", now=rig.now)


async def line_up(rig: Rig) -> None:
    await submit_array(rig, size=3, at_once=1)


async def cancel_array(rig: Rig) -> None:
    await submit_array(rig, size=3)
    await rig.store.arrays.cancel_array("array-1", "no", hard=False, now=rig.now)


async def schedule(rig: Rig) -> None:
    await put_schedule(rig)
    assert "schedules" not in await look(rig), "it is not its time yet"
    rig.tick(61)


async def leave_child(rig: Rig) -> None:
    parent = await rig.submit()
    await rig.submit(parent=parent)
    await rig.store.jobs.cancel_job(parent, "no", now=rig.now)


async def drain_host(rig: Rig) -> None:
    host = await rig.host()
    await rig.running()
    await rig.store.hosts.move_host(host, HostEvent.DRAIN, "", deadline_seconds=5, now=rig.now)
    assert "host_drains" not in await look(rig), "its deadline has not come"
    rig.tick(6)


async def open_session(rig: Rig) -> None:
    await rig.host()
    job_id, key = await rig.running()
    order = SessionOrder(id="o", session="s", key=key, ticket="t")
    visitor = Visitor(user="u", token_id="t", token_name="", address="127.0.0.1")
    asked = SessionRequest(kind="shell")
    job = await rig.job(job_id)
    await rig.store.sessions.open_session(job, asked, "", visitor, order, "replica", now=rig.now)


async def leave_outputs(rig: Rig) -> None:
    _, key = await begin_outputs(rig)
    await put_outputs(rig, key, OutputsEvent.SEND, await keep_bundle(rig, "one"))
    assert "outputs" not in await look(rig), "its attempt still runs"
    await rig.sync(ended=[(key, OK)])


async def hook(rig: Rig) -> None:
    await Hooks(rig).add()


async def start_run(rig: Rig) -> None:
    node = NodeSpec(name="a", job=JobWork(spec=(await job_of(rig)).spec))
    spec = WorkflowSpec(name="flow", nodes=[node])
    new = NewRun(id="0" * 20, spec=spec, parents=check_workflow(spec).parents)
    await rig.store.workflows.submit_run(new, now=rig.now)


async def job_of(rig: Rig) -> NewJob:
    job = await rig.job(await rig.submit())
    return NewJob(id=job.id, spec=job.spec, queue=job.queue)


async def call(rig: Rig) -> None:
    await rig.store.calls.create_set("s1", DOUBLE, "cpu", count=1, args=args(1), now=rig.now)


async def leave_call_set_open(rig: Rig) -> None:
    await rig.store.calls.create_set("s1", DOUBLE, "cpu", count=None, args=[], now=rig.now)


async def run_call(rig: Rig) -> None:
    key = await executor(rig)
    await call(rig)
    await say(rig, key, want=1)


async def fail_call(rig: Rig) -> None:
    key = await executor(rig)
    slow = msgspec.structs.replace(DOUBLE, retry=RetryFields(max_retries=1, retry_delay=60))
    await rig.store.calls.create_set("s1", slow, "cpu", count=1, args=args(1), now=rig.now)
    (batch,) = (await say(rig, key, want=1)).batches
    await say(rig, key, ends=[raised(batch.id, 0)])


async def run_executor(rig: Rig) -> None:
    spec = make_executor_spec(find_family(DOUBLE, "cpu"))
    new = NewJob(id="executor", spec=spec, queue="cpu")
    await rig.store.jobs.submit_jobs([new], now=rig.now)


async def pass_minutes(rig: Rig) -> None:
    await rig.host()


WORK: list[tuple[str, Make]] = [
    ("admit", queue),
    ("reservations", reserve),
    ("drains", drain),
    ("members", fall),
    ("leases", lapse),
    ("dead_hosts", fall_silent),
    ("due", back_off),
    ("due", hold_retry),
    ("due", start_later),
    ("dependants", end_parent),
    ("arrays", line_up),
    ("arrays", cancel_array),
    ("schedules", schedule),
    ("children", leave_child),
    ("host_drains", drain_host),
    ("sessions", open_session),
    ("outputs", leave_outputs),
    ("webhooks", hook),
    ("dispatch", start_run),
    ("executors", call),
    ("executors", run_executor),
    ("calls", leave_call_set_open),
    ("calls", run_call),
    ("calls", fail_call),
    ("ledger", pass_minutes),
]


def test_each_loop_that_is_looked_for_has_its_work_in_this_table() -> None:
    assert sorted({name for name, _ in WORK}) == sorted(BY_LOOK)


async def test_an_empty_database_has_no_work_for_any_loop(rig: Rig) -> None:
    assert await look(rig) == set()
    assert await look(rig, ["no loop of the look"]) == {"no loop of the look"}


@pytest.mark.parametrize(
    ("name", "make"), WORK, ids=[f"{name}-{make.__name__}" for name, make in WORK]
)
async def test_a_loop_is_named_where_it_has_work(rig: Rig, name: str, make: Make) -> None:
    await make(rig)
    assert name in await look(rig)
    assert name not in await look(rig, [other for other in BY_LOOK if other != name])


async def test_a_member_that_waits_for_a_place_is_work_for_admission(rig: Rig) -> None:
    await fall(rig)
    await rig.replace()
    assert {"admit", "members"} & await look(rig) == {"admit"}


async def test_a_quiet_job_that_runs_gives_no_loop_work(rig: Rig) -> None:
    await rig.host()
    await rig.running()
    assert await look(rig) == {"ledger"}, "of hosts no minute is written yet"
    await rig.store.jobs.drain_job("job-0001", Cause.PREEMPTED, "room", now=rig.now)
    assert await look(rig) == {"drains", "ledger"}
