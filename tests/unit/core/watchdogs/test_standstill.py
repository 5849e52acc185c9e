"""Standstill: what moved and then stood beside idle hardware is told, and ends a task only where asked."""

from __future__ import annotations

import pytest

from holdfast.core.settings.resolve import resolve_all
from holdfast.core.settings.watch import WatchSettings, watch_settings
from holdfast.core.watchdogs import StandsStill, TaskWatch
from tests.unit.core.watchdogs.test_watchdogs import Driver, Probe, cpu, gpu

TELL = WatchSettings(health_watch="off")
STOP = WatchSettings(health_watch="off", on_standstill="stop")


def stand(settings: WatchSettings, probe: Probe, *, gpus: int = 0, longest: float = 0.0) -> Driver:
    """A job whose printed counter last moved at 100 s."""
    driver = Driver(settings, probe, gpus=gpus, owns_whole_box=True)
    driver.now = 100.0
    driver.watch.move(100.0, 100.0, longest, "printed counter")
    return driver


@pytest.mark.parametrize(("probe", "gpus"), [(cpu(), 0), (gpu(), 1)])
def test_a_counter_that_stands_beside_idle_hardware_is_told_and_nothing_is_stopped(
    probe: Probe, gpus: int
) -> None:
    """STAND-1: at the patience, or at most one sample later, and once."""
    driver = stand(TELL, probe, gpus=gpus).run(4000)
    assert driver.trip is None
    ((at, told),) = [(at, said) for at, said in driver.said if isinstance(said, StandsStill)]
    assert 700 <= at <= 731
    assert told.reason.startswith("its printed counter has stood for 6")
    assert "hardware was idle for the last 30" in told.reason
    assert driver.watch.standstill == told.reason
    assert min(driver.sampled) >= 400  # no reading before half of the patience is over


def test_it_ends_the_task_where_the_job_says_so() -> None:
    driver = stand(STOP, cpu()).run(4000)
    assert driver.trip is not None
    assert driver.trip[1] == 76
    assert "has stood for" in driver.watch.trip.reason  # type: ignore[union-attr]  # there is one


@pytest.mark.parametrize("probe", [cpu(percent=50), cpu(io_mb_s=1)])
def test_hardware_at_work_excuses_a_step_that_stands(probe: Probe) -> None:
    """STAND-3."""
    driver = stand(STOP, probe).run(4000)
    assert (driver.trip, driver.watch.standstill) == (None, "")


def test_work_that_moves_again_is_told_too() -> None:
    driver = stand(TELL, cpu()).run(1000)
    assert driver.watch.standstill
    driver.watch.move(driver.now, driver.now, 900.0, "step")
    driver.tick()
    assert driver.watch.standstill == ""
    assert driver.kinds()[-1] == "Rearmed"
    driver.run(3600)
    assert driver.watch.standstill == ""  # it stood for 900 s before, and went on
    driver.run(4500)
    assert driver.watch.standstill


@pytest.mark.parametrize("settings", [
    WatchSettings(health_watch="off", on_standstill="ignore"),
    WatchSettings(health_watch="off", standstill_seconds=None),
])  # fmt: skip
def test_it_may_be_switched_off(settings: WatchSettings) -> None:
    driver = stand(settings, cpu()).run(4000)
    assert (driver.said, driver.sampled) == ([], [])


def test_nothing_is_suspected_of_work_that_was_never_seen_to_move_or_is_in_a_section() -> None:
    """STAND-2."""
    driver = Driver(STOP, cpu()).run(4000)
    assert (driver.said, driver.sampled) == ([], [])
    driver = stand(STOP, cpu())
    driver.watch.beat(100.0, step=1)
    for at in range(100, 4000, 50):
        driver.run(float(at))
        driver.watch.beat(driver.now, section="eval", timeout=600.0)
    assert driver.trip is None


def test_what_an_earlier_agent_saw_is_no_evidence() -> None:
    driver = stand(STOP, cpu()).run(650)
    watch = TaskWatch.restore(driver.watch.dump(650), 660, STOP, gpus=0)
    assert watch.wants_sample() is None


def test_a_person_and_a_policy_script_are_left_alone() -> None:
    assert watch_settings(resolve_all([])).standstill_seconds == 600.0
    assert watch_settings(resolve_all([]), attended=True).standstill_seconds is None
    assert watch_settings(resolve_all([]), supervised=True).standstill_seconds is None
