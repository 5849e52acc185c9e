"""Counts and states are written without a false plural and without a stutter."""

from __future__ import annotations

import codecs
import json
import re
import subprocess
import sys
from pathlib import Path

import pytest

from holdfast.cli.code.workdir import note_left_behind
from holdfast.cli.output import say_state
from holdfast.core.bundles.code import CodeRef
from holdfast.core.spec import JobSpec
from holdfast.core.words import count_of
from tests.unit.cli.stub import JOB, Answer, Stub, job_record


@pytest.mark.parametrize(
    ("state", "text", "said"),
    [
        ("succeeded", "it succeeded", "succeeded"),
        ("succeeded", "succeeded on attempt 2", "succeeded on attempt 2"),
        ("cancelled", "it was cancelled by admin", "cancelled by admin"),
        ("failed", "it failed: exited with 1", "failed: exited with 1"),
        ("failed", "exited with 1", "failed: exited with 1"),
        ("queued", "", "queued"),
    ],
)
def test_a_state_is_said_once(state: str, text: str, said: str) -> None:
    assert say_state(state, text) == said


@pytest.mark.parametrize(
    ("state", "reason", "said"),
    [
        ("succeeded", "succeeded", "succeeded  it had ended before"),
        ("failed", "exit code 3", "failed  it had ended before: exit code 3"),
        ("cancelled", "cancelled by admin", "cancelled  cancelled by admin"),
        ("draining", "cancelled by admin", "draining  cancelled by admin"),
    ],
)
def test_cancel_says_of_an_ended_job_that_it_had_ended(
    stub: Stub, state: str, reason: str, said: str
) -> None:
    job = job_record(state=state, reason=reason)
    stub.on(f"POST /v1/jobs/{JOB}/cancel", Answer(job))
    assert stub.run("cancel", JOB).stdout == f"{JOB}  {said}\n"


@pytest.mark.parametrize("mark", [b"", codecs.BOM_UTF8])
def test_variables_are_utf8_in_whichever_locale(stub: Stub, tmp_path: Path, mark: bytes) -> None:
    """Python reads texts, and the command line, by the locale where none says UTF-8."""
    file = tmp_path / "größen"
    file.write_bytes(mark + "A=Grüße\u2028 an\x85 alle\r\nB=2\n".encode())
    stub.on("POST /v1/jobs", Answer(job_record(), status=201))
    words = ("submit", "--env-file", str(file), "--env", "C=ä", "--env", "D", "--", "true")
    locale = {"LC_ALL": "C", "PYTHONUTF8": "0", "PYTHONCOERCECLOCALE": "0", "D": "ö"}
    place = {"HOLDFAST_URL": stub.url, "HOLDFAST_TOKEN": "t", "HOME": str(tmp_path)}
    subprocess.run([sys.executable, "-m", "holdfast", *words], env={**locale, **place}, check=True)
    (sent,) = [json.loads(r.body) for r in stub.requests if r.method == "POST"]
    assert sent["env"] == {"A": "Grüße\u2028 an\x85 alle", "B": "2", "C": "ä", "D": "ö"}


@pytest.mark.parametrize(
    ("spec", "noted"),
    [
        (JobSpec(argv=["python", "train.py"]), True),
        (JobSpec(shell="cd /tmp && python sub/train.py"), True),
        (JobSpec(argv=["python", "other.py", "/etc/hosts"]), False),
        (JobSpec(argv=["python", "train.py"], cwd="/srv"), False),
        (JobSpec(argv=["python", "train.py"], code=CodeRef(digest="0" * 64)), False),
    ],
)
def test_a_file_that_no_host_has_is_noted(
    spec: JobSpec,
    noted: bool,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Elsewhere the job ends with "can't open file 'train.py'"."""
    (tmp_path / "sub").mkdir()
    for name in ("train.py", "sub/train.py"):
        (tmp_path / name).touch()
    monkeypatch.chdir(tmp_path)
    note_left_behind(spec)
    said = "train.py is a file of this folder, which hosts do not have; --workdir . takes it along"
    assert (said in capsys.readouterr().err) is noted


def test_a_shown_command_can_be_typed_again(stub: Stub) -> None:
    job = job_record(state="succeeded", spec={"argv": ["sh", "-c", "echo $HOME; exit 3"]})
    stub.on(f"GET /v1/jobs/{JOB}", Answer(job))
    empty = Answer({"items": [], "next": None})
    stub.on(f"GET /v1/jobs/{JOB}/attempts", empty)
    stub.on(f"GET /v1/jobs/{JOB}/tasks", empty)
    assert "sh -c 'echo $HOME; exit 3'" in stub.run("show", JOB).stdout


def test_a_reason_that_says_no_more_than_the_state_is_left_out(stub: Stub) -> None:
    job = job_record(state="succeeded", reason="succeeded", name="echo")
    attempt = {
        "job_id": JOB, "number": 1, "parent": None, "epoch": 1, "state": "ended", "reason": "succeeded",
        "outcome": "succeeded", "reserved_at": "2026-01-01T00:00:00Z",
    }  # fmt: skip
    stub.on("GET /v1/jobs", Answer({"items": [job], "next": None}))
    stub.on(f"GET /v1/jobs/{JOB}", Answer(job))
    stub.on(f"GET /v1/jobs/{JOB}/attempts", Answer({"items": [attempt], "next": None}))
    stub.on(f"GET /v1/jobs/{JOB}/tasks", Answer({"items": [], "next": None}))
    assert stub.run("jobs").stdout.count("succeeded") == 1
    assert stub.run("jobs", env={"COLUMNS": "80"}).stdout.count("succeeded") == 1
    assert stub.run("attempts", JOB).stdout.count("succeeded") == 1
    shown = stub.run("show", JOB).stdout
    assert "reason" not in shown
    assert len(shown.splitlines()[-1]) > len("     succeeded"), "the row of the attempt is the last"


def test_one_thing_is_singular() -> None:
    counts = [count_of(n, "retry", "retries") for n in (0, 1, 2)]
    assert counts == ["0 retries", "1 retry", "2 retries"]


def test_show_writes_no_false_plural(stub: Stub) -> None:
    job = job_record(gpus=1, watchdog_charged=1, infra_charged=1, state="succeeded")
    stub.on(f"GET /v1/jobs/{JOB}", Answer(job))
    empty = Answer({"items": [], "next": None})
    stub.on(f"GET /v1/jobs/{JOB}/attempts", empty)
    stub.on(f"GET /v1/jobs/{JOB}/tasks", empty)
    done = stub.run("show", JOB)
    assert "1 trip, 1 infra failure" in done.stdout, done.stderr
    assert "1 GPU, 1 CPU slot" in done.stdout
    assert not re.search(r"\b1 \w+( \w+)?s\b", done.stdout)
