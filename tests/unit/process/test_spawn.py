"""Starting programs for real: what they inherit, and what is said when they cannot start."""

from __future__ import annotations

import os
import select
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.errors import ValidationError
from holdfast.process import starter
from holdfast.process.spawn import SpawnRequest, read_start, signal_group, spawn
from holdfast.process.watch import MAX_EXITS, Exit, Watcher
from tests.waits import wait_exit

PATH = "/usr/local/bin:/usr/bin:/bin"
pytestmark = pytest.mark.usefixtures("way")


@pytest.fixture
def watcher() -> Iterator[Watcher]:
    made = Watcher()
    yield made
    made.close()


def run(watcher: Watcher, request: SpawnRequest) -> tuple[str, Exit]:
    """Start, wait for the exec and the end; return the start's sentence and the exit."""
    child = spawn(request)
    watcher.watch_child(child.pid, child.pidfd)
    select.select([child.error_fd], [], [], 10)
    sentence = read_start(child, request)
    assert sentence is not None
    while True:
        select.select([watcher], [], [], 10)
        for found in watcher.collect():
            if found.pid == child.pid:
                return sentence, found


def make_request(folder: Path, *argv: str, **more: object) -> SpawnRequest:
    fields: dict[str, object] = {
        "env": {"PATH": PATH},
        "cwd": str(folder),
        "stdout": str(folder / "out"),
        "stderr": str(folder / "err"),
        **more,
    }
    return SpawnRequest(argv=argv, **fields)  # type: ignore[arg-type]  # plain words stand for the typed value in a test


def run_python(watcher: Watcher, folder: Path, code: str, **more: object) -> str:
    sentence, found = run(watcher, make_request(folder, sys.executable, "-c", code, **more))
    assert (sentence, found.exit_code) == ("", 0), (folder / "err").read_text()
    return (folder / "out").read_text().strip()


def test_exit_codes_and_signals_are_told_apart(watcher: Watcher, tmp_path: Path) -> None:
    for code in (0, 1, 77, 255):
        _, found = run(watcher, make_request(tmp_path, "sh", "-c", f"exit {code}"))
        assert (found.exit_code, found.signal) == (code, None)
    _, found = run(watcher, make_request(tmp_path, "sh", "-c", "kill -KILL $$"))
    assert (found.exit_code, found.signal) == (None, signal.SIGKILL)


def test_it_leads_its_own_session_and_group(watcher: Watcher, tmp_path: Path) -> None:
    said = run_python(
        watcher, tmp_path, "import os; p=os.getpid(); print(os.getsid(0)==p, os.getpgid(0)==p)"
    )
    assert said == "True True"


def test_only_the_standard_descriptors_are_inherited(watcher: Watcher, tmp_path: Path) -> None:
    leaked = os.open("/dev/null", os.O_RDONLY)
    os.set_inheritable(leaked, True)
    try:
        said = run_python(
            watcher, tmp_path, "import os; print(sorted(os.listdir('/proc/self/fd'), key=int))"
        )
        # The listing itself opens one more.
        assert said == "['0', '1', '2', '3']"
        said = run_python(
            watcher,
            tmp_path,
            f"import os; os.fstat({leaked}); print('there')",
            pass_fds=(leaked,),
            stdout=str(tmp_path / "two"),
        )
    finally:
        os.close(leaked)
    assert (tmp_path / "two").read_text() == "there\n"


def test_signals_are_at_their_defaults_and_unblocked(watcher: Watcher, tmp_path: Path) -> None:
    old = signal.signal(signal.SIGUSR1, signal.SIG_IGN)
    old_realtime = signal.signal(signal.SIGRTMIN + 3, signal.SIG_IGN)
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGUSR2})
    try:
        run(watcher, make_request(tmp_path, "grep", "-E", "^Sig(Ign|Blk)", "/proc/self/status"))
    finally:
        signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGUSR2})
        signal.signal(signal.SIGUSR1, old)
        signal.signal(signal.SIGRTMIN + 3, old_realtime)
    # 32 and 33 are the C library's own and cannot be set through it; a starter that uses
    # posix_spawn (make does) leaves one of them ignored in everything below it.
    own = (1 << 31) | (1 << 32)
    masks = [
        int(line.split()[1], 16) & ~own for line in (tmp_path / "out").read_text().splitlines()
    ]
    assert masks == [0, 0]


