"""The faces of retries, projects and the kill switch on the command line, against a stub
controller."""

from __future__ import annotations

import json
import re
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest

from tests.unit.cli.stub import JOB, Answer, Stub, job_record, sent

FLAGS = [
    *"--max-retries 3 --retry-delay 30s --retry-backoff exponential".split(),
    *"--retry-multiplier 3 --max-retry-delay 1h --retry-jitter deterministic".split(),
    *"--retry-jitter-ratio 0.5 --retry-on infra --retry-on oom_killed".split(),
    *"--no-retry-events --no-progress-limit off --budget-reset 6h".split(),
]


def view(**fields: Any) -> dict[str, Any]:
    plain: dict[str, Any] = msgspec.to_builtins(job_record(**fields))
    return plain


# ---- flags and files
@pytest.mark.parametrize("command", [["submit"], ["run", "--detach"]])
def test_every_flag_of_a_policy_reaches_the_wire(accepting: Stub, command: list[str]) -> None:
    done = accepting.run(*command, *FLAGS, "--", "x")
    assert done.exit_code == 0, done.stderr
    assert sent(accepting)["retry"] == {
        "max_retries": 3,
        "retry_delay": 30.0,
        "backoff": "exponential",
        "backoff_multiplier": 3.0,
        "max_retry_delay": 3600.0,
        "jitter": "deterministic",
        "jitter_ratio": 0.5,
        "eligible_causes": ["agent_transient", "gpu_fault", "silent_corruption", "oom_killed"],
        "emit_retry_events": False,
    }
    assert (sent(accepting)["no_progress_limit"], sent(accepting)["budget_reset_seconds"]) == (
        "off",
        21_600.0,
    )


def test_what_no_flag_says_is_left_to_the_project(accepting: Stub) -> None:
    assert (
        accepting.run(
            "submit", "--max-retry-delay", "off", "--no-progress-limit", "5", "--", "x"
        ).exit_code
        == 0
    )
    assert sent(accepting)["retry"] == {"max_retry_delay": None}
    assert sent(accepting)["no_progress_limit"] == 5
    assert accepting.run("submit", "--once", "--", "x").exit_code == 0
    assert "retry" not in sent(accepting)
    assert sent(accepting)["interactive"] is True


def test_a_file_has_a_retry_table_and_flags_win_field_by_field(
    accepting: Stub, tmp_path: Path
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        'argv = ["x"]\nno_progress_limit = 4\n[retry]\nmax_retries = 2\nretry_delay = '
        '"1m"\nmax_retry_delay = "off"\n'
        'eligible_causes = "failures,system"\n'
    )
    done = accepting.run(
        "submit", "--file", str(job), "--max-retries", "7", "--retry-jitter", "random"
    )
    assert done.exit_code == 0, done.stderr
    retry = sent(accepting)["retry"]
    assert (
        retry["max_retries"],
        retry["retry_delay"],
        retry["max_retry_delay"],
        retry["jitter"],
    ) == (7, 60.0, None, "random")
    assert {"nonzero_exit", "preempted"} <= set(retry["eligible_causes"])
    assert "agent_transient" not in retry["eligible_causes"]
    assert sent(accepting)["no_progress_limit"] == 4


def test_a_container_needs_no_command(accepting: Stub) -> None:
    words = [
        *"--image docker.io/library/busybox:1.36 --runtime podman --pull never".split(),
        *"--pull-timeout 5m --volume /data:/in:ro --volume /out:/out".split(),
    ]
    assert accepting.run("submit", *words).exit_code == 0
    spec = accepting.requests[-1].spec
    assert (spec.image, spec.argv, spec.runtime, spec.pull) == (
        "docker.io/library/busybox:1.36",
        (),
        "podman",
        "never",
    )
    assert (spec.volumes, spec.image_pull_seconds) == (("/data:/in:ro", "/out:/out"), 300.0)


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--max-retries", "-1"], "retry.max_retries"),
        (["--retry-delay", "soon"], "retry.retry_delay: 'soon' is not a duration"),
        (
            ["--retry-delay", "2h", "--max-retry-delay", "1h"],
            "retry_delay 7200 s is over max_retry_delay 3600 s",
        ),
        (["--max-retry-delay", "25h"], "retry.max_retry_delay"),
        (
            ["--retry-on", "user_cancelled"],
            "retry.eligible_causes: 'user_cancelled' is never retried",
        ),
        (["--retry-on", "typo"], "'typo' is no cause; eligible are nonzero_exit"),
        (["--retry-backoff", "linear"], "linear"),
        (["--retry-jitter-ratio", "2"], "retry.jitter_ratio"),
        (["--once", "--max-retries", "1"], "is never run again by itself"),
        (["--no-progress-limit", "many"], "no_progress_limit"),
        (["--budget-reset", "never"], "budget_reset"),
        (["--runtime", "podman"], "runtime is for a job with an image"),
        (["--image", "--rm"], "must be an image reference"),
        (["--image", "busybox", "--volume", "here:/there"], "is not written /host/path"),
    ],
)
def test_mistakes_are_refused_by_name_before_anything_is_sent(
    stub: Stub, words: list[str], sentence: str
) -> None:
    done = stub.run("submit", *words, "--", "x")
    assert (done.exit_code, stub.requests) == (2, [])
    assert sentence in done.stderr


