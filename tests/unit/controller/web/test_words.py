"""How pages write times, numbers, lines of output, filters and timelines."""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from enum import StrEnum
from importlib import resources
from types import SimpleNamespace

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from markupsafe import Markup

from holdfast.cli import output
from holdfast.cli.report import page
from holdfast.core.host_checks import CheckVerdict
from holdfast.core.records import AttemptRecord, EventRecord
from holdfast.core.states import (
    HUES,
    AttemptState,
    HostState,
    InstanceState,
    JobState,
    Outcome,
    OutputsState,
    TaskState,
)
from holdfast.core.webhooks.values import DeliveryState, WebhookState
from holdfast.core.workflows.values import NodeState, RunState
from holdfast.errors import ValidationError
from holdfast.web import words
from holdfast.web.ansi import MAX_LINE, MarkedLine, MarkupLines
from holdfast.web.browsers import list_origins
from holdfast.web.live import name_changes
from holdfast.web.pages.job.timeline import WIDTH, draw_timeline
from holdfast.web.pages.jobs import make_query, read_filter
from tests.unit.controller.why.test_limits import make_job

NOW = datetime(2026, 11, 26, 12, tzinfo=UTC)
TAG = re.compile(r"</?(?:span|i)(?: class=\"[a-z0-9 ]+\")?>")


def read_all(stream: MarkupLines, *pieces: bytes) -> list[MarkedLine]:
    """Return the lines of pieces, the last one too where its end has not come."""
    lines = [line for piece in pieces for line in stream.cut(piece)]
    rest = stream.show_rest()
    return [*lines, rest] if rest is not None else lines


@given(st.lists(st.binary(max_size=200), max_size=8))
def test_lines_hold_no_markup_but_our_own(pieces: list[bytes]) -> None:
    for line in read_all(MarkupLines(), *pieces):
        rest = TAG.sub("", str(line.text))
        assert "<" not in rest
        assert ">" not in rest
        assert not re.search(r"[\x00-\x08\x1b\u202e]", rest)


@given(
    st.lists(
        st.sampled_from(
            [
                b"a",
                b"\r",
                b"\n",
                b"\x1b[31m",
                b"\xc3\xa4",
                b"x" * 5000,
                b"\x1b[32m" * 9000,
                b"\x1b[A",
                b"\x1b[3A",
                b"\x1b[2B",
            ]
        )
    ),
    st.integers(1, 50),
)
def test_lines_are_the_same_however_they_come(words: list[bytes], size: int) -> None:
    data = b"".join(words)
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    assert read_all(MarkupLines(), *pieces) == read_all(MarkupLines(), data)


def test_a_line_of_megabytes_is_cut_and_its_length_said() -> None:
    stream = MarkupLines()
    lines = read_all(stream, *[b"x" * 65_536] * 160, b"\nnext\n")
    assert len(lines[0].text) < 2 * MAX_LINE
    assert "10,485,760 bytes in this line" in lines[0].text
    assert lines[1:] == [MarkedLine(10_485_761, Markup("next"))]


def test_the_text_behind_a_thousand_colours_is_shown() -> None:
    (line,) = MarkupLines().cut(b"\x1b[31m" * 2000 + b"words\x1b[0m\n")
    assert "words" in line.text
    assert "bytes in this line" not in line.text


def test_a_line_that_began_before_is_left_out() -> None:
    stream = MarkupLines(1000, skips=True)
    assert stream.show_rest() is None
    assert read_all(stream, b"of a line\nwhole\n") == [MarkedLine(1010, Markup("whole"))]


def test_a_line_that_has_not_ended_is_shown_under_the_same_offset() -> None:
    stream = MarkupLines()
    assert read_all(stream, b"\x1b[31m 10%") == [
        MarkedLine(0, Markup('<span class="c1"> 10%</span>'), whole=False)
    ]
    assert stream.show_rest() is None, "nothing more came"
    assert read_all(stream, b"\r 50%") == [MarkedLine(0, Markup(" 50%"), whole=False)]
    assert read_all(stream, b"\n") == [MarkedLine(0, Markup(" 50%"))]


def test_a_progress_bar_shows_its_last_state() -> None:
    (line,) = read_all(MarkupLines(), b" 10%\r 50%\r100%\n")
    assert line.text == "100%"


@pytest.mark.parametrize("size", [1, 3, 7, 10_000])
def test_stacked_progress_bars_are_their_own_lines_with_their_last_states(size: int) -> None:
    """As tqdm writes bars at positions 0, 1 and 2: down by newlines, up by the cursor."""
    shown = "".join(
        "\n" * n + f"\r{name}: {percent}%" + "\x1b[A" * n
        for percent in range(0, 101, 5)
        for n, name in enumerate(("data", "train", "loss"))
    )
    data = f"epoch 1\n{shown}\n\n\ndone\n".encode()
    pieces = [data[at : at + size] for at in range(0, len(data), size)]
    lines = read_all(MarkupLines(), *pieces)
    kept = {line.offset: str(line.text) for line in lines}
    assert list(kept.values()) == ["epoch 1", "data: 100%", "train: 100%", "loss: 100%", "done"]
    assert sum(not line.again for line in lines) == len(kept), "what is written anew is no new line"


