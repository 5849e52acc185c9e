"""What every store must do for `store.health`."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from holdfast.core.health.blame import HostStanding, SetAside
from holdfast.core.health.due import CheckState
from holdfast.core.host_checks import CheckKind, CheckResult, CheckVerdict, Measured
from holdfast.core.records import HostCheckRecord
from holdfast.core.states import HostState
from holdfast.errors import NotFound, Stale
from tests.store.rig import OK, START, Rig

WINDOW = 3600.0


def check(number: str, verdict: str = "ok", kind: CheckKind = "periodic") -> HostCheckRecord:
    result = CheckResult(name="clock", verdict=CheckVerdict(verdict), message="its clock")
    return HostCheckRecord(
        number=number,
        incarnation="",
        at=START,
        kind=kind,
        verdict=CheckVerdict(verdict),
        message=f"{number} {verdict}",
        results=(result,),
        measured=Measured(cpu_count=2, mounts={"/data": ""}),
    )


async def note(
    rig: Rig,
    host: str = "h1",
    *,
    passed: int = 0,
    failures: Sequence[tuple[str, int]] = (),
    made: HostCheckRecord | None = None,
) -> CheckState:
    return await rig.store.health.note_health(
        host,
        rig.incarnations.get(host, "inc-none"),
        passed=passed,
        failed=len(failures),
        failures=failures,
        check=made,
        now=rig.now,
    )


async def stand(rig: Rig) -> list[HostStanding]:
    return await rig.store.health.read_standings(WINDOW, now=rig.now)


async def pass_on_another(rig: Rig, job_id: str, first: str = "h1", then: str = "h2") -> None:
    """A job that failed on one host and succeeded on the other."""
    await rig.host(first)
    await rig.submit(job_id)
    await rig.fail(job_id, host=first, max_retries=3)
    await rig.store.hosts.move_host(first, "drain", "", now=rig.now)
    await rig.host(then)
    await rig.release()
    await rig.admit()
    key = await rig.key(job_id)
    assert await rig.where(job_id, 0) == then
    await rig.sync(then)
    await rig.sync(then, live=[key], started=[key])
    await rig.sync(then, ended=[(key, OK)])
    await rig.store.hosts.move_host(first, "undrain", "", now=rig.now)


async def test_checks_are_kept_newest_first_and_once(rig: Rig) -> None:
    await rig.host()
    first = check("one", "fail", "preflight")
    await note(rig, made=first)
    rig.tick(10)
    await note(rig, made=check("two"))
    await note(rig, made=check("two", "fail"))
    kept = await rig.store.health.list_checks("h1")
    assert [(c.number, c.verdict, c.kind) for c in kept] == [
        ("two", CheckVerdict.OK, "periodic"),
        ("one", CheckVerdict.FAIL, "preflight"),
    ]
    assert kept[0].incarnation == rig.incarnations["h1"]
    assert kept[0].measured == first.measured
    assert kept[0].results[0].name == "clock"
    assert [c.number for c in await rig.store.health.list_checks("h1", 1)] == ["two"]


async def test_the_state_of_checks_counts_from_the_last_one_or_the_registration(rig: Rig) -> None:
    await rig.host()
    rig.tick(60)
    state = await note(rig, failures=[("a", 1), ("b", 1), ("b", 1)])
    assert state == CheckState(state=HostState.ACTIVE, last_check_seconds=60.0, failed_since=2)
    rig.tick(5)
    state = await note(rig, made=check("one", kind="preflight"))
    assert state == CheckState(state=HostState.ACTIVE, preflighted=True)
    await rig.host()
    assert not (await note(rig)).preflighted, "a new incarnation is checked anew"


async def test_a_stranger_or_an_old_incarnation_is_refused(rig: Rig) -> None:
    await rig.host()
    with pytest.raises(NotFound):
        await rig.store.health.note_health("nobody", "inc-00001", now=rig.now)
    old = rig.incarnations["h1"]
    await rig.host()
    with pytest.raises(Stale):
        await rig.store.health.note_health("h1", old, passed=1, now=rig.now)
    assert await stand(rig) == []


async def test_a_failure_speaks_against_a_host_once_the_job_passed_elsewhere(rig: Rig) -> None:
    """BLAME-1."""
    await pass_on_another(rig, "job-a")
    await note(rig, failures=[("job-a", 1), ("job-unknown", 1)], passed=4)
    await note(rig, "h2", passed=1)
    (standing,) = await stand(rig)
    assert (standing.host_id, standing.jobs) == ("h1", ("job-a",))
    assert (standing.passed, standing.failed, standing.aside) == (4, 2, "")
    rig.tick(2 * WINDOW)
    assert await stand(rig) == [], "the window is over"


async def test_a_job_that_passed_on_the_same_host_speaks_against_none(rig: Rig) -> None:
    await rig.host()
    await rig.submit("job-a")
    await rig.fail("job-a", max_retries=3)
    await rig.release()
    await rig.admit()
    key = await rig.key("job-a")
    await rig.sync()
    await rig.sync(live=[key], started=[key])
    await rig.sync(ended=[(key, OK)])
    await note(rig, failures=[("job-a", 1)])
    assert await stand(rig) == []


async def test_an_aside_is_open_until_it_is_closed_and_then_counts(rig: Rig) -> None:
    await pass_on_another(rig, "job-a")
    await note(rig, failures=[("job-a", 1)])
    verdict = SetAside(host_id="h1", kind="jobs", reason="why", seconds=100.0, jobs=("job-a",))
    await rig.store.health.open_aside(verdict, now=rig.now)
    await rig.store.health.open_aside(verdict, now=rig.now)
    await rig.store.hosts.move_host("h1", "quarantine", "why", now=rig.now)
    rig.tick(40)
    (standing,) = await stand(rig)
    assert (standing.aside, standing.aside_left_seconds, standing.blames) == ("jobs", 60.0, 1)
    await rig.store.hosts.move_host("h1", "release", "on probation", now=rig.now)
    await rig.store.health.close_aside("h1", now=rig.now)
    assert await stand(rig) == [], "what spoke against it counts no more"
    await pass_on_another(rig, "job-b")
    rig.tick(1)
    await note(rig, failures=[("job-b", 1)])
    (standing,) = await stand(rig)
    assert (standing.jobs, standing.blames) == (("job-b",), 1)


async def test_an_operators_release_ends_an_aside(rig: Rig) -> None:
    await rig.host()
    verdict = SetAside(host_id="h1", kind="checks", reason="why", seconds=0.0)
    await rig.store.health.open_aside(verdict, now=rig.now)
    await rig.store.hosts.move_host("h1", "quarantine", "why", now=rig.now)
    assert [s.aside for s in await stand(rig)] == ["checks"]
    await rig.store.hosts.move_host("h1", "release", "by hand", now=rig.now)
    assert await stand(rig) == []
    await rig.store.hosts.move_host("h1", "quarantine", "by hand", now=rig.now)
    assert await stand(rig) == [], "an operator's quarantine is the operator's to lift"


async def test_checks_that_fail_show_with_the_newest_message(rig: Rig) -> None:
    await rig.host()
    for number in ("one", "two"):
        await note(rig, made=check(number, "fail"))
        rig.tick(1)
    (standing,) = await stand(rig)
    assert standing.verdicts == (CheckVerdict.FAIL, CheckVerdict.FAIL)
    assert standing.check_message == "two fail"


async def test_old_health_is_pruned(rig: Rig) -> None:
    await rig.host()
    await note(rig, passed=1, failures=[("a", 1)], made=check("one"))
    rig.tick(3 * 86_400)
    await note(rig, made=check("two"))
    assert await rig.store.health.prune_health(1.0, now=rig.now) == 3
    assert [c.number for c in await rig.store.health.list_checks("h1")] == ["two"]
