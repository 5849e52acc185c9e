"""The commands against a stub controller: what they send, what they print, how they end."""

from __future__ import annotations

import hashlib
import json
import os
import socket
import subprocess
import sys
from functools import partial
from pathlib import Path

import msgspec
import pytest

from holdfast.cli.commands import COMMANDS
from holdfast.cli.jobs import submit
from holdfast.cli.jobs.submit import has_piped_input
from holdfast.cli.main import cli
from holdfast.errors import NotFound
from holdfast.wire.logs.lines import LogLine
from tests.unit.cli.stub import JOB, Answer, Stub, clean_environment, events, job_record, outcomes
from tests.waits import run_patiently, wait_until


def line(
    data: bytes, offset: int = 0, stream: str = "stdout", attempt: int = 1, gap: int = 0
) -> LogLine:
    return LogLine(attempt=attempt, rank=0, stream=stream, offset=offset, data=data, gap=gap)


def ended(**fields: object) -> tuple[str, object]:
    return "end", job_record(**{"state": "succeeded", "exit_code": 0, **fields})


def follow(stub: Stub, *streams: bytes, cut: bool = False) -> None:
    answers = [
        Answer(body, kind="text/event-stream", cut=cut and i < len(streams) - 1)
        for i, body in enumerate(streams)
    ]
    stub.on(f"GET /v1/jobs/{JOB}/logs", *answers)
    stub.on("POST /v1/jobs", Answer(job_record(state="queued", attempts=0), 201))


# ---- submit
def test_submit_prints_the_id_and_sends_what_the_flags_say(stub: Stub, tmp_path: Path) -> None:
    stub.on("POST /v1/jobs", Answer(job_record(), 201))
    secret = tmp_path / "key"
    secret.write_text("s3cret\n")
    done = stub.run(
        *"submit --name n --gpus 2 --memory 4G --label a=b=c --env X=1 --env HERE".split(),
        *"--secret".split(),
        f"K=@{secret}",
        *"--time-limit 2h --stall-timeout off --priority 80 -- python train.py".split(),
        *"--json -v".split(),
        env={"HERE": "yes"},
    )
    assert (done.exit_code, done.stdout) == (0, JOB + "\n"), done.stderr
    spec = stub.requests[0].spec
    assert spec.argv == ("python", "train.py", "--json", "-v")
    assert (spec.gpus, spec.memory_bytes, spec.priority, spec.name) == (2, 4 << 30, 80, "n")
    assert (spec.labels, spec.secrets) == ({"a": "b=c"}, {"K": "s3cret"})
    assert (spec.env["X"], spec.env["HERE"]) == ("1", "yes")
    # The stub is on loopback, so the job gets the `python` that was typed, and nothing else of the
    # caller's shell.
    assert spec.env["PATH"] == os.environ["PATH"]
    assert "HOME" not in spec.env
    assert (spec.time_limit_seconds, spec.stall_timeout_seconds) == (7200.0, "off")
    assert spec.cwd == os.getcwd()  # the stub is on loopback
    assert spec.idempotency_key
    assert stub.requests[0].headers["Authorization"] == "Bearer secret"


