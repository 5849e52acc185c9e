"""From the last beat of a wedged task to the first line of its next attempt, beyond what the
settings ask for."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from pathlib import Path

from bench.figures import Figures, Line, spread
from bench.scale import Scale, alternate, wait_until
from bench.system import Place, Scratch, clean_environment, start_up

name = "trip"
budget = "re-run within timeout + confirmation + 1 s"
STALL_SECONDS = 2.0
SAMPLES = 3
SAMPLE_INTERVAL_SECONDS = 1.0
# The first reading comes at the timeout itself (its baseline was taken before), the last two
# intervals later.
CONFIRMATION_SECONDS = (SAMPLES - 1) * SAMPLE_INTERVAL_SECONDS
# The first run beats, then sleeps for ever; the second says when its first line ran.
_PROGRAM = """
import os, sys, time
now = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
folder = sys.argv[1]
if os.path.exists(folder + "/last"):
    with open(folder + "/again.new", "w") as file:
        file.write(str(now))
    os.rename(folder + "/again.new", folder + "/again")
    sys.exit(0)
import holdfast
for step in range(30):
    holdfast.beat(step)
    last = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
    time.sleep(0.02)
with open(folder + "/last.new", "w") as file:
    file.write(str(last))
os.rename(folder + "/last.new", folder + "/last")
time.sleep(3600)
"""


def run(scale: Scale) -> Figures:
    """Seconds over (timeout + confirmation); beside it, a bare kill and start of the same
    program."""
    with Scratch() as scratch:
        program = scratch.folder / "wedge.py"
        program.write_text(_PROGRAM)
        place = start_up(scratch)
        limits, found = alternate(
            scale.rounds,
            lambda: _time_bare(program, _fresh(scratch.folder)),
            lambda: _time_trip(place, program, _fresh(scratch.folder)),
            ("kill and start", "over"),
            "s",
        )
    line = Line(
        what="trip to re-run, over timeout + confirmation",
        unit="s",
        value=spread(found),
        limit_name="bare kill + start",
        limit=spread(limits),
        budget="<= 1 s",
        met=spread(found).median <= 1.0,
    )
    note = (
        f"Stall timeout {STALL_SECONDS:g} s, confirmation {SAMPLES} readings "
        f"{SAMPLE_INTERVAL_SECONDS:g} s apart = "
        f"{CONFIRMATION_SECONDS:g} s; one host, which is avoided only where another fits. "
        "Forensics are in the time."
    )
    return Figures(name=name, lines=(line,), notes=(note,))


def _fresh(folder: Path) -> Path:
    made = folder / f"round-{time.monotonic_ns()}"
    made.mkdir()
    return made


def _read_number(path: Path, timeout_seconds: float) -> int:
    wait_until(
        path.exists, f"{path.name} of the wedged program", timeout_seconds, every_seconds=0.005
    )
    return int(path.read_text())


def _time_bare(program: Path, folder: Path) -> float:
    command = [sys.executable, str(program), str(folder)]
    process = subprocess.Popen(command, env=clean_environment())
    try:
        _read_number(folder / "last", 20)
    finally:
        began = time.clock_gettime_ns(time.CLOCK_BOOTTIME)
        process.kill()
        process.wait()
    again = subprocess.Popen(command, env=clean_environment())
    again.wait(20)
    return (_read_number(folder / "again", 1) - began) / 1e9


def _time_trip(place: Place, program: Path, folder: Path) -> float:
    spec = {
        "argv": [sys.executable, str(program), str(folder)],
        "stall_timeout_seconds": STALL_SECONDS,
    }
    job = json.loads(_submit(place, spec))["id"]
    last = _read_number(folder / "last", 30)
    again = _read_number(folder / "again", STALL_SECONDS + CONFIRMATION_SECONDS + 60)
    wait_until(
        lambda: place.connection.call("GET", f"/v1/jobs/{job}")["state"] == "succeeded",
        f"job {job} succeeds",
        30,
    )
    attempts = place.connection.call("GET", f"/v1/jobs/{job}/attempts")["items"]
    if [attempt["cause"] for attempt in attempts] != ["stalled", None]:
        raise RuntimeError(f"the attempts are not one stall and one success: {attempts}")
    return (again - last) / 1e9 - STALL_SECONDS - CONFIRMATION_SECONDS


def _submit(place: Place, spec: dict[str, object]) -> bytes:
    status, answer = place.connection.request("POST", "/v1/jobs", json.dumps(spec).encode())
    if status != 201:
        raise RuntimeError(f"not submitted: HTTP {status} {answer[:300]!r}")
    return answer
