"""Which hosts the health-checked start takes, by what each of them says to its check."""

from __future__ import annotations

import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

from holdfast.supervisor import UnfitHosts
from holdfast.supervisor.policy.selection import Selection
from tests.system.supervisor.policies.rig import POLICIES, run_policy

SCRIPT = POLICIES / "health_checked_start.py"
# The n-th host to be checked does the n-th thing of the list, and writes down under which warden it
# did it.
CHECK = """
import os, sys, time
folder, plan = sys.argv[1], sys.argv[2].split(",")
import msgspec
from holdfast.supervisor import get_message_queue
from holdfast.supervisor.policy.measures import measure_host
number = 0
while True:
    try:
        os.close(os.open(f"{folder}/checked{number}", os.O_CREAT | os.O_EXCL))
        break
    except FileExistsError:
        number += 1
word = plan[min(number, len(plan) - 1)]
with open(f"{folder}/{word}", "a") as file: file.write(f"{os.getppid()}\\n")
if word == "hang": time.sleep(6000)
if word == "crash": sys.exit(3)
report = msgspec.to_builtins(measure_host())
report["devices"] = [] if word == "no gpus" else [{"index": 0}]
report["matmul_seconds"] = {"slow": 4.0, "fast": 1.0}.get(word, report["matmul_seconds"])
get_message_queue().send(report)
"""
TRAIN = "import os, sys; open(sys.argv[1] + '/trained', 'a').write(f'{os.getppid()}\\n')"


def start(folder: Path, plan: str, *words: str) -> tuple[int, str]:
    check = shlex.join([sys.executable, "-c", CHECK, str(folder), plan])
    train = [sys.executable, "-c", TRAIN, str(folder)]
    return run_policy(
        SCRIPT.name, folder, "--local", "--gpus", "1", "--check", check, *words, "--", *train
    )


def wardens(folder: Path, word: str) -> set[str]:
    file = folder / word
    return set(file.read_text().split()) if file.exists() else set()


@pytest.mark.slow
def test_sick_hosts_are_replaced_and_a_hung_one_is_not_waited_for(tmp_path: Path) -> None:
    code, words = start(
        tmp_path, "hang,crash,no gpus,good", "--hosts", "2", "--spares", "1", "--settle", "0.1"
    )
    assert code == 0, words
    assert len(wardens(tmp_path, "trained")) == 2, words
    assert wardens(tmp_path, "trained") <= wardens(tmp_path, "good"), words
    assert "2 hosts chosen, 2 replaced, 1 not waited for" in words
    assert "ProcessEnded" in words
    assert "0 of 1 GPUs" in words


@pytest.mark.slow
def test_the_best_are_taken(tmp_path: Path) -> None:
    code, words = start(tmp_path, "slow,fast", "--hosts", "2", "--spares", "1", "--settle", "60")
    assert code == 0, words
    assert wardens(tmp_path, "trained") == wardens(tmp_path, "fast"), words


@pytest.mark.slow
def test_a_host_that_never_answers_is_replaced_when_it_is_needed(tmp_path: Path) -> None:
    code, words = start(
        tmp_path, "hang,good", "--hosts", "2", "--spares", "0", "--check-seconds", "8"
    )
    assert code == 0, words
    assert "no answer in 8 s" in words
    assert not wardens(tmp_path, "trained") & wardens(tmp_path, "hang")


@pytest.mark.slow
def test_it_gives_up_where_all_are_sick(tmp_path: Path) -> None:
    code, words = start(tmp_path, "crash", "--hosts", "1", "--spares", "0", "--max-replaced", "1")
    assert code == 1
    assert "given up: 2 hosts failed the health check" in words
    assert not wardens(tmp_path, "trained")


class Given:
    """What a selection asked of its context."""

    def __init__(self) -> None:
        self.returned: list[Any] = []

    def return_hosts(self, hosts: list[Any], error: str) -> None:
        self.returned += [(host, error) for host in hosts]


def test_a_sick_host_that_nobody_needs_is_not_replaced() -> None:
    ctx: Any = Given()
    chosen = Selection(ctx, 1, max_replaced=0)
    host: Any = "late"
    chosen.scores = {host: 1.0}
    sick: Any = "sick"
    chosen.replace(sick, "no GPUs")
    assert ctx.returned == [("sick", "health check: no GPUs")]
    assert chosen.replaced == 0
    chosen.scores = {}
    with pytest.raises(UnfitHosts, match="the last, sick, with no GPUs"):
        chosen.replace(sick, "no GPUs")
