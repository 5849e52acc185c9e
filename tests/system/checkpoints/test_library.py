"""`holdfast.checkpoint` and `holdfast.on_drain` in processes of their own, without an agent."""

from __future__ import annotations

import contextlib
import fcntl
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import termios
import textwrap
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import pytest

from holdfast.agent.uplink.transfers import find_failed_saves, find_saved, open_newest, remove_up_to
from holdfast.wire.beat import decode_beat
from tests.system.cluster import clean_environment
from tests.waits import run_patiently, wait_exit, wait_until

TASK = "job:0:1"


@pytest.fixture
def spool(tmp_path: Path) -> Path:
    folder = tmp_path / "out"
    folder.mkdir()
    return folder


@pytest.fixture
def agent(tmp_path: Path) -> Iterator[socket.socket]:
    """The agent's end of the beat socket."""
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as listening:
        listening.bind(str(tmp_path / "beats"))
        listening.settimeout(60)
        yield listening


def run(
    code: str, *, cwd: Path, inside: Path | None = None, **env: str
) -> subprocess.CompletedProcess[str]:
    """Run a script, inside of a task whose spool is `inside`."""
    if inside is not None:
        env = {"HOLDFAST_TASK": TASK, "HOLDFAST_CHECKPOINT_OUT": str(inside), **env}
    return run_patiently(
        [sys.executable, "-c", textwrap.dedent(code)],
        cwd=cwd,
        env=clean_environment(**env),
        capture_output=True,
        text=True,
        seconds=60,
    )


def names(folder: Path) -> list[str]:
    return sorted(os.listdir(folder))


def test_a_save_is_one_whole_file_and_one_datagram(
    tmp_path: Path, spool: Path, agent: socket.socket
) -> None:
    (tmp_path / "weights").write_bytes(b"from a file")
    done = run(
        """
        import holdfast
        print(holdfast.checkpoint.save(b"first", step=1), holdfast.checkpoint.save(bytearray(b"second"), step=2),
              holdfast.checkpoint.save("weights", step=3))
        open("weights", "w").write("changed afterwards")
        """,
        cwd=tmp_path,
        inside=spool,
        HOLDFAST_BEAT_SOCKET=str(tmp_path / "beats"),
    )
    assert done.stdout == "True True True\n", done.stderr
    assert names(spool) == ["checkpoint.3"]  # the last one wins
    assert (spool / "checkpoint.3").read_bytes() == b"from a file"
    for _ in range(3):
        beat = decode_beat(agent.recv(4096))
        assert (beat.task, beat.checkpoint, beat.step) == (TASK, True, None)


def test_outside_of_holdfast_nothing_happens(tmp_path: Path) -> None:
    done = run(
        """
        import holdfast, os, signal
        holdfast.on_drain(lambda: print("never"))
        print(holdfast.checkpoint.load(), holdfast.checkpoint.path(), holdfast.checkpoint.step(), holdfast.checkpoint.save(b"x"))
        print(signal.getsignal(signal.SIGTERM) is signal.SIG_DFL, os.listdir("."))
        print(holdfast.checkpoint.save(b"kept", local="here"), holdfast.checkpoint.load(local="here"), os.listdir("."))
        """,
        cwd=tmp_path,
    )
    assert done.stdout == "None None None False\nTrue []\nTrue b'kept' ['here']\n", done.stderr


def test_a_disk_that_is_full_costs_the_save_and_not_the_job(tmp_path: Path, spool: Path) -> None:
    """RLIMIT_FSIZE stands for the full disk: the write fails in its middle."""
    (spool / "checkpoint.1").write_bytes(b"the one before")
    done = run(
        """
        import holdfast, resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        print(holdfast.checkpoint.save(b"x" * 100_000, step=2), holdfast.checkpoint.save(b"x" * 100_000, step=3))
        """,
        cwd=tmp_path,
        inside=spool,
    )
    assert done.stdout == "False False\n"
    assert done.stderr.count("a checkpoint could not be kept") == 1
    assert names(spool) == ["checkpoint.1"]
    assert (spool / "checkpoint.1").read_bytes() == b"the one before"


