"""Checkpoints that outlive the training, and one host, in the memory of CPU processes."""

from __future__ import annotations

import contextlib
import json
import secrets
import sys
import threading
from collections.abc import Iterator
from multiprocessing import AuthenticationError
from multiprocessing.connection import Client, Listener
from pathlib import Path

import pytest

from tests.system.supervisor.policies.rig import POLICIES, STEP_PATIENCE, run_policy
from tests.waits import wait_until

sys.path.insert(0, str(POLICIES))
from memory_checkpoints import KEEP_STEPS, Address, Server, choose_step, put

# Saves at each step; fails as the table says: attempt 0 at step 3 by exit, attempt 1 at step 6 with
# its whole host.
WORKER = """
import os, signal, sys, time
from pathlib import Path
sys.path.insert(0, sys.argv[2])
from memory_checkpoints import load, save
from holdfast.process.table import read_entry
folder, rank = Path(sys.argv[1]), os.environ["RANK"]
attempt = len(list(folder.glob(f"start-{rank}-*")))
found = load()
start, total = (found[0], int(found[1])) if found else (0, 0)
(folder / f"start-{rank}-{attempt}").write_text(str(start))
for step in range(start + 1, 10):
    total += step
    save(step, str(total).encode())
    (folder / f"at-{attempt}-{step}-{rank}").touch()
    while not (folder / f"at-{attempt}-{step}-{1 - int(rank)}").exists(): time.sleep(0.01)
    time.sleep(0.1)
    if rank == "1" and attempt == 0 and step == 3: sys.exit(3)
    if rank == "1" and attempt == 1 and step == 6:
        os.kill(read_entry(os.getppid()).ppid, signal.SIGKILL)
        time.sleep(6000)
(folder / f"total-{rank}").write_text(str(total))
"""


@pytest.mark.slow
def test_a_restart_and_a_lost_host_go_on_from_memory(tmp_path: Path) -> None:
    words = [
        "--hosts",
        "2",
        "--local",
        "--",
        sys.executable,
        "-c",
        WORKER,
        str(tmp_path),
        str(POLICIES),
    ]
    code, said = run_policy("memory_checkpoints.py", tmp_path, *words)
    assert code == 0, said
    assert "done after 2 restarts" in said
    begun = [
        [int((tmp_path / f"start-{rank}-{attempt}").read_text()) for attempt in range(3)]
        for rank in (0, 1)
    ]
    assert begun[0] == begun[1], "ranks began at different steps"
    first, second, third = begun[0]
    assert first == 0
    assert 1 <= second <= 3, said
    assert second < third <= 7, said  # what rank 1 had was on the host that died: this is the copy
    assert [(tmp_path / f"total-{rank}").read_text() for rank in (0, 1)] == [
        str(sum(range(10)))
    ] * 2


def test_the_newest_step_that_all_have_is_chosen() -> None:
    kept = {"a": [[0, 1], [0, 2], [0, 3], [1, 1], [1, 2]], "b": [[1, 1], [1, 2]]}
    assert choose_step(kept, 2) == (2, {0: "a", 1: "a"})
    assert choose_step({"b": kept["b"]}, 2) is None
    assert choose_step({}, 1) is None


def test_no_checkpoint_server_is_a_failed_start_and_no_end_of_the_script(tmp_path: Path) -> None:
    copy = tmp_path / "memory_checkpoints.py"
    text = (POLICIES / "memory_checkpoints.py").read_text()
    copy.write_text(text.replace("        Server().serve()", "        raise SystemExit(5)"))
    assert copy.read_text() != text
    words = ["--hosts", "1", "--local", "--max-restarts", "1", "--", sys.executable, "-c", "pass"]
    code, said = run_policy(str(copy), tmp_path, *words)
    assert code == 1, said
    assert "given up after 1 restarts" in said
    assert "Traceback" not in said


# ---- one server, over its own wire


