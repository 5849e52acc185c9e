"""RetryPolicy: delays by property, fields merged one by one, and causes that cannot be opted in
(RETRY-1…3)."""

from __future__ import annotations

import hashlib
import math
from collections.abc import Mapping
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.core.causes import CHARGED_TO, ELIGIBLE, Budget, Cause, parse_causes
from holdfast.core.retry import (
    HARD_CEILING_SECONDS,
    MAX_RETRIES,
    SETTING_OF,
    RetryFields,
    RetryPolicy,
    check_fields,
    fields_layer,
    make_policy,
    retry_delay_seconds,
)
from holdfast.core.settings.resolve import (
    SETTINGS,
    Value,
    check_layer,
    job_layer,
    layer_from_environment,
    parse_value,
    resolve,
    resolve_all,
)
from holdfast.core.spec import JobSpec, check_spec
from holdfast.errors import ValidationError

DELAYS = st.floats(0, HARD_CEILING_SECONDS, allow_subnormal=False)
CEILINGS = st.none() | st.floats(1e-3, HARD_CEILING_SECONDS)
COUNTS = (
    st.integers(0, 40)
    | st.integers(0, MAX_RETRIES)
    | st.sampled_from([1023, 1024, 1025, MAX_RETRIES])
)
CHANCES = st.floats(0, 1, exclude_max=True)
POLICIES = st.builds(
    RetryPolicy,
    max_retries=st.integers(0, MAX_RETRIES),
    retry_delay=DELAYS,
    backoff=st.sampled_from(["fixed", "exponential"]),
    backoff_multiplier=st.floats(1, 100),
    max_retry_delay=CEILINGS,
    jitter=st.sampled_from(["none", "deterministic", "random"]),
    jitter_ratio=st.floats(0, 1),
)


def base_seconds(policy: RetryPolicy, count: int) -> float:
    """The documented formula of a delay, in whole numbers where floats overflow."""
    ceiling = policy.max_retry_delay or HARD_CEILING_SECONDS
    if policy.backoff == "fixed":
        return policy.retry_delay
    try:
        grown = policy.retry_delay * policy.backoff_multiplier**count
    except OverflowError:
        grown = math.inf if policy.retry_delay else 0.0
    return min(grown, ceiling)


# ---- delays


@given(POLICIES, COUNTS, st.text(max_size=20), CHANCES)
def test_no_delay_is_over_its_ceiling(
    policy: RetryPolicy, count: int, job_id: str, chance: float
) -> None:
    """RETRY-3, for every strategy and jitter, with and without a ceiling of its own."""
    delay = retry_delay_seconds(policy, count, job_id=job_id, chance=chance)
    assert 0 <= delay <= (policy.max_retry_delay or HARD_CEILING_SECONDS) <= HARD_CEILING_SECONDS
    assert math.isfinite(delay)


@given(POLICIES, COUNTS, st.text(max_size=20), CHANCES)
def test_the_formula(policy: RetryPolicy, count: int, job_id: str, chance: float) -> None:
    base = base_seconds(policy, count)
    ceiling = policy.max_retry_delay or HARD_CEILING_SECONDS
    delay = retry_delay_seconds(policy, count, job_id=job_id, chance=chance)
    if policy.jitter == "random":
        wanted = min(base + chance * base * policy.jitter_ratio, ceiling)
        assert delay == pytest.approx(wanted, rel=1e-9)
    elif policy.jitter == "none":
        assert delay == pytest.approx(min(base, ceiling), rel=1e-9)
    else:
        assert (
            min(base, ceiling) * (1 - 1e-9)
            <= delay
            <= min(base * (1 + policy.jitter_ratio), ceiling) * (1 + 1e-9)
        )


@given(POLICIES, st.integers(0, MAX_RETRIES), st.integers(1, 50))
def test_an_exponential_delay_never_shrinks(policy: RetryPolicy, count: int, more: int) -> None:
    policy = msgspec.structs.replace(policy, backoff="exponential", jitter="none")
    earlier, later = (
        retry_delay_seconds(policy, n, job_id="j", chance=0.0) for n in (count, count + more)
    )
    assert earlier <= later