@pytest.mark.parametrize(
    ("table", "sentence"),
    [
        (
            "retries = 3",
            "a retry policy has no field 'retries'; there are max_retries, retry_delay",
        ),
        ('backoff = "linear"', "retry.backoff"),
        ("max_retries = 1.5", "retry.max_retries"),
        ('eligible_causes = ["validation_error"]', "never retried"),
    ],
)
def test_mistakes_in_a_file_are_refused_by_name(
    stub: Stub, tmp_path: Path, table: str, sentence: str
) -> None:
    job = tmp_path / "job.toml"
    job.write_text(f'argv = ["x"]\n[retry]\n{table}\n')
    done = stub.run("submit", "--file", str(job))
    assert (done.exit_code, stub.requests) == (2, [])
    assert sentence in done.stderr
    job.write_text('argv = ["x"]\nretry = 3\n')
    assert "retry is a table" in stub.run("submit", "--file", str(job)).stderr


def test_over_quota_is_seven_and_is_sent_once(stub: Stub) -> None:
    problem = {
        "status": 403,
        "code": "quota_exceeded",
        "detail": "project vision may have 2 unfinished jobs",
        "field": "project",
    }
    stub.on("POST /v1/jobs", Answer(problem, 403, kind="application/problem+json"))
    done = stub.run("submit", "--project", "vision", "--", "x")
    assert (done.exit_code, len(stub.requests)) == (7, 1)
    assert "2 unfinished jobs" in done.stderr
    assert json.loads(stub.run("run", "--json", "--", "x").stderr)["code"] == "quota_exceeded"


# ---- looking
STATE = {
    "sentence": "attempt 2 of 4, next at 12:03:20 UTC",
    "attempt": 2,
    "of": 4,
    "retries_left": 1,
    "next_at": "2026-01-01T12:03:20Z",
}
POLICY = {
    "max_retries": 3,
    "retry_delay": 30.0,
    "backoff": "exponential",
    "jitter": "random",
    "eligible_causes": ["oom_killed"],
}
ATTEMPT = {"job_id": JOB, "number": 2, "parent": 1, "epoch": 2, "state": "ended", "outcome": "requeued", "retry_count": 1,
           "cause": "image_pull_failure", "charged_to": "retries", "exit_code": 125, "host": "gpu-box-7-with-a-long-name",
           "reason": "the registry answered 503 for the manifest of team/train:2; retry 2 of 3 in "
           "60 s",
           "reserved_at": "2026-01-01T12:00:00Z", "started_at": "2026-01-01T12:00:00Z", "ended_at": "2026-01-01T12:02:20Z",
           "next_at": "2026-01-01T12:03:20Z", "policy": POLICY}  # fmt: skip


def test_show_says_where_it_stands(stub: Stub) -> None:
    stub.on(f"GET /v1/jobs/{JOB}", Answer({**view(state="waiting"), "retry_state": STATE}))
    stub.on(f"GET /v1/jobs/{JOB}/attempts", Answer({"items": [ATTEMPT], "next": None}))
    stub.on(f"GET /v1/jobs/{JOB}/tasks", Answer({"items": [], "next": None}))
    stub.on(
        f"GET /v1/jobs/{JOB}/why",
        Answer(
            {"job_id": JOB, "state": "waiting", "summary": "it waits for retry 1 of 5", "lines": []}
        ),
    )
    assert "attempt 2 of 4, next at 12:03:20 UTC" in stub.run("show", JOB).stdout
    assert json.loads(stub.run("show", JOB, "--json").stdout)["retry_state"]["retries_left"] == 1