@contextlib.contextmanager
def serving(server: Server, key: bytes) -> Iterator[Address]:
    """A server that listens, without a script that tells it anything."""
    with Listener(("127.0.0.1", 0), backlog=16, authkey=key) as listener:
        threading.Thread(target=server.accept, args=(listener,), daemon=True).start()
        host, port = listener.address
        yield host, port


def hand(
    address: Address,
    key: bytes,
    rank: int,
    step: int,
    attempt: int,
    data: bytes = b"",
    copy: bool = False,
) -> None:
    with Client(address, authkey=key) as peer:
        put(peer, rank, step, attempt, data, copy)


def steps_of(server: Server, rank: int) -> list[int]:
    return sorted(server.kept.get(rank, {}))


def test_a_closed_listener_ends_the_thread_that_accepts() -> None:
    """Else it takes a core for as long as its process lives."""
    with Listener(("127.0.0.1", 0)) as listener:
        pass
    accepts = threading.Thread(target=Server().accept, args=(listener,), daemon=True)
    accepts.start()
    wait_until(lambda: not accepts.is_alive(), STEP_PATIENCE, what="its end")


def test_a_stranger_ends_no_server() -> None:
    server, key = Server(), secrets.token_bytes(16)
    with serving(server, key) as address:
        with pytest.raises(AuthenticationError):
            Client(address, authkey=b"another")
        hand(address, key, 0, 1, attempt=0)
        assert steps_of(server, 0) == [1]


def test_what_lies_beyond_the_start_is_no_part_of_what_comes() -> None:
    """Else a step that only some ranks reached again is chosen with what the others had left of
    it."""
    server, key = Server(), secrets.token_bytes(16)
    with serving(server, key) as address:
        for step in (10, 20, 30):
            hand(address, key, 0, step, attempt=0)
        server.begin(1, 10)
        assert steps_of(server, 0) == [10]
        for step in (12, 14, 16):  # it saves at other steps than before
            hand(address, key, 0, step, attempt=1)
        assert steps_of(server, 0) == [12, 14, 16]
        assert KEEP_STEPS == 3


def test_a_rank_that_runs_on_behind_a_lost_host_is_refused() -> None:
    server, key = Server(), secrets.token_bytes(16)
    with serving(server, key) as address:
        hand(address, key, 0, 10, attempt=0, data=b"good")
        server.begin(1, 10)
        for step in (10, 40):
            with pytest.raises(RuntimeError, match="attempt 0 of the training is over"):
                hand(address, key, 0, step, attempt=0, data=b"of the dead")
        assert {step: data for step, (_, data) in server.kept[0].items()} == {10: b"good"}
        with Client(address, authkey=key) as peer:
            peer.send_bytes(json.dumps({"get": 10, "rank": 0}).encode())
            assert peer.recv_bytes() == b"good"


def test_a_copy_is_at_most_one_step_behind_and_a_frozen_neighbour_holds_nobody_for_ever() -> None:
    server, neighbour, key = Server(), Server(), secrets.token_bytes(16)
    with (
        serving(server, key) as address,
        serving(neighbour, key) as good,
        Listener(
            ("127.0.0.1", 0), backlog=16, authkey=key
        ) as frozen,  # takes connections, and never says a word
    ):
        host, port = frozen.address
        server.turn_to((host, port), key)
        hand(address, key, 0, 1, attempt=0, copy=True)
        second = threading.Thread(
            target=hand, args=(address, key, 0, 2, 0, b"two", True), daemon=True
        )
        second.start()
        wait_until(lambda: steps_of(server, 0) == [1, 2], STEP_PATIENCE)
        line = server.line
        assert line is not None
        assert line.waiting.keys() == {0}
        second.join(0.5)
        assert second.is_alive(), "a copy fell further behind than the steps that are kept"
        server.turn_to(good, key)
        second.join(STEP_PATIENCE)
        assert not second.is_alive(), "a host that was given up held up the training"
        hand(address, key, 0, 3, attempt=0, data=b"three", copy=True)
        hand(address, key, 0, 4, attempt=0, copy=True)
        assert neighbour.kept[0][3] == (0, b"three")