@given(POLICIES, st.integers(0, MAX_RETRIES), st.integers(0, MAX_RETRIES))
def test_a_fixed_delay_is_always_the_same(policy: RetryPolicy, one: int, other: int) -> None:
    policy = msgspec.structs.replace(policy, backoff="fixed", jitter="none")
    assert retry_delay_seconds(policy, one, job_id="j", chance=0.0) == retry_delay_seconds(
        policy, other, job_id="k", chance=0.9
    )


@pytest.mark.parametrize("count", [1, 1024, 10**6, 10**12])
def test_huge_counts_end_at_the_ceiling(count: int) -> None:
    for multiplier in (1.0001, 2.0, 100.0):
        policy = RetryPolicy(
            retry_delay=60.0,
            backoff="exponential",
            backoff_multiplier=multiplier,
            max_retry_delay=None,
        )
        delay = retry_delay_seconds(policy, count, job_id="j", chance=0.0)
        assert delay <= HARD_CEILING_SECONDS
        if multiplier**1 > 1.5 and count >= 1024:
            assert delay == HARD_CEILING_SECONDS


def test_a_multiplier_of_one_and_a_delay_of_nothing_do_not_grow() -> None:
    still = RetryPolicy(retry_delay=7.0, backoff="exponential", backoff_multiplier=1.0)
    assert [retry_delay_seconds(still, n, job_id="j", chance=0.5) for n in (0, 5, 10**6)] == [
        7.0,
        7.0,
        7.0,
    ]
    nothing = RetryPolicy(retry_delay=0.0, backoff="exponential", jitter="random", jitter_ratio=1.0)
    assert [retry_delay_seconds(nothing, n, job_id="j", chance=0.9) for n in (0, 5, 10**6)] == [
        0.0,
        0.0,
        0.0,
    ]


def test_the_delays_people_expect() -> None:
    policy = RetryPolicy(retry_delay=60.0, backoff="exponential")
    delays = [retry_delay_seconds(policy, n, job_id="j", chance=0.0) for n in range(8)]
    assert delays == [60, 120, 240, 480, 960, 1920, 3600, 3600]
    assert retry_delay_seconds(RetryPolicy(), 5, job_id="j", chance=0.0) == 60.0


# ---- jitter


@given(POLICIES, COUNTS, st.text(max_size=20), CHANCES, CHANCES)
def test_deterministic_jitter_is_the_same_everywhere(
    policy: RetryPolicy, count: int, job_id: str, one: float, other: float
) -> None:
    policy = msgspec.structs.replace(policy, jitter="deterministic")
    delays = {
        retry_delay_seconds(policy, count, job_id=job_id, chance=chance) for chance in (one, other)
    }
    assert len(delays) == 1


@given(st.text(max_size=20), st.integers(0, MAX_RETRIES), st.floats(0.001, 3600), st.floats(0, 1))
def test_deterministic_jitter_is_within_its_part_and_never_all_of_it(
    job_id: str, count: int, delay: float, ratio: float
) -> None:
    """In [0, ratio × base), and computed again from its documented words: SHA-1 of id and
    count, modulo the span."""
    policy = RetryPolicy(
        retry_delay=delay, jitter="deterministic", jitter_ratio=ratio, max_retry_delay=None
    )
    jitter = retry_delay_seconds(policy, count, job_id=job_id, chance=0.0) - delay
    span = int(delay * ratio * 1e6)
    number = int(hashlib.sha1(f"{job_id}{count}".encode()).hexdigest(), 16)
    assert jitter == pytest.approx(number % span / 1e6 if span else 0.0, abs=1e-9)
    assert jitter <= max(0.0, delay * ratio)


