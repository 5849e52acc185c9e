"""Settings: what is read, what is refused, and which layer wins."""

from __future__ import annotations

import math
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.settings.resolve import (
    BUILTIN_QUEUES,
    SETTINGS,
    Effective,
    check_layer,
    job_layer,
    layer_from_environment,
    parse_duration,
    parse_value,
    resolve,
    resolve_all,
)
from holdfast.core.settings.table import QUEUE_PRESETS, RENDER_LIMITS, find_call_limit
from holdfast.core.settings.watch import WatchSettings, watch_settings
from holdfast.core.spec import JobSpec
from holdfast.errors import ValidationError

names = st.sampled_from(sorted(SETTINGS))


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("90s", 90),
        ("2m", 120),
        ("1h30m", 5400),
        ("7d", 604_800),
        ("250ms", 0.25),
        (" 2M ", 120),
    ],
)
def test_durations(text: str, seconds: float) -> None:
    assert parse_duration(text) == seconds


@pytest.mark.parametrize("text", ["", "m", "1h 30m", "-5", "1e3", "5x", "1h30", "nan", "٣"])
def test_what_is_no_duration(text: str) -> None:
    with pytest.raises(ValueError, match="is not a duration"):
        parse_duration(text)


@pytest.mark.parametrize(
    ("name", "raw", "value"),
    [
        ("stall_timeout_seconds", "2m", 120.0),
        ("stall_timeout_seconds", "off", None),
        ("stall_timeout_seconds", "None", None),
        ("stall_timeout_seconds", None, None),
        ("stall_timeout_seconds", 5, 5.0),
        ("stall_watch", "off", False),
        ("stall_watch", True, True),
        ("stall_watch", "1", True),
        ("watchdog_cap", "3", 3),
        ("watchdog_cap", 3.0, 3),
        ("health_watch", "off", "off"),
        ("on_trip", "fail", "fail"),
        ("grace_seconds", 0, 0.0),
        ("max_running", "off", None),
    ],
)
def test_values_that_are_read(name: str, raw: object, value: object) -> None:
    parsed = parse_value(name, raw)
    assert parsed == value
    assert type(parsed) is type(value)


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("no_such", 1),
        ("stall_timeout_seconds", "soon"),
        ("stall_timeout_seconds", -1),
        ("stall_timeout_seconds", 0),
        ("stall_timeout_seconds", float("nan")),
        ("stall_timeout_seconds", float("inf")),
        ("stall_timeout_seconds", True),
        ("stall_timeout_seconds", [1]),
        ("stall_timeout_seconds", {}),
        ("stall_timeout_seconds", 10**400),
        ("grace_seconds", "off"),
        ("grace_seconds", None),
        ("stall_watch", "maybe"),
        ("stall_watch", None),
        ("watchdog_cap", 1.5),
        ("watchdog_cap", "nan"),
        ("watchdog_cap", "off"),
        ("health_watch", "sometimes"),
        ("on_trip", None),
        ("lease_ttl_seconds", 14),
        ("lease_ttl_seconds", 3601),
        ("gang_lease_ttl_seconds", 14),
        ("gang_lease_ttl_seconds", 3601),
    ],
)
def test_values_that_are_refused_name_the_setting(name: str, raw: object) -> None:
    with pytest.raises(ValidationError) as raised:
        parse_value(name, raw)
    assert raised.value.field == name
    assert name in raised.value.message


@given(
    names,
    st.one_of(
        st.none(), st.booleans(), st.integers(), st.floats(), st.text(), st.lists(st.integers())
    ),
)
def test_anything_is_read_within_bounds_or_refused(name: str, raw: Any) -> None:
    setting = SETTINGS[name]
    try:
        value = parse_value(name, raw)
    except ValidationError:
        return
    if value is None:
        assert setting.may_be_off
    elif isinstance(value, bool):
        assert setting.kind == "bool"
    elif isinstance(value, str) and setting.kind == "causes":
        assert parse_value(name, value) == value
    elif isinstance(value, str) and setting.kind == "text":
        assert value == raw
        assert len(value) <= setting.high
    elif isinstance(value, str):
        assert value in setting.words
    else:
        assert setting.low <= value <= setting.high
        assert math.isfinite(value)


@given(names)
def test_every_default_is_a_value_it_would_accept_itself(name: str) -> None:
    setting = SETTINGS[name]
    assert parse_value(name, setting.default) == setting.default
    assert setting.help
    assert setting.environment_name == "HOLDFAST_" + name.upper()


def test_the_figures_of_the_design() -> None:
    """The defaults that the documents promise."""
    wanted = {
        "stall_timeout_seconds": 120, "stall_samples": 3, "stall_sample_interval_seconds": 1,
        "silence_limit_seconds": 1800, "section_factor": 5, "health_window_seconds": 300,
        "health_load_grace_seconds": 1200, "gpu_idle_percent": 5, "gpu_memory_moving_mb": 5120, "watchdog_cap": 3,
        "infra_cap": 10, "grace_seconds": 15, "drain_force_seconds": 45, "lease_ttl_seconds": 300,
        "sync_interval_seconds": 5, "reservation_seconds": 30, "dead_host_seconds": 30, "dead_host_sweep_seconds": 5, "forensics_seconds": 10,
        "gang_lease_ttl_seconds": 60,
    }  # fmt: skip
    assert {name: SETTINGS[name].default for name in wanted} == wanted


def test_a_new_cluster_has_two_queues_that_limit_nothing() -> None:
    assert BUILTIN_QUEUES == {"cpu": {}, "gpu": {}}


