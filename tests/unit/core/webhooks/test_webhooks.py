"""Webhooks as values: which hook gets which event, in which order, after which wait, and what an
answer means."""

from __future__ import annotations

import hashlib
import hmac
import itertools
import random
from datetime import UTC, datetime, timedelta

import msgspec
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from holdfast.core.records import EventRecord
from holdfast.core.webhooks.targets import judge_addresses, parse_target
from holdfast.core.webhooks.values import (
    HOOK_WINDOW,
    BackOff,
    DeliveryAnswer,
    DeliveryState,
    DueDelivery,
    JobSummary,
    Payload,
    Subscription,
    back_off,
    is_wanted,
    judge_try,
    make_headers,
    next_window,
    plan_deliveries,
    plan_sends,
    read_retry_after,
    sign,
)
from holdfast.errors import ValidationError

NOW = datetime(2026, 3, 1, 12, 0, tzinfo=UTC)
POLICY = BackOff()


def event(kind: str = "job.failed", number: int = 1, **more: object) -> EventRecord:
    return EventRecord(id=f"{0:012x}-{number:012x}", at=NOW, kind=kind, **more)  # type: ignore[arg-type]  # fields by name


def hook(
    *events: str, project: str | None = None, room: int = 100, cursor: str = ""
) -> Subscription:
    return Subscription(webhook_id="h", cursor=cursor, events=events, project=project, room=room)


def due(number: int, sequence: str = "j", hook_id: str = "h", tries: int = 0) -> DueDelivery:
    return DueDelivery(
        id=f"d{number}",
        webhook_id=hook_id,
        sequence=sequence,
        seq=number,
        tries=tries,
        url="",
        secrets=("s",),
        body="{}",
    )


# ---- which hook gets which event


@pytest.mark.parametrize(
    ("patterns", "kind", "wanted"),
    [
        ((), "job.failed", True), (("*",), "host.dead", True), (("job.*",), "job.retry_scheduled", True),
        (("job.*",), "jobs", False), (("job.retry_*",), "job.failed", False), (("job.failed",), "job.failed", True),
        (("job.failed",), "job.failed_again", False), (("job.failed", "host.*"), "host.lost", True),
        ((), "webhook.paused", False), (("*",), "webhook.paused", False), (("webhook.*",), "webhook.paused", True),
        (("w*",), "webhook.paused", False), (("webhook.paused",), "webhook.paused", True),
    ],
)  # fmt: skip
def test_patterns(patterns: tuple[str, ...], kind: str, wanted: bool) -> None:
    assert is_wanted(hook(*patterns), event(kind)) is wanted


def test_a_hook_of_a_project_sees_that_projects_events_alone() -> None:
    scoped = hook("*", project="vision")
    assert is_wanted(scoped, event(project="vision"))
    assert not is_wanted(scoped, event(project="speech"))
    assert not is_wanted(scoped, event("host.dead"))
    assert is_wanted(hook("*"), event(project="speech"))


def test_a_hook_never_hears_of_itself() -> None:
    """HOOK-3."""
    own = event("webhook.paused", data={"webhook_id": "h"})
    assert not is_wanted(hook("webhook.*"), own)
    assert is_wanted(hook("webhook.*"), event("webhook.paused", data={"webhook_id": "other"}))


@given(st.lists(st.booleans(), max_size=30), st.integers(0, 12))
def test_the_cursor_stops_where_the_room_ends_and_nothing_is_passed_over(
    wanted: list[bool], room: int
) -> None:
    """Collected in any number of steps, the deliveries are exactly the wanted events, in their
    order."""
    events = [event("job.a" if yes else "host.b", number) for number, yes in enumerate(wanted, 1)]
    ids = (f"id{n}" for n in itertools.count())
    found, cursor = [], ""
    for _ in range(len(events) + 1):
        rest = [e for e in events if e.id > cursor]
        batch = plan_deliveries(hook("job.*", room=room, cursor=cursor), rest, {}, ids)
        assert batch.before == cursor
        assert len(batch.deliveries) <= room
        found += [d.event_id for d in batch.deliveries]
        if batch.after == cursor:
            break
        cursor = batch.after
    reached = [e for e in events if e.id <= cursor]
    assert found == [e.id for e in reached if e.kind == "job.a"]
    if room:
        assert reached == events


def test_a_delivery_carries_its_event_and_its_job() -> None:
    job = JobSummary(
        id="j1",
        name="train",
        project="p",
        queue="gpu",
        state="failed",
        reason="r",
        attempt=2,
        labels={},
    )
    batch = plan_deliveries(hook(), [event(job_id="j1", data={"x": 1})], {"j1": job}, iter(["id1"]))
    (made,) = batch.deliveries
    payload = msgspec.json.decode(made.body, type=Payload)
    assert payload == Payload(
        delivery="id1", webhook="h", event=event(job_id="j1", data={"x": 1}), job=job
    )


# ---- in which order


