"""How long the CLI and `holdfast up` take to start."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path

from bench.crowd import REST_SECONDS, measure_crowded
from bench.figures import Figures, Line, spread
from bench.scale import Scale, alternate, say, wait_until
from bench.system import (
    Scratch,
    await_place,
    clean_environment,
    has_active_host,
    holdfast_command,
    start_up,
)

name = "start"
budget = (
    "CLI <= 3 x an import of click and <= 150 ms; up <= 3 s from nothing, <= 1 s on an initialised "
    "folder; beside burners <= 1.5 x its bare steps in turn, <= 1.2 x its CPU, nothing lost"
)


def run(scale: Scale) -> Figures:
    """Wall-clock of whole processes."""
    lines = [*_measure_cli(scale), *_measure_up(scale), *measure_crowded(scale)]
    notes = (
        "`up` counts to the moment a host takes work (a job submitted then starts), not to the "
        "first answer of the API. "
        "Bare: initdb and start of the same PostgreSQL with the same settings, made ready by the "
        "store's own code, without the rest.",
        f"Beside burners: nothing is lost within {REST_SECONDS:g} s ($HOLDFAST_BENCH_REST_SECONDS), in "
        "which a job beats.",
    )
    return Figures(name=name, lines=tuple(lines), notes=notes)


def time_command(command: list[str], environ: Mapping[str, str]) -> float:
    """Milliseconds from spawn to exit. Raises RuntimeError unless it exits with 0."""
    began = time.perf_counter()
    done = subprocess.run(command, env=dict(environ), capture_output=True)
    took = (time.perf_counter() - began) * 1000
    if done.returncode != 0:
        raise RuntimeError(f"{command} ended with {done.returncode}: {done.stderr.decode()[-300:]}")
    return took


def _measure_cli(scale: Scale) -> list[Line]:
    rounds = scale.pick(20, 1)
    lines = []
    with Scratch() as scratch:
        place = start_up(scratch)
        for words in (["--help"], ["version"], ["jobs"]):
            bare = [sys.executable, "-c", "import click"]
            time_command(
                [*holdfast_command(), *words], place.environ()
            )  # the first writes byte code
            limits, found = [], []
            for _ in range(rounds):
                limits.append(time_command(bare, place.environ()))
                found.append(time_command([*holdfast_command(), *words], place.environ()))
            say(
                f"  holdfast {words[0]}: {spread(found).median:.0f} ms, python -c 'import click': "
                f"{spread(limits).median:.0f} ms"
            )
            lines.append(
                Line(
                    what=f"holdfast {words[0]}",
                    unit="ms",
                    value=spread(found),
                    limit_name="python -c 'import click'",
                    limit=spread(limits),
                    budget="<= 3 x, <= 150 ms",
                    met=spread(found).median <= min(3.0 * spread(limits).median, 150.0),
                )
            )
    return lines


def _measure_up(scale: Scale) -> list[Line]:
    lines = []
    with Scratch() as scratch:
        for fresh, most in ((True, 3.0), (False, 1.0)):
            words = ("bare PostgreSQL", "up from nothing" if fresh else "up again")
            limits, found = alternate(
                scale.rounds,
                lambda fresh=fresh: _time_postgres(scratch.folder / "postgres", fresh),  # type: ignore[misc]  # mypy cannot infer a default of a lambda
                lambda fresh=fresh: _time_up(scratch, fresh),  # type: ignore[misc]  # mypy cannot infer a default of a lambda
                words,
                "s",
            )
            lines.append(
                Line(
                    what="holdfast up, from nothing"
                    if fresh
                    else "holdfast up, initialised folder",
                    unit="s",
                    value=spread(found),
                    limit_name="bare initdb + start" if fresh else "bare start",
                    limit=spread(limits),
                    budget=f"<= {most:g} s",
                    met=spread(found).median <= most,
                )
            )
    return lines


def _time_postgres(folder: Path, fresh: bool) -> float:
    from holdfast.store.embedded.postgres import EmbeddedPostgres

    if fresh:
        shutil.rmtree(folder, ignore_errors=True)
    server = EmbeddedPostgres(folder)
    began = time.monotonic()
    server.start()
    took = time.monotonic() - began
    server.stop()
    return took


def _time_up(scratch: Scratch, fresh: bool) -> float:
    home = scratch.folder / "up"
    data = home / "holdfast-data"
    if fresh:
        shutil.rmtree(home, ignore_errors=True)
        home.mkdir()
    command = [*holdfast_command(), "up", "--port", "0", "--slots", "2", "--data", str(data)]
    began = time.monotonic()
    process = scratch.start(
        command, "up", end_signal=signal.SIGINT, cwd=home, environ=clean_environment()
    )
    place = await_place(scratch, process, data, "up")
    wait_until(lambda: has_active_host(place), "a host is active", 30, every_seconds=0.005)
    took = time.monotonic() - began
    place.connection.close()
    left = scratch.end(process)
    if left:
        raise RuntimeError(f"`holdfast up` left processes behind: {left}")
    if os.path.exists(data / "url"):
        os.unlink(data / "url")  # were it left, the next start would look ready before it is
    return took