def test_what_is_no_checkpoint_is_said_at_once(tmp_path: Path) -> None:
    done = run("import holdfast; holdfast.checkpoint.save({'a': 1})", cwd=tmp_path)
    assert "TypeError: a checkpoint is bytes or the path of a file, not dict" in done.stderr


def end_by_term(
    code: str, cwd: Path, *, terms: int = 1, inside: Path | None = None, **more: str
) -> tuple[int, str]:
    """Run a script in a session of its own, TERM its whole group once it said "ready"; its exit
    status and output."""
    env = clean_environment(HOLDFAST_TASK=TASK, HOLDFAST_CHECKPOINT_OUT=str(inside or cwd), **more)
    process = subprocess.Popen(
        [sys.executable, "-u", "-c", textwrap.dedent(code)],
        cwd=cwd,
        env=env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        bufsize=0,
        start_new_session=True,
    )
    rest = bytearray()
    try:
        stream = process.stdout
        assert stream is not None
        assert stream.readline() == b"ready\n"
        for _ in range(terms):
            os.killpg(process.pid, signal.SIGTERM)

        def ended() -> bool:
            """Whether all that wrote there have ended."""
            while select.select([stream], [], [], 0)[0]:
                if not (data := os.read(stream.fileno(), 1 << 16)):
                    return True
                rest.extend(data)
            return False

        wait_until(ended, what="the whole group to end")
        return wait_exit(process, 30), rest.decode()
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        process.wait()


def test_the_hook_runs_once_and_the_signal_ends_the_process(tmp_path: Path) -> None:
    code = """
        import signal, time
        import holdfast
        signal.signal(signal.SIGTERM, lambda *_: print("the handler before"))
        holdfast.on_drain(lambda: (print("first"), time.sleep(0.2)))
        @holdfast.on_drain
        def second():
            raise ValueError("of the user's own")
        holdfast.on_drain(lambda: print("third"))
        print("ready")
        while True:
            time.sleep(0.01)
        """
    status, output = end_by_term(code, tmp_path, terms=3)
    assert status == -signal.SIGTERM
    lines = [
        line for line in output.splitlines() if line in ("first", "third", "the handler before")
    ]
    assert lines == ["first", "third", "the handler before"]
    assert "of the user's own" in output


def test_a_child_that_dies_of_the_same_stop_does_not_break_the_save(
    tmp_path: Path, spool: Path
) -> None:
    code = """
        import os, signal, time
        import holdfast
        def on_child(number, frame):  # as torch's DataLoader sets it
            raise RuntimeError("a worker is killed by signal: Terminated")
        signal.signal(signal.SIGCHLD, on_child)
        worker = os.fork()
        if not worker:
            signal.signal(signal.SIGTERM, signal.SIG_IGN)  # it dies in the middle of the save
            time.sleep(60)
        @holdfast.on_drain
        def save():
            time.sleep(0.1)
            os.kill(worker, signal.SIGKILL)
            os.waitpid(worker, 0)
            time.sleep(0.01)
            holdfast.checkpoint.save(b"whole")
        print("ready")
        while True:
            time.sleep(0.01)
        """
    status, output = end_by_term(code, tmp_path, inside=spool)
    assert status == -signal.SIGTERM
    assert "Traceback" not in output
    assert names(spool) == ["checkpoint"]


def test_the_handler_of_dying_children_is_back_after_the_functions(tmp_path: Path) -> None:
    code = """
        import signal, time
        import holdfast
        def mine(*_): ...
        signal.signal(signal.SIGCHLD, mine)
        signal.signal(signal.SIGTERM, lambda *_: print(signal.getsignal(signal.SIGCHLD) is mine))
        holdfast.on_drain(lambda: print(signal.getsignal(signal.SIGCHLD) is mine))
        print("ready")
        time.sleep(60)
        """
    assert end_by_term(code, tmp_path) == (-signal.SIGTERM, "False\nTrue\n")


