"""The page of a supervised run: its script, its hosts, and how they were replaced."""

from __future__ import annotations

import re

from holdfast.core.records import EventRecord, TaskRecord
from holdfast.core.states import TaskState
from holdfast.web.pages.job.run import find_count, list_members, read_script, say_members, tell_life
from holdfast.wire import agent as wire
from tests.unit.controller.conftest import FakeAgent, Served
from tests.unit.controller.web.conftest import Browser
from tests.unit.controller.web.test_job import at
from tests.waits import within

ARGV = [
    "python", "-P", "-m", "holdfast.supervisor.member", "0", "", "python", "policy.py", "--lr", "3e-4",
]  # fmt: skip
STATUS = "holdfast.supervisor: hosts 3 attached, 1 lost, 0 waiting, 2 spare; processes 24; in 1 messages/s"


async def start_run(served: Served) -> tuple[str, list[FakeAgent], list[wire.LaunchOrder]]:
    """Return a supervised run on three hosts; a fourth one is free."""
    agents = [FakeAgent(served, f"h{n}", cpu_slots=1) for n in range(3)]
    for each in agents:
        await each.register()
    job = await served.submit(
        name="night", argv=ARGV, tasks=3, cpus=1, placement="spread", supervised=True,
        on_partial="restart",
    )  # fmt: skip
    keys = []
    async with within(20):
        for each in agents:
            while not (found := (await each.sync(wait=2.0)).claim):
                pass
            keys.append(found[0].key)
            port = 29_500 if keys[-1].rank == 0 else 0
            await each.sync(wire.TaskReport(key=keys[-1], state="claimed", port=port))
        orders = []
        for each, key in zip(agents, keys, strict=True):
            claimed = wire.TaskReport(key=key, state="claimed", port=29_500 if key.rank == 0 else 0)
            (order,) = (await each.sync(claimed, wait=2.0)).launch
            await each.sync(each.running(order))
            orders.append(order)
    by_rank = sorted(zip(orders, agents, strict=True), key=lambda each: each[0].key.rank)
    free = FakeAgent(served, "free", cpu_slots=1)
    await free.register()
    return job["id"], [each for _, each in by_rank] + [free], [order for order, _ in by_rank]


async def test_a_supervised_jobs_page_shows_its_run_first(served: Served, browser: Browser) -> None:
    job_id, agents, orders = await start_run(served)
    await agents[0].send_log(orders[0].key, f"{STATUS}\nrestart 1: <b>\n".encode(), stream="stderr")
    await agents[2].end(orders[2], exit_code=74)
    while not (await agents[3].sync(wait=2.0)).launch:
        pass
    page = (await browser.send("GET", f"/jobs/{job_id}")).text
    assert '?tab=run" class="here"' in page
    assert "<code>policy.py --lr 3e-4</code>" in page
    assert "2 of 3 run; rank 2 on the way" in page
    assert "3 attached, 1 lost, 0 waiting, 2 spare; processes 24" in page
    assert "restart 1: &lt;b&gt;" in page
    assert "exit code 74; it is replaced" in page
    assert "charged to hosts, is reserved on free, replacement 1, " in page
    named = re.findall('<tr id="([^"]+)">', page)
    assert (len(set(named)), page.count("<tr>")) == (len(named), 2), "rows stay by their ids"
    assert page.count("data-pick") == 3
    assert 'aria-label="free"' in page
    assert "Drain…" in page
    reader = Browser(served)
    await reader.sign_in("read")
    assert "data-pick" not in (await reader.send("GET", f"/jobs/{job_id}")).text
    plain = await served.submit(name="alone")
    page = (await browser.send("GET", "/jobs", params={"q": "supervised:only"})).text
    assert job_id in page
    assert plain["id"] not in page
    page = (await browser.send("GET", f"/jobs/{plain['id']}")).text
    assert "tab=run" not in page
    assert (await browser.send("GET", f"/jobs/{plain['id']}?tab=run")).status_code == 404


async def test_a_run_without_a_controller_is_said_to_be_out_of_sight(browser: Browser) -> None:
    page = (await browser.send("GET", "/jobs", params={"q": "supervised:only"})).text
    assert "holdfast supervise policy.py --hosts 16" in page
    assert "without a controller" in page
    assert "metrics_port" in page


def test_the_script_is_named_as_it_was_given() -> None:
    assert read_script(ARGV) == "policy.py --lr 3e-4"
    assert read_script(["my", "own words"]) == "my 'own words'"


def test_the_newest_count_of_the_script_is_found() -> None:
    older = STATUS.replace("3 attached", "2 attached")
    found = "3 attached, 1 lost, 0 waiting, 2 spare; processes 24"
    assert find_count([older, STATUS, "x"]) == found
    assert find_count(["hosts are fine"]) == ""


def make_task(rank: int, state: TaskState, **more: object) -> TaskRecord:
    return TaskRecord(job_id="j", rank=rank, epoch=1, attempt=1, state=state, **more)  # type: ignore[arg-type]  # any field


def test_ranks_without_a_host_and_those_replaced_most_come_first() -> None:
    tasks = [
        make_task(0, TaskState.RUNNING),
        make_task(1, TaskState.RUNNING, replaced=2),
        make_task(2, TaskState.BLOCKED, replaced=8, stop_reason="it did not start"),
        make_task(3, TaskState.BLOCKED, ready_at=at(0)),
    ]
    found = list_members(tasks, {}, at(0))
    assert [(each.rank, each.state) for each in found] == [
        (2, "parked"), (3, "blocked"), (1, "running"), (0, "running"),
    ]  # fmt: skip
    assert say_members(found) == (
        "2 of 4 run; rank 2 parked until a person frees it; rank 3 without a host"
    )
    assert say_members([]) == "none has a place yet"


def make_event(kind: str, second: float, rank: int | None, **more: object) -> EventRecord:
    return EventRecord(id=str(second), at=at(second), kind=kind, rank=rank, **more)  # type: ignore[arg-type]  # any field


def test_a_replacement_is_one_moment_with_its_cause_its_charge_and_what_followed() -> None:
    events = [
        make_event("job.started", 0, None, message="attempt 1 runs"),
        make_event(
            "task.replaced", 10, 3, message="rank 3: h3 was lost",
            data={"charged_to": "infra"},
        ),
        make_event("task.replaced", 11, 4, message="rank 4: given up", data={"charged_to": "nothing"}),
        make_event("task.reserved", 12, 3, message="rank 3 is reserved on h4, replacement 1"),
        make_event("task.started", 25, 3, message="rank 3 runs again, on h4"),
        make_event("task.replaced", 40, 3, message="rank 3: h4 was lost"),
    ]  # fmt: skip
    told = tell_life(events)
    assert [(each.rank, each.said, each.charged_to, each.after) for each in told] == [
        (3, "h4 was lost", "", ""),
        (4, "given up", "nothing", ""),
        (3, "h3 was lost", "hosts", "runs again, on h4, 15 s later"),
        (None, "attempt 1 runs", "", ""),
    ]