def test_bars_that_are_drawn_anew_from_their_first_line_are_their_last_states() -> None:
    """As rich and docker write: erased lines, the cursor up by a count, and all lines again."""
    first = b"\x1b[2Klayer 1\n\x1b[2Klayer 2\n"
    lines = read_all(MarkupLines(), b"pulls\n", first, *[b"\x1b[2A" + first] * 200, b"\x1b[1B!\n")
    kept = {line.offset: str(line.text) for line in lines}
    assert list(kept.values()) == ["pulls", "layer 1", "layer 2", "!"]


def test_the_cursor_goes_back_no_further_than_to_the_first_line_that_is_known() -> None:
    stream = MarkupLines(50, skips=True)
    lines = read_all(stream, b"3%\x1b[9A\n\ra 4%\n\rb 4%\x1b[9A\ra 5%\n\rb 5%\x1b[A")
    kept = {line.offset: str(line.text) for line in lines}
    assert list(kept.values()) == ["a 5%", "b 5%"]


def test_colours_become_classes_and_end() -> None:
    (line,) = read_all(MarkupLines(), b"a\x1b[1;31mb\x1b[0mc\x1b[38;5;9md\x1b]0;title\x07e\n")
    assert line.text == 'a<span class="c1 bold">b</span>cde'


@pytest.mark.parametrize(
    ("seconds", "said"),
    [
        (0.85, "850 ms"),
        (12, "12 s"),
        (303, "5 m 03 s"),
        (900, "15 min"),
        (3840, "1 h 04 m"),
        (7200, "2 h"),
        (273_600, "3 d 4 h"),
    ],
)
def test_spans_have_units(seconds: float, said: str) -> None:
    assert words.write_span(seconds) == said


def test_numbers_have_thin_spaces() -> None:
    assert words.write_number(1_234_567) == f"1{words.THIN}234{words.THIN}567"


def test_what_a_job_wants_names_its_tasks_where_there_are_several() -> None:
    job = make_job()
    assert words.write_wants(job) == "1 CPU"
    gang = msgspec.structs.replace(job, tasks=4, gpus=2)
    assert words.write_wants(gang) == "4 × 2 GPU"


def test_an_age_carries_its_moment() -> None:
    age = words.write_age(NOW - timedelta(minutes=4), NOW)
    assert "4 min ago" in age
    assert 'datetime="2026-11-26T11:56:00.000+00:00"' in age


def test_an_age_of_less_than_a_second_is_now() -> None:
    assert ">now</time>" in words.write_age(NOW - timedelta(milliseconds=754), NOW)
    assert ">1 s ago</time>" in words.write_age(NOW - timedelta(seconds=1), NOW)
    assert ">in 2 s</time>" in words.write_age(NOW + timedelta(seconds=2), NOW)


@pytest.mark.parametrize(
    ("state", "reason", "said"),
    [
        ("running", "attempt 2 runs", ""),
        ("queued", "submitted", ""),
        ("active", "2 checks passed", ""),
        ("succeeded", "succeeded", ""),
        ("failed", "exit code 3; its one retry is spent", "exit code 3; its one retry is spent"),
    ],
)
def test_a_reason_is_shown_where_it_says_more_than_the_state(
    state: str, reason: str, said: str
) -> None:
    assert words.write_reason(SimpleNamespace(state=state, reason=reason)) == said


def test_a_sentence_has_its_commands_as_code_and_no_markup_else() -> None:
    told = words.write_told("`holdfast hosts` says why; <b> `x")
    assert told == "<code>holdfast hosts</code> says why; &lt;b&gt; `x"


def test_times_of_a_sentence_are_written_anew_in_the_viewers_zone() -> None:
    said = words.write_told("until 2026-11-28 15:04:05 UTC (`x`)")
    assert said == (
        'until <time datetime="2026-11-28T15:04:05Z" data-plain>2026-11-28 15:04:05 UTC</time> '
        "(<code>x</code>)"
    )
    alone = "its lease ends at 15:04:05 UTC"
    assert words.write_told(alone) == alone, "the day is not known"
    assert 'datetime="2026-11-25T15:04:05Z"' in words.write_told(
        alone, datetime(2026, 11, 25, 3, tzinfo=UTC)
    )


@pytest.mark.parametrize(
    ("agent", "name"),
    [
        (
            "Mozilla/5.0 (X11; Linux x86_64) AppleWebKit/537.36 Chrome/131.0.0.0 Safari/537.36",
            "Chrome 131, Linux",
        ),
        ("Mozilla/5.0 (Macintosh; Intel Mac OS X 10.15) Gecko Firefox/133.0", "Firefox 133, macOS"),
        ("curl/8", "curl/8"),
    ],
)
def test_a_browser_is_called_by_its_name(agent: str, name: str) -> None:
    assert words.name_browser(agent) == name