@pytest.mark.parametrize(
    ("grace", "failures", "calls", "kept"),
    [(1000, 1, 2, ["checkpoint"]), (1000, 2, 2, [".save"]), (0.001, 1, 1, [".save"])],
)
def test_a_function_that_raised_is_called_once_more_in_the_first_half_of_the_grace(
    tmp_path: Path, spool: Path, grace: float, failures: int, calls: int, kept: list[str]
) -> None:
    code = f"""
        import time
        import holdfast
        calls = []
        @holdfast.on_drain
        def save():
            calls.append(1)
            print("called")
            time.sleep(0.01)
            if len(calls) <= {failures}:
                raise RuntimeError("a worker died")
            holdfast.checkpoint.save(b"whole")
        print("ready")
        time.sleep(60)
        """
    status, output = end_by_term(code, tmp_path, inside=spool, HOLDFAST_GRACE=str(grace))
    assert (status, output.splitlines().count("called")) == (-signal.SIGTERM, calls)
    assert [Path(name).stem if name[0] == "." else name for name in names(spool)] == kept
    said = find_failed_saves(spool)
    assert [one.endswith("missing: save: RuntimeError: a worker died") for one in said] == [
        True for name in kept if name == ".save"
    ]


def test_a_save_that_is_killed_or_has_no_room_is_told(tmp_path: Path, spool: Path) -> None:
    code = """
        import os, time
        import holdfast
        holdfast.on_drain(lambda: os.kill(os.getpid(), 9))
        print("ready")
        time.sleep(60)
        """
    status, _ = end_by_term(code, tmp_path, inside=spool)
    assert status == -signal.SIGKILL
    assert ["had not returned" in one for one in find_failed_saves(spool)] == [True]
    for name in names(spool):
        (spool / name).unlink()
    (spool / ".stop").write_text('{"why": "preempted: by job x", "until": 1e9}')
    code = """
        import time
        import holdfast
        holdfast.on_drain(lambda: holdfast.checkpoint.save("/nowhere/at-all"))
        print("ready")
        time.sleep(60)
        """
    end_by_term(code, tmp_path, inside=spool)
    assert ["No such file" in one for one in find_failed_saves(spool)] == [True]


def test_a_note_of_a_save_that_is_no_plain_file_is_left_out(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / ".save.1")
    (tmp_path / ".save.2").symlink_to("/etc/passwd")
    assert find_failed_saves(tmp_path) == []


def test_a_handler_before_it_may_decide_the_exit(tmp_path: Path) -> None:
    code = """
        import signal, sys, time
        import holdfast
        signal.signal(signal.SIGTERM, lambda *_: sys.exit(5))
        holdfast.on_drain(lambda: print("saved"))
        print("ready")
        time.sleep(60)
        """
    assert end_by_term(code, tmp_path) == (5, "saved\n")


def test_a_function_that_exits_does_not_keep_the_others_from_saving(tmp_path: Path) -> None:
    code = """
        import sys, time
        import holdfast
        holdfast.on_drain(lambda: sys.exit(7))
        holdfast.on_drain(lambda: print("saved"))
        holdfast.on_drain(lambda: sys.exit(8))
        print("ready")
        time.sleep(60)
        """
    assert end_by_term(code, tmp_path) == (7, "saved\n")


def test_a_thread_is_told_that_it_cannot_be_called_there(tmp_path: Path, spool: Path) -> None:
    done = run(
        """
        import threading
        import holdfast
        def late():
            try:
                holdfast.on_drain(print)
            except ValueError as error:
                print(error)
        thread = threading.Thread(target=late)
        thread.start()
        thread.join()
        """,
        cwd=tmp_path,
        inside=spool,
    )
    assert (
        done.stdout
        == "call holdfast.on_drain in the main thread: only there does Python take signals\n"
    ), done.stderr


