"""What people write, read as specs."""

from __future__ import annotations

import time
import traceback
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path

import pytest

from holdfast.client import specs
from holdfast.client.jobs.fields import SubmitFields
from holdfast.client.specs import build_spec, parse_bytes, parse_start, read_secrets
from holdfast.core.spec import JobSpec
from holdfast.errors import ValidationError


@pytest.mark.parametrize(
    ("text", "count"),
    [
        ("1024", 1024),
        ("512M", 512 << 20),
        ("4G", 4 << 30),
        ("1.5GiB", 3 << 29),
        ("2t", 2 << 40),
        ("7kb", 7 << 10),
    ],
)
def test_sizes(text: str, count: int) -> None:
    assert parse_bytes(text) == count


@pytest.mark.parametrize("text", ["", "4X", "-1G", "G", "1e9", "4 G B"])
def test_no_sizes(text: str) -> None:
    with pytest.raises(ValueError, match="not a size"):
        parse_bytes(text)


def test_starts() -> None:
    assert parse_start("+10m", 1000.0) == 1600.0
    assert parse_start("1700000000", 0.0) == 1_700_000_000.0
    assert (
        parse_start("2027-01-31T18:00:00+00:00", 0.0)
        == datetime.fromisoformat("2027-01-31T18:00:00Z").timestamp()
    )
    with pytest.raises(ValueError, match="not a time"):
        parse_start("tomorrow", 0.0)


@pytest.fixture
def berlin(monkeypatch: pytest.MonkeyPatch) -> Iterator[pytest.MonkeyPatch]:
    with monkeypatch.context() as change:
        change.setenv("TZ", "Europe/Berlin")
        time.tzset()
        yield change
    time.tzset()


def test_a_local_time_that_a_clock_skips_or_repeats_is_refused(berlin: pytest.MonkeyPatch) -> None:
    assert parse_start("2026-10-25T03:30", 0.0) == parse_start("2026-10-25T02:30Z", 0.0)
    with pytest.raises(ValidationError, match=r"comes twice.*\+0200 or \+0100"):
        parse_start("2026-10-25T02:30", 0.0)
    with pytest.raises(ValidationError, match="does not exist"):
        parse_start("2026-03-29T02:30", 0.0)
    berlin.setenv("TZ", "Europe/Berln")
    time.tzset()
    with pytest.raises(ValidationError, match="TZ='Europe/Berln' names no time zone"):
        parse_start("2026-06-01T12:00", 0.0)
    berlin.setenv("TZ", "CET-1CEST,M3.5.0,M10.5.0/3")
    time.tzset()
    assert parse_start("2026-06-01T12:00", 0.0) == parse_start("2026-06-01T10:00Z", 0.0)


def test_the_typed_fields_are_those_that_are_read() -> None:
    """A field that the types lack is a mistake in an editor; one that they have too many is refused
    by the client."""
    names = {*JobSpec.__struct_fields__, *specs.SHORT_NAMES}
    assert set(SubmitFields.__annotations__) == names | {"workdir"}


def test_short_names_and_units() -> None:
    spec = build_spec({"argv": ["x"], "memory": "4G", "time_limit": "2h", "grace": "5s"})
    assert (spec.memory_bytes, spec.time_limit_seconds, spec.grace_seconds) == (
        4 << 30,
        7200.0,
        5.0,
    )
    assert build_spec({"argv": ["x"], "time_limit": "Off"}).time_limit_seconds == "off"
    assert build_spec({"argv": ["x"], "env": {"N": 7, "B": True}}).env == {"N": "7", "B": "true"}


@pytest.mark.parametrize(
    ("fields", "words"),
    [
        ({"argv": ["x"], "gpu": 1}, "no field 'gpu'"),
        ({"argv": ["x"], "priority": 101}, "priority.*101"),
        ({"argv": ["x"], "queue": "a b"}, "'a b' is not a name"),
        ({"argv": ["x"], "cwd": "relative"}, "absolute"),
        ({"argv": ["x"], "time_limit": "2x"}, "time_limit.*duration"),
        ({"argv": ["x"], "memory": "4G", "memory_bytes": 1}, "twice"),
        ({}, "exactly one of"),
        ({"argv": ["x"], "env": {"GOOD": "1", "A B": "2"}}, "'A B' is not a variable's name"),
    ],
)
def test_mistakes_get_a_sentence(fields: dict[str, object], words: str) -> None:
    with pytest.raises(ValidationError, match=words):
        build_spec(fields)


# ---- secrets


@pytest.mark.parametrize(
    ("written", "value"),
    [
        (b"abc\r\ndef\r\n", "abc\r\ndef"),
        (b"abc\n\n", "abc\n"),
        (b"abc\r", "abc\r"),
        (b"\n", ""),
        ("ä\n".encode(), "ä"),
    ],
)
def test_a_secret_is_what_stands_in_its_file_but_for_one_last_line_end(
    tmp_path: Path, written: bytes, value: str
) -> None:
    (tmp_path / "token").write_bytes(written)
    assert read_secrets([f"T=@{tmp_path}/token"], {}) == {"T": value}


@pytest.mark.parametrize("value", ["@dmin123", "@dmin123\0", "@dmin123" * 600])
def test_an_error_about_a_secret_does_not_repeat_it(value: str) -> None:
    with pytest.raises(ValidationError) as caught:
        read_secrets([f"P={value}"], {})
    assert "dmin123" not in "".join(traceback.format_exception(caught.value))


def test_bytes_that_are_no_text_are_no_secret_and_are_not_repeated(tmp_path: Path) -> None:
    (tmp_path / "token").write_bytes(b"\xff\xfehush")
    with pytest.raises(ValidationError, match="not UTF-8") as caught:
        read_secrets([f"T=@{tmp_path}/token"], {})
    assert "0xff" not in str(caught.value)
