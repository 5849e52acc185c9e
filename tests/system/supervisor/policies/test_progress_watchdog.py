"""When the progress watchdog calls a run hung, and which ranks it names."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import cast

import pytest

from holdfast.supervisor.policy.progress import LEAST_SECONDS, TIMES_MEDIAN, Progress, excuse_ranks
from holdfast.supervisor.rosters.groups import Process
from tests.system.supervisor.policies.rig import run_policy

# At the first attempt rank 1 stops after its sixth step. Before that both go through a section
# longer than a step may be. Steps that are judged are told at once, one after the other: how long
# one takes is no matter of the machine.
WORKER = """
import os, sys, time
from holdfast.supervisor import get_message_queue
queue, rank = get_message_queue(), int(os.environ["RANK"])
attempt = int(os.environ["TORCHELASTIC_RESTART_COUNT"])
open(f"{sys.argv[1]}/attempt{attempt}-{rank}", "w").close()
if attempt > 0:
    queue.send({"section": "eval"})
for step in range(9):
    if step == 3 and attempt == 0:
        queue.send({"section": "eval"})
        time.sleep(float(sys.argv[2]))
        queue.send({"section": None})
    if step == 6 and attempt == 0:
        if rank == 1:
            time.sleep(6000)
        queue.send({"section": "checkpoint"})
    queue.send({"step": step})
"""


@pytest.mark.slow
def test_a_hang_is_found_named_and_ended_and_a_section_is_none(tmp_path: Path) -> None:
    words = [*"--hosts 2 --local --least 5 --first 600 --".split(), sys.executable, "-c", WORKER]
    code, said = run_policy("progress_watchdog.py", tmp_path, *words, str(tmp_path), "6.5")
    assert code == 0, said
    assert "train1 on local-" in said.split("attempt 0: no progress for")[1], said
    assert "at step 5" in said
    sentence = (tmp_path / "debug-report.txt").read_text().splitlines()[0]
    assert sentence.startswith("rank 1 is in <module> (<string>:16)"), sentence
    assert sentence in said, "the report's sentence is in the log"
    assert "done after 1 restarts" in said
    assert {file.name for file in tmp_path.glob("attempt*")} == {
        f"attempt{a}-{r}" for a in (0, 1) for r in (0, 1)
    }


def make_progress(durations: list[float]) -> tuple[Progress, float]:
    progress, now = Progress(0.0), 100.0
    progress.note_message({"step": 0}, now)
    for step, seconds in enumerate(durations, 1):
        now += seconds
        progress.note_message({"step": step}, now)
    return progress, now


def test_the_limit_follows_what_was_measured() -> None:
    progress, _ = make_progress([20.0] * 9 + [500.0])
    assert progress.limit_seconds() == TIMES_MEDIAN * 20.0
    progress, _ = make_progress([0.1] * 9)
    assert progress.limit_seconds() == LEAST_SECONDS


def test_a_section_has_its_own_limit_and_is_no_step() -> None:
    progress, now = make_progress([20.0] * 3)
    progress.note_message({"section": "checkpoint"}, now + 1)
    assert progress.limit_seconds() == 1800.0
    progress.note_message({"section": None}, now + 1000)
    assert progress.limit_seconds() == TIMES_MEDIAN * 20.0
    assert progress.since == now + 1000
    progress.note_message({"step": 4}, now + 1001)
    assert list(progress.durations) == [20.0] * 3


def test_what_is_no_report_changes_nothing() -> None:
    progress, now = make_progress([20.0])
    for message in ("hello", {"loss": 1.0}, None, 7):
        progress.note_message(message, now + 5)
    assert (progress.since, progress.step) == (now, 1)


def test_a_rank_that_saves_excuses_those_that_wait_within_its_own_limit() -> None:
    """EXCUSE-1: 600 s of saving by rank 0 count for no other; a rank that hangs after it is found."""
    (saves, now), (waits, _) = make_progress([0.1] * 9), make_progress([0.1] * 9)
    ranks = cast(dict[Process, Progress], {"0": saves, "1": waits})
    saves.note_message({"section": "checkpoint"}, now)
    for second in range(1, 601):
        excuse_ranks(ranks, now + second - 1, now + second)
        assert not waits.is_late(now + second)
    saves.note_message({"section": None}, now + 600)
    assert waits.silent_seconds(now + 600) == pytest.approx(0.0, abs=0.01)
    assert waits.is_late(now + 600 + LEAST_SECONDS + 1)
    saves.note_message({"section": "checkpoint"}, now + 600)
    began = now + 600 + 1800
    before = waits.excused_seconds
    excuse_ranks(ranks, began, began + 500)
    assert saves.is_late(began + 1)
    assert waits.excused_seconds == before, "a section that is late itself excuses none"
    waits.note_message({"step": 10}, began + 500)
    assert waits.excused_seconds == 0.0
