"""What `why` says of a call, in the words that tell what to do."""

from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.controller.calls.why import (
    CallCircumstances,
    count_failures,
    explain_call,
    find_endless,
)
from holdfast.core.calls.plan import FamilyRoom
from holdfast.core.calls.values import CallState, Family, FunctionSpec
from holdfast.core.fleet.pools import PoolSpec
from holdfast.core.gpus import Gpu
from holdfast.core.host_faults import Hindrance
from holdfast.core.records import JobRecord
from holdfast.core.states import JobState
from holdfast.store.postgres.calls.values import BusyCall, CallStanding
from holdfast.wire.api import WhyLine
from tests.unit.cli.stub import job_record
from tests.unit.core.calls.test_rooms import gpus, host

NOW = datetime(2026, 1, 1, tzinfo=UTC)
FAMILY = Family(app="mytasks", queue="cpu")
GPU = Family(app="mytasks", queue="gpu", gpus=1)
SPEC = FunctionSpec(function="mytasks:f")
ROOM = FamilyRoom(slots=4)


def say(standing: dict[str, Any] | None = None, **found: Any) -> list[tuple[str, str, str]]:
    plain: dict[str, Any] = {
        "spec": SPEC,
        "family": FAMILY,
        "state": CallState.PENDING,
        "phase": "ready",
        "attempts": 0,
    }
    call = CallStanding(**{**plain, **(standing or {})})
    circumstances: dict[str, Any] = {"name": "s.1", "now": NOW, "room": ROOM, "hosts": [host()]}
    lines = explain_call(CallCircumstances(standing=call, **{**circumstances, **found}))
    return [(line.code, line.message, line.hint) for line in lines]


def executor(state: JobState, **fields: Any) -> JobRecord:
    return job_record(state=state, **fields)


def waiting(number: int, waits_for: str, **fields: Any) -> BusyCall:
    plain: dict[str, Any] = {"family": GPU, "host_id": "h1", "job_id": f"e{number}"}
    return BusyCall(call=f"p.{number}", waits_for=waits_for, batch=number, **{**plain, **fields})


def test_a_call_whose_gpus_are_all_held_by_calls_that_wait_can_never_run() -> None:
    box = [host("h1", gpus=gpus(2))]
    one, two, other = waiting(1, "s.1"), waiting(2, "s.2"), waiting(3, "s.3", host_id="h2")
    assert find_endless("s.1", GPU, [one], box, []) == []
    assert find_endless("s.1", GPU, [one], [host("h1", gpus=gpus(1))], []) == [one]
    assert find_endless("s.2", GPU, [one, two], box, []) == [one, two]
    assert find_endless("s.1", GPU, [one, two], box, []) == [], "the first waits on"
    assert find_endless("s.3", GPU, [one, other], box, []) == []
    assert find_endless("s.9", GPU, [one, two], box, []) == []
    values = {
        "name": "more",
        "provider": "local",
        "offers": [{"name": "o", "usd_per_hour": 1.0}],
        "max": 1,
    }
    pool = msgspec.convert({**values, "labels": {"app/mytasks": "yes"}}, PoolSpec)
    assert find_endless("s.2", GPU, [one, two], box, [pool]) == []
    (line,) = say(endless=[one, two])
    assert line == (
        "waits_for_itself",
        "every GPU it could run on is held by calls that wait: p.1 waits for s.1, p.2 waits for s.2; "
        "a GPU is not lent",
        "ask for its result outside of a call, run it in place, or add a host with a GPU",
    )


def test_the_calls_that_hold_its_executors_are_named() -> None:
    running = [executor(JobState.RUNNING, id=f"e{n}") for n in (1, 2)]
    both = [waiting(1, "s.1", family=FAMILY), waiting(2, "", family=FAMILY)]
    assert say(executors=running, busy=both) == [
        (
            "executors_busy",
            "the executors of its family hold calls that wait themselves: p.1 waits for s.1, p.2",
            "they lend their CPU slots: an executor is started beside them",
        )
    ]
    assert say(executors=running, busy=both[:1])[0][0] == "ready", "one of them is free"
    ((_, text, hint),) = say(executors=running[1:], busy=both[1:])
    assert (text, hint) == ("the executors of its family run calls that take long: p.2", "")
    ((_, _, hint),) = say({"family": GPU}, executors=running[:1], busy=[waiting(1, "s.1")])
    assert hint == "a GPU is not lent: it runs when one of these calls ends, or on another GPU"


def test_no_live_host_lists_the_app() -> None:
    none = FamilyRoom(slots=0, listed=False)
    assert say(room=none, hosts=[]) == [
        (
            "no_host_lists_app",
            "no live host that serves queue cpu lists app mytasks",
            "start one: holdfast agent --app mytasks",
        )
    ]


