"""What `submit` and `run` say of a gang, as flags, in a file and in the SDK, down to the bytes that
are sent."""

from __future__ import annotations

from pathlib import Path

import pytest

from holdfast.client import Client
from tests.unit.cli.stub import Stub, sent

FLAGS = [
    *"--tasks 4 --placement spread --host-label gpu=h100 --host-label rack=7".split(),
    *"--on-partial restart --preemptible --start-timeout 10m".split(),
    *"--recovery-timeout 90s --min-runtime 30m --notice 2m".split(),
]
SENT = {
    "tasks": 4,
    "placement": "spread",
    "host_labels": {"gpu": "h100", "rack": "7"},
    "on_partial": "restart",
    "preemptible": True,
    "start_timeout_seconds": 600.0,
    "recovery_timeout_seconds": 90.0,
    "preempt_min_run_seconds": 1800.0,
    "notice_seconds": 120.0,
}


@pytest.mark.parametrize("command", [["submit"], ["run", "--detach"]])
def test_every_flag_of_a_gang_reaches_the_wire(accepting: Stub, command: list[str]) -> None:
    done = accepting.run(*command, *FLAGS, "--", "x")
    assert done.exit_code == 0, done.stderr
    assert {name: sent(accepting)[name] for name in SENT} == SENT


def test_what_no_flag_says_is_not_sent(accepting: Stub) -> None:
    assert accepting.run("submit", "--", "x").exit_code == 0
    assert not SENT.keys() & sent(accepting).keys()


def test_a_file_says_the_same_and_flags_win(accepting: Stub, tmp_path: Path) -> None:
    job = tmp_path / "job.toml"
    job.write_text(
        'argv = ["x"]\ntasks = 8\nplacement = "pack"\non_partial = "restart"\npreemptible = true\n'
        'start_timeout = "5m"\nrecovery_timeout_seconds = 60\n[host_labels]\ngpu = "a100"\nrack = '
        "7\n"
    )
    assert accepting.run("submit", "--file", str(job)).exit_code == 0
    assert sent(accepting)["start_timeout_seconds"] == 300.0
    assert sent(accepting)["host_labels"] == {"gpu": "a100", "rack": "7"}
    done = accepting.run(
        "submit",
        "--file",
        str(job),
        *"--tasks 2 --placement spread --not-preemptible --host-label gpu=h100".split(),
        *"--recovery-timeout 2m".split(),
    )
    assert done.exit_code == 0, done.stderr
    found = accepting.requests[-1].spec
    assert (found.tasks, found.placement, found.preemptible, found.on_partial) == (
        2,
        "spread",
        False,
        "restart",
    )
    assert (found.host_labels, found.recovery_timeout_seconds) == (
        {"gpu": "h100", "rack": "7"},
        120.0,
    )


def test_the_sdk_takes_the_same_words(accepting: Stub) -> None:
    with Client(accepting.url, "secret") as client:
        client.submit(
            argv=["x"],
            tasks=4,
            placement="spread",
            host_labels={"gpu": "h100", "rack": 7},
            on_partial="restart",
            preemptible=True,
            start_timeout="10m",
            recovery_timeout="90s",
            min_runtime="30m",
            notice=120,
        )
    assert {name: sent(accepting)[name] for name in SENT} == SENT


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--tasks", "0"], "tasks"),
        (["--tasks", "65537"], "tasks"),
        (["--placement", "random"], "'random' is not one of 'pack', 'spread'"),
        (["--on-partial", "ignore"], "'ignore' is not one of"),
        (["--host-label", "h100"], "--host-label 'h100' is not K=V"),
        (["--start-timeout", "soon"], "start_timeout: 'soon' is not a duration"),
        (["--start-timeout", "0"], "start_timeout"),
        (["--recovery-timeout", "off"], "recovery_timeout"),
    ],
)
def test_mistakes_are_refused_by_name_before_anything_is_sent(
    stub: Stub, words: list[str], sentence: str
) -> None:
    done = stub.run("submit", *words, "--", "x")
    assert (done.exit_code, stub.requests) == (2, [])
    assert sentence in done.stderr