def test_a_file_and_flags_over_it(stub: Stub, tmp_path: Path) -> None:
    stub.on("POST /v1/jobs", Answer(job_record(), 201))
    toml = tmp_path / "job.toml"
    toml.write_text(
        'argv = ["a", "b"]\npriority = 10\ntime_limit = "1h"\ncwd = "/tmp"\n[env]\nA = "1"\nN = 7\n'
    )
    done = stub.run(
        "submit", "--file", str(toml), "--priority", "20", "--env", "A=2", "--time-limit", "5m"
    )
    assert done.exit_code == 0, done.stderr
    spec = stub.requests[0].spec
    assert (spec.argv, spec.priority, spec.time_limit_seconds, spec.cwd) == (
        ("a", "b"),
        20,
        300.0,
        "/tmp",
    )
    assert (spec.env["A"], spec.env["N"]) == ("2", "7")
    yaml = tmp_path / "job.yaml"
    yaml.write_text("shell: echo hi\nlabels:\n  team: x\n")
    assert stub.run("submit", "--file", str(yaml)).exit_code == 0
    assert (stub.requests[1].spec.shell, stub.requests[1].spec.labels) == ("echo hi", {"team": "x"})


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["submit"], "no command given"),
        (["submit", "--shell", "a", "--", "b"], "either a command or --shell"),
        (["submit", "--memory", "4X", "--", "a"], "not a size"),
        (["submit", "--priority", "900", "--", "a"], "priority"),
        (["submit", "--secret", "hunter2", "--", "a"], "--secret needs"),
        (["submit", "--file", "/nonexistent/job.toml"], "cannot be read"),
        (["jbos"], "Did you mean `holdfast jobs`"),
        (["fly"], "there is no command 'fly'"),
        (["jobs", "--nope"], "nope"),
        (["show", ".."], "names nothing"),
    ],
)
def test_usage_is_refused_in_plain_lines_before_anything_is_sent(
    stub: Stub, words: list[str], sentence: str
) -> None:
    done = stub.run(*words)
    assert done.exit_code == (3 if words[0] == "show" else 2)
    assert sentence in done.stderr
    assert "hunter2" not in done.stderr
    assert len(done.stderr.splitlines()) <= 3
    assert done.stderr.count("See `") <= 1
    assert stub.requests == []


def test_a_lost_answer_is_asked_for_again_with_the_same_key(stub: Stub) -> None:
    whole = Answer(job_record(), 201)
    stub.on("POST /v1/jobs", Answer(job_record(), 201, cut=True), whole)
    assert stub.run("submit", "--", "true").exit_code == 0
    first, second = stub.requests
    assert first.spec.idempotency_key == second.spec.idempotency_key


# ---- endings
@pytest.mark.parametrize(
    ("status", "code", "ending"),
    [(422, "validation_error", 2), (404, "not_found", 3), (409, "conflict", 4), (401, "unauthorized", 5),
     (403, "forbidden", 5), (413, "too_large", 2), (500, "error", 1)],
)  # fmt: skip
def test_problems_become_exit_codes(stub: Stub, status: int, code: str, ending: int) -> None:
    problem = {"status": status, "code": code, "detail": "what happened; what to do", "title": "T"}
    stub.on(f"GET /v1/jobs/{JOB}", Answer(problem, status, kind="application/problem+json"))
    done = stub.run("show", JOB)
    assert (done.exit_code, done.stdout) == (ending, "")
    assert done.stderr.startswith("holdfast: what happened; what to do")
    as_json = stub.run("show", JOB, "--json")
    assert json.loads(as_json.stderr)["code"] == code
    assert (as_json.exit_code, as_json.stdout) == (ending, "")


def test_nobody_there_is_six_and_says_where_it_looked() -> None:
    with socket.socket() as taken:  # bound and never listening: the port refuses
        taken.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{taken.getsockname()[1]}"
        stub = Stub(url=url)
        done = stub.run("jobs")
    assert done.exit_code == 6
    assert url in done.stderr
    assert "holdfast up" in done.stderr


