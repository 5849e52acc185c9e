"""The table that `telemetry` prints of a job's processors and memory."""

from __future__ import annotations

import json

from tests.unit.cli.stub import JOB, Answer, Stub

GIB = 1 << 30


def point(rank: int, cores: float, **more: object) -> dict[str, object]:
    plain = {
        "attempt": 1,
        "at": "2026-11-27T06:01:00Z",
        "samples": 4,
        "memory_max_bytes": GIB,
        "devices": [],
    }
    return {"rank": rank, "cores": cores, "cores_max": cores + 0.5, **plain, **more}


def test_each_minute_of_a_rank_has_its_cores_and_its_memory_beside_the_limit(stub: Stub) -> None:
    points = [point(0, 1.25), point(6, 3.0, memory_max_bytes=GIB * 3 // 2)]
    view = {
        "step": "minute", "point_seconds": 60, "tasks": 70, "memory_limit_bytes": 2 * GIB,
        "points": points,
    }  # fmt: skip
    stub.on(f"GET /v1/jobs/{JOB}/telemetry", Answer(view))
    shown = stub.run("telemetry", JOB, "--last", "2h").stdout
    head, first, second, more = shown.splitlines()
    assert head.split() == ["AT", "RANK", "TRY", "CORES", "PEAK", "MEMORY", "OF"]
    assert first.split()[2:] == ["0", "1", "1.25", "1.75", "1G", "2G"]
    assert second.split()[2:] == ["6", "1", "3.00", "3.50", "1.5G", "2G"]
    assert more == "ranks 64-69 are not shown; --rank names one"
    assert "seconds=7200" in stub.requests[-1].path
    found = json.loads(stub.run("telemetry", JOB, "--rank", "3", "--rank", "9", "--json").stdout)
    assert found == view
    assert "rank=3&rank=9" in stub.requests[-1].path


def test_a_job_without_readings_is_told_when_there_will_be_some(stub: Stub) -> None:
    view = {"step": "minute", "point_seconds": 60, "tasks": 1, "memory_limit_bytes": 0}
    stub.on(f"GET /v1/jobs/{JOB}/telemetry", Answer({**view, "points": []}))
    assert "a rank is first read after 15 s" in stub.run("telemetry", JOB).stdout