def test_children_do_not_save(tmp_path: Path) -> None:
    """A data loader's workers inherit the handler, and TERM goes to the whole group: one saves."""
    code = """
        import multiprocessing, os, time
        import holdfast
        holdfast.on_drain(lambda: open(f"saved-{os.getpid()}", "w").close())
        context = multiprocessing.get_context("fork")
        begun = context.Barrier(4)  # a signal that comes while Python is still forking is lost on the child
        def work():
            begun.wait()
            time.sleep(60)
        workers = [context.Process(target=work) for _ in range(3)]
        for worker in workers:
            worker.start()
        begun.wait()
        print("ready")
        for worker in workers:
            worker.join()
        time.sleep(60)
        """
    status, _ = end_by_term(code, tmp_path)
    assert status == -signal.SIGTERM
    assert len(names(tmp_path)) == 1


@pytest.mark.parametrize("handlers", ["hook", "flag", "hook flag", "flag hook"])
def test_a_child_that_waits_inside_a_library_ends_with_the_rest(
    tmp_path: Path, handlers: str
) -> None:
    """There Python's handlers have no turn: the child takes the signal as without them."""
    code = f"""
        import ctypes, os, time
        import holdfast
        from holdfast.integrations.draining import DrainFlag
        flag = DrainFlag()
        for handler in {handlers!r}.split():
            if handler == "flag":
                flag.watch()
            else:
                holdfast.on_drain(lambda: open(f"saved-{{os.getpid()}}", "w").close())
        if os.fork() == 0:
            lock, libc = ctypes.create_string_buffer(64), ctypes.PyDLL(None)
            libc.pthread_mutex_lock(lock)
            print("ready")
            libc.pthread_mutex_lock(lock)
        while not flag.requested:
            time.sleep(0.01)
        flag.end()
        """
    status, _ = end_by_term(code, tmp_path)
    assert status == -signal.SIGTERM
    assert len(names(tmp_path)) == ("hook" in handlers)


def test_a_child_has_the_handler_that_was_there_before(tmp_path: Path, spool: Path) -> None:
    """Also for a signal that comes while it is being forked. A handler that was set after
    `on_drain` is the user's business, and a blocked signal stays blocked."""
    code = """
        import os, signal
        import holdfast
        TERM = signal.SIGTERM
        def fork(work=lambda: None):
            child = os.fork()
            if child == 0:
                work()
                os._exit(0)
            return os.waitstatus_to_exitcode(os.waitpid(child, 0)[1])
        def earlier(*_):
            os._exit(7)
        def later(*_):
            os._exit(8)
        def signalled():
            os.kill(os.getpid(), TERM)
            if TERM not in signal.sigpending():  # Python would forget it if it came a little sooner
                os._exit(9)
        if {during}:
            os.register_at_fork(after_in_child=signalled)
        signal.signal(TERM, {before})
        holdfast.on_drain(lambda: print("saved"))
        print(fork(lambda: os.kill(os.getpid(), TERM)), end=" ")
        signal.pthread_sigmask(signal.SIG_BLOCK, [TERM])
        print(fork(lambda: os._exit(len(signal.pthread_sigmask(signal.SIG_BLOCK, [])))), end=" ")
        signal.pthread_sigmask(signal.SIG_UNBLOCK, [TERM])
        signal.signal(TERM, later)
        print(fork(lambda: os.kill(os.getpid(), TERM)))
        """
    for before, ends in (("signal.SIG_DFL", "-15"), ("earlier", "7"), ("signal.SIG_IGN", "0")):
        for during in (False, True):
            done = run(code.format(before=before, during=during), cwd=tmp_path, inside=spool)
            assert done.stdout == f"{ends} 1 8\n", (before, during, done.stderr)


