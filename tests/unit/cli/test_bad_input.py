"""Bad input is refused in one plain sentence, with a documented code and without a traceback, and
nothing is sent."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.unit.cli.stub import JOB, Answer, Stub, job_record
from tests.waits import run_patiently

HUGE = "9" * 400
NOT_UTF8 = os.fsdecode(b"\xff")


def refused(stub: Stub, words: tuple[str, ...], code: int = 2, **how: object) -> str:
    """Run it, plainly and with --json; the plain sentence."""
    at = words.index("--") if "--" in words else len(words)
    as_json = stub.run(*words[:at], "--json", *words[at:], **how)  # type: ignore[arg-type]  # run's own keywords
    assert json.loads(as_json.stderr)["detail"], as_json.stderr
    assert (as_json.exit_code, as_json.stdout) == (code, "")
    done = stub.run(*words, **how)  # type: ignore[arg-type]  # run's own keywords
    assert (done.exit_code, done.stdout) == (code, ""), done.output
    assert done.stderr.startswith("holdfast: ")
    assert len(done.stderr.splitlines()) <= 2
    assert stub.requests == []
    return done.stderr


@pytest.mark.parametrize(
    "words",
    [
        ("--memory", HUGE), ("--memory", f"{HUGE}T"), ("--no-progress-limit", "²"), ("--no-progress-limit", HUGE), ("--time-limit", HUGE),
        ("--grace", f"{HUGE}d"), ("--start-at", f"+{HUGE}"), ("--start-at", HUGE), ("--name", NOT_UTF8), ("--label", f"a={NOT_UTF8}"),
        ("--host-label", f"a={NOT_UTF8}"), ("--cwd", f"/{NOT_UTF8}"), ("--queue", NOT_UTF8), ("--env", f"A={NOT_UTF8}"),
    ],
)  # fmt: skip
def test_a_job_with_a_value_that_is_none(stub: Stub, words: tuple[str, str]) -> None:
    refused(stub, ("submit", *words, "--", "true"))


@pytest.mark.parametrize(
    "text",
    [
        "cwd = 7",
        "start_at = 0001-01-01T00:00:00",
        "no_progress_limit = '²'",
        "memory = '" + HUGE + "'",
        "a = " + "[" * 5000,
    ],
)
def test_a_file_with_a_value_that_is_none(stub: Stub, tmp_path: Path, text: str) -> None:
    (tmp_path / "job.toml").write_text(f"argv = ['true']\n{text}\n")
    refused(stub, ("submit", "--file", str(tmp_path / "job.toml")))


def test_a_yaml_file_that_is_nested_too_deeply(stub: Stub, tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("[" * 5000)
    refused(stub, ("submit", "--file", str(tmp_path / "job.yaml")))


@pytest.mark.parametrize(
    "words",
    [
        ("show", NOT_UTF8), ("jobs", "--name", NOT_UTF8), ("queues", "pause", "q", "--reason", NOT_UTF8),
        ("hosts", "drain", "h", "--reason", NOT_UTF8), ("token", "create", "--role", "read", "--name", NOT_UTF8),
        ("token", "create", "--role", "read", "--expires", HUGE), ("hosts", "drain", "h", "--deadline", HUGE),
    ],
)  # fmt: skip
def test_words_that_cannot_be_sent(stub: Stub, words: tuple[str, ...]) -> None:
    refused(stub, words)


@pytest.mark.parametrize(
    "url",
    ["http://[::1", "http://127.0.0.1:99999", "http://127.0.0.1:x", "http://127.0.0.1:0", "http://a b/", f"http://{'x' * 70}.example", "http://a\n.b/"],
)  # fmt: skip
def test_an_address_that_is_none(stub: Stub, url: str) -> None:
    assert "is not a URL like" in refused(stub, ("jobs", "--url", url))
    assert "HOLDFAST_URL" in refused(stub, ("jobs",), env={"HOLDFAST_URL": url})


@pytest.mark.parametrize("token", ["ü", "two words", "two\nlines", "\x1b[31m"])
def test_a_token_that_is_none_is_no_authority_and_is_not_repeated(stub: Stub, token: str) -> None:
    said = refused(stub, ("jobs",), 5, env={"HOLDFAST_TOKEN": token})
    assert token not in said


@pytest.mark.parametrize(("data", "what"), [(b"\xff\xfe", "no text"), (b" \n", "empty")])
def test_a_token_file_that_holds_none(stub: Stub, tmp_path: Path, data: bytes, what: str) -> None:
    (tmp_path / "token").write_bytes(data)
    assert what in refused(stub, ("jobs", "--token-file", str(tmp_path / "token")))


@pytest.mark.parametrize(
    "command",
    [("agent", "--join", "http://127.0.0.1:1"), ("up",), ("host-manager", "tcp://127.0.0.1:1")],
)
@pytest.mark.parametrize("count", ["²", "-1", "1025", HUGE, "many", ""])
def test_gpus_are_counted_in_plain_numbers(
    stub: Stub, tmp_path: Path, command: tuple[str, ...], count: str
) -> None:
    done = stub.run(*command, "--gpus", count)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert "--gpus is auto or a number" in done.stderr


@pytest.mark.parametrize(
    ("words", "sentence"),
    [(("--name", "a b"), "'a b' is not a name"), (("--queues", "gpu,a b"), "'a b' is not a name"), (("--name", ""), "is not a name"),
     (("--blobs", "ftp://x"), "neither a folder nor s3://")],
)  # fmt: skip
def test_up_refuses_before_anything_is_started(
    stub: Stub, tmp_path: Path, words: tuple[str, ...], sentence: str
) -> None:
    done = stub.run("up", "--data", str(tmp_path / "data"), "--port", "0", *words)
    assert (done.exit_code, done.stdout) == (2, ""), done.output
    assert sentence in done.stderr
    assert not (tmp_path / "data").exists()


def test_a_limit_of_any_size_is_a_limit(stub: Stub) -> None:
    stub.on("GET /v1/jobs", Answer({"items": [job_record()], "next": None}))
    assert JOB in stub.run("jobs", "--limit", HUGE[:30]).stdout


# ---- what others wrote
def test_what_others_wrote_does_not_command_the_terminal(stub: Stub) -> None:
    job = job_record(state="failed", reason="\x1b]0;title\x07\x1b[2J\x9b31m gone", name="a\u202eb")
    stub.on("GET /v1/jobs", Answer({"items": [job], "next": None}))
    stub.on("POST /v1/jobs/" + JOB + "/cancel", Answer(job))
    for words in (("jobs",), ("cancel", JOB)):
        said = stub.run(*words, color=True)
        assert said.exit_code == 0, said.output
        assert not {"\x1b", "\x07", "\x9b", "\u202e"} & set(said.stdout), ascii(said.stdout)
        assert "gone" in said.stdout


def test_wide_characters_take_two_columns(stub: Stub) -> None:
    from holdfast.cli.output import count_columns, table

    text = table(
        ("ID", "NAME", "REASON"), [("1", "訓練" * 20, "x"), ("2", "e\u0301", "y" * 90)], width=60
    )
    assert max(count_columns(line) for line in text.splitlines()) <= 60
    assert (
        len(
            {
                count_columns(line[: line.index(word)])
                for line, word in zip(text.splitlines(), ("REASON", "x", "yyy"), strict=True)
            }
        )
        == 1
    )


# ---- streams
def run_plain(*words: str, shell: str) -> subprocess.CompletedProcess[bytes]:
    """`holdfast WORDS` under a shell's redirections."""
    line = " ".join([sys.executable, "-P", "-m", "holdfast", *words, shell])
    return run_patiently(["sh", "-c", line], capture_output=True, seconds=60)


