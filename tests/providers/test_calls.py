"""Programs with a deadline (RENT-5)."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

import pytest

from holdfast.errors import ValidationError
from holdfast.providers.calls import read_retry_after, run_program
from holdfast.providers.interface import ProviderDown, Refused
from holdfast.providers.locate import KINDS, check_config
from tests.waits import is_alive, wait_until


async def test_a_program_is_told_and_heard() -> None:
    done = await run_program(
        ["sh", "-c", "cat; echo $WORD >&2; exit 3"], seconds=20, env={"PATH": "/bin", "WORD": "so"}, input=b"x" * 300_000
    )  # fmt: skip
    assert (done.code, done.stdout, done.complaint) == (3, b"x" * 300_000, "so")


async def test_what_it_was_told_may_be_ignored() -> None:
    done = await run_program(["true"], seconds=20, input=b"x" * 300_000)
    assert done.code == 0


@pytest.mark.parametrize(
    ("value", "least", "most"),
    [
        ("12", 12, 12),
        ("-4", 0, 0),
        ("Wed, 21 Oct 2015 07:28:00 GMT", 0, 0),
        ("Wed, 21 Oct 2199 07:28:00 GMT", 1e9, 1e10),
    ],
)
def test_a_time_to_come_again_is_read_as_a_number_or_a_date(
    value: str, least: float, most: float
) -> None:
    seconds = read_retry_after(value)
    assert seconds is not None
    assert least <= seconds <= most


@pytest.mark.parametrize("value", [None, "", "soon"])
def test_what_says_no_time_is_none(value: str | None) -> None:
    assert read_retry_after(value) is None


async def test_the_deadline_ends_the_whole_tree(tmp_path: Path) -> None:
    """Also what took a session of its own."""
    pids = tmp_path / "pids"
    script = (
        f"setsid sleep 600 & echo $! >>{pids}; sleep 600 & echo $! >>{pids}; echo $$ >>{pids}; wait"
    )
    with pytest.raises(ProviderDown, match="within 1 s"):
        await run_program(["sh", "-c", script], seconds=1)
    found = [int(pid) for pid in pids.read_text().split()]
    assert len(found) == 3
    wait_until(lambda: not any(is_alive(pid) for pid in found), what="the end of all three")


async def test_a_cancelled_call_leaves_no_process(tmp_path: Path) -> None:
    call = asyncio.create_task(
        run_program(["sh", "-c", f"echo $$ >{tmp_path}/pid; exec sleep 600"], seconds=600)
    )
    while not (tmp_path / "pid").exists() or not (tmp_path / "pid").read_text():
        await asyncio.sleep(0.01)
    call.cancel()
    with pytest.raises(asyncio.CancelledError):
        await call
    assert not is_alive(int((tmp_path / "pid").read_text()))


async def test_output_has_a_bound() -> None:
    with pytest.raises(ProviderDown, match="more than 1000 bytes"):
        await run_program(["sh", "-c", "yes"], seconds=60, max_bytes=1000)


async def test_a_child_that_keeps_the_output_does_not_hold_the_call() -> None:
    done = await run_program(["sh", "-c", "sleep 600 & echo $!"], seconds=60)
    os.kill(int(done.stdout), signal.SIGKILL)


async def test_a_program_that_is_not_there_is_said() -> None:
    with pytest.raises(Refused, match="/nowhere/tool cannot be run: No such file"):
        await run_program(["/nowhere/tool"], seconds=20)


def test_an_unknown_kind_is_answered_with_the_known() -> None:
    with pytest.raises(ValidationError) as caught:
        check_config("locla", {})
    assert all(kind in str(caught.value) for kind in KINDS)


@pytest.mark.parametrize(
    "config", [{"deadline_seconds": 0}, {"deadline_seconds": "x"}, {"folder": []}]
)
def test_a_value_that_does_not_fit_is_refused(config: dict[str, object]) -> None:
    with pytest.raises(ValidationError, match=next(iter(config))):
        check_config("local", config)
