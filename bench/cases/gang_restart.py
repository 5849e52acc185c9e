"""One rank of eight is killed: from the kill until all eight run again. Beside torchrun, and a loop
that does only that."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

from bench.figures import Figures, Line, spread
from bench.processes import end_process
from bench.scale import Scale, say, wait_until
from bench.system import ROOT, Scratch, clean_environment, start_up

name = "gang-restart"
budget = "one of 8 bare-Python ranks killed -> all 8 run again in <= 1.6 x a bare loop"
RANKS = 8
MOST_TIMES = 1.6
TORCH = Path(os.environ.get("HOLDFAST_TEST_TORCH", ROOT / ".venv-torch" / "bin" / "python"))
# Says that it runs, and waits. Without `site`, as light as Python gets: what is measured is not its
# start.
_PROGRAM = """
import os, sys, time
line = f"{os.environ['RANK']} {os.getpid()} {time.clock_gettime_ns(time.CLOCK_BOOTTIME)}\\n"
file = os.open(sys.argv[1], os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o600)
os.write(file, line.encode())
time.sleep(3600)
"""


class Journal:
    """The lines of all ranks of one runner. Every start of the gang adds one for each rank."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def read(self, first: int) -> list[tuple[int, int, int]]:
        """(rank, pid, ns) of the lines from `first` on."""
        text = self.path.read_text() if self.path.exists() else ""
        rows = [
            line.split() for line in text.splitlines(keepends=True)[first:] if line.endswith("\n")
        ]
        return [(int(rank), int(pid), int(at)) for rank, pid, at in rows]

    def wait_gang(self, first: int) -> list[tuple[int, int, int]]:
        """Wait until all ranks have written after line `first`."""
        wait_until(
            lambda: len(self.read(first)) >= RANKS,
            f"{RANKS} ranks in {self.path.name}",
            60,
            every_seconds=0.002,
        )
        found = self.read(first)
        if sorted(rank for rank, _, _ in found) != list(range(RANKS)):
            raise RuntimeError(f"not every rank started once: {found}")
        return found


def _command(program: Path, journal: Path) -> list[str]:
    return [sys.executable, "-S", "-E", str(program), str(journal)]


def _kill_one(
    journal: Journal, gang: list[tuple[int, int, int]], seen: int, chance: random.Random
) -> float:
    """Kill a random rank; seconds until the last rank of the next gang runs."""
    time.sleep(0.3)  # let the processes that started them come to rest
    victim = chance.choice(gang)[1]
    began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    os.kill(victim, signal.SIGKILL)
    again = journal.wait_gang(seen)
    return (max(at for _, _, at in again) - began) / 1e9


def _measure(journal: Journal, rounds: int) -> list[float]:
    chance, found = random.Random(8), []
    for number in range(rounds):
        gang = journal.wait_gang(number * RANKS)
        found.append(_kill_one(journal, gang[:RANKS], (number + 1) * RANKS, chance))
    return found


def _run_holdfast(scratch: Scratch, program: Path, rounds: int) -> list[float]:
    journal = Journal(scratch.folder / "holdfast.journal")
    place = start_up(scratch, slots=RANKS)
    retry = {"max_retries": 1000, "retry_delay": 0}
    spec = {"argv": _command(program, journal.path), "tasks": RANKS, "retry": retry}
    job = place.connection.call("POST", "/v1/jobs", spec)["id"]
    try:
        return _measure(journal, rounds)
    except TimeoutError as error:
        raise TimeoutError(
            f"{error}: {json.dumps(place.connection.call('GET', f'/v1/jobs/{job}'))}"
        ) from None
    finally:
        scratch.end(place.process)


def _run_torchrun(scratch: Scratch, program: Path, rounds: int) -> list[float]:
    journal = Journal(scratch.folder / "torchrun.journal")
    command = [
        str(TORCH),
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node",
        str(RANKS),
        "--max-restarts",
        "1000",
        "--no-python",
        *_command(program, journal.path),
    ]
    (scratch.folder / "torch").mkdir()  # it leaves its log folders behind
    environ = clean_environment(TMPDIR=str(scratch.folder / "torch"))
    process = scratch.start(command, "torchrun", environ=environ)
    try:
        return _measure(journal, rounds)
    except TimeoutError as error:
        raise TimeoutError(f"{error}: {scratch.read_log('torchrun')}") from None
    finally:
        scratch.end(process)


def _run_bare(scratch: Scratch, program: Path, rounds: int) -> list[float]:
    """What must be done at least: see one end, end the others, start all anew. No rules, no record,
    no second machine."""
    journal = Journal(scratch.folder / "bare.journal")
    chance, found = random.Random(8), []

    def start() -> list[subprocess.Popen[bytes]]:
        return [
            subprocess.Popen(_command(program, journal.path), env=clean_environment(RANK=str(rank)))
            for rank in range(RANKS)
        ]

    processes = start()
    try:
        for number in range(rounds):
            journal.wait_gang(number * RANKS)
            time.sleep(0.3)
            victim = chance.choice(processes)
            began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
            victim.kill()
            victim.wait()
            for process in processes:
                process.terminate()
            for process in processes:
                process.wait()
            processes = start()
            again = journal.wait_gang((number + 1) * RANKS)
            found.append((max(at for _, _, at in again) - began) / 1e9)
    finally:
        for process in processes:
            end_process(process, signal.SIGKILL, 5)
    return found


def run(scale: Scale) -> Figures:
    """Each runner keeps its own gang, one after the other; a round is one kill."""
    rounds = scale.pick(15, 2)
    with Scratch() as scratch:
        program = scratch.folder / "rank.py"
        program.write_text(_PROGRAM)

        def take(words: str, runner: Callable[[Scratch, Path, int], list[float]]) -> list[float]:
            found = runner(scratch, program, rounds)
            say(f"  {words}: median {spread(found).median:.3f} s of {rounds}")
            return found

        bare = take("bare loop", _run_bare)
        ours = take("holdfast", _run_holdfast)
        theirs = take("torchrun", _run_torchrun) if TORCH.exists() else None
    value = spread(ours)
    words = f"1 of {RANKS} ranks killed to all running"
    lines = [
        Line(
            what=words,
            unit="s",
            value=value,
            limit_name="bare loop",
            limit=spread(bare),
            budget=f"<= {MOST_TIMES:g} x",
            met=value.median <= MOST_TIMES * spread(bare).median,
        )
    ]
    notes = [
        "The job's retry delay is 0; what is left is the drain, the decision, admission and the "
        "start barrier."
    ]
    if theirs is None:
        notes.append(f"torchrun was not measured: {TORCH} is not there (`make ddp` brings it).")
    else:
        lines.append(
            Line(what=words, unit="s", value=value, limit_name="torchrun", limit=spread(theirs))
        )
    return Figures(name=name, lines=tuple(lines), notes=tuple(notes))
