"""`logs` says what its log did not keep, and nothing where it kept everything."""

from __future__ import annotations

from typing import Any

import pytest

from tests.unit.cli.stub import JOB, Answer, Stub, job_record


def stream(name: str, size: int, kept: int, rank: int = 0) -> dict[str, Any]:
    return {
        "job_id": JOB, "attempt": 1, "rank": rank, "stream": name, "size": size, "kept": kept, "ended": True,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("flags", "said"),
    [
        ((), ["97 bytes of stdout are not in the controller's copy", f"logs --full {JOB}"]),
        (("--stream", "stderr"), []),
        (("--tail", "2"), []),
    ],
)
def test_bytes_that_were_not_kept_are_counted(
    stub: Stub, flags: tuple[str, ...], said: list[str]
) -> None:
    stub.on(f"GET /v1/jobs/{JOB}", Answer(job_record(state="succeeded", exit_code=0)))
    stub.on(f"GET /v1/jobs/{JOB}/logs", Answer(b"abc", kind="application/octet-stream"))
    found = [stream("stdout", 100, 3), stream("stderr", 3, 3)]
    stub.on(f"GET /v1/jobs/{JOB}/logs/streams", Answer({"items": found, "cursor": None}))
    done = stub.run("logs", JOB, *flags)
    assert done.exit_code == 0, done.stderr
    assert "abc" in done.stdout + done.stderr
    assert [line for line in said if line not in done.stderr] == []
    assert bool(said) == ("--full" in done.stderr)
