"""`holdfast up` for real: from nothing, on a used folder, killed in every part, and never leaving a
process."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import stat
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from bench.stock_server import StockServer, find_packaged

from tests.system.up.up_rig import SECONDS, Rig, environment, wait_for
from tests.waits import run_patiently, wait_exit

pytestmark = pytest.mark.slow
MakeRig = Callable[..., Rig]


@pytest.fixture
def make_rig(tmp_path: Path, migrated_cluster: Path) -> Iterator[MakeRig]:
    """Make rigs; none of their processes outlives the test. `fresh`: its first start makes the
    database."""
    made: list[Rig] = []

    def make(*words: str, folder: Path = tmp_path, fresh: bool = False, **how: Any) -> Rig:
        made.append(Rig(folder, *words, cluster=None if fresh else migrated_cluster, **how))
        return made[-1]

    yield make
    for rig in made:
        rig.close()


def hello(rig: Rig) -> None:
    done = rig.run("run", "--", "echo", "hello")
    assert (done.returncode, done.stdout) == (0, b"hello\n"), f"{done.stderr!r} {rig.say()}"


def test_a_job_submits_jobs_with_a_token_that_no_log_shows(make_rig: MakeRig) -> None:
    rig = make_rig().start()
    program = f"cd / && {sys.executable} -m holdfast"
    line = f"{program} submit --name child -- true; {program} hosts; cat $HOLDFAST_TOKEN_FILE; env"
    done = rig.run("run", "--shell", line)
    assert done.returncode == 0, done.stderr
    child, masked = done.stdout.decode().splitlines()[:2]
    assert masked == "*" * len(masked)
    assert b"hfb_" not in done.stdout
    assert b"a job's own token submits work" in done.stderr
    shown = rig.run("show", child).stdout.decode()
    assert "submitted by  job " in shown
    found = json.loads(rig.run("jobs", "--json").stdout)
    parent = next(job["id"] for job in found if job["name"] != "child")
    assert child in rig.run("jobs", "--parent", parent).stdout.decode()
    assert child in rig.run("show", parent).stdout.decode()
    assert rig.stop() == 0


def test_from_nothing_to_a_job_and_down_again(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig(fresh=True).start()
    link = re.compile(r"http://holdfast\.localhost:\d+/sign-in#\S{20,}")
    printed = wait_for("a link", lambda: link.search(rig.say()))
    another = link.search(rig.run("dashboard", "--no-open").stdout.decode())
    assert another
    assert another[0] != printed[0]  # each is used once
    hello(rig)
    done = rig.run("run", "--shell", "echo out; echo err >&2; exit 7")
    assert (done.returncode, done.stdout) == (7, b"out\n")
    assert done.stderr.startswith(b"err\n")
    assert rig.run("run", "--", "pwd").stdout.decode().strip() == str(tmp_path)  # --cwd is here
    assert rig.run("run", "--shell", "kill -TERM $$").returncode == 143
    assert stat.S_IMODE(rig.data.stat().st_mode) == 0o700
    assert stat.S_IMODE((rig.data / "token").stat().st_mode) == 0o600

    second = rig.run("up")
    assert second.returncode == 4
    assert rig.url().encode() in second.stderr
    assert f"pid {rig.process.pid}".encode() in second.stderr  # type: ignore[union-attr]  # it was started above

    assert rig.stop() == 0
    assert not (rig.data / "url").exists()
    assert b"not running" in rig.run("jobs").stderr

    rig.start()
    assert (
        len(json.loads(rig.run("jobs", "--json").stdout)) == 4
    )  # what happened before is still known
    (host,) = json.loads(rig.run("hosts", "--json").stdout)
    assert host["slots"]["cpu"]["total"] == 2
    assert rig.stop() == 0


@pytest.mark.parametrize("data", ["holdfast-data", "my data", "elsewhere/holdfast-data"])
def test_what_it_says_to_type_works(make_rig: MakeRig, tmp_path: Path, data: str) -> None:
    """The lines run in a terminal in the folder in which `up` was started, or in the one named."""
    rig = make_rig("--port", "0", "--data", data, fresh=True).start()
    hint = wait_for("the hint", lambda: "holdfast run" in rig.say() and rig.say()).split(
        "in another terminal"
    )[1]
    where, _, lines = hint.partition(":")
    folder = where.removeprefix(", in ").replace("this folder", str(tmp_path)) or str(tmp_path)
    words = lines.partition("echo hello")
    env = {name: value for name, value in os.environ.items() if not name.startswith("HOLDFAST_")}
    env["PATH"] = f"{Path(sys.executable).parent}{os.pathsep}{env['PATH']}"
    done = run_patiently(
        ["bash", "-e", "-c", words[0] + words[1]],
        cwd=folder,
        env=env,
        capture_output=True,
        seconds=SECONDS,
    )
    assert (done.returncode, done.stdout) == (0, b"hello\n"), f"{done.stderr!r} {rig.say()}"
    assert (tmp_path / data / "token").read_text().strip() not in rig.say()
    assert rig.stop() == 0


def test_binary_output_is_whole(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig().start()
    data = os.urandom(3_000_000)
    (tmp_path / "data").write_bytes(data)
    done = rig.run("run", "--", "cat", "data")
    assert done.returncode == 0
    assert done.stdout == data
    rig.stop()


@pytest.mark.parametrize("part", ["controller", "agent", "postgres"])
def test_a_killed_part_comes_back(make_rig: MakeRig, part: str) -> None:
    rig = make_rig().start()
    pid = rig.part(part)
    assert pid
    os.kill(pid, signal.SIGKILL)
    wait_for(f"the {part} is back", lambda: rig.part(part) not in (0, pid))
    hello(rig)
    what = "database" if part == "postgres" else part
    assert f"the {what}" in rig.say()
    took_tasks = "as the host's guardian it took all tasks and shells with it" in rig.say()
    assert took_tasks == (part == "agent")
    assert rig.stop() == 0


def test_a_host_whose_folder_was_removed_joins_again(make_rig: MakeRig) -> None:
    rig = make_rig().start()
    guardian = rig.part("agent")
    children = Path(f"/proc/{guardian}/task/{guardian}/children").read_text().split()
    (agent,) = [
        int(pid)
        for pid in children
        if b"holdfast.agent\0" in Path(f"/proc/{pid}/cmdline").read_bytes()
    ]
    shutil.rmtree(rig.data / "host", ignore_errors=True)
    shutil.rmtree(rig.data / "host", ignore_errors=True)  # what was written meanwhile
    os.kill(agent, signal.SIGKILL)
    wait_for("the host is back", lambda: "this host has joined again" in rig.say())
    assert rig.part("agent") not in (0, guardian)
    assert "was removed, so its agent ended" in rig.say()
    assert rig.stop() == 0


def test_a_controller_restart_is_not_seen_by_a_job(make_rig: MakeRig) -> None:
    rig = make_rig().start()
    command = rig.command(
        "run", "--shell", "for i in 1 2 3 4 5 6 7 8; do echo $i; sleep 0.25; done"
    )
    with subprocess.Popen(
        command, cwd=rig.folder, env=environment(), stdout=subprocess.PIPE
    ) as run:
        assert run.stdout is not None
        first = run.stdout.readline()
        os.kill(rig.part("controller"), signal.SIGKILL)
        assert first + run.stdout.read() == b"1\n2\n3\n4\n5\n6\n7\n8\n"
        assert wait_exit(run, 30) == 0
    (job,) = json.loads(rig.run("jobs", "--json").stdout)
    assert (job["state"], job["attempts"]) == ("succeeded", 1)
    rig.stop()


def test_everything_killed_at_once_loses_nothing(make_rig: MakeRig, tmp_path: Path) -> None:
    rig = make_rig().start()
    hello(rig)
    script = (
        "import os, time; print(os.getpid(), flush=True); os.path.exists('go') or time.sleep(300)"
    )
    job_id = rig.run("submit", "--", sys.executable, "-c", script).stdout.decode().strip()
    pid = int(wait_for("it runs", lambda: rig.run("logs", job_id).stdout))
    rig.kill_everything()
    wait_for("the job died with its guardian", lambda: not _is_running(pid, b"os.getpid()"), 10)
    (tmp_path / "go").touch()
    rig.start()
    wait_for(
        "it ran again",
        lambda: json.loads(rig.run("show", job_id, "--json").stdout)["state"] == "succeeded",
    )
    attempts = json.loads(rig.run("attempts", job_id, "--json").stdout)
    assert [a["outcome"] for a in attempts] == ["requeued", "succeeded"]
    assert rig.stop() == 0


def test_the_supervisor_killed_alone_takes_its_parts_along(make_rig: MakeRig) -> None:
    rig = make_rig().start()
    rig.tree()
    rig.process.kill()  # type: ignore[union-attr]  # it was started above
    rig.process.wait()  # type: ignore[union-attr]  # it was started above
    wait_for("its parts are gone", lambda: not rig.living(), 20)
    rig.start()
    hello(rig)
    assert rig.stop() == 0


def test_a_frozen_leftover_is_ended_by_the_next_up(make_rig: MakeRig) -> None:
    rig = make_rig().start()
    controller = rig.part("controller")
    os.kill(controller, signal.SIGSTOP)  # deaf to the parent-death signal
    rig.tree()
    rig.process.kill()  # type: ignore[union-attr]  # it was started above
    rig.process.wait()  # type: ignore[union-attr]  # it was started above
    rig.start(wait=False)
    wait_for("ready again", lambda: rig.times_ready() == 2)
    assert f"ending the controller of an earlier `up` (pid {controller})" in rig.say()
    hello(rig)
    assert rig.stop() == 0


def test_ctrl_c_in_run_cancels_the_job(make_rig: MakeRig) -> None:
    rig = make_rig().start()
    with subprocess.Popen(
        rig.command("run", "--shell", "echo up; sleep 300"),
        cwd=rig.folder,
        env=environment(),
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
    ) as run:
        assert run.stdout is not None
        assert run.stderr is not None
        assert run.stdout.readline() == b"up\n"
        run.send_signal(signal.SIGINT)
        assert wait_exit(run, 30) == 130, run.stderr.read()
    (job,) = json.loads(rig.run("jobs", "--json").stdout)
    assert (job["state"], job["cause"]) == ("cancelled", "user_cancelled")
    rig.stop()


def test_ctrl_c_on_up_ends_running_tasks_and_requeues_them(make_rig: MakeRig) -> None:
    rig = make_rig().start()
    job_id = rig.run("submit", "--", "sleep", "300").stdout.decode().strip()
    wait_for(
        "it runs",
        lambda: json.loads(rig.run("show", job_id, "--json").stdout)["state"] == "running",
    )
    assert rig.stop() == 0
    rig.start()
    wait_for(
        "it runs again",
        lambda: json.loads(rig.run("show", job_id, "--json").stdout)["state"] == "running",
    )
    assert json.loads(rig.run("attempts", job_id, "--json").stdout)[0]["outcome"] == "requeued"
    rig.run("cancel", "--hard", job_id)
    assert rig.stop() == 0


def test_a_taken_port_is_told(make_rig: MakeRig) -> None:
    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        port = str(taken.getsockname()[1])
        rig = make_rig("--port", port, fresh=True).start(wait=False)
        assert wait_exit(rig.process, 30) == 4  # type: ignore[arg-type]  # it was started above
    assert f"port {port} is taken" in rig.say()
    assert "--port 0" in rig.say()


def test_a_part_that_keeps_dying_is_told_with_its_log(make_rig: MakeRig) -> None:
    rig = make_rig()
    rig.data.mkdir(mode=0o700)
    (rig.data / "host").write_text("in the way")
    rig.start(wait=False)
    assert wait_exit(rig.process, 60) == 1  # type: ignore[arg-type]  # it was started above
    assert "the agent exited" in rig.say()
    assert str(rig.data / "log" / "agent.log") in rig.say()
    assert "host" in rig.say().split("agent.log")[-1]
    assert not rig.url()


@pytest.fixture(params=["as ours is", "as its package sets it up"])
def own_dsn(request: pytest.FixtureRequest) -> Iterator[str]:
    if request.param == "as ours is":
        yield request.getfixturevalue("pg_dsn")
    elif find_packaged() is None:
        pytest.skip("no packaged PostgreSQL; run `make tools`")
    else:
        with StockServer() as stock:
            yield stock.dsn()


def test_a_database_of_the_users_own(make_rig: MakeRig, own_dsn: str) -> None:
    rig = make_rig("--port", "0", "--dsn", own_dsn, fresh=True).start()
    hello(rig)
    assert not (rig.data / "postgres").exists()
    assert rig.stop() == 0


@pytest.mark.skipif(os.geteuid() != 0, reason="is an ordinary user already")
def test_as_an_ordinary_user(make_rig: MakeRig) -> None:
    """As uid 65534, with whichever Python that user may run; else as 65534 inside a user
    namespace."""
    become = ["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"]
    ways: list[tuple[int, dict[str, Any]]] = [
        (65534, {"prefix": become}),
        (65534, {"prefix": become, "python": "/usr/bin/python3"}),
        (0, {"prefix": ["unshare", "--user", "--map-user=65534", "--map-group=65534"]}),
    ]
    folder = Path(tempfile.mkdtemp(prefix="holdfast-up-"))
    try:
        for owner, how in ways:
            os.chown(folder, owner, owner)
            rig = make_rig(folder=folder, fresh=True, **how)
            if rig.can_start_children():
                break
        else:
            pytest.skip("no Python here may be run by another user, and namespaces are forbidden")
        rig.start()
        done = rig.run("run", "--", "id", "-u")
        assert (done.returncode, done.stdout) == (0, b"65534\n"), f"{done.stderr!r}; {rig.say()}"
        assert rig.stop() == 0
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def _is_running(pid: int, word: bytes) -> bool:
    try:
        return word in Path(f"/proc/{pid}/cmdline").read_bytes()
    except OSError:
        return False