def test_input_is_empty_and_output_is_appended_privately(watcher: Watcher, tmp_path: Path) -> None:
    for _ in range(2):
        run(watcher, make_request(tmp_path, "sh", "-c", "cat; echo out; echo err >&2"))
    assert (tmp_path / "out").read_text() == "out\nout\n"
    assert (tmp_path / "err").read_text() == "err\nerr\n"
    assert (tmp_path / "out").stat().st_mode & 0o777 == 0o600


def test_the_program_is_found_in_its_own_path(watcher: Watcher, tmp_path: Path) -> None:
    program = tmp_path / "bin" / "only-here"
    program.parent.mkdir()
    program.write_text("#!/bin/sh\necho found\n")
    program.chmod(0o755)
    sentence, found = run(
        watcher, make_request(tmp_path, "only-here", env={"PATH": f"/nowhere:{program.parent}"})
    )
    assert (sentence, found.exit_code) == ("", 0)
    sentence, _ = run(watcher, make_request(tmp_path, "only-here"))
    assert sentence.startswith("no such program: 'only-here' is in no folder of PATH; ")


def test_the_environment_is_whole_and_nothing_else(watcher: Watcher, tmp_path: Path) -> None:
    run(watcher, make_request(tmp_path, "/usr/bin/env", env={"A": "ü = 1\nsecond", "EMPTY": ""}))
    assert (tmp_path / "out").read_text() == "A=ü = 1\nsecond\nEMPTY=\n"


def test_each_failure_to_start_has_its_sentence(watcher: Watcher, tmp_path: Path) -> None:
    (tmp_path / "plain").write_text("no program")
    (tmp_path / "bad").write_bytes(b"\x00\x01\x02")
    (tmp_path / "bad").chmod(0o755)
    (tmp_path / "lost").write_text("#!/no/such/interpreter\n")
    (tmp_path / "lost").chmod(0o755)
    (tmp_path / "folder").mkdir()
    cases = {
        (("/no/such/program",), ()): "no such program: '/no/such/program'",
        (("./plain",), ()): "permission denied",
        (("./bad",), ()): "neither a program for this machine nor a script",
        (("./lost",), ()): "the interpreter it names",
        (("./folder",), ()): "'./folder' is a folder, not a program",
        (
            ("true",),
            (("cwd", "/no/such/folder"),),
        ): "the working folder '/no/such/folder' cannot be entered",
        (("true",), (("stdout", "/no/such/folder/out"),)): "the stdout file",
        (("true", "x" * (200 << 10)), ()): "too large for the kernel",
        (("true",), (("group_procs", "/no/such/group/cgroup.procs"),)): "the control group",
    }
    for (argv, more), words in cases.items():
        sentence, found = run(watcher, make_request(tmp_path, *argv, **dict(more)))
        assert words in sentence
        assert found.exit_code == 127


def test_what_no_kernel_can_start_is_refused_before_the_fork(tmp_path: Path) -> None:
    for argv, env in (
        (("",), {}),
        (("a\0b",), {}),
        (("true",), {"A=B": ""}),
        (("true",), {"": "x"}),
        (("\udfff\ud800",), {}),
    ):
        with pytest.raises(ValidationError):
            spawn(make_request(tmp_path, *argv, env=env))


