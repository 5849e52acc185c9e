"""The program without a command, its completion, and words that must be one of a few."""

from __future__ import annotations

import os
import subprocess
import sys

import pytest

from tests.unit.cli.stub import Answer, Stub, job_record
from tests.waits import run_patiently


def test_the_bare_program_shows_its_help(stub: Stub) -> None:
    done = stub.run()
    assert done.exit_code == 0
    assert done.stdout == stub.run("--help").stdout


@pytest.mark.parametrize("group", ["workflow", "db", "checkpoints"])
def test_a_group_by_itself_shows_its_help(stub: Stub, group: str) -> None:
    done = stub.run(group)
    assert (done.exit_code, done.stderr) == (0, "")
    assert done.stdout.rstrip() == stub.run(group, "--help").stdout.rstrip()
    assert stub.run(group, "--json").exit_code == 2


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_completion_prints_a_script(stub: Stub, shell: str) -> None:
    done = stub.run("completion", shell)
    assert done.exit_code == 0, done.stderr
    assert f"_HOLDFAST_COMPLETE={shell}_complete" in done.stdout
    assert stub.requests == []


def test_the_script_completes_commands() -> None:
    env = {
        **os.environ,
        "_HOLDFAST_COMPLETE": "bash_complete",
        "COMP_WORDS": "holdfast che",
        "COMP_CWORD": "1",
    }
    code = "from holdfast.cli.main import main; main()"
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, env=env, capture_output=True, text=True, check=False)
    assert done.stdout.split() == ["plain,checkpoints", "plain,checkpoint"], done.stderr


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        (["jobs", "--state", "done"], "'succeeded'"),
        (["completion", "tcsh"], "'fish'"),
        (["token", "create", "--role", "root"], "'admin'"),
        (["retry", "--state", "running"], "'cancelled'"),
    ],
)
def test_a_wrong_word_is_answered_with_the_right_ones(
    stub: Stub, words: list[str], allowed: str
) -> None:
    done = stub.run(*words)
    assert done.exit_code == 2
    assert allowed in done.stderr


PROGRAM = [sys.executable, "-m", "holdfast"]


def test_colours_of_a_job_stay_out_of_a_pipe(stub: Stub) -> None:
    stub.on("GET /v1/jobs", Answer({"items": [job_record(name="\x1b[31mred")], "next": None}))
    line = [*PROGRAM, "jobs", "--url", stub.url]
    done = run_patiently(line, capture_output=True, text=True, seconds=60)
    assert " red " in done.stdout
    assert "\x1b" not in done.stdout


def test_a_reader_that_is_gone_ends_a_command_without_a_word(stub: Stub) -> None:
    stub.on("GET /v1/jobs", Answer({"items": [job_record()], "next": None}))
    read, write = os.pipe()
    os.close(read)
    line = [*PROGRAM, "jobs", "--url", stub.url]
    done = run_patiently(line, stdout=write, stderr=subprocess.PIPE, text=True, seconds=60)
    os.close(write)
    assert (done.returncode, done.stderr) == (141, "")