def test_a_call_has_the_limit_of_calls_in_its_queue() -> None:
    limits = {name: find_call_limit(name, 0) for name in RENDER_LIMITS}
    assert limits == {
        "gpu": 8100,
        "video": 1800,
        "cpu": 2100,
        "ingest-fetch": 7200,
        "ingest-load": 3600,
        "input": 120,
    }
    assert (find_call_limit("own", 1), find_call_limit("own", 0)) == (8100, 2100)


def test_the_render_preset_has_the_limits_of_calls_and_fails_an_ingest_that_hung() -> None:
    preset = QUEUE_PRESETS["render"]
    assert {name: own["time_limit_seconds"] for name, own in preset.items()} == {
        "video": 1800,
        "ingest-fetch": 7200,
        "ingest-load": 3600,
        "input": 120,
    }
    assert preset["video"]["stall_watch"] is False
    fails = [queue for queue, own in preset.items() if own.get("on_trip") == "fail"]
    assert fails == ["ingest-fetch", "ingest-load"]
    assert {name: check_layer(own, "queue") for name, own in preset.items()} == preset


LAYERS = ("job", "queue", "cluster", "environment")


@given(names, st.dictionaries(st.sampled_from(LAYERS), st.one_of(st.none(), st.integers(1, 9))))
def test_the_strongest_layer_that_speaks_wins(name: str, given_by: dict[str, int | None]) -> None:
    layers = [(source, {name: given_by[source]} if source in given_by else {}) for source in LAYERS]
    effective = resolve(name, layers)
    expected = next((source for source in LAYERS if source in given_by), "default")
    assert effective.source == expected
    assert effective.value == (
        SETTINGS[name].default if expected == "default" else given_by[expected]
    )


def test_off_in_a_strong_layer_is_not_silence() -> None:
    effective = resolve(
        "silence_limit_seconds",
        [("job", {"silence_limit_seconds": None}), ("queue", {"silence_limit_seconds": 9.0})],
    )
    assert (effective.value, effective.source) == (None, "job")


@pytest.mark.parametrize("name", ["sessions", "retries_enabled"])
@pytest.mark.parametrize("off", ["project", "cluster", "environment"])
def test_a_switch_that_is_off_in_any_layer_is_off(name: str, off: str) -> None:
    layers = [(where, {name: where != off}) for where in ("project", "cluster", "environment")]
    assert resolve(name, layers) == Effective(name, False, off)
    assert resolve(name, [(where, {name: True}) for where, _ in layers]).value is True
    assert resolve(name, []).value is True


def test_the_environment_is_a_layer() -> None:
    layer = layer_from_environment(
        {"HOLDFAST_STALL_TIMEOUT_SECONDS": "2m", "HOLDFAST_TASK": "x", "PATH": "/"}
    )
    assert layer == {"stall_timeout_seconds": 120.0}
    with pytest.raises(ValidationError, match="watchdog_cap"):
        layer_from_environment({"HOLDFAST_WATCHDOG_CAP": "many"})


def test_a_layer_is_refused_where_it_reaches_too_far() -> None:
    assert check_layer({"on_trip": "fail", "max_running": 3}, "queue") == {
        "on_trip": "fail",
        "max_running": 3,
    }
    for name, value, scope in [
        ("on_trip", "fail", "job"),
        ("history_days", 3, "queue"),
        ("history_days", 3, "job"),
    ]:
        with pytest.raises(ValidationError, match=name):
            check_layer({name: value}, scope)  # type: ignore[arg-type]  # plain words stand for the typed value in a test


def test_a_job_speaks_only_of_what_it_set() -> None:
    assert job_layer(JobSpec(argv=("x",))) == {}
    spec = JobSpec(argv=("x",), stall_timeout_seconds="off", grace_seconds=0.0, watchdog_cap=0)
    assert job_layer(spec) == {
        "stall_timeout_seconds": None,
        "grace_seconds": 0.0,
        "watchdog_cap": 0,
    }


def test_a_job_has_no_time_limit_unless_a_layer_names_one() -> None:
    assert resolve("time_limit_seconds", [("queue", {}), ("project", {})]).value is None
    off = [("queue", {"time_limit_seconds": None}), ("project", {"time_limit_seconds": 9.0})]
    assert resolve("time_limit_seconds", off).value is None
    project = resolve("time_limit_seconds", off[1:])
    assert (project.value, project.source) == (9.0, "project")


def test_no_first_beat_is_waited_for_unless_asked_and_never_of_a_host_manager() -> None:
    assert watch_settings(resolve_all([])).first_beat_timeout_seconds is None
    asked = resolve_all([("queue", {"first_beat_timeout_seconds": 60.0})])
    assert watch_settings(asked).first_beat_timeout_seconds == 60.0
    assert watch_settings(asked, supervised=True).first_beat_timeout_seconds is None
    spec = JobSpec(argv=("x",), first_beat_timeout_seconds=5.0)
    assert job_layer(spec) == {"first_beat_timeout_seconds": 5.0}


def test_the_watch_is_made_of_effective_settings_and_has_the_same_defaults() -> None:
    assert watch_settings(resolve_all([])) == WatchSettings()
    made = watch_settings(resolve_all([("queue", dict(QUEUE_PRESETS["render"]["video"]))]))
    assert (made.time_limit_seconds, made.stall_watch, made.silence_limit_seconds) == (
        1800.0,
        False,
        1800.0,
    )
