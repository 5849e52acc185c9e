"""The benchmarks run and say what they should, at tiny sizes. Nothing here looks at speed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from bench.__main__ import NAMES, load_case, main
from bench.figures import Figures, Line, percentile, render_table, spread, to_plain
from bench.processes import list_family, wait_gone
from bench.scale import alternate
from bench.stock_server import find_packaged
from bench.system import holdfast_command

from tests.unit.sources import ROOT
from tests.waits import run_patiently, stretch, wait_exit, wait_until

BUDGETED = {
    "noop": 1,
    "calls": 2,
    "true": 2,
    "own": 0 if find_packaged() is None else 2,
    "latency": 2,
    "depth": 1,
    "beat": 3,
    "start": 8,
    "sync": 1,
    "idle": 2,
    "exit": 1,
    "trip": 1,
    "code": 4,
    "gangs": 2,
    "gang-restart": 1,
    "fleet-day": 0,
    "forecast": 0,
    "why": 8,
    "fleet-cycle": 0,
    "ledger": 5,
    "workflow": 1,
    "sessions": 7,
    "pages": 28,
    "paint": 9 if os.environ.get("HOLDFAST_TEST_CHROMIUM") else 0,
    "stragglers": 5,
    "grep": 5,
    "supervisor": 4,
    "supervisor-heartbeats": 4,
    "supervisor-crowd": 1,
}


def test_percentile_is_a_reading() -> None:
    assert percentile([3.0, 1.0, 2.0], 50) == 2.0
    assert percentile([float(n) for n in range(1, 101)], 99) == 99.0
    assert percentile([5.0], 99) == 5.0


def test_no_readings_are_no_figure() -> None:
    with pytest.raises(ValueError, match="no readings"):
        spread([])


def test_limit_and_system_take_turns() -> None:
    order: list[str] = []
    limits, systems = alternate(3, lambda: order.append("limit"), lambda: order.append("system"))
    assert order == ["limit", "system"] * 3
    assert len(limits) == len(systems) == 3


def test_the_table_shows_ratio_budget_and_error() -> None:
    line = Line(
        what="jobs",
        unit="1/s",
        value=spread([40.0, 50.0, 60.0]),
        limit_name="loop",
        limit=spread([100.0]),
        budget=">= 0.6",
        met=False,
    )
    good, bad = (
        Figures(name="one", lines=(line,), notes=("a note",)),
        Figures(name="two", error="broke"),
    )
    text = render_table([good, bad])
    for words in (
        "50 (40-60)",
        "100.0 loop",
        "0.50",
        ">= 0.6",
        "MISSED",
        "one: a note",
        "two: NOT MEASURED: broke",
    ):
        assert words in text
    plain: Any = to_plain(good)
    assert plain["lines"][0]["ratio"] == 0.5


def test_an_unknown_benchmark_is_refused() -> None:
    with pytest.raises(SystemExit) as ended:
        main(["nothing"])
    assert ended.value.code == 2


@pytest.mark.parametrize("name", NAMES)
def test_every_benchmark_has_the_silhouette(name: str) -> None:
    case = load_case(name)
    assert case.name == name
    assert case.budget
    assert callable(case.run)


@pytest.mark.heavy
@pytest.mark.parametrize("name", NAMES)
def test_it_runs_and_leaves_nothing(name: str, memory_path: Path, migrated_cluster: Path) -> None:
    scratch = memory_path / "t"
    scratch.mkdir()
    done = run_patiently(
        [sys.executable, "-m", "bench", name, "--quick", "--json"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(scratch), "BENCH_CLUSTER": str(migrated_cluster)},
        capture_output=True,
        text=True,
        seconds=110,
    )
    assert done.returncode == 0, done.stderr[-3000:]
    report = json.loads(done.stdout)
    (figures,) = report["benchmarks"]
    assert report["quick"] is True
    assert figures["name"] == name
    assert figures["error"] == ""
    assert all(line["value"]["count"] >= 1 and line["unit"] for line in figures["lines"])
    judged = [line for line in figures["lines"] if line["budget"]]
    assert len(judged) == BUDGETED[name]
    for line in judged:
        assert line["met"] in (True, False)
        assert line["limit"] is not None, f"{line['what']} stands beside nothing"
        assert line["limit"]["count"] >= 1
    assert list(scratch.iterdir()) == []
    assert str(scratch) not in _all_command_lines()


@pytest.mark.slow
def test_a_bench_that_is_told_to_end_ends_what_it_has_started(tmp_path: Path) -> None:
    """Also the processes of a part that runs in a process of its own: these burn a core each."""
    bench = subprocess.Popen(
        [sys.executable, "-m", "bench", "supervisor-crowd", "--quick", "--json"],
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(tmp_path)},
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
    )
    try:
        wait_until(lambda: len(list_family(bench.pid)) >= 3, what="a burner")
        family = list_family(bench.pid)
    finally:
        bench.terminate()
        wait_exit(bench)
    left = wait_gone(family, stretch(10.0))
    for pid in left:
        os.kill(pid, signal.SIGKILL)
    assert left == []


def _all_command_lines() -> str:
    lines = []
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit() and int(entry.name) != os.getpid():
            try:
                lines.append(
                    (entry / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                )
            except OSError:
                pass  # it ended meanwhile
    return "\n".join(lines)


def test_holdfast_is_called_as_a_module_where_it_is_not_installed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(sys, "executable", str(tmp_path / "python"))
        _, *words = holdfast_command()
    done = subprocess.run(
        [sys.executable, *words, "--version"], capture_output=True, text=True, check=False
    )
    assert "holdfast" in done.stdout, done.stderr
