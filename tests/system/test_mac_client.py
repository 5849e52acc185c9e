"""A client on a Mac against a real server and host: each way of the command line and the SDK that a
laptop is used for, without a name that only Linux has (`tests/mac.py`)."""

from __future__ import annotations

import contextlib
import fcntl
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import termios
import unicodedata
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.system.cluster import Cluster, clean_environment
from tests.waits import run_patiently, wait_exit, wait_until

pytestmark = pytest.mark.slow
MAC = Path(__file__).parents[1] / "mac.py"
SERVER = """
import socket
server = socket.create_server(("127.0.0.1", 23117))
print("listens", flush=True)
while True:
    end = server.accept()[0]
    end.sendall(end.recv(100).upper())
    end.close()
"""
# A name that macOS keeps as it was typed: composed by most programs, decomposed by some.
COMPOSED = "caf\u00e9.txt"
DECOMPOSED = unicodedata.normalize("NFD", COMPOSED)


def surroundings(cluster: Cluster) -> dict[str, str]:
    token = cluster.controller.token_file.read_text().strip()
    home = {"HOME": str(cluster.folder), "XDG_CONFIG_HOME": str(cluster.folder / "config")}
    return clean_environment(
        HOLDFAST_URL=cluster.controller.url, HOLDFAST_TOKEN=token, TERM="xterm", **home
    )


def on_mac(cluster: Cluster, *words: str, **more: Any) -> subprocess.CompletedProcess[bytes]:
    """Run a command of the client to its end."""
    return run_patiently(
        [sys.executable, "-P", str(MAC), *words],
        env=surroundings(cluster),
        capture_output=True,
        seconds=60,
        **{"cwd": cluster.folder, **more},
    )


def said(cluster: Cluster, *words: str, **more: Any) -> str:
    """Run a command to its good end, and return what it printed."""
    done = on_mac(cluster, *words, **more)
    assert done.returncode == 0, done.stderr.decode()
    return done.stdout.decode()


@contextlib.contextmanager
def in_terminal(cluster: Cluster, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], int]]:
    """A command in a terminal of its own, and the other end of that."""
    master, slave = pty.openpty()
    fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", 30, 100, 0, 0))
    process = subprocess.Popen(
        [sys.executable, "-P", str(MAC), *words],
        env=surroundings(cluster), stdin=slave, stdout=slave, stderr=slave, cwd=cluster.folder,
        start_new_session=True,
    )  # fmt: skip
    os.close(slave)
    os.set_blocking(master, False)
    try:
        yield process, master
    finally:
        if process.poll() is None:
            process.kill()
        process.wait()
        os.close(master)


def read_until(master: int, word: bytes) -> None:
    seen = bytearray()

    def look() -> bool:
        with contextlib.suppress(OSError):
            seen.extend(os.read(master, 1 << 16))
        return word in seen

    wait_until(look, 30, what=f"{word!r}")


@pytest.fixture(scope="module")
def job(shared: Cluster) -> str:
    """A job that answers on a port, and leaves a file."""
    shared.add_host("linux", cpu_slots=8)
    job_id = shared.submit(
        shell=f"mkdir out; echo model >out/model; exec python3 -c '{SERVER}'", outputs=["out"]
    )
    wait_until(lambda: b"listens" in shared.output(job_id), 60)
    return job_id


def test_run_submit_wait_and_the_lists(shared: Cluster, job: str) -> None:
    assert said(shared, "run", "--", "echo", "hello") == "hello\n"
    done = on_mac(shared, "run", "--", "sh", "-c", "exit 7")
    assert done.returncode == 7
    other = said(shared, "submit", "--", "true").split()[-1]
    assert on_mac(shared, "wait", other).returncode == 0
    for words in (
        ("jobs",),
        ("hosts",),
        ("show", other),
        ("why", other),
        ("logs", other),
        ("attempts", other),
    ):
        said(shared, *words)
    assert "/sign-in#" in said(shared, "dashboard", "--no-open")