def test_a_task_that_ends_before_it_is_asked_about_is_not_missed(
    watcher: Watcher, tmp_path: Path
) -> None:
    children = [spawn(make_request(tmp_path, "true")) for _ in range(20)]
    for child in children:
        os.waitid(
            os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOWAIT
        )  # all are zombies before anyone watches
        watcher.watch_child(child.pid, child.pidfd)
        read_start(child, make_request(tmp_path, "true"))
    assert {found.pid for found in watcher.collect()} == {child.pid for child in children}
    assert watcher.collect() == []


def test_one_collect_takes_so_many_and_the_next_the_rest(watcher: Watcher) -> None:
    """WATCH-3."""
    pids = []
    for _ in range(MAX_EXITS + 10):
        pids.append(os.posix_spawn("/bin/true", ["true"], {}))  # no copy of this process's pages
    for pid in pids:
        os.waitid(
            os.P_PID, pid, os.WEXITED | os.WNOWAIT
        )  # it has ended, and its status is left to `collect`
    first, rest = watcher.collect(), watcher.collect()
    assert (len(first), len(rest)) == (MAX_EXITS, 10)
    assert sorted(found.pid for found in first + rest) == sorted(pids)


def test_a_child_dies_with_its_parent(tmp_path: Path) -> None:
    code = (
        "import sys, time; from holdfast.process.spawn import SpawnRequest, spawn\n"
        "child = spawn(SpawnRequest(argv=('sleep', '600'), env={'PATH': '/usr/bin:/bin'}))\n"
        "print(child.pid, flush=True); time.sleep(600)"
    )
    env = {"PATH": PATH, "PYTHONPATH": os.pathsep.join(sys.path)}
    starter = spawn(make_request(tmp_path, sys.executable, "-c", code, env=env))
    try:
        for _ in range(1000):
            words = (tmp_path / "out").read_text() if (tmp_path / "out").exists() else ""
            if words.endswith("\n"):
                break
            select.select([], [], [], 0.01)
        pidfd = os.pidfd_open(int(words))
    finally:
        os.kill(starter.pid, signal.SIGKILL)
        os.waitpid(starter.pid, 0)
        os.close(starter.pidfd)
        os.close(starter.error_fd)
    assert select.select([pidfd], [], [], 10)[0], "the child outlived its parent"
    os.close(pidfd)


def test_a_signal_to_a_group_reaches_a_child_that_has_none_yet(
    watcher: Watcher, tmp_path: Path
) -> None:
    with subprocess.Popen(["sleep", "600"]) as child:  # in our group, as between fork and setsid
        reached = signal_group(child.pid, signal.SIGTERM)
        if not reached:
            child.kill()
        assert wait_exit(child, 10) == -signal.SIGTERM
    assert not signal_group(child.pid, signal.SIGTERM)
    for _ in range(20):
        request = make_request(tmp_path, "sleep", "600")
        started = spawn(request)
        watcher.watch_child(started.pid, started.pidfd)
        assert signal_group(started.pid, signal.SIGTERM), "at once"
        select.select([watcher], [], [], 10)
        assert [found.signal for found in watcher.collect()] == [signal.SIGTERM]
        assert read_start(started, request) == ""


def test_a_start_that_waits_for_a_disk_holds_up_nothing(watcher: Watcher, tmp_path: Path) -> None:
    """A pipe without a reader stands for a log on a network disk that is gone."""
    os.mkfifo(tmp_path / "stuck")
    stuck = make_request(tmp_path, "true", stdout=str(tmp_path / "stuck"))
    child = spawn(stuck)
    watcher.watch_child(child.pid, child.pidfd)
    assert run(watcher, make_request(tmp_path, "true"))[0] == ""
    assert read_start(child, stuck) is None
    reader = os.open(tmp_path / "stuck", os.O_RDONLY)
    select.select([child.error_fd], [], [], 10)
    assert read_start(child, stuck) == ""
    os.close(reader)


