"""A training that meets every fault of a table, one after the other, and comes to the result it
would have come to anyway."""

from __future__ import annotations

import hashlib
import json
import sys
from pathlib import Path

import pytest

from tests.system.gangs.journal import check_one_at_a_time, read_journal
from tests.system.gangs.trainer import load_example
from tests.system.supervisor.night.night import RANK, Night, begin_night

RANKS, STEPS, EVERY, STEP_SECONDS = 3, 160, 5, 0.05
NIGHT_SECONDS = 500.0
# What happens, to which rank, at which step. Every one is met once, and each attempt gets further
# than the one before.
FAULTS = [
    ("exit", 1, 8),
    ("exception", 2, 16),
    ("manager killed", 0, 24),
    ("manager frozen", 1, 32),
    ("hang", 2, 40),
    ("black hole", 0, 48),
    ("script killed", 1, 56),
    ("exit", 2, 130),  # seen by the script that came back
    ("script killed", 0, 136),
]
RESTARTS = sum(kind != "script killed" for kind, _, _ in FAULTS)


def check_night(night: Night, folder: Path) -> None:
    """Everything happened, each in its time, and no two attempts were ever alive at once."""
    said = night.said()
    assert len(list(folder.glob("met-*"))) == len(FAULTS), said
    assert sorted(night.done) == sorted(
        kind for kind, _, _ in FAULTS if kind not in ("exit", "exception", "hang")
    ), said
    assert night.scripts == 1 + sum(kind == "script killed" for kind, _, _ in FAULTS)
    assert said.count("attached again to 3 ranks") == night.scripts - 1, said
    assert said.count("reason=nothing was heard of it") >= 3, said
    assert "no progress for" in said, said
    assert said.count("returncode=3") >= 2, said
    assert said.count("reason=health check: no answer in 8 s") >= 2, said
    lives = check_one_at_a_time(folder / "journal", "night")
    assert len(lives) >= RESTARTS + 1, said
    steps: dict[int, set[int]] = {}
    for line in read_journal(folder / "journal", "night"):
        if line.word.startswith("step-"):
            steps.setdefault(line.attempt, set()).add(int(line.word[5:]))
    firsts = [min(made) for attempt, made in sorted(steps.items()) if attempt]
    assert all(first > 1 for first in firsts), f"an attempt began again from nothing: {firsts}"


def read_results(folder: Path) -> list[dict[str, object]]:
    return [json.loads((folder / f"result-{rank}.json").read_text()) for rank in range(RANKS)]


@pytest.mark.longest
@pytest.mark.heavy
def test_a_training_survives_a_bad_night(tmp_path: Path) -> None:
    words = [
        sys.executable,
        str(RANK),
        "sockets",
        str(tmp_path),
        str(STEPS),
        str(EVERY),
        str(STEP_SECONDS),
    ]
    with begin_night(tmp_path, RANKS, words, {"OPENBLAS_NUM_THREADS": "1"}, FAULTS) as night:
        assert night.run(NIGHT_SECONDS) == 0, night.said()
    check_night(night, tmp_path)
    expected = hashlib.sha256(load_example().train_alone(STEPS, RANKS).tobytes()).hexdigest()
    assert read_results(tmp_path) == [{"digest": expected}] * RANKS