def test_code_goes_with_the_names_that_linux_programs_look_for(
    shared: Cluster, job: str, tmp_path: Path
) -> None:
    """A decomposed name arrives composed, as git and programs write it. A script's own case counts."""
    (tmp_path / DECOMPOSED).write_text("drink\n")
    (tmp_path / "folder").mkdir()
    (tmp_path / "folder" / DECOMPOSED).write_text("drink more\n")
    words = ("run", "--workdir", ".", "--", "cat", COMPOSED, f"folder/{COMPOSED}")
    assert said(shared, *words, cwd=tmp_path) == "drink\ndrink more\n"


def test_files_come_and_go(shared: Cluster, job: str, tmp_path: Path) -> None:
    said(shared, "cp", f"{job}:out/model", str(tmp_path / "model"))
    assert (tmp_path / "model").read_text() == "model\n"
    (tmp_path / "sent").write_text("sent\n")
    said(shared, "cp", str(tmp_path / "sent"), f"{job}:out/sent")
    assert said(shared, "exec", job, "--", "cat", "out/sent", stdin=subprocess.DEVNULL) == "sent\n"


def test_two_names_that_are_one_on_this_disk_are_refused_and_not_merged(
    shared: Cluster, job: str, tmp_path: Path
) -> None:
    said(shared, "exec", job, "--", "sh", "-c", "mkdir -p out/two; echo a >out/two/Read; echo b >out/two/READ",
         stdin=subprocess.DEVNULL)  # fmt: skip
    done = on_mac(shared, "cp", f"{job}:out/two", str(tmp_path / "two"))
    assert done.returncode == 2
    assert b"are one name on this disk" in done.stderr


def test_a_link_in_the_way_is_refused_by_its_name(
    shared: Cluster, job: str, tmp_path: Path
) -> None:
    (tmp_path / "to").mkdir()
    (tmp_path / "to" / "out").symlink_to(tmp_path)
    done = on_mac(shared, "cp", f"{job}:out/", str(tmp_path / "to"))
    assert done.returncode == 2
    assert b"Traceback" not in done.stderr
    assert b"a link or a file has this name here" in done.stderr


def test_a_command_a_shell_and_a_port(shared: Cluster, job: str) -> None:
    done = on_mac(shared, "exec", job, "--", "cat", input=b"over the line")
    assert (done.returncode, done.stdout) == (0, b"over the line")
    with in_terminal(shared, "shell", job) as (process, master):
        os.write(master, b"echo $((6*7))-here\n")
        read_until(master, b"42-here")
        os.write(master, b"exit 3\n")
        assert wait_exit(process, 30) == 3
    with socket.create_server(("127.0.0.1", 0)) as free:
        port = free.getsockname()[1]
    with in_terminal(shared, "port-forward", job, f"23117:{port}") as (_, master):
        read_until(master, str(port).encode())
        with socket.create_connection(("127.0.0.1", port), 30) as end:
            end.sendall(b"hi")
            assert end.recv(10) == b"HI"


def test_top_draws_and_leaves(shared: Cluster, job: str) -> None:
    with in_terminal(shared, "top") as (process, master):
        read_until(master, b"linux")
        os.write(master, b"q")
        assert wait_exit(process, 30) == 0


def test_the_sdk(shared: Cluster, job: str) -> None:
    code = (
        "from mac import become_mac; become_mac(); import asyncio, holdfast\n"
        "from holdfast import Client, AsyncClient\n"
        f"with Client() as client: print(client.job({job!r}).state)\n"
        "async def ask():\n"
        f"    async with AsyncClient() as client: print((await client.job({job!r})).state)\n"
        "asyncio.run(ask())\n"
        "holdfast.beat(1)\n"
    )
    done = run_patiently(
        [sys.executable, "-c", code],
        env=surroundings(shared),
        cwd=MAC.parent,
        capture_output=True,
        seconds=60,
    )
    assert re.findall(rb"running", done.stdout) == [b"running"] * 2, done.stderr
