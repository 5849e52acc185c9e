"""raised: which of a log's exceptions ended the program."""

from __future__ import annotations

import pytest

from holdfast.core.endings.classify import classify
from holdfast.core.endings.raised import find_exception, list_raised
from holdfast.core.facts import TaskFacts

TRACE = 'Traceback (most recent call last):\n  File "t.py", line 1, in <module>\n'
TYPO = f"{TRACE}NameError: name 'x' is not defined\n"
ROWS = f"{TRACE}ValueError: no rows\n"
LAUNCHER = f"{TRACE}torch.distributed.elastic.multiprocessing.errors.ChildFailedError: \n"


def of_rank(text: str, rank: int) -> str:
    return "".join(f"[rank{rank}]: {line}\n" for line in text.splitlines())


@pytest.mark.parametrize(
    ("log", "line"),
    [
        (ROWS, "ValueError: no rows"),
        (ROWS + TYPO, "NameError: name 'x' is not defined"),
        (f"{ROWS}Exception ignored in: <function A.__del__>\n{TYPO}", "ValueError: no rows"),
        (f"{ROWS}Exception in thread Thread-1:\n{TYPO}", "ValueError: no rows"),
        (f"2026-11-26 WARNING the plugin is left out\n{TYPO}{ROWS}", "ValueError: no rows"),
        (f"ERROR:root:left out\n{TYPO}", None),
        (of_rank(TYPO, 3) + LAUNCHER, "NameError: name 'x' is not defined"),
        (LAUNCHER, "torch.distributed.elastic.multiprocessing.errors.ChildFailedError:"),
        (
            "╭──── Traceback (most recent call last) ────╮\n│ t.py:1  │\n╰───────╯\nKeyError: 'a'\n",
            "KeyError: 'a'",
        ),
        ("", None),
    ],
)
def test_the_exception_that_ended_a_program(log: str, line: str | None) -> None:
    assert find_exception(log) == line


def test_a_message_of_several_lines_is_kept_whole() -> None:
    text = f"{TRACE}RuntimeError: Error(s) in loading state_dict for Net:\n\tsize mismatch\n\nbye\n"
    assert list_raised(text)[0].block.endswith("Net:\n\tsize mismatch")


PEER = (
    f"{TRACE}torch.distributed.DistBackendError: NCCL error in: x.cpp:1\n"
    "ncclRemoteError: A call failed possibly due to a network error\n"
)


@pytest.mark.parametrize("order", [(TYPO, PEER), (PEER, TYPO)])
def test_a_rank_in_the_same_log_began_the_fall_that_its_neighbours_tell_of(
    order: tuple[str, str],
) -> None:
    log = "".join(of_rank(text, rank) for rank, text in enumerate(order)) + LAUNCHER
    assert classify(TaskFacts(exit_code=1, log_tail=log)).rule == "log-name"


def test_a_rank_that_caught_an_exception_and_lost_a_peer_is_a_victim() -> None:
    log = of_rank(ROWS, 0) + "step 3\n" + of_rank(PEER, 0)
    assert classify(TaskFacts(exit_code=1, log_tail=log)).rule == "log-nccl-peer"


def test_a_plain_exception_of_a_neighbour_stands_before_a_peers_death() -> None:
    log = of_rank(ROWS, 1) + of_rank(PEER, 0) + LAUNCHER
    found = classify(TaskFacts(exit_code=1, log_tail=log))
    assert (found.rule, found.message) == ("rank-raised", "ValueError: no rows (exit code 1)")


def test_a_program_that_lost_a_peer_and_then_raised_is_a_victim() -> None:
    lost = "[W1] [c10d] recvValue failed on SocketImpl(fd=4, remote=[n1]:29500): Connection reset by peer\n"
    assert classify(TaskFacts(exit_code=1, log_tail=lost + ROWS)).rule == "log-store-peer"


# ---- what was printed and survived (LAST-1)

STEPS = "".join(f"step {step} | loss 2.1\n" for step in range(30))
OOM = "torch.OutOfMemoryError: CUDA out of memory. Tried to allocate 2.00 GiB."
XID = "NVRM: Xid (PCI:0000:3b:00): 79, pid=1, GPU has fallen off the bus."
CHAIN = "\nDuring handling of the above exception, another exception occurred:\n\n"
CAUSE = "\nThe above exception was the direct cause of the following exception:\n\n"
SLIP = f"{TRACE}NameError: name 'logger' is not defined\n"