@given(st.data())
def test_the_planner_keeps_every_sequences_order_and_every_bound(data: st.DataObject) -> None:
    """HOOK-1, HOOK-2, through every failure. Everything pending is offered, so that the order is
    the planner's own."""
    sequences = data.draw(
        st.lists(st.tuples(st.sampled_from("ab"), st.sampled_from("xyz")), max_size=25)
    )
    pending = {n: due(n, sequence, hook_id) for n, (hook_id, sequence) in enumerate(sequences)}
    windows = {"a": data.draw(st.integers(1, 4)), "b": data.draw(st.integers(1, 4))}
    total, tries_allowed = data.draw(st.integers(1, 5)), 3
    chance = random.Random(data.draw(st.integers(0, 1 << 30)))
    flying: list[DueDelivery] = []
    first_sent: list[DueDelivery] = []
    ended: list[DueDelivery] = []
    for _ in range(20 * len(sequences) + 1):
        chosen = plan_sends(
            [d for d in pending.values() if d not in flying], flying, windows, total
        )
        for one in chosen:
            older = [
                d
                for d in pending.values()
                if (d.webhook_id, d.sequence) == (one.webhook_id, one.sequence) and d.seq < one.seq
            ]
            assert not older, "an older one of the sequence is still pending"
            first_sent += [one] if one.tries == 0 else []
        flying += chosen
        assert len(flying) <= total
        for name, window in windows.items():
            assert sum(d.webhook_id == name for d in flying) <= window
        in_sequences = [(d.webhook_id, d.sequence) for d in flying]
        assert len(in_sequences) == len(set(in_sequences))
        assert flying or not pending, (
            "something is pending, nothing is under way and nothing was chosen"
        )
        if not pending:
            break
        landed = flying.pop(chance.randrange(len(flying)))
        answer = DeliveryAnswer(status=chance.choice([200, 500, 500, None]))
        tried = judge_try(landed, answer, tries_allowed, POLICY, chance.random())
        if tried.state is DeliveryState.PENDING:
            pending[landed.seq] = due(
                landed.seq, landed.sequence, landed.webhook_id, landed.tries + 1
            )
        else:
            del pending[landed.seq]
            ended.append(landed)
    assert not pending
    for order in (first_sent, ended):
        for key in set(sequences):
            mine = [d.seq for d in order if (d.webhook_id, d.sequence) == key]
            assert mine == sorted(mine)
    assert sorted(d.seq for d in ended) == list(range(len(sequences)))


def test_hooks_take_turns() -> None:
    crowd = [due(n, f"job{n}", "loud") for n in range(50)]
    chosen = plan_sends([*crowd, due(99, "x", "quiet")], [], {}, 4)
    assert [d.webhook_id for d in chosen].count("quiet") == 1
    assert len(plan_sends(crowd, [], {}, 100)) == HOOK_WINDOW


def test_a_receiver_in_trouble_is_asked_by_one_at_a_time() -> None:
    window, steps = HOOK_WINDOW, []
    for status in (500, None, 503, 429, 500):
        window = next_window(window, DeliveryAnswer(status=status))
        steps.append(window)
    assert steps == [4, 2, 1, 1, 1]
    for _ in range(20):
        window = next_window(window, DeliveryAnswer(status=404))
    assert window == HOOK_WINDOW


# ---- how long, and what an answer means


@given(
    st.integers(1, 10_000),
    st.floats(0, 1, exclude_max=True),
    st.floats(0.1, 60),
    st.floats(60, 86_400),
)
def test_back_off_grows_to_its_ceiling_and_never_beyond(
    tries: int, chance: float, first: float, top: float
) -> None:
    policy = BackOff(first_seconds=first, ceiling_seconds=top)
    delay = back_off(policy, tries, chance)
    assert 0.75 * min(first, top) <= delay <= top
    assert back_off(policy, tries, 0.0) <= back_off(policy, tries + 1, 0.0)
    assert delay <= back_off(policy, tries, 0.0)


def test_the_schedule_is_the_documented_one() -> None:
    assert [back_off(POLICY, n, 0.0) for n in range(1, 13)] == [
        5,
        10,
        20,
        40,
        80,
        160,
        320,
        640,
        1280,
        2560,
        3600,
        3600,
    ]
    assert back_off(POLICY, 1, 0.999) == pytest.approx(3.75, abs=0.01)


@given(
    st.integers(0, 30),
    st.integers(1, 30),
    st.none() | st.integers(100, 599),
    st.none() | st.floats(0, 1e9),
)
@example(0, 12, 410, None)
@example(11, 12, 410, 5.0)
@example(11, 12, 503, 5.0)
@example(0, 1, None, None)
def test_a_try_ends_in_exactly_one_way(
    tries: int, allowed: int, status: int | None, wish: float | None
) -> None:
    tried = judge_try(
        due(1, tries=tries),
        DeliveryAnswer(status=status, retry_after_seconds=wish),
        allowed,
        POLICY,
        0.0,
    )
    good = status is not None and 200 <= status < 300
    if good:
        assert (tried.state, tried.error) == (DeliveryState.DELIVERED, "")
    elif tries + 1 >= allowed and status != 410:
        assert tried.state is DeliveryState.DEAD
    else:
        assert tried.state is DeliveryState.PENDING
        least = back_off(POLICY, tries + 1, 0.0)
        assert least <= tried.delay_seconds <= POLICY.ceiling_seconds
        if wish is None:
            assert tried.delay_seconds == least
    assert tried.tries == tries
    assert (tried.pause is not None) is (status == 410)
    assert bool(tried.error) is not good


