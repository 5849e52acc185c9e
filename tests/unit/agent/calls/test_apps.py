"""ABLE-4: which apps a host lists and cannot run now."""

from __future__ import annotations

import pytest

from holdfast.agent.calls.apps import MAX_PAUSE_SECONDS, TRIES, AppTrial, find_app_error
from holdfast.agent.calls.places import Place
from holdfast.core.facts import TaskFacts
from holdfast.wire.calls import PHASE_CALLING, PHASE_IDLE, PHASE_LOADING, PHASE_UNABLE

IMPORTS = Place(0, 0, PHASE_LOADING, 0, 1.0)


@pytest.mark.parametrize(
    ("facts", "place", "said"),
    [
        (TaskFacts(exit_code=0), IMPORTS, "the import of app a ended its process with exit code 0"),
        (
            TaskFacts(signal=11, log_tail="[stderr]\nlibx.so: bad"),
            IMPORTS,
            "the import of app a ended its process with signal 11: libx.so: bad",
        ),
        (
            TaskFacts(exit_code=1, log_tail="[stderr]\n[holdfast] module a …: No module named 'x'"),
            Place(0, 0, PHASE_UNABLE, 3, 0.0),
            "module a …: No module named 'x'",
        ),
        (
            TaskFacts(exit_code=127, start_error="no such file: /opt/python"),
            None,
            "its executor cannot be started: no such file: /opt/python",
        ),
        (TaskFacts(exit_code=126, start_error="full", lost="it lacks memory"), None, None),
        (TaskFacts(exit_code=0), Place(0, 0, PHASE_IDLE, 0, 1.0), None),
        (TaskFacts(signal=11), Place(4, 0, PHASE_CALLING, 1, 1.0), None),
        (TaskFacts(signal=11), Place(4, 0, PHASE_LOADING, 1, 1.0), None),
        (TaskFacts(signal=11), Place(0, 0, PHASE_LOADING, 7, 1.0), None),
        (TaskFacts(signal=9, oom=True), IMPORTS, None),
        (TaskFacts(signal=15, stopped=True), IMPORTS, None),
        (TaskFacts(exit_code=1), None, None),
    ],
)
def test_an_executor_that_ended_before_its_first_call_failed_for_its_app(
    facts: TaskFacts, place: Place | None, said: str | None
) -> None:
    assert find_app_error("a", facts, place) == said


def test_a_few_failures_take_an_app_off_and_one_does_after_that() -> None:
    trial = AppTrial()
    for _ in range(TRIES - 1):
        trial = trial.fail("no x")
        assert trial.reason is None
    pauses = []
    for _ in range(7):
        trial = trial.fail("no x")
        assert trial.reason == "no x"
        assert trial.fail("still no x").pause_seconds == trial.pause_seconds, "it is off already"
        pauses.append(trial.pause_seconds)
        trial = trial.try_again()
        assert trial.reason is None
    assert pauses == [10, 20, 40, 80, 160, 300, 300]
    assert pauses[-1] == MAX_PAUSE_SECONDS
