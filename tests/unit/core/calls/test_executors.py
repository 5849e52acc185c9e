"""The executor's job: whom it suits, what watches it, and that its end is final."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.controller.runtime.settings import Settings
from holdfast.core.bundles.code import CodeRef
from holdfast.core.calls.executors import (
    find_app,
    find_listed_app,
    is_ahead,
    is_lent,
    make_executor_spec,
    read_family,
)
from holdfast.core.calls.values import Family, FunctionSpec, find_family
from holdfast.core.causes import Cause
from holdfast.core.endings.decide import AttemptEnding, Charges, decide
from holdfast.core.facts import Classified
from holdfast.core.placement.eligible import carries
from holdfast.core.spec import check_spec
from holdfast.core.states import JobEvent
from holdfast.errors import ValidationError
from holdfast.moves.values import SettingsLayers

FAMILY = Family(app="mytasks", queue="gpu", project="film", gpus=2, memory_bytes=1 << 30)


def settings(**layers: object) -> Settings:
    return Settings(
        SettingsLayers(rules="", revision=1, cluster=layers, queues={}, projects={}), {}
    )


def test_an_executor_goes_to_hosts_that_list_its_app() -> None:
    spec = make_executor_spec(FAMILY)
    assert spec.executor == FAMILY.name
    assert spec.host_labels == {"app/mytasks": "yes"}
    assert find_app(spec) == "mytasks"
    assert (spec.queue, spec.project, spec.gpus, spec.memory_bytes) == ("gpu", "film", 2, 1 << 30)
    assert not is_ahead(spec)
    assert is_ahead(make_executor_spec(FAMILY, ahead=True))


def test_an_executor_goes_where_its_calls_may_run() -> None:
    family = msgspec.structs.replace(FAMILY, host_labels={"rack": "!b12"})
    spec = make_executor_spec(family)
    assert spec.host_labels == {"app/mytasks": "yes", "rack": "!b12"}
    assert read_family(spec, "gpu") == family
    assert read_family(make_executor_spec(FAMILY), "gpu") == FAMILY


def test_calls_of_other_hosts_are_of_another_family() -> None:
    plain = FunctionSpec(function="mytasks:f")
    chosen = FunctionSpec(function="mytasks:f", host_labels={"rack": "b12", "disk": "fast"})
    again = FunctionSpec(function="mytasks:f", host_labels={"disk": "fast", "rack": "b12"})
    assert find_family(plain, "cpu").name == "mytasks-e5b6597d80"  # as ever: executors go on
    assert find_family(chosen, "cpu").name == find_family(again, "cpu").name
    assert find_family(chosen, "cpu").name != find_family(plain, "cpu").name


def test_the_same_code_is_one_family_and_other_code_is_never_in_its_executors() -> None:
    def family(**code: Any) -> Family:
        return find_family(FunctionSpec(function="mytasks:f", code=CodeRef(**code)), "cpu")

    first = family(digest="a" * 64, commit="1" * 40, branch="trunk")
    assert first == family(digest="a" * 64, dirty=True)
    names = {first.name, family(digest="b" * 64).name, Family(app="mytasks", queue="cpu").name}
    assert len(names) == 3
    spec = make_executor_spec(first)
    assert spec.code == CodeRef(digest="a" * 64)
    assert (find_app(spec), find_listed_app(spec)) == ("mytasks", "")
    assert read_family(spec, "cpu") == first
    assert carries({}, spec.host_labels)
    assert carries({"app/mytasks": "yes"}, spec.host_labels)


def test_users_submit_no_executors() -> None:
    with pytest.raises(ValidationError, match="submit calls") as refused:
        check_spec(make_executor_spec(FAMILY))
    assert refused.value.field == "executor"


def test_no_watchdog_looks_at_an_executor_by_itself() -> None:
    watch = settings(first_beat_timeout_seconds=5.0).watch("gpu", make_executor_spec(FAMILY))
    assert not watch.stall_watch
    assert watch.health_watch == "off"
    assert watch.time_limit_seconds is None
    assert watch.silence_limit_seconds is None
    assert watch.first_beat_timeout_seconds is None
    assert watch.grace_seconds == 15.0


def test_a_call_is_watched_by_its_function_over_queue_and_cluster() -> None:
    rules = settings(time_limit_seconds=50.0, stall_timeout_seconds=7.0)
    watch = rules.watch_call("gpu", FunctionSpec(function="m:f", time_limit_seconds=3.0))
    assert watch.time_limit_seconds == 3.0
    assert watch.stall_timeout_seconds == 7.0


@given(cause=st.sampled_from([cause for cause in Cause if cause is not Cause.USER_CANCELLED]))
def test_every_end_of_an_executor_is_final(cause: Cause) -> None:
    policy = settings().policy("gpu", make_executor_spec(FAMILY))
    found = Classified(cause=cause, rule="r", message="it ended", exit_code=None, evidence={})
    ended = decide(found, Charges(), policy, AttemptEnding(job_id="j"), chance=0.5)
    assert ended.event is JobEvent.FAIL


def test_limits_come_from_the_queue_and_zero_is_never() -> None:
    limits = settings(executor_idle_seconds=5.0, executor_max_memory_mb=2.0).executor_limits
    found = limits("gpu", ahead=False)
    assert (found.idle_seconds, found.calls, found.memory_bytes) == (5.0, 0, 2 << 20)
    assert limits("gpu", ahead=True).idle_seconds == 0.0
    assert (
        settings(model_idle_seconds=None).executor_limits("gpu", ahead=False).model_idle_seconds
        == 0.0
    )


@pytest.mark.parametrize("cpus", [None, 0, 3])
def test_an_executor_on_a_lent_slot_takes_none_and_is_of_the_same_family(cpus: int | None) -> None:
    family = Family(app="mytasks", queue="cpu", cpus=cpus)
    spec = make_executor_spec(family, lent=True)
    assert (spec.cpu_slots, spec.executor, is_lent(spec)) == (0, family.name, True)
    assert read_family(spec, "cpu") == family
    assert not is_lent(make_executor_spec(family))
