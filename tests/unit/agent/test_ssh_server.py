"""The script that begins a session's own ssh server: what it says where it cannot."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

from holdfast.agent.sessions.ssh import SSH_SERVER


@pytest.mark.parametrize(
    ("there", "gone", "said"),
    [
        ("command -v sshd", "command -v sshd-of-nobody", "apt install openssh-server"),
        ("id -un >", "id -un no-such-user-here >", "has no name in /etc/passwd"),
        ("command -v sshd", "echo /bin/true", "the keys of this session did not arrive"),
    ],
)
def test_an_ssh_server_that_cannot_begin_says_why(
    tmp_path: Path, there: str, gone: str, said: str
) -> None:
    sshd = tmp_path / "sshd"  # this machine may have none
    sshd.write_text("#!/bin/sh\n")
    sshd.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    *words, script = SSH_SERVER
    assert there in script
    done = subprocess.run(
        [*words, script.replace(there, gone)], input=b"", capture_output=True, env=env
    )
    assert done.returncode in (1, 127)
    assert said in done.stderr.decode()


@pytest.mark.parametrize("number", ["HUP", "TERM"])
def test_the_end_of_a_connection_says_nothing(tmp_path: Path, number: str) -> None:
    """The guardian's signal reaches the server and the shell that waits for it, in any order."""
    server = tmp_path / "sshd"
    server.write_text(f"#!/bin/sh\nkill -{number} $$\n")
    server.chmod(0o755)
    env = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}", "TMPDIR": str(tmp_path)}
    done = subprocess.run(SSH_SERVER, input=b"user\nkey\n.\n", capture_output=True, env=env)
    assert (done.stdout, done.stderr) == (b"", b"")