@pytest.mark.parametrize("shell", [">&-", "<&-", ">&- 2>&-", "<&- >&- 2>&-", "2>&-"])
def test_closed_streams_are_no_failure(stub: Stub, shell: str) -> None:
    stub.on("GET /v1/jobs", Answer({"items": [job_record()], "next": None}))
    assert run_plain("version", shell=shell).returncode == 0
    done = run_plain("jobs", "--url", stub.url, shell=shell)
    assert (done.returncode, done.stderr) == (0, b"")


def test_a_full_disk_is_one_sentence() -> None:
    done = run_plain("version", shell=">/dev/full")
    assert (done.returncode, done.stderr) == (1, b"holdfast: No space left on device\n")


def test_a_reader_that_has_enough_is_no_failure_to_talk_about() -> None:
    done = run_plain("--help", shell="| true; sleep 0.1")
    assert done.stderr == b""


def test_a_terminal_without_unicode_gets_marks_instead_of_a_traceback(stub: Stub) -> None:
    stub.on(
        "GET /v1/jobs", Answer({"items": [job_record(name="訓練", reason="…" * 90)], "next": None})
    )
    line = [sys.executable, "-P", "-m", "holdfast", "jobs", "--url", stub.url]
    done = subprocess.run(
        line, capture_output=True, env={**os.environ, "PYTHONIOENCODING": "ascii"}, check=False
    )
    assert (done.returncode, done.stderr) == (0, b"")
    assert JOB.encode() in done.stdout


def test_an_interrupt_while_it_is_loaded_shows_no_traceback(tmp_path: Path) -> None:
    (tmp_path / "msgspec.py").write_text(
        "import os, signal, time\n"
        "signal.signal(signal.SIGINT, signal.default_int_handler)  # what a shell starts in the "
        "background ignores it\n"
        "os.kill(os.getpid(), signal.SIGINT)\n"
        "time.sleep(60)\n"
    )
    line = [sys.executable, "-P", "-m", "holdfast", "jobs"]
    done = run_patiently(
        line, capture_output=True, env={**os.environ, "PYTHONPATH": str(tmp_path)}, seconds=60
    )
    assert (done.returncode, done.stderr.strip()) == (130, b"")