def test_the_newest_save_is_found_and_a_newer_one_is_not_removed_with_it(spool: Path) -> None:
    for name in (".checkpoint.9.123.456", "notes", "checkpoint.x", "checkpoint.1.2"):
        (spool / name).write_bytes(b"not one")
    (spool / "checkpoint.link").symlink_to("/etc/passwd")
    assert open_newest(spool) is None

    def put(name: str, data: bytes) -> None:
        before = {path: at for at, _, path in find_saved(spool)}
        part = spool / ".part"

        def later() -> bool:  # a clock of coarse ticks: until the new one is the newest
            part.write_bytes(data)
            part.rename(spool / name)
            return find_saved(spool)[-1][0] > max(before.values(), default=0)

        wait_until(later)

    put("checkpoint.30", b"thirty")
    put("checkpoint", b"without a step")
    first = open_newest(spool)
    assert first is not None
    assert (first.step, first.size) == (None, 14)
    put("checkpoint", b"newer")
    remove_up_to(spool, first)
    assert os.pread(first.fd, 100, 0) == b"without a step"  # what is being sent stays what it was
    first.close()
    assert [path.name for _, _, path in find_saved(spool)] == ["checkpoint"]


@pytest.mark.parametrize(
    "fate",
    [
        "os.close(reading)",
        "os.close(1); os.close(2)",
        "sys.stdout.close(); sys.stderr.close()",
        "sys.stdout = sys.stderr = None",
        "os.dup2(os.open('/dev/full', os.O_WRONLY), 1); os.dup2(1, 2)",
        "sys.stdout = Broken(); sys.stderr = Broken()",
        "os.close(reading); signal.signal(signal.SIGPIPE, signal.SIG_DFL)",
    ],
)
def test_a_function_saves_whatever_became_of_the_output(tmp_path: Path, fate: str) -> None:
    """Its reader has gone, it is closed, its disk is full, or it is the user's own and raises."""
    code = f"""
        import logging, os, signal, sys, time
        import holdfast
        class Broken:
            def write(self, text): raise RuntimeError("no more")
            def flush(self): raise RuntimeError("no more")
        handler = logging.StreamHandler(sys.stdout)
        def save():
            print("saving", flush=True); print("saving", file=sys.stderr, flush=True)
            logging.getLogger().addHandler(handler); logging.error("saving")
            os.system("echo a child says it too")
            open("kept", "w").close()
        holdfast.on_drain(save)
        def second():
            raise KeyboardInterrupt
        holdfast.on_drain(second)
        holdfast.on_drain(lambda: open("third", "w").close())
        print("ready", flush=True)
        reading, writing = os.pipe()
        os.dup2(writing, 1); os.dup2(writing, 2); os.close(writing)
        {fate}
        open("broken", "w").close()
        time.sleep(60)
        """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    env = {**clean_environment(), "HOLDFAST_TASK": TASK}
    with subprocess.Popen([sys.executable, str(script)], cwd=tmp_path, env=env) as process:
        wait_until(lambda: (tmp_path / "broken").exists())
        process.terminate()
        wait_exit(process, 20)
    assert (tmp_path / "kept").exists()
    assert (tmp_path / "third").exists()


def is_full(pipe: int) -> bool:
    found: int = struct.unpack("i", fcntl.ioctl(pipe, termios.FIONREAD, b"\0" * 4))[0]
    return found > 50_000


def test_a_print_that_the_signal_interrupted_does_not_cost_the_save(tmp_path: Path) -> None:
    """The main thread stands within a write to a full pipe, and holds the stream's lock."""
    code = """
        import os, signal, sys
        import holdfast
        def save():
            print("saving", flush=True)
            open("kept", "w").close()
        holdfast.on_drain(save)
        open("begun", "w").close()
        while True:
            print("x" * 10_000, flush=True)
        """
    script = tmp_path / "script.py"
    script.write_text(textwrap.dedent(code))
    env = {**clean_environment(), "HOLDFAST_TASK": TASK}
    with subprocess.Popen(
        [sys.executable, str(script)], cwd=tmp_path, env=env, stdout=subprocess.PIPE
    ) as process:
        wait_until(lambda: (tmp_path / "begun").exists())
        assert process.stdout is not None
        wait_until(partial(is_full, process.stdout.fileno()))
        process.terminate()
        while process.stdout.read(65_536):
            pass
    assert (tmp_path / "kept").exists()
