"""A rank of a gang that lives until a file is there, and misbehaves where it is told to. Standard
library only.

    member.py JOURNAL --until FILE [--fail RANK:ATTEMPTS:CODE]… [--done RANK] [--ignore-term RANK]
    [--fork RANK] [--train …]

`--fail 3:1,2:9` lets rank 3 exit with 9 in attempts 1 and 2, `--fail 3:*:9` in every one; it waits
until all ranks of the attempt have written to the journal (and, with `--done`, until that rank is
gone), so that every run of a test is the same.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.system.gangs.journal import Journal, find_pid, ranks_started

CODE = str(Path(__file__).resolve())


def _fails(texts: list[str], rank: int, attempt: int) -> int | None:
    for text in texts:
        whose, attempts, code = text.split(":")
        if int(whose) == rank and (attempts == "*" or str(attempt) in attempts.split(",")):
            return int(code)
    return None


def _may_end(journal: Journal, world: int, done: int) -> bool:
    path, job, attempt = journal.path, journal.job, journal.attempt
    if len(ranks_started(path, job, attempt)) < world:
        return False
    if done in (-1, journal.rank):
        return True
    return not os.path.exists(f"/proc/{find_pid(path, job, done, attempt)}")


def _leave_a_grandchild(journal: Journal) -> None:
    """A process of a session of its own whose parent is gone: no group and no parent leads to
    it."""
    if os.fork():
        os.wait()
        return
    os.setsid()
    if os.fork():
        os._exit(0)
    signal.signal(signal.SIGTERM, signal.SIG_IGN)
    while True:
        journal.write("grandchild")
        time.sleep(0.05)


def main() -> int:
    """Live."""
    asked = argparse.ArgumentParser()
    asked.add_argument("journal", type=Path)
    asked.add_argument("--until", type=Path, required=True)
    asked.add_argument("--fail", action="append", default=[])
    asked.add_argument("--done", type=int, default=-1)
    asked.add_argument("--ignore-term", type=int, action="append", default=[])
    asked.add_argument("--fork", type=int, default=-1)
    given = asked.parse_args()
    journal = Journal(given.journal)
    rank, world = journal.rank, int(os.environ["WORLD_SIZE"])
    if rank in given.ignore_term:
        signal.signal(signal.SIGTERM, signal.SIG_IGN)
    journal.write("start")
    if rank == given.fork and journal.attempt == 1:
        _leave_a_grandchild(journal)
    code = _fails(given.fail, rank, journal.attempt)
    while not given.until.exists():
        journal.write("alive")
        if (code is not None or rank == given.done) and _may_end(journal, world, given.done):
            break
        time.sleep(0.05)
    journal.write("end")
    return code or 0


if __name__ == "__main__":
    sys.exit(main())