def test_deterministic_jitter_spreads_a_storm() -> None:
    """A thousand jobs that fail at once come back over the whole span, about evenly."""
    policy = RetryPolicy(retry_delay=60.0, jitter="deterministic", jitter_ratio=1.0)
    delays = [
        retry_delay_seconds(policy, 0, job_id=f"job-{i:04d}", chance=0.0) for i in range(1000)
    ]
    tenths = [sum(60 + 6 * k <= d < 66 + 6 * k for d in delays) for k in range(10)]
    assert sum(tenths) == 1000
    assert min(tenths) > 60
    assert max(tenths) < 140
    assert len(set(delays)) == 1000
    again = [retry_delay_seconds(policy, 1, job_id=f"job-{i:04d}", chance=0.0) for i in range(1000)]
    assert sum(a == b for a, b in zip(delays, again, strict=True)) < 5, (
        "a job's place changes from retry to retry"
    )


def test_random_jitter_goes_by_chance_alone() -> None:
    policy = RetryPolicy(retry_delay=40.0, jitter="random", jitter_ratio=0.5)
    delays = [retry_delay_seconds(policy, 3, job_id="j", chance=c) for c in (0.0, 0.25, 0.999)]
    assert delays == [40.0, 45.0, pytest.approx(59.98)]


def test_jitter_does_not_lift_a_delay_over_its_ceiling() -> None:
    policy = RetryPolicy(retry_delay=90.0, max_retry_delay=100.0, jitter="random", jitter_ratio=1.0)
    assert retry_delay_seconds(policy, 0, job_id="j", chance=0.9) == 100.0


# ---- precedence, field by field

EXAMPLES: Mapping[str, tuple[Value, ...]] = {
    "max_retries": (1, 2, 3, 4),
    "retry_delay_seconds": (11.0, 12.0, 13.0, 14.0),
    "retry_backoff": ("exponential", "fixed", "exponential", "fixed"),
    "retry_multiplier": (1.5, 2.5, 3.5, 4.5),
    "max_retry_delay_seconds": (None, 200.0, 300.0, 400.0),
    "retry_jitter": ("random", "none", "deterministic", "random"),
    "retry_jitter_ratio": (0.1, 0.2, 0.3, 0.4),
    "retry_on": ("oom_killed", "none", "nonzero_exit,unknown", "all"),
    "retry_events": (False, True, False, True),
}
LAYERS = ("job", "project", "cluster", "environment")


def fields_of(layer: Mapping[str, Value]) -> RetryFields:
    """A job's own fields that amount to `layer`."""
    field_of = {name: field for field, name in SETTING_OF.items()}
    values: dict[str, Any] = {field_of[name]: value for name, value in layer.items()}
    if "eligible_causes" in values:
        values["eligible_causes"] = parse_causes(values["eligible_causes"])
    return RetryFields(**values)


def test_every_field_has_its_setting_and_its_example() -> None:
    assert (
        set(SETTING_OF) == set(RetryPolicy.__struct_fields__) == set(RetryFields.__struct_fields__)
    )
    assert set(EXAMPLES) == set(SETTING_OF.values())


@pytest.mark.parametrize("field", sorted(SETTING_OF))
@pytest.mark.parametrize(
    "given_by", [LAYERS[i:] for i in range(5)], ids=lambda layers: layers[0] if layers else "none"
)
def test_the_strongest_layer_that_says_anything_wins(field: str, given_by: tuple[str, ...]) -> None:
    name = SETTING_OF[field]
    values = dict(zip(LAYERS, EXAMPLES[name], strict=True))
    layers: dict[str, Mapping[str, Value]] = {source: {name: values[source]} for source in given_by}
    if "job" in layers:
        layers["job"] = fields_layer(fields_of(layers["job"]))
    ordered = [(source, layers.get(source, {})) for source in LAYERS]
    found = resolve(name, ordered)
    strongest = given_by[0] if given_by else "default"
    assert found.source == strongest
    policy = make_policy({n: e.value for n, e in resolve_all(ordered).items()})
    shown = getattr(policy, field)
    wanted = values[strongest] if given_by else SETTINGS[name].default
    assert shown == (parse_causes(wanted) if field == "eligible_causes" else wanted)
    others = {f: getattr(policy, f) for f in SETTING_OF if f != field}
    assert others == {f: getattr(RetryPolicy(), f) for f in others}, "a field drew another along"


