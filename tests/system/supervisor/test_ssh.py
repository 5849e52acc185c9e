"""Managers started over a real ssh, by the lines of the guide: an sshd of the test's own, on
loopback."""

from __future__ import annotations

import getpass
import json
import os
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from holdfast.supervisor import Context
from tests.system.supervisor.rig import PATIENCE, local_context, python
from tests.waits import free_port, is_alive, wait_exit, wait_until

GUIDE = Path(__file__).resolve().parents[3] / "docs" / "guides" / "supervisor.md"
SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(
        SSHD is None or shutil.which("ssh") is None,
        reason="there is no sshd; `make tools` brings one",
    ),
]
CONFIG = """
Port {port}
ListenAddress 127.0.0.1
HostKey {folder}/host_key
AuthorizedKeysFile {folder}/user_key.pub
PidFile none
PermitRootLogin prohibit-password
PasswordAuthentication no
KbdInteractiveAuthentication no
UsePAM no
StrictModes no
"""


@pytest.fixture
def ssh(tmp_path: Path) -> Iterator[list[str]]:
    """The words that reach an sshd of ours: everything but the host's name and the command."""
    port = free_port()
    for name in ("host_key", "user_key"):
        subprocess.run(
            ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(tmp_path / name)], check=True
        )
    (tmp_path / "sshd_config").write_text(CONFIG.format(port=port, folder=tmp_path))
    if os.getuid() == 0:
        Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)  # where it puts its unprivileged part
    assert SSHD is not None
    log = (tmp_path / "sshd.log").open("wb")
    with (
        log,
        subprocess.Popen(
            [SSHD, "-D", "-e", "-f", str(tmp_path / "sshd_config")], stderr=log
        ) as server,
    ):
        options = [
            "-F",
            "none",
            "-p",
            str(port),
            "-i",
            str(tmp_path / "user_key"),
            "-l",
            getpass.getuser(),
        ]
        for option in (
            "BatchMode=yes",
            "StrictHostKeyChecking=no",
            "UserKnownHostsFile=/dev/null",
            "LogLevel=ERROR",
        ):
            options += ["-o", option]
        try:
            wait_until(
                lambda: (
                    subprocess.run(["ssh", *options, "127.0.0.1", "true"], check=False).returncode
                    == 0
                ),
                PATIENCE,
                what="the sshd to let us in",
            )
            yield ["ssh", *options]
        finally:
            server.terminate()


def read_recipe() -> str:
    """The guide's lines, as a script would have them."""
    (found,) = re.findall(r"```python\n(def start_over_ssh.*?)```", GUIDE.read_text(), re.S)
    return str(found)


def test_managers_over_ssh(ssh: list[str], tmp_path: Path) -> None:
    """They attach, run, and end with the script; the key is in no command line; a dead ssh does not
    end them."""
    space: dict[str, object] = {
        "SSH": ssh,
        "HOLDFAST": f"{sys.executable} -m holdfast",
        "Context": Context,
        "subprocess": subprocess,
    }
    exec(compile(read_recipe(), str(GUIDE), "exec"), space)  # noqa: S102  the guide's own lines
    start = space["start_over_ssh"]
    assert callable(start)
    clients: list[subprocess.Popen[bytes]] = []
    with local_context(log_format=str(tmp_path / "{name}.txt")) as ctx:
        secret = json.loads(ctx.key_file.read_text())["client_secret"]
        try:
            clients += [start(ctx, name) for name in ("127.0.0.1", "localhost")]
            hosts = ctx.request_hosts(2)
            assert all(host.hostname().result(PATIENCE) for host in hosts)
            for file in Path("/proc").glob("[0-9]*/cmdline"):
                try:
                    assert secret.encode() not in file.read_bytes(), f"{file} shows the key"
                except OSError:
                    continue
            group = ctx.create_process_group(
                hosts, python("import time; time.sleep(600)"), name="w{rank}"
            )
            pids = [process.pid().result(PATIENCE) for process in group]
            clients[0].kill()  # the line that started it is no part of the run
            clients[0].wait()
            assert not ctx.status().hosts_lost
            assert [future.result(PATIENCE) for future in group.end(5.0)] == [-signal.SIGTERM] * 2
            assert not any(is_alive(pid) for pid in pids)
            second = next(host for host in hosts if host.hostname().result() == "localhost")
            ctx.replace_hosts([second])
            assert wait_exit(clients[1], PATIENCE) == 72, (
                "what started it learns by its exit code that it is to be replaced"
            )
        finally:
            for client in clients:
                client.kill()
                client.wait()