def test_a_host_that_cannot_run_the_app_is_named_with_its_reason() -> None:
    """ABLE-1."""
    fault = Hindrance(part="apps", apps=("mytasks",), reason="No module named 'x'")
    broken = msgspec.structs.replace(host("h1", labels={"app/mytasks": "yes"}), faults=(fault,))
    line = (
        "host_cannot_run_app",
        "host h1 lists app mytasks and cannot run it: No module named 'x'",
        "mend it there; the host tries it again by itself",
    )
    assert say(room=FamilyRoom(slots=0, listed=False), hosts=[broken]) == [line]
    able = host("h2", labels={"app/mytasks": "yes"})
    assert say(hosts=[broken, able])[-1] == line
    other = msgspec.structs.replace(FAMILY, app="others")
    assert line not in say({"family": other}, hosts=[broken])


@pytest.mark.parametrize(
    ("wanted", "said"),
    [
        ({"rack": "b13"}, "no live host that lists app mytasks has the label rack=b13"),
        ({"disk": "!fast"}, "each live host that lists app mytasks has disk=fast, which it avoids"),
        (
            {"rack": "b11", "zone": "east"},
            "no live host that lists app mytasks fits all of its host_labels: rack=b11, zone=east",
        ),
        (
            {"rack": "b13", "disk": "!fast"},
            "no live host that lists app mytasks has the label rack=b13; each has disk=fast, which "
            "it avoids",
        ),
    ],
)
def test_the_label_that_no_host_has_is_named(wanted: dict[str, str], said: str) -> None:
    app = {"app/mytasks": "yes", "disk": "fast"}
    hosts = [
        host("h1", labels={**app, "rack": "b11"}),
        host("h2", labels={**app, "rack": "b12", "zone": "east"}),
        host("h3", labels={"rack": "b13"}),
    ]
    family = msgspec.structs.replace(FAMILY, host_labels=wanted)
    none = FamilyRoom(slots=0, listed=False)
    ((code, message, hint),) = say({"family": family}, room=none, hosts=hosts)
    assert (code, message) == ("no_host_with_labels", said)
    assert hint.startswith("start one: holdfast agent --app mytasks")
    assert ("--label rack=" in hint) == ("rack" in wanted)


def test_no_host_has_the_memory_for_the_model() -> None:
    spec = FunctionSpec(function="mytasks:f", model="qwen", vram_gb=28.0)
    small = host(gpus=(Gpu(index=0, memory_bytes=24 << 30),))
    ((code, message, _),) = say({"spec": spec}, hosts=[small])
    assert code == "no_host_fits_model"
    assert message.startswith("it waits for model qwen (28 GB): no live host")


def test_a_call_says_where_it_stands() -> None:
    assert say()[0][0] == "ready"
    assert say({"ahead": 1}) == [
        ("behind", "1 call is ahead of it in its feed", "a higher priority moves it forward")
    ]
    assert "10 000 or more calls are" in say({"ahead": 10_000})[0][1]
    running = {"phase": "running", "executor": "job1", "attempts": 2}
    assert say(running) == [
        ("running", "attempt 2 runs in executor job1, or is next there", "holdfast logs job1")
    ]


def test_a_back_off_says_until_when_and_why() -> None:
    due = {"phase": "backing_off", "due_at": NOW + timedelta(seconds=30), "reason": "it raised"}
    ((code, message, _),) = say(due)
    assert code == "back_off"
    assert "(30 s from now): it raised" in message


def test_an_end_says_how_and_what_to_do() -> None:
    ended = {"phase": "ended", "state": CallState.FAILED, "reason": "ValueError: no"}
    assert say(ended) == [("ended", "it failed: ValueError: no", "holdfast calls retry s.1")]
    assert say({"phase": "ended", "state": CallState.SUCCEEDED})[0][2] == ""


def test_what_holds_its_executor_holds_the_call() -> None:
    held = [WhyLine(code="queue_paused", message="queue cpu is paused", hint="resume it")]
    queued = [executor(JobState.QUEUED)]
    assert say(executors=queued, waiting=held) == [
        ("executor_waits", "its executor waits: queue cpu is paused", "resume it")
    ]
    assert say(executors=[executor(JobState.RUNNING)], waiting=held)[0][0] == "ready"
    assert say(executors=[executor(JobState.RESERVED)])[0][0] == "executor_starts"
    assert say(refusal="project p is over its quota")[0][:2] == (
        "executors_refused",
        "its executor was refused: project p is over its quota",
    )
    assert say(room=FamilyRoom(slots=4, most=0))[0][0] == "executors_max"


def test_executors_that_keep_failing_are_named() -> None:
    ended = [
        executor(JobState.FAILED, reason="exit code 1"),
        executor(JobState.FAILED),
        executor(JobState.SUCCEEDED),
        executor(JobState.FAILED),
    ]
    assert count_failures(ended) == 2
    times = {"started_at": NOW, "ended_at": NOW + timedelta(seconds=60)}
    later = executor(JobState.FAILED, **times)
    tripped = executor(JobState.FAILED, cause="stalled")
    drained = executor(JobState.FAILED, cause="host_drained")
    assert [count_failures([job]) for job in (later, tripped, drained)] == [0, 0, 0]
    ((code, message, hint),) = say(ended=ended)
    assert code == "executors_fail"
    assert "2 of its executors failed in a row, the last: exit code 1; the next one" in message
    assert hint == f"holdfast logs {ended[0].id}"
