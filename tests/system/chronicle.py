"""A job that writes down its life on one file, and the check that no two attempts of a job ever
lived at once.

As a program: `chronicle.py FILE SECONDS [--beat] [--ignore-term] [--exit N] [--say TEXT] [--first
SECONDS]`. Every line is `word job attempt pid boottime`; the file is shared by all attempts, on
whichever host of this machine they run.
"""

from __future__ import annotations

import argparse
import itertools
import os
import signal
import socket
import sys
import time
from pathlib import Path
from typing import NamedTuple

CODE = str(Path(__file__).resolve())


class Line(NamedTuple):
    """One word of one attempt's life. `at` is CLOCK_BOOTTIME in seconds."""

    word: str
    job: str
    attempt: int
    pid: int
    at: float


def read_chronicle(path: Path) -> list[Line]:
    """Every whole line, in the order of time."""
    found = []
    for text in path.read_text().splitlines() if path.exists() else []:
        words = text.split()
        if len(words) == 5:
            found.append(Line(words[0], words[1], int(words[2]), int(words[3]), float(words[4])))
    return sorted(found, key=lambda line: line.at)


def lives_of(path: Path, job: str) -> dict[int, tuple[float, float]]:
    """The first and last sign of life of every attempt. An attempt run by two processes is an
    overlap, too."""
    lives: dict[int, tuple[float, float]] = {}
    pids: dict[int, set[int]] = {}
    for line in read_chronicle(path):
        if line.job == job:
            first, last = lives.get(line.attempt, (line.at, line.at))
            lives[line.attempt] = (min(first, line.at), max(last, line.at))
            pids.setdefault(line.attempt, set()).add(line.pid)
    twice = {attempt: found for attempt, found in pids.items() if len(found) > 1}
    assert not twice, f"attempts of {job} that were started twice: {twice}"
    return lives


def check_no_overlap(path: Path, job: str) -> dict[int, tuple[float, float]]:
    """Fail when two attempts of the job were alive at once; return the lives."""
    lives = lives_of(path, job)
    order = sorted(lives)
    for before, after in itertools.pairwise(order):
        assert lives[before][1] < lives[after][0], (
            f"attempt {before} of {job} was alive until {lives[before][1]:.3f}, attempt {after} "
            f"from {lives[after][0]:.3f}"
        )
    return lives


def _beat(step: int) -> None:
    data = f'{{"task":"{os.environ["HOLDFAST_TASK"]}","step":{step}}}'.encode()
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM | socket.SOCK_NONBLOCK) as sender:
        try:
            sender.sendto(data, os.environ["HOLDFAST_BEAT_SOCKET"])
        except OSError:
            pass


def main() -> int:
    """Live for some seconds, or until a file is there."""
    asked = argparse.ArgumentParser()
    asked.add_argument("file")
    asked.add_argument("seconds", type=float)
    asked.add_argument("--beat", action="store_true")
    asked.add_argument("--ignore-term", action="store_true")
    asked.add_argument("--exit", type=int, default=0)
    asked.add_argument("--say", default="")
    asked.add_argument(
        "--first", type=float, default=None, help="how long the first attempt lives instead"
    )
    asked.add_argument("--until", default="", help="a file that has to be there, too")
    given = asked.parse_args()
    if given.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    job, attempt = os.environ["HOLDFAST_JOB_ID"], os.environ["HOLDFAST_ATTEMPT"]
    file = os.open(given.file, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)

    def write(word: str) -> None:
        now = time.clock_gettime(time.CLOCK_BOOTTIME)
        os.write(file, f"{word} {job} {attempt} {os.getpid()} {now:.6f}\n".encode())

    seconds = given.first if given.first is not None and attempt == "1" else given.seconds
    write("start")
    began, step = time.monotonic(), 0
    while time.monotonic() - began < seconds or (given.until and not os.path.exists(given.until)):
        step += 1
        write("alive")
        if given.beat:
            _beat(step)
        if given.say:
            print(f"{given.say} {attempt} {step}", flush=True)
        time.sleep(0.05)
    write("end")
    return given.exit


if __name__ == "__main__":
    sys.exit(main())