def test_fields_of_all_layers_make_one_policy() -> None:
    job = fields_layer(RetryFields(max_retries=5, jitter="random"))
    project: dict[str, Value] = {
        "retry_delay_seconds": 5.0,
        "max_retries": 1,
        "retry_jitter": "none",
    }
    cluster: dict[str, Value] = {"retry_backoff": "exponential", "retry_delay_seconds": 99.0}
    environment = layer_from_environment(
        {"HOLDFAST_RETRY_MULTIPLIER": "3", "HOLDFAST_RETRY_BACKOFF": "fixed"}
    )
    layers = [
        ("job", job),
        ("project", project),
        ("cluster", cluster),
        ("environment", environment),
    ]
    effective = resolve_all(layers)
    policy = make_policy({name: found.value for name, found in effective.items()})
    assert policy == RetryPolicy(
        max_retries=5,
        jitter="random",
        retry_delay=5.0,
        backoff="exponential",
        backoff_multiplier=3.0,
    )
    sources = {field: effective[name].source for field, name in SETTING_OF.items()}
    assert sources == {
        "max_retries": "job",
        "jitter": "job",
        "retry_delay": "project",
        "backoff": "cluster",
        "backoff_multiplier": "environment",
        "max_retry_delay": "default",
        "jitter_ratio": "default",
        "eligible_causes": "default",
        "emit_retry_events": "default",
    }


def test_no_layer_means_no_retries() -> None:
    policy = make_policy({name: found.value for name, found in resolve_all([]).items()})
    assert policy == RetryPolicy()
    assert policy.max_retries == 0
    assert policy.eligible_causes == ELIGIBLE


def test_off_and_none_are_words_of_their_own() -> None:
    """`None` takes the ceiling away, an empty list forbids every retry; neither is silence."""
    layer = fields_layer(
        RetryFields(
            max_retry_delay=None, eligible_causes=(), emit_retry_events=False, max_retries=0
        )
    )
    assert layer == {
        "max_retry_delay_seconds": None,
        "retry_on": "none",
        "retry_events": False,
        "max_retries": 0,
    }
    assert fields_layer(RetryFields()) == fields_layer(None) == {}
    spec = JobSpec(argv=("x",), retry=RetryFields(retry_delay=3.0), no_progress_limit="off")
    assert job_layer(spec) == {"retry_delay_seconds": 3.0, "no_progress_limit": None}


@given(
    st.builds(
        RetryFields,
        max_retries=st.integers(0, MAX_RETRIES),
        retry_delay=DELAYS,
        jitter_ratio=st.floats(0, 1),
        eligible_causes=st.lists(st.sampled_from(ELIGIBLE), unique=True).map(tuple),
    )
)
def test_fields_survive_the_way_through_settings(fields: RetryFields) -> None:
    layer = fields_layer(fields)
    assert check_layer(layer, "job") == layer
    policy = make_policy(
        {name: found.value for name, found in resolve_all([("job", layer)]).items()}
    )
    for field in ("max_retries", "retry_delay", "jitter_ratio", "eligible_causes"):
        assert getattr(policy, field) == getattr(fields, field)


# ---- what is refused

NEVER = sorted(cause for cause, budget in CHARGED_TO.items() if budget is Budget.NEVER)