@pytest.mark.parametrize(
    "states",
    [JobState, TaskState, AttemptState, Outcome, HostState, OutputsState, InstanceState, RunState,
     NodeState, WebhookState, DeliveryState, CheckVerdict],
)  # fmt: skip
def test_every_state_has_a_hue_that_pages_and_terminals_share(states: type[StrEnum]) -> None:
    assert [state for state in states if state not in HUES] == []
    look = (resources.files("holdfast.web") / "static" / "look.css").read_text()
    for state in states:
        assert f"--{words.find_hue(state)}: light-dark(" in look
        assert f".{words.find_hue(state)} {{ --hue:" in look


def test_a_terminal_shows_live_things_brighter_than_what_is_over(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(output, "colourful", lambda: True)
    shown = {word: output.paint(word) for word in ("running", "succeeded", "failed", "draining")}
    assert shown == {
        "running": "\x1b[32mrunning\x1b[0m",
        "succeeded": "\x1b[2;32msucceeded\x1b[0m",
        "failed": "\x1b[31mfailed\x1b[0m",
        "draining": "\x1b[33mdraining\x1b[0m",
    }
    assert output.printable(shown["succeeded"]) == shown["succeeded"]


def test_the_report_that_is_sent_has_the_hues_of_the_pages() -> None:
    look = (resources.files("holdfast.web") / "static" / "look.css").read_text()
    hues = dict(re.findall(r"--(\w+): light-dark\(#(\w+), #\w+\)", look))
    sent = dict(re.findall(r"--(\w+): #(\w+);", page._STYLE.partition("@media")[0]))
    names = {"kept": "running", "lost": "failed", "unmeasured": "done", "free": "free"}
    assert {name: sent[name] for name in names} == {n: hues[hue] for n, hue in names.items()}


def test_a_filter_becomes_the_lists_parameters() -> None:
    found = make_query(
        read_filter(
            "state:running state:queued label:team=nlp label:x=1 'a b' queue:q queue:r array:a "
            "supervised:only"
        )
    )
    assert found == {
        "states": ["running", "queued"],
        "labels": {"team": "nlp", "x": "1"},
        "match": "a b",
        "queue": ["q", "r"],
        "array": "a",
        "supervised": True,
    }


@pytest.mark.parametrize(
    "text",
    ["state:none", "colour:red", "'open", "queue:", "supervised:no", "array:a array:b",
     "parent:a queue:q parent:b", "label:team=nlp label:team=cv"],
)  # fmt: skip
def test_a_filter_that_means_nothing_is_refused(text: str) -> None:
    with pytest.raises(ValidationError):
        read_filter(text)


def _attempt(number: int, start: float, ran: float, ended: float | None) -> AttemptRecord:
    def at(seconds: float) -> datetime:
        return NOW + timedelta(seconds=seconds)

    return AttemptRecord(
        job_id="j",
        number=number,
        parent=number - 1 or None,
        epoch=number,
        state=AttemptState.RUNNING if ended is None else AttemptState.ENDED,
        outcome=None if ended is None else Outcome.FAILED,
        reserved_at=at(start),
        started_at=at(ran),
        ended_at=None if ended is None else at(ended),
    )


@given(st.lists(st.tuples(*[st.floats(0, 1000)] * 4), min_size=1, max_size=5))
def test_bars_stay_in_the_picture_and_in_order(lengths: list[tuple[float, ...]]) -> None:
    at, attempts = 0.0, []
    for number, (waited, started, ran, _) in enumerate(lengths, 1):
        begin = at + waited
        at = begin + started + ran
        attempts.append(_attempt(number, begin, begin + started, at))
    job = msgspec.structs.replace(make_job(), created_at=NOW)
    rows = draw_timeline(job, attempts, NOW + timedelta(seconds=at))
    for row in rows:
        ends = 0.0
        for bar in row.bars:
            assert bar.x >= ends - 2
            assert bar.x + bar.width <= WIDTH + 2
            ends = bar.x


def test_the_operators_origin_stands_in_links() -> None:
    found = list_origins("http://10.0.0.1:7990", ["https://Holdfast.example.org/"])
    assert found == ("https://holdfast.example.org", "http://holdfast.localhost:7990")


@pytest.mark.parametrize(
    "url",
    ["https://example.org/holdfast", "https://example.org/?a=b", "https://example.org/#a",
     "holdfast.example.org", "ftp://example.org", "https://"],
)  # fmt: skip
def test_an_address_of_the_dashboard_that_is_no_origin_is_refused(url: str) -> None:
    with pytest.raises(ValidationError, match=re.escape(repr(url))):
        list_origins("http://127.0.0.1:7990", [url])


def test_an_event_names_the_pages_that_it_changes() -> None:
    def name(kind: str, **more: str) -> set[str]:
        return name_changes(EventRecord(id="1", at=NOW, kind=kind, **more))

    assert name("settings.changed") == {"events", "settings"}
    assert name("calls.cancelling") == {"events", "calls"}
    assert name("sign_in.ended") == {"events", "signs"}
    assert name("job.ended", job_id="j") == {"events", "jobs", "job:j"}
    assert name("queue.paused", queue="q") == {"events", "queues"}