def test_no_controller_known(tmp_path: Path) -> None:
    env = {
        **clean_environment(),
        "HOLDFAST_URL": None,
        "HOLDFAST_TOKEN": None,
        "XDG_CONFIG_HOME": str(tmp_path),
    }
    environ = {k: v for k, v in {**os.environ, **env}.items() if v is not None}
    done = subprocess.run(
        [sys.executable, "-P", "-m", "holdfast.cli", "jobs"],
        cwd=tmp_path,
        env=environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 6
    assert "no controller found" in done.stderr


# ---- run
def test_run_streams_bytes_and_exits_with_the_code(stub: Stub) -> None:
    raw = bytes(range(256))
    follow(
        stub,
        events(
            ("state", job_record()),
            ("log", line(raw)),
            ("log", line(b"err\n", stream="stderr")),
            ended(),
        ),
    )
    done = stub.run("run", "--", "true")
    assert done.exit_code == 0
    assert done.stdout_bytes == raw
    assert done.stderr_bytes == b"err\n"


@pytest.mark.parametrize(
    ("fields", "code"),
    [({"state": "failed", "exit_code": 3}, 3), ({"state": "failed", "exit_code": 76}, 76),
     ({"state": "failed", "exit_code": 137}, 137), ({"state": "failed", "exit_code": None}, 1),
     ({"state": "failed", "exit_code": 0}, 1), ({"state": "cancelled", "exit_code": None}, 1)],
)  # fmt: skip
def test_run_exit_codes(stub: Stub, fields: dict[str, object], code: int) -> None:
    follow(stub, events(ended(**fields)))
    done = stub.run("run", "--", "x")
    assert done.exit_code == code
    assert f"holdfast show {JOB}" in done.stderr


def test_run_goes_on_after_a_lost_connection(stub: Stub) -> None:
    follow(
        stub, events(("log", line(b"one "))), events(("log", line(b"one two")), ended()), cut=True
    )
    done = stub.run("run", "--", "x")
    assert (done.exit_code, done.stdout) == (0, "one two")


def test_run_tells_of_a_requeue(stub: Stub) -> None:
    follow(
        stub,
        events(
            ("state", job_record()),
            ("state", job_record(state="waiting", reason="stalled for 120 s")),
            ("state", job_record(state="queued", reason="its back-off is over")),
            ("state", job_record(attempts=2)),
            ended(attempts=2),
        ),
    )
    done = stub.run("run", "--", "x")
    assert "requeued after attempt 1: stalled for 120 s" in done.stderr
    assert done.stderr.count("requeued") == 1
    assert "attempt 2 is running" in done.stderr


def test_a_start_that_failed_is_told_once(stub: Stub) -> None:
    """Nothing runs that could be stopped."""
    reason = "it could not be started: no such program: 'x'"
    draining = {"state": "draining", "drain_cause": "validation_error", "drain_reason": reason}
    failed = ended(state="failed", cause="validation_error", reason=reason, exit_code=127)
    follow(stub, events(("state", job_record(**draining)), failed))
    done = stub.run("run", "--", "x")
    assert done.stderr.count(reason) == 1
    assert "is being stopped" not in done.stderr


@pytest.mark.parametrize("state", ["running", "succeeded"])
def test_run_tells_of_requeues_that_were_over_before_it_looked(stub: Stub, state: str) -> None:
    ended_attempt = {"job_id": JOB, "parent": None, "epoch": 1, "state": "ended"}
    reasons = ("exit code 1; retry 1 of 3 in 0 s", "stalled for 120 s", "")
    attempts = [
        {**ended_attempt, "number": n, "reason": reason, "reserved_at": "2026-01-01T00:00:00Z"}
        for n, reason in enumerate(reasons, 1)
    ]
    follow(stub, events(("state", job_record(state=state, attempts=3)), ended(attempts=3)))
    stub.on(f"GET /v1/jobs/{JOB}/attempts", Answer({"items": attempts, "next": None}))
    done = stub.run("run", "--", "x")
    told = [text for text in done.stderr.splitlines() if "requeued" in text]
    assert told == [
        "holdfast: requeued after attempt 1: exit code 1; retry 1 of 3 in 0 s",
        "holdfast: requeued after attempt 2: stalled for 120 s",
    ]


def test_output_that_was_kept_nowhere_is_counted_and_fails_a_run_into_a_file(stub: Stub) -> None:
    lines = [line(b"a"), line(b"b", offset=8, gap=7), line(b"c", offset=20, gap=11)]
    follow(stub, events(*(("log", one) for one in lines), ended()))
    done = stub.run("run", "--", "x")
    assert done.stdout == "abc"
    assert "18 bytes of stdout are missing" in done.stderr
    assert done.exit_code == 1
    assert any("full=1" in request.path for request in stub.requests)


@pytest.mark.parametrize(
    ("flags", "code", "said"),
    [(("-f",), 9, True), (("-f", "--json"), 9, False), (("-f", "--attempt", "1"), 0, False)],
)
def test_a_followed_log_says_how_its_job_ended_and_exits_as_it_did(
    stub: Stub, flags: tuple[str, ...], code: int, said: bool
) -> None:
    failed = {"state": "failed", "reason": "exit code 9", "exit_code": 9}
    follow(stub, events(("log", line(b"a")), ended(**failed)))
    stub.on(f"GET /v1/jobs/{JOB}", Answer(job_record(state="running")))
    done = stub.run("logs", JOB, *flags)
    assert (done.exit_code, "exit code 9" in done.stderr) == (code, said)


def test_run_detached_prints_the_id(stub: Stub) -> None:
    follow(stub)
    done = stub.run("run", "--detach", "--", "x")
    assert (done.exit_code, done.stdout.strip()) == (0, JOB)


# ---- lists
def test_json_lists_hold_what_scripts_read(stub: Stub) -> None:
    stub.on(
        "GET /v1/jobs",
        Answer({"items": [job_record()], "next": "c1"}),
        Answer({"items": [job_record()], "next": None}),
    )
    jobs = json.loads(stub.run("jobs", "--all", "--json").stdout)
    assert [j["id"] for j in jobs] == [JOB, JOB]
    assert any("cursor=c1" in request.path for request in stub.requests)
    attempt = {
        "job_id": JOB,
        "number": 1,
        "parent": None,
        "epoch": 1,
        "state": "ended",
        "outcome": "failed",
        "cause": "stalled",
        "exit_code": 76,
        "reason": "r",
        "host": "h",
        "reserved_at": "2026-01-01T00:00:00Z",
    }
    stub.on(f"GET /v1/jobs/{JOB}/attempts", Answer({"items": [attempt], "next": None}))
    (found,) = json.loads(stub.run("attempts", JOB, "--json").stdout)
    wanted = {
        "number",
        "outcome",
        "cause",
        "exit_code",
        "host",
        "epoch",
        "reason",
        "started_at",
        "ended_at",
    }
    assert wanted <= found.keys()


@pytest.mark.usefixtures("eighty_columns")
def test_tables_fit_eighty_columns_and_keep_ids_whole(stub: Stub) -> None:
    long = job_record(
        name="n" * 120, reason="because " * 40, queue="ingest-fetch", state="cancelled"
    )
    stub.on("GET /v1/jobs", Answer({"items": [long], "next": None}))
    done = stub.run("jobs")
    assert JOB in done.stdout
    assert max(map(len, done.stdout.splitlines())) <= 80
    assert "\x1b" not in done.stdout


def test_cancel_goes_on_after_a_refusal(stub: Stub) -> None:
    other = "16ch2v8wq1m4kz7d9x3t"
    refused = NotFound(f"{JOB}: there is no such job")
    stub.on("POST /v1/jobs/cancel", outcomes(refused, job_record(id=other, state="cancelled")))
    done = stub.run("cancel", JOB, other)
    assert done.exit_code == 3
    assert other in done.stdout


@pytest.mark.parametrize(
    ("words", "sent"),
    [
        (["max_retries", "2"], {"max_retries": 2}),
        (["max_retries=2"], {"max_retries": 2}),
        (["max_retries=2", "watchdog_cap=5"], {"max_retries": 2, "watchdog_cap": 5}),
    ],
)
def test_settings_are_set_as_elsewhere(
    stub: Stub, words: list[str], sent: dict[str, object]
) -> None:
    """As `queues set` and `projects set` take them, and as two words."""
    stub.run("config", "set", *words, "--project", "vision")
    told = json.loads(stub.requests[0].body)
    assert told == {"set": sent, "unset": []}


def test_config_set_checks_before_it_sends(stub: Stub) -> None:
    assert stub.run("config", "set", "watchdog_cap", "many").exit_code == 2
    assert stub.run("config", "set", "no_such", "1").exit_code == 2
    assert stub.requests == []


# ---- help
@pytest.mark.parametrize("name", list(COMMANDS))
def test_every_command_teaches_by_example(stub: Stub, name: str) -> None:
    command = cli.get_command(None, name)  # type: ignore[arg-type]  # plain words stand for the typed value in a test
    assert command is not None
    for words, one in [
        ([name], command),
        *(([name, n], c) for n, c in getattr(command, "commands", {}).items()),
    ]:
        done = stub.run(*words, "--help")
        assert done.exit_code == 0
        assert "Example" in done.stdout, words
        assert one.help


def test_help_imports_neither_the_http_library_nor_the_server() -> None:
    code = (
        "import sys; sys.argv = ['holdfast', '--help']\n"
        "from holdfast.cli.main import main\n"
        "try: main()\nexcept SystemExit: pass\n"
        "print(sorted({'httpx', 'rich', 'psycopg', 'fastapi', 'msgspec', 'yaml', 'asyncio'} & "
        "set(sys.modules)), file=sys.stderr)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stderr.strip() == "[]"


def test_a_client_imports_no_other_http_library_and_no_patterns_of_logs() -> None:
    code = (
        "import sys, holdfast.client.synchronous, holdfast.cli.jobs.show\n"
        "print(sorted({'httpx', 'http.client', 'ssl', 'asyncio', "
        "'holdfast.core.endings.patterns'} & set(sys.modules)))\n"
        "import holdfast.client.asynchronous; print('httpx' in sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.splitlines() == ["[]", "False"]


def test_beat_sends_one_datagram_and_never_fails(tmp_path: Path) -> None:
    path = str(tmp_path / "s")
    stub = Stub(url="http://127.0.0.1:9")
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as beats:
        beats.bind(path)
        env = {"HOLDFAST_BEAT_SOCKET": path, "HOLDFAST_TASK": f"{JOB}:0:1"}
        assert stub.run("beat", "3", "10", env=env).exit_code == 0
        assert msgspec.json.decode(beats.recv(4096)) == {
            "task": f"{JOB}:0:1",
            "step": 3,
            "total": 10,
        }
    assert stub.run("beat", "4", env=env).exit_code == 0
    assert stub.run("beat", env={"HOLDFAST_BEAT_SOCKET": None}).exit_code == 0


def test_the_reference_names_every_command_and_option() -> None:
    text = (Path(__file__).parents[3] / "docs" / "reference" / "cli.md").read_text()
    missing = []
    for name in COMMANDS:
        command = cli.get_command(None, name)  # type: ignore[arg-type]  # plain words stand for the typed value in a test
        assert command is not None
        every = [command, *getattr(command, "commands", {}).values()]
        words = [name, *getattr(command, "commands", {})]
        words += [
            option
            for one in every
            for p in one.params
            for option in p.opts
            if option.startswith("--")
        ]
        missing += [f"{name}: {word}" for word in words if word not in text]
    assert missing == []


# ---- the standard input of a job


def test_input_that_no_job_would_read_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "words"
    path.write_text("hi")
    code = "from holdfast.cli.jobs.submit import check_piped_input as check; check(None)"
    words = [sys.executable, "-c", code]
    for given in (path.open(), subprocess.Popen(["echo", "hi"], stdout=subprocess.PIPE).stdout):
        wait_until(partial(has_piped_input, given.fileno()))
        done = run_patiently(words, seconds=20, stdin=given, capture_output=True, text=True)
        assert "--stdin - gives it to the job" in done.stderr
        given.close()
    assert run_patiently(words, seconds=20, stdin=subprocess.DEVNULL).returncode == 0


def test_an_input_is_kept_before_its_job_is_submitted(stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "words").write_text("hi")
    name = hashlib.sha256(b"hi").hexdigest()
    follow(stub)
    stub.on(f"PUT /v1/values/{name}", Answer(b"", status=204))
    done = stub.run("run", "--detach", "--stdin", str(tmp_path / "words"), "--", "cat")
    assert done.exit_code == 0, done.stderr
    sent = next(r for r in stub.requests if r.method == "POST" and r.path == "/v1/jobs")
    assert json.loads(sent.body)["stdin"] == name


def test_an_input_that_is_too_large_or_not_there_is_refused(
    stub: Stub, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(submit, "MAX_STDIN_BYTES", 1 << 20)
    (tmp_path / "large").write_bytes(bytes((1 << 20) + 1))
    follow(stub)
    for path, said in ((tmp_path / "large", "more than 1 MiB"), (tmp_path / "no", "No such file")):
        done = stub.run("submit", "--stdin", str(path), "--", "cat")
        assert (done.exit_code, said in done.stderr) == (2, True)