@pytest.mark.parametrize(
    "words",
    [
        OOM,
        f"{TRACE}{OOM}\nretrying with batch 16",
        "cp: error writing '/scratch/a': No space left on device",
        "OSError: [Errno 28] No space left on device",
        "[1.0] Memory cgroup out of memory: Killed process 512 (jupyter) total-vm:9kB",
        "RuntimeError: CUDA error: uncorrectable ECC error encountered",
        XID,
        "OSError: [Errno 5] Input/output error: '/data/1.bin'",
        "slurmstepd: error: *** JOB 9 ON n4 CANCELLED AT 2026-11-26T04:11:09 DUE TO PREEMPTION ***",
        "n1:88:90 [0] NCCL WARN NET/IB : Got async event : port error",
        "ConnectionResetError: [Errno 104] Connection reset by peer",
        "requests.exceptions.HTTPError: 503 Server Error: Service Unavailable",
    ],
)
@pytest.mark.parametrize("end", [ROWS, "no more rows\n", f"[stderr]\n{ROWS}", f"[stderr]\n{SLIP}"])
def test_what_a_program_printed_and_survived_is_not_its_cause(words: str, end: str) -> None:
    """LAST-1."""
    found = classify(TaskFacts(exit_code=1, log_tail=f"{words}\n{STEPS}{end}"))
    assert found.rule == ("log-name" if SLIP in end else "exit-code")


@pytest.mark.parametrize(
    "end", [ROWS, f"halving the batch\n{ROWS}", "falling back to the CPU\nno more rows\n"]
)
def test_a_failure_that_the_program_says_it_outlived_is_not_its_cause(end: str) -> None:
    """LAST-1."""
    assert classify(TaskFacts(exit_code=1, log_tail=f"{OOM}\n{end}")).rule == "exit-code"


@pytest.mark.parametrize(
    ("devices", "rule"),
    [
        (None, "log-xid"),
        (("00000000:3B:00.0",), "log-xid"),
        (("00000000:5D:00.0",), "exit-code"),
        ((), "exit-code"),
    ],
)
def test_an_xid_counts_only_of_a_device_that_the_job_held(
    devices: tuple[str, ...] | None, rule: str
) -> None:
    facts = TaskFacts(exit_code=1, devices=devices, log_tail=f"step 3\n{XID}\n")
    assert classify(facts).rule == rule


def test_words_of_a_device_blame_no_host_of_a_job_without_one() -> None:
    log = f"{TRACE}RuntimeError: CUDA error: unknown error\n"
    assert classify(TaskFacts(exit_code=1, devices=(), log_tail=log)).rule == "exit-code"
    assert classify(TaskFacts(exit_code=1, log_tail=log)).rule == "log-gpu-unknown"


@pytest.mark.parametrize(
    ("said", "rule"),
    [
        (
            "requests.exceptions.HTTPError: 403 Client Error: Forbidden for url: https://x",
            "exit-code",
        ),
        ("google.api_core.exceptions.Forbidden: 403 GET https://x: Forbidden", "exit-code"),
        ("urllib.error.HTTPError: HTTP Error 403: rate limit exceeded", "log-slow-down"),
        (
            "requests.exceptions.HTTPError: 404 Client Error: Not Found for url: https://x",
            "log-refused",
        ),
    ],
)
def test_403_alone_is_no_refusal_for_good(said: str, rule: str) -> None:
    """MISTAKE-2."""
    assert classify(TaskFacts(exit_code=1, log_tail=f"{TRACE}{said}\n")).rule == rule


def test_a_peer_that_timed_out_is_no_service_that_is_away() -> None:
    peer = (
        "n1:9:9 [0] NCCL WARN socketPollConnect: connect to 10.0.0.2 returned Connection timed out"
    )
    assert classify(TaskFacts(exit_code=1, log_tail=peer)).rule == "log-nccl-peer"
    away = "ssh: connect to host data.example port 22: Connection timed out"
    assert classify(TaskFacts(exit_code=1, log_tail=away)).rule == "log-cut-off"


# ---- chains of exceptions (MISTAKE-1)


@pytest.mark.parametrize("link", [CHAIN, CAUSE])
@pytest.mark.parametrize(
    ("first", "rule"),
    [
        ("ConnectionResetError: [Errno 104] Connection reset by peer", "exit-code"),
        ("urllib.error.HTTPError: HTTP Error 503: Service Unavailable", "log-service-away"),
        (
            "http.client.IncompleteRead: IncompleteRead(1 bytes read, 2 more expected)",
            "log-cut-off",
        ),
        (OOM, "log-cuda-oom"),
        ("OSError: [Errno 28] No space left on device", "log-disk-full"),
        ("PermissionError: [Errno 13] Permission denied: '/x'", "exit-code"),
        ("lab.store.StoreTimeoutError", "log-cut-off"),
        ("KeyError: 'lr'", "log-name"),
    ],
)
def test_a_slip_while_a_passing_failure_is_handled_is_no_mistake(
    first: str, link: str, rule: str
) -> None:
    """MISTAKE-1."""
    found = classify(TaskFacts(exit_code=1, log_tail=f"{TRACE}{first}\n{link}{SLIP}"))
    assert found.rule in (rule, "log-socket-peer" if rule == "exit-code" else rule)


def test_the_exception_of_a_worker_counts_where_its_parent_wraps_it() -> None:
    log = (
        f"{TRACE}RuntimeError: Caught RuntimeError in DataLoader worker process 0.\n"
        f"Original {TRACE}RuntimeError: Cannot re-initialize CUDA in forked subprocess.\n"
    )
    assert classify(TaskFacts(exit_code=1, log_tail=log)).rule == "log-fork"
