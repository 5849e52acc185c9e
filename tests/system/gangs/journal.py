"""One file into which every rank of a gang writes its life, and the check that no two attempts were
ever alive at once.

Every line is `word job rank epoch attempt pid boottime`, appended by one write, so that lines of
many ranks never mix.
"""

from __future__ import annotations

import itertools
import os
import time
from pathlib import Path
from typing import NamedTuple


class Line(NamedTuple):
    """One word of one rank's life. `at` is CLOCK_BOOTTIME in seconds."""

    word: str
    job: str
    rank: int
    epoch: int
    attempt: int
    pid: int
    at: float


class Journal:
    """What a rank writes with. Ours is the task that the environment names."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file = os.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
        self.job, self.rank = os.environ["HOLDFAST_JOB_ID"], int(os.environ["HOLDFAST_RANK"])
        self.epoch, self.attempt = (
            int(os.environ["HOLDFAST_EPOCH"]),
            int(os.environ["HOLDFAST_ATTEMPT"]),
        )

    def write(self, word: str) -> None:
        """Append a line."""
        at = time.clock_gettime(time.CLOCK_BOOTTIME)
        line = f"{word} {self.job} {self.rank} {self.epoch} {self.attempt} {os.getpid()} {at:.6f}\n"
        os.write(self._file, line.encode())


def read_journal(path: Path, job: str = "") -> list[Line]:
    """Every whole line (of one job), in the order of time."""
    found = []
    for text in path.read_text().splitlines() if path.exists() else []:
        words = text.split()
        if len(words) == 7 and words[1].startswith(job):
            numbers = [int(word) for word in words[2:6]]
            found.append(Line(words[0], words[1], *numbers, float(words[6])))
    return sorted(found, key=lambda line: line.at)


def ranks_started(path: Path, job: str, attempt: int) -> set[int]:
    """The ranks of an attempt that wrote anything."""
    return {line.rank for line in read_journal(path, job) if line.attempt == attempt}


def find_pid(path: Path, job: str, rank: int, attempt: int) -> int:
    """The pid of a rank's own process, 0 where it has not started."""
    lines = read_journal(path, job)
    return next(
        (n.pid for n in lines if (n.rank, n.attempt, n.word) == (rank, attempt, "start")), 0
    )


def check_one_at_a_time(path: Path, job: str) -> dict[int, tuple[float, float]]:
    """Fail where two epochs of the job overlap, an epoch ran twice, or a rank was started twice in
    one.

    Returns the first and last sign of life of every epoch.
    """
    lives: dict[int, tuple[float, float]] = {}
    attempts: dict[int, set[int]] = {}
    starts: dict[tuple[int, int], int] = {}
    for line in read_journal(path, job):
        first, last = lives.get(line.epoch, (line.at, line.at))
        lives[line.epoch] = (min(first, line.at), max(last, line.at))
        attempts.setdefault(line.attempt, set()).add(line.epoch)
        if line.word == "start":
            starts[line.rank, line.epoch] = starts.get((line.rank, line.epoch), 0) + 1
    assert all(len(epochs) == 1 for epochs in attempts.values()), (
        f"an attempt under several epochs: {attempts}"
    )
    twice = {who: count for who, count in starts.items() if count > 1}
    assert not twice, f"ranks that were started twice in one epoch: {twice}"
    for before, after in itertools.pairwise(sorted(lives)):
        assert lives[before][1] < lives[after][0], (
            f"epoch {before} of {job} was alive until {lives[before][1]:.3f}, epoch {after} from "
            f"{lives[after][0]:.3f}"
        )
    return lives
