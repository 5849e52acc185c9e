"""The screen of `top` as values: it fits, it keeps the chosen job in sight, and keys ask for things."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli.live.screen import name_keys
from holdfast.cli.output import count_columns, unstyle
from holdfast.cli.watch.draw import Ask, Focus, View, draw_top, press, settle, sort_jobs
from holdfast.core.gpus import GpuTelemetry
from holdfast.core.records import JobRecord
from holdfast.wire.api import HostView
from tests.unit.cli.stub import host_record, job_record

NOW = datetime(2026, 1, 2, tzinfo=UTC)
STATES = ("running", "queued", "waiting", "draining", "reserved")


def host(**fields: Any) -> HostView:
    record = host_record(**fields)
    slots = {"cpu": {"busy": 1, "total": 2}, "gpu": {"busy": 1, "total": 8}}
    return HostView(
        **{name: getattr(record, name) for name in record.__struct_fields__}, slots=slots
    )


def jobs(count: int, **fields: Any) -> list[JobRecord]:
    made = [
        job_record(id=f"{n:020d}", name=f"job {n}", state=STATES[n % 5], **fields)
        for n in range(count)
    ]
    return sort_jobs(made)


NAMES = st.text(max_size=60)


@given(
    st.integers(1, 200), st.integers(0, 60), st.lists(NAMES, max_size=30), st.lists(NAMES, max_size=12), st.data()
)  # fmt: skip
def test_every_screen_fits_and_shows_the_chosen_job(
    columns: int, lines: int, names: list[str], hosts: list[str], data: st.DataObject
) -> None:
    made = [
        job_record(id=f"{n:020d}", name=name, state=STATES[n % 5], reason=name, step=n, total=n * 7)
        for n, name in enumerate(names)
    ]
    devices = [
        GpuTelemetry(index=n, utilisation_percent=50.0, memory_used_bytes=1) for n in range(8)
    ]
    view = View(
        at=NOW,
        place="http://127.0.0.1:1",
        hosts=tuple(host(id=f"h{n}", name=name) for n, name in enumerate(hosts)),
        jobs=tuple(sort_jobs(made)),
        gpus={"h0": devices},
    )
    chosen = data.draw(st.sampled_from([job.id for job in made])) if made else ""
    drawn = draw_top(view, Focus(chosen=chosen), columns, lines)
    assert len(drawn) <= max(lines, 2)
    assert all(count_columns(unstyle(line)) <= columns for line in drawn)
    assert not any(ord(c) < 32 and c != "\x1b" for line in drawn for c in line)
    if made and columns >= 24 and lines >= 8:
        assert any(line.startswith(f"> {chosen}") for line in drawn)


def test_eighty_columns_show_what_matters() -> None:
    started = datetime(2026, 1, 1, 23, tzinfo=UTC)
    running = job_record(
        name="train-resnet",
        step=120,
        total=1000,
        started_at=started,
        beat_at=NOW,
        rate=120 / 3600,
        state="running",
    )
    drawn = draw_top(View(at=NOW, place="", hosts=(host(),), jobs=(running,)), Focus(), 80, 24)
    assert len(drawn) == 24
    text = "\n".join(drawn)
    for part in (running.id, "train-resn", "120/1000", "7h20m", "1h00m", "box", "1/8", "q quit"):
        assert part in text, part


@given(
    st.lists(st.sampled_from(["j", "k", "g", "G", "pageup", "pagedown", "x", "w", "c", "n", ""]))
)
def test_keys_never_leave_the_list_and_only_y_cancels(keys: list[str]) -> None:
    made, place = jobs(7), Focus()
    for key in keys:
        place, ask, _ = press(key, place, made, 3)
        assert place.chosen in {job.id for job in made}
        assert ask is not Ask.CANCEL


def test_a_cancel_is_asked_about_and_is_of_the_job_that_was_chosen_then() -> None:
    made = jobs(3)
    place, ask, _ = press("c", Focus(), made, 3)
    assert ask is Ask.NOTHING
    assert "? y/n" in draw_top(View(at=NOW, place="", jobs=tuple(made)), place, 80, 24)[-1]
    place = settle(place, made[::-1])  # another look came meanwhile
    assert press("y", place, made, 3)[1:] == (Ask.CANCEL, made[0].id)
    assert press("n", place, made, 3)[1] is Ask.NOTHING
    assert press("j", place, made, 3)[1] is Ask.NOTHING


def test_a_cancel_is_not_asked_about_any_more_when_its_job_is_gone() -> None:
    made = jobs(3)
    place, _, _ = press("c", Focus(), made, 3)
    place = settle(place, made[1:])
    assert press("y", place, made[1:], 3)[1] is Ask.NOTHING


def test_each_key_asks_for_its_thing() -> None:
    made = jobs(2)
    for key, ask in (("f", Ask.FOLLOW), ("w", Ask.WHY), ("s", Ask.SHELL), ("q", Ask.QUIT)):
        assert press(key, Focus(chosen=made[1].id), made, 3)[1] is ask
        if ask is not Ask.QUIT:
            assert press(key, Focus(chosen=made[1].id), made, 3)[2] == made[1].id
            assert press(key, Focus(), [], 3)[1] is Ask.NOTHING


@given(st.binary(max_size=16))
def test_any_bytes_are_keys_or_none(data: bytes) -> None:
    assert all(name_keys(data))


def test_keys_that_come_together_are_told_apart() -> None:
    assert name_keys(b"cy\x1b[A\x1b[6~j\x1b\r\x1b[99;5Qq") == [
        *("c", "y", "up", "pagedown", "j", "escape", "enter", "q")
    ]