@pytest.mark.parametrize("cause", NEVER)
def test_a_cause_that_is_never_retried_is_refused_everywhere(cause: Cause) -> None:
    """RETRY-2."""
    assert cause not in ELIGIBLE
    for given_fields in ((cause,), (Cause.NONZERO_EXIT, cause)):
        spec = JobSpec(argv=("x",), retry=RetryFields(max_retries=3, eligible_causes=given_fields))
        with pytest.raises(
            ValidationError, match=f"{cause}.*never retried and cannot be opted in"
        ) as refused:
            check_spec(spec)
        assert refused.value.field == "retry.eligible_causes"
    for text in (str(cause), f"nonzero_exit,{cause}", f"{cause},all", f" {str(cause).upper()} "):
        with pytest.raises(ValidationError, match="never retried and cannot be opted in"):
            parse_value("retry_on", text)
        with pytest.raises(ValidationError):
            layer_from_environment({"HOLDFAST_RETRY_ON": text})
    for scope in ("project", "cluster"):
        with pytest.raises(ValidationError):
            check_layer({"retry_on": str(cause)}, scope)


@pytest.mark.parametrize(
    ("fields", "field"),
    [
        ({"retry_delay": 61.0, "max_retry_delay": 60.0}, "retry.retry_delay"),
        ({"eligible_causes": (Cause.USER_CANCELLED,)}, "retry.eligible_causes"),
    ],
)
def test_fields_that_do_not_go_together(fields: dict[str, Any], field: str) -> None:
    with pytest.raises(ValidationError) as refused:
        check_fields(RetryFields(**fields))
    assert refused.value.field == field


@pytest.mark.parametrize(
    "text",
    [
        '{"max_retries": -1}', '{"max_retries": 10001}', '{"max_retries": 1.5}', '{"retry_delay": -0.1}',
        '{"retry_delay": 86401}', '{"max_retry_delay": 0}', '{"max_retry_delay": 86401}', '{"backoff": "linear"}',
        '{"backoff_multiplier": '
        '0.9}', '{"backoff_multiplier": 101}', '{"jitter": "some"}', '{"jitter_ratio": 1.1}',
        '{"eligible_causes": '
        '["no_such"]}', '{"eligible_causes": "oom_killed"}', '{"emit_retry_events": 1}',
        '{"max_retrys": 1}', '{"max_retries": null}',
    ],
)  # fmt: skip
def test_what_a_job_may_not_write(text: str) -> None:
    with pytest.raises(msgspec.ValidationError):
        msgspec.json.decode(text, type=RetryFields)


@pytest.mark.parametrize(
    ("name", "raw"),
    [
        ("max_retries", -1), ("max_retries", 10_001), ("max_retries", "off"), ("retry_delay_seconds", "25h"),
        ("retry_backoff", "linear"), ("retry_multiplier", 0.5), ("max_retry_delay_seconds", 0), ("retry_jitter", "some"),
        ("max_retry_delay_seconds", "2d"), ("retry_jitter_ratio", 1.5), ("retry_on", "sometimes"), ("retry_events", "maybe"),
    ],
)  # fmt: skip
def test_what_no_layer_may_say(name: str, raw: object) -> None:
    with pytest.raises(ValidationError, match=name):
        parse_value(name, raw)


def test_who_may_say_what() -> None:
    assert check_layer({"max_retries": 2, "quota_jobs": 3, "retries_enabled": False}, "project")
    assert check_layer({"time_limit_seconds": 9}, "project") == {"time_limit_seconds": 9.0}
    for name, value, scope in [
        ("max_retries", 2, "queue"),
        ("retries_enabled", False, "job"),
        ("quota_gpus", 4, "job"),
        ("quota", "hard", "queue"),
        ("retry_rate_limit", 3, "project"),
        ("on_trip", "fail", "project"),
    ]:
        with pytest.raises(ValidationError, match=name):
            check_layer({name: value}, scope)  # type: ignore[arg-type]  # plain words stand for the typed value


def test_interactive_jobs_ask_for_no_retries() -> None:
    with pytest.raises(ValidationError, match="interactive"):
        check_spec(JobSpec(argv=("x",), interactive=True, retry=RetryFields(max_retries=1)))
    check_spec(JobSpec(argv=("x",), interactive=True, retry=RetryFields(max_retries=0)))