@pytest.mark.usefixtures("eighty_columns")
def test_the_chain_fits_eighty_columns_and_keeps_its_reasons_whole(stub: Stub) -> None:
    stub.on(f"GET /v1/jobs/{JOB}/attempts", Answer({"items": [ATTEMPT], "next": None}))
    done = stub.run("attempts", JOB, "--policy", "--cause", "image_pull_failure")
    assert "cause=image_pull_failure" in stub.requests[0].path
    assert max(map(len, done.stdout.splitlines())) <= 80
    head, row = done.stdout.splitlines()[:2]
    assert head.split() == "TRY FROM RETRY OUTCOME CAUSE CHARGED EXIT HOST TOOK".split()
    assert row.split()[:7] == ["2", "1", "1", "requeued", "image_pull_failure", "retries", "125"]
    said = " ".join(done.stdout.split())
    assert ATTEMPT["reason"] in said
    assert "the next attempt was allowed from 2026-01-01 12:03:20 UTC" in said
    assert (
        "policy: 3 retries, 30 s apart, times 2 with each, at most 3600 s, random jitter of up to "
        "25%; after: oom_killed" in said
    )
    (found,) = json.loads(stub.run("attempts", JOB, "--json").stdout)
    assert {
        "number",
        "outcome",
        "cause",
        "exit_code",
        "host",
        "epoch",
        "reason",
        "started_at",
        "ended_at",
    } <= found.keys()
    assert (found["policy"]["max_retries"], found["next_at"]) == (3, "2026-01-01T12:03:20Z")


def test_show_policy_says_where_each_field_comes_from(stub: Stub) -> None:
    from holdfast.core.causes import ELIGIBLE, GROUPS

    fields = [
        {"field": "max_retries", "value": 3, "source": "job"},
        {"field": "max_retry_delay", "value": None, "source": "project"},
        {
            "field": "eligible_causes",
            "value": [*GROUPS["infra"], "oom_killed"],
            "source": "cluster",
        },
    ]
    stub.on(
        f"GET /v1/jobs/{JOB}/policy",
        Answer({"policy": {}, "fields": fields, "held": "project vision"}),
    )
    lines = stub.run("show", JOB, "--policy").stdout.splitlines()
    assert [line.split() for line in lines[:4]] == [
        ["FIELD", "VALUE", "SOURCE"],
        ["max_retries", "3", "job"],
        ["max_retry_delay", "off", "project"],
        ["eligible_causes", "infra,", "oom_killed", "cluster"],
    ]
    assert "project vision holds all retries" in lines[-1]
    fields[2]["value"] = list(ELIGIBLE)
    stub.on(f"GET /v1/jobs/{JOB}/policy", Answer({"policy": {}, "fields": fields, "held": None}))
    assert stub.run("show", JOB, "--policy").stdout.splitlines()[3].split() == [
        "eligible_causes",
        "all",
        "cluster",
    ]
    assert (
        json.loads(stub.run("show", JOB, "--policy", "--json").stdout)["fields"][0]["source"]
        == "job"
    )


def test_jobs_are_filtered_by_retries(stub: Stub) -> None:
    stub.on("GET /v1/jobs", Answer({"items": [], "next": None}))
    stub.run("jobs", "--cause", "oom_killed", "--min-retries", "2", "--max-retries", "5")
    path = stub.requests[0].path
    assert "cause=oom_killed" in path
    assert "retries_min=2" in path
    assert "retries_max=5" in path


# ---- acting
def test_retry_says_whether_it_counted(stub: Stub) -> None:
    stub.on(
        f"POST /v1/jobs/{JOB}/retry",
        Answer(job_record(state="queued", reason="retried by ann, counted as retry 1 of 3")),
    )
    done = stub.run("retry", JOB, "--counted")
    assert sent(stub) == {"counted": True, "from_scratch": False}
    assert "counted as retry 1 of 3" in done.stdout
    stub.run("retry", JOB)
    assert sent(stub) == {"counted": False, "from_scratch": False}