def test_retry_after_slows_and_never_hurries() -> None:
    def delay(wish: float) -> float:
        return judge_try(
            due(1), DeliveryAnswer(status=503, retry_after_seconds=wish), 12, POLICY, 0.0
        ).delay_seconds

    assert (delay(1), delay(60), delay(1e9)) == (5, 60, 3600)


def test_retry_after_is_seconds_or_a_date() -> None:
    assert read_retry_after(" 120 ", NOW) == 120
    later = NOW + timedelta(seconds=90)
    assert read_retry_after(later.strftime("%a, %d %b %Y %H:%M:%S GMT"), NOW) == 90
    assert read_retry_after("Sun, 01 Mar 2020 12:00:00 GMT", NOW) == 0
    assert read_retry_after("9" * 400, NOW) == float("inf")
    for text in ("", "-5", "1.5", "\N{SUPERSCRIPT TWO}", "tomorrow", "Sun, 99 Mar 2020", "1 2 3"):
        assert read_retry_after(text, NOW) is None


@given(st.text(max_size=20))
def test_retry_after_of_anything_is_never_an_error(text: str) -> None:
    seconds = read_retry_after(text, NOW)
    assert seconds is None or seconds >= 0


def test_the_signature_is_hmac_sha256_of_timestamp_dot_body() -> None:
    """The figure is from `openssl dgst`: receivers have the scheme written down, so a change of it
    must be seen."""
    wanted = hmac.new(b"key", b'1700000000.{"a":1}', hashlib.sha256).hexdigest()
    assert sign("key", 1_700_000_000, b'{"a":1}') == wanted
    assert wanted == "a438e398bfafc57e4396bb7fc2304422f0f768e965d073ca313cb52e22e6ad03"
    headers = make_headers("w", "d", ["key", "old"], 1_700_000_000, b'{"a":1}')
    old = sign("old", 1_700_000_000, b'{"a":1}')
    assert headers["Holdfast-Signature"] == f"v1={wanted},v1={old}"


# ---- where


@given(st.integers(0, 2**32 - 1))
def test_an_ipv4_address_is_judged_the_same_however_it_is_wrapped(number: int) -> None:
    plain = ".".join(str(b) for b in number.to_bytes(4, "big"))
    high, low = number >> 16, number & 0xFFFF
    refused = judge_addresses([plain], allow_private=False) is not None
    for wrapped in (
        f"::ffff:{high:x}:{low:x}",
        f"64:ff9b::{high:x}:{low:x}",
        f"2002:{high:x}:{low:x}::",
    ):
        if refused:
            assert judge_addresses([wrapped], allow_private=False) is not None, wrapped


@given(st.text(alphabet=st.characters(codec="utf-8"), max_size=60))
def test_any_text_is_a_target_or_refused(text: str) -> None:
    for url in (text, f"https://{text}", f"https://{text}/x", f"https://a.example/{text}"):
        try:
            target = parse_target(url, allow_private=True)
        except ValidationError:
            continue
        assert target.scheme in ("http", "https")
        assert 1 <= target.port <= 65_535
        sent = target.host + target.path + target.host_header
        assert not set(sent) & set(" \r\n\t\x00")
        assert "@" not in target.host
        assert target.path.startswith("/")


def test_a_target_is_taken_apart() -> None:
    target = parse_target("https://Hooks.Example:8443/a/b?c=d#e", allow_private=False)
    assert (target.host, target.port, target.path, target.host_header) == (
        "hooks.example",
        8443,
        "/a/b?c=d",
        "hooks.example:8443",
    )
    target = parse_target("http://[fd00::1]?x", allow_private=True)
    assert (target.host, target.port, target.path, target.host_header) == (
        "fd00::1",
        80,
        "/?x",
        "[fd00::1]",
    )
    assert parse_target("https://hooks.example./", allow_private=False).host == "hooks.example"


@pytest.mark.parametrize(
    "address",
    [
        "192.88.99.1", "64:ff9b:1::1", "64:ff9b:1:a00:0:100::", "2001:3::1", "2001:20::1", "2001:db8::1", "3fff::1", "5f00::1", "100::1",
        "192.175.48.1", "198.18.0.1", "198.19.255.254", "192.0.0.8", "192.0.2.1", "240.0.0.1", "255.255.255.255", "0.0.0.1",
    ],
)  # fmt: skip
@pytest.mark.parametrize("allow_private", [False, True])
def test_special_ranges_are_no_targets(address: str, allow_private: bool) -> None:
    """HOOK-4: also where Python's own tables call them global."""
    assert judge_addresses([address], allow_private=allow_private) is not None


@pytest.mark.parametrize("address", ["1.1.1.1", "2606:4700::1111", "64:ff9b::101:101"])
def test_public_addresses_are_targets(address: str) -> None:
    assert judge_addresses([address], allow_private=False) is None
