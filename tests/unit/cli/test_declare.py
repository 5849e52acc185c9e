"""Words that are read without click mean what click makes of them, and all others are click's."""

from __future__ import annotations

import subprocess
import sys
from functools import cache
from typing import Any

import click
import pytest
from hypothesis import given
from hypothesis import strategies as st

from holdfast.cli import declare
from holdfast.cli.commands import COMMANDS, load_command
from holdfast.cli.declare import Command
from tests.unit.cli.stub import JOB, Answer, Stub, job_record
from tests.waits import run_patiently

VALUES = ["", "-", "--", "0", "1", "7", "-3", "2.5", "x", "a=b", "running", "both", "pack", JOB]


@cache
def list_plain() -> list[str]:
    """The commands that one job's id is enough for. Not listed while tests are collected, because
    every worker would load every command."""
    found = {name: load_command(name) for name in COMMANDS}
    return [name for name, command in found.items() if command and command.read([JOB]) is not None]


def read_by_click(command: Command, words: list[str]) -> dict[str, Any] | None:
    """What click makes of the words; None where it refuses them, or shows the help."""
    try:
        context = command.click.make_context("holdfast", list(words))
    except (click.ClickException, click.exceptions.Exit):
        return None
    return context.params


@st.composite
def lines_of(draw: st.DrawFn) -> tuple[str, list[str]]:
    """A command and words that it may or may not know."""
    name = draw(
        st.sampled_from([*list_plain(), "cancel", "retry", "submit", "run", "beat", "version"])
    )
    command = load_command(name)
    assert command is not None
    flags = [flag for p in command.click.params for flag in (*p.opts, *p.secondary_opts)]
    flag = st.sampled_from([*(f for f in flags if f.startswith("-")), "--help", "-h", "--no-such"])
    value = st.sampled_from(VALUES)
    word = st.one_of(flag, value, st.builds("{}={}".format, flag, value), st.text(max_size=3))
    pair = st.tuples(flag, value)
    drawn = draw(st.lists(st.one_of(word.map(lambda w: (w,)), pair), max_size=6))
    return name, [word for words in drawn for word in words]


@given(lines_of())
def test_words_are_read_as_click_reads_them_or_not_at_all(line: tuple[str, list[str]]) -> None:
    name, words = line
    command = load_command(name)
    assert command is not None
    read = command.read(words)
    assert read is None or read == read_by_click(command, words)


@pytest.mark.parametrize(
    "words",
    [
        ["jobs"],
        ["jobs", "--state", "running", "--state=queued", "--limit", "7", "--all", "--json"],
        ["show", JOB, "--attempt", "2", "--url", "http://127.0.0.1:1"],
        ["why", "--", JOB],
        ["logs", "-f", JOB, "--stream", "stderr", "--tail=10"],
        ["cancel", JOB, JOB, "--reason", "wrong data", "-y"],
        ["retry", JOB, "--from-scratch"],
        ["submit", "--gpus", "1", "--label", "a=b", "--", "python", "train.py", "--json"],
        ["run", "--tasks", "2", "--not-preemptible", "python", "--", "-v"],
        ["version"],
    ],
)
def test_ordinary_words_need_no_click(words: list[str]) -> None:
    command = load_command(words[0])
    assert command is not None
    read = command.read(words[1:])
    assert read is not None
    assert read == read_by_click(command, words[1:])


@pytest.mark.parametrize(
    "words",
    [
        ["jobs", "--help"],
        ["jobs", "--state", "done"],
        ["jobs", "--limit", "0"],
        ["jobs", "--limit", "many"],
        ["jobs", "--limit"],
        ["jobs", "--queue", "--json"],
        ["jobs", "--json=yes"],
        ["jobs", "extra"],
        ["jobs", "--no-such"],
        ["show"],
        ["show", JOB, JOB],
        ["hosts", "ls"],
        ["server"],
    ],
)
def test_other_words_are_clicks(words: list[str]) -> None:
    command = load_command(words[0])
    assert command is not None
    assert command.read(words[1:]) is None


def test_a_parameter_of_another_kind_leaves_its_command_to_click() -> None:
    @declare.command()
    @declare.option("--size", default=3)
    def guessed(size: int) -> None: ...

    @declare.command()
    @declare.option("--dsn", envvar="DSN")
    def surrounded(dsn: str) -> None: ...

    assert guessed.read([]) is None  # click takes the type from the default
    assert surrounded.read([]) is None


def run_program(stub: Stub, *words: str) -> subprocess.CompletedProcess[str]:
    """Run the program itself, whose words need not be click's."""
    where = ("--url", stub.url)
    line = [sys.executable, "-m", "holdfast", *words, *where]
    return run_patiently(line, capture_output=True, text=True, seconds=60)


def test_an_error_reads_the_same_without_click(stub: Stub) -> None:
    stub.on("GET /v1/jobs/" + JOB, Answer(job_record()))
    wrong = ("show", JOB, "--attempt", "1", "--events")
    done, by_click = run_program(stub, *wrong), stub.run(*wrong)
    assert (done.returncode, done.stderr) == (2, by_click.stderr.replace("`cli ", "`holdfast "))
    assert "See `holdfast show --help`." in done.stderr


def test_colours_of_a_job_stay_out_of_a_pipe(stub: Stub) -> None:
    stub.on("GET /v1/jobs", Answer({"items": [job_record(name="\x1b[31mred")], "next": None}))
    done = run_program(stub, "jobs")
    assert " red " in done.stdout
    assert "\x1b" not in done.stdout