def test_the_kill_switch(stub: Stub) -> None:
    held = {
        "enabled": False,
        "holds": [
            {"source": "cluster", "reason": "the registry is down"},
            {"source": "project", "project": "vision"},
        ],
        "backing_off": 3,
        "held": 12,
        "rate_limit": 50.0,
        "projects": [{"project": "vision", "backing_off": 3, "held": 12}],
    }
    stub.on("GET /v1/retries", Answer(held))
    stub.on("PATCH /v1/config", Answer({"items": [], "next": None}))
    project = {"name": "vision", "settings": {}}
    stub.on("PUT /v1/projects/vision", Answer(project))
    done = stub.run("retries", "hold", "--reason", "the registry is down")
    assert msgspec.json.decode(stub.requests[0].body)["set"] == {
        "retries_enabled": False,
        "retries_hold_reason": "the registry is down",
    }
    for words in (
        "held by the cluster",
        "the registry is down",
        "held by project vision",
        "12 jobs, until the release",
        "50 a second",
    ):
        assert words in done.stdout
    stub.run("retries", "release", "--project", "vision")
    put = stub.requests[-2]
    assert (put.method, put.path) == ("PUT", "/v1/projects/vision")
    assert msgspec.json.decode(put.body)["unset"] == ["retries_enabled", "retries_hold_reason"]
    assert json.loads(stub.run("retries", "--json").stdout)["held"] == 12


def test_projects(stub: Stub) -> None:
    vision = {
        "name": "vision",
        "settings": {"quota_gpus": 8, "quota": "hard", "max_retries": 2},
        "running": 3,
        "gpus": 6,
        "unfinished": 9,
    }
    stub.on("GET /v1/projects", Answer({"items": [vision], "next": None}))
    stub.on("GET /v1/projects/vision", Answer(vision))
    stub.on("PUT /v1/projects/vision", Answer(vision))
    stub.on("DELETE /v1/projects/vision", Answer(b"", 204))
    assert stub.run("projects").stdout.splitlines()[1].split()[:4] == ["vision", "3", "6/8", "9"]
    assert "refused at submission" in stub.run("projects", "show", "vision").stdout
    assert (
        stub.run(
            "projects", "set", "vision", "quota_gpus=8", "retry_delay_seconds=30s", "quota_jobs=off"
        ).exit_code
        == 0
    )
    assert sent(stub)["set"] == {"quota_gpus": 8, "retry_delay_seconds": 30.0, "quota_jobs": None}
    stub.run("projects", "unset", "vision", "quota_gpus")
    assert sent(stub)["unset"] == ["quota_gpus"]
    assert stub.run("projects", "delete", "vision").stdout == "vision: deleted\n"
    before = len(stub.requests)
    assert stub.run("projects", "set", "vision", "quota=firm").exit_code == 2
    assert len(stub.requests) == before


def test_config_of_a_project(stub: Stub) -> None:
    stub.on(
        "GET /v1/config",
        Answer({"items": [{"name": "max_retries", "value": 2, "source": "project"}], "next": None}),
    )
    stub.on("PUT /v1/projects/vision", Answer({"name": "vision", "settings": {}}))
    assert stub.run("config", "--project", "vision").stdout.splitlines()[1].split()[:3] == [
        "max_retries",
        "2",
        "project",
    ]
    assert "project=vision" in stub.requests[0].path
    assert stub.run("config", "set", "max_retries", "2", "--project", "vision").exit_code == 0
    assert (
        stub.run("config", "set", "max_retries", "2", "--project", "v", "--queue", "q").exit_code
        == 2
    )
    assert stub.run("config", "--project", "v", "--job", JOB).exit_code == 2


def test_show_has_the_limit_the_time_left_and_the_peak_of_memory(stub: Stub) -> None:
    now = datetime.now(UTC)
    limits = {
        "time_limit_seconds": 7200.0,
        "time_limit_source": "queue",
        "stops_at": (now + timedelta(seconds=3700)).isoformat(),
        "expected_seconds": 600.0,
        "expected_source": "job",
        "expected_at": (now - timedelta(seconds=130)).isoformat(),
    }
    shown = view(state="running", started_at=now.isoformat(), memory_bytes=1 << 30)
    member = {"rank": 0, "host": "h", "state": "done", "facts": {"max_memory_bytes": 700 << 20}}
    stub.on(f"GET /v1/jobs/{JOB}", Answer({**shown, "limits": limits}))
    rows = [{**ATTEMPT, "members": [member]}]
    stub.on(f"GET /v1/jobs/{JOB}/attempts", Answer({"items": rows, "next": None}))
    stub.on(f"GET /v1/jobs/{JOB}/tasks", Answer({"items": [], "next": None}))
    why = {"job_id": JOB, "state": "running", "summary": "it runs", "lines": []}
    stub.on(f"GET /v1/jobs/{JOB}/why", Answer(why))
    text = stub.run("show", JOB).stdout
    assert re.search(r"time limit +2h00m, of the queue, 1h01m left", text), text
    assert re.search(r"expected +10m00s, its submission's, 2m1\ds over, and it goes on", text), text
    assert re.search(r"peak memory +700M of 1G", text), text