def test_the_memory_that_is_shared_is_kept_until_the_start_is_decided(
    watcher: Watcher, tmp_path: Path, way: str
) -> None:
    """STARTER-2."""
    request = make_request(tmp_path, "there-is-no-such-program")
    child = spawn(request)
    assert (child.launch is not None) == (way != "fork")
    select.select([child.error_fd], [], [], 10)
    assert "no such program" in (read_start(child, request) or "")
    assert child.launch is None
    watcher.watch_child(child.pid, child.pidfd)
    select.select([watcher], [], [], 10)
    watcher.collect()


def test_many_starts_at_once_keep_their_own_words(watcher: Watcher, tmp_path: Path) -> None:
    """STARTER-2: no memory that a child has still to read is given to the next start."""
    children = []
    for number in range(60):
        words = [f"{number}-{k}" for k in range(50)]
        request = make_request(
            tmp_path, "sh", "-c", 'echo "$OWN" "$@"', "sh", *words,
            env={"PATH": PATH, "OWN": f"own-{number}"}, stdout=str(tmp_path / f"out-{number}"),
        )  # fmt: skip
        children.append((spawn(request), request, f"own-{number} {' '.join(words)}\n"))
    for number, (child, request, said) in enumerate(children):
        os.waitid(os.P_PIDFD, child.pidfd, os.WEXITED | os.WNOWAIT)
        assert read_start(child, request) == ""
        assert (tmp_path / f"out-{number}").read_text() == said
        watcher.watch_child(child.pid, child.pidfd)
    watcher.collect()


def test_limits_and_scores_are_those_of_the_request(watcher: Watcher, tmp_path: Path) -> None:
    code = (
        "import resource, os; print(resource.getrlimit(resource.RLIMIT_NOFILE), "
        "open('/proc/self/oom_score_adj').read().strip(), os.getcwd())"
    )
    said = run_python(watcher, tmp_path, code, descriptor_limit=(64, 128), oom_score_adj=7)
    assert said == f"(64, 128) 7 {tmp_path}"
    assert Path("/proc/self/oom_score_adj").read_text().strip() != "7"


def test_a_starter_that_was_built_for_other_words_is_not_used(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    """STARTER-1: a tree whose source is newer than its binary still starts programs."""
    old = tmp_path / "starter"
    if not starter._FILE.exists():
        pytest.skip("the package was built without the native starter")
    old.write_bytes(starter._FILE.read_bytes().replace(starter._WORDS, b"starter words: 1"))
    monkeypatch.setattr(starter, "_FILE", old)
    monkeypatch.delenv(starter.SWITCH, raising=False)
    assert starter.find_starter.__wrapped__() is None
    assert "built from an earlier starter.c" in capfd.readouterr().err


def test_a_starter_of_another_machine_is_told_in_one_line_and_a_missing_one_in_none(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capfd: pytest.CaptureFixture[str]
) -> None:
    foreign = tmp_path / "starter"
    monkeypatch.setattr(starter, "_FILE", foreign)
    monkeypatch.delenv(starter.SWITCH, raising=False)
    assert starter.find_starter.__wrapped__() is None
    assert capfd.readouterr().err == ""
    foreign.write_bytes(b"\x7fELF of another machine" + starter._WORDS)
    assert starter.find_starter.__wrapped__() is None
    said = capfd.readouterr().err
    assert "the native starter does not work here (" in said
    assert said.count("\n") == 1
    monkeypatch.setenv(starter.SWITCH, "off")
    assert starter.find_starter.__wrapped__() is None
    assert capfd.readouterr().err == ""


def test_a_program_reads_the_file_that_it_is_given(watcher: Watcher, tmp_path: Path) -> None:
    (tmp_path / "in").write_text("words")
    code = "import sys; print(sys.stdin.read(), open('/dev/stdin').read())"
    assert run_python(watcher, tmp_path, code, stdin=str(tmp_path / "in")) == "words words"
    assert run_python(watcher, tmp_path, "import sys; print([sys.stdin.read()])").endswith("['']")
    request = make_request(tmp_path, sys.executable, stdin=str(tmp_path / "missing"))
    sentence, _ = run(watcher, request)
    assert "stdin file" in sentence
