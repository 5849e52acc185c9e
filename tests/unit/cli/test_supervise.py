"""`holdfast supervise`: the job it makes of its flags, what it refuses before anything is
submitted, and its exit codes."""

from __future__ import annotations

import sys
from pathlib import Path

import msgspec
import pytest

from holdfast.cli.jobs.submit import submit
from holdfast.cli.supervise import supervise
from holdfast.client.locate import ControllerPlace
from tests.unit.cli.stub import JOB, Answer, Stub, events, job_record


@pytest.fixture
def accepting(stub: Stub) -> Stub:
    stub.on("POST /v1/jobs", Answer(job_record(state="queued", tasks=3), 201))
    return stub


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder with a policy, which is the working folder."""
    (tmp_path / "policy.py").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_the_job_is_a_gang_of_members(accepting: Stub, folder: Path) -> None:
    done = accepting.run(
        *"supervise policy.py --hosts 3 --gpus-per-host 8 --cpus 4 --max-retries 2".split(),
        *"--grace 1m --host-label gpu=h100 --preemptible --start-timeout 10m".split(),
        *"--on-straggler replace --on-corruption tell".split(),
        *"--secret T=hush --priority 70 -- --hosts 3 -- python train.py --lr 3e-4".split(),
    )
    assert done.exit_code == 0, done.stderr
    assert done.stdout.strip() == JOB
    spec = accepting.requests[-1].spec
    assert spec.argv == (
        sys.executable,
        "-P",
        "-m",
        "holdfast.supervisor.member",
        "8",
        "",
        sys.executable,
        "policy.py",
        "--hosts",
        "3",
        "--",
        "python",
        "train.py",
        "--lr",
        "3e-4",
    )
    assert (spec.supervised, spec.tasks, spec.gpus, spec.cpus, spec.placement) == (
        True,
        3,
        8,
        4,
        "spread",
    )
    assert (spec.on_straggler, spec.on_corruption) == ("replace", "tell")
    assert (spec.name, spec.cwd, spec.on_partial, spec.grace_seconds) == (
        "policy.py",
        str(folder),
        "restart",
        60.0,
    )
    assert (spec.host_labels, spec.preemptible, spec.start_timeout_seconds) == (
        {"gpu": "h100"},
        True,
        600.0,
    )
    assert spec.retry is not None
    assert (spec.retry.max_retries, spec.secrets, spec.priority) == (2, {"T": "hush"}, 70)


def test_another_python_a_name_and_metrics(accepting: Stub, folder: Path) -> None:
    done = accepting.run(
        *"supervise --hosts 1 --python /opt/venv/bin/python --name llama".split(),
        *"--metrics-port 0.0.0.0:9100".split(),
        str(folder / "policy.py"),
        "--json",
    )
    assert done.exit_code == 0, done.stderr
    assert msgspec.json.decode(done.stdout)["id"] == JOB
    spec = accepting.requests[-1].spec
    assert spec.name == "llama"
    assert spec.argv == (
        "/opt/venv/bin/python",
        "-P",
        "-m",
        "holdfast.supervisor.member",
        "0",
        "0.0.0.0:9100",
        "/opt/venv/bin/python",
        str(folder / "policy.py"),
    )


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("policy.py",), "--hosts"),
        (("--hosts", "2"), "POLICY.PY"),
        (("policy.py", "--hosts", "0"), "--hosts"),
        (("nothing.py", "--hosts", "2"), "there is no policy script nothing.py"),
        (("policy.py", "--hosts", "2", "--tasks", "4"), "--tasks"),
        (("policy.py", "--hosts", "2", "--metrics-port", "http"), "neither PORT nor ADDRESS:PORT"),
        (("policy.py", "--hosts", "70000"), "tasks"),
    ],
)
@pytest.mark.usefixtures("folder")
def test_mistakes_are_told_before_anything_is_sent(
    accepting: Stub, words: tuple[str, ...], said: str
) -> None:
    done = accepting.run("supervise", *words, standalone_mode=False)
    assert done.exit_code == 2
    assert said in done.stderr
    assert accepting.requests == []


@pytest.mark.usefixtures("folder")
def test_on_other_machines_the_script_is_where_cwd_says(
    accepting: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ControllerPlace, "is_local", False)
    done = accepting.run("supervise", "policy.py", "--hosts", "2")
    assert done.exit_code == 2
    assert "write its whole path" in done.stderr
    for words in (("--cwd", "/shared/run", "elsewhere.py"), ("/shared/run/elsewhere.py",)):
        done = accepting.run("supervise", "--hosts", "2", *words)
        assert done.exit_code == 0, done.stderr
        assert accepting.requests[-1].spec.argv[-1] == words[-1]


@pytest.mark.usefixtures("folder")
@pytest.mark.parametrize(
    ("state", "code", "found"), [("succeeded", 0, 0), ("failed", 43, 43), ("failed", 137, 137)]
)
def test_followed_it_shows_rank_0_and_ends_with_its_code(
    accepting: Stub, state: str, code: int, found: int
) -> None:
    line = {"attempt": 1, "rank": 0, "stream": "stdout", "offset": 0, "data": b"policy says\n"}
    job = job_record(state=state, tasks=3, exit_code=code)
    stream = events(("log", line), ("end", job))
    accepting.on(f"GET /v1/jobs/{JOB}/logs", Answer(stream, kind="text/event-stream"))
    done = accepting.run("supervise", "-f", "policy.py", "--hosts", "3")
    assert (done.exit_code, done.stdout) == (found, "policy says\n"), done.stderr
    assert any("rank=0" in request.path for request in accepting.requests)


def test_the_help_teaches() -> None:
    text = supervise.help or ""
    for word in ("Examples:", "Exit codes:", "supervise policy.py --hosts 16 --gpus-per-host 8"):
        assert word in text
    ours = {option for parameter in supervise.params for option in parameter.opts}
    theirs = {option for parameter in submit.params for option in parameter.opts}
    left_out = {
        "--array",
        "--sweep",
        "--at-once",
        "--detach",
        "--stdin",
        "--gpus",
        "--tasks",
        "--placement",
        "--on-partial",
        "--shell",
        "--file",
        "--image",
        "--runtime",
        "--pull",
        "--volume",
        "--pull-timeout",
        "--setup",
        "--setup-files",
        "--setup-timeout",
        "command",
    }
    assert theirs - ours == left_out
