"""An sshd of the tests' own on loopback, and a rig of boxes behind it."""

from __future__ import annotations

import contextlib
import getpass
import os
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from holdfast.core.fleet.instances import Offer
from tests.providers.rig import StubRig, write_stub
from tests.waits import free_port, wait_exit, wait_until

SSHD = shutil.which("sshd", path=f"{os.environ.get('PATH', '')}:/usr/sbin:/usr/local/sbin")
MISSING = SSHD is None or shutil.which("ssh") is None
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
MaxStartups 100
KexAlgorithms curve25519-sha256
SetEnv HOME={folder}
"""
"""The quick exchange of keys, and a home of its own, because a shell that sshd starts would run
the start-up file of the user that runs the tests."""


class Sshd:
    """A server whose key is known to `known_hosts`."""

    def __init__(self, folder: Path) -> None:
        assert SSHD is not None
        folder.mkdir()
        self.folder, self.port = folder, free_port()
        for name in ("host_key", "user_key"):
            subprocess.run(
                ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(folder / name)],
                check=True,
            )
        key = (folder / "host_key.pub").read_text()
        (folder / "known_hosts").write_text(f"[127.0.0.1]:{self.port} {key}")
        (folder / "sshd_config").write_text(CONFIG.format(port=self.port, folder=folder))
        if os.getuid() == 0:
            Path("/run/sshd").mkdir(mode=0o755, exist_ok=True)
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def config(self) -> dict[str, Any]:
        """What reaches it."""
        return {
            "user": getpass.getuser(),
            "port": self.port,
            "key": str(self.folder / "user_key"),
            "known_hosts": str(self.folder / "known_hosts"),
            "ssh_options": ["-F", "none"],
        }

    def start(self) -> None:
        assert SSHD is not None
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(
                [SSHD, "-D", "-e", "-f", str(self.folder / "sshd_config")],
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
            )
        wait_until(lambda: "Server listening" in (self.folder / "log").read_text(), what="sshd")

    def stop(self) -> None:
        if self._process is not None:
            self._process.terminate()
            wait_exit(self._process, 20)


@contextlib.contextmanager
def serve_ssh(folder: Path) -> Iterator[Sshd]:
    """A server for the block."""
    server = Sshd(folder)
    server.start()
    try:
        yield server
    finally:
        server.stop()


class SshRig(StubRig):
    """Two boxes: folders behind one sshd."""

    kind = "ssh"
    offer = Offer(name="box")

    def __init__(self, folder: Path, server: Sshd) -> None:
        super().__init__(folder)
        wrapper = folder / "ssh"
        wrapper.write_text(f'#!/bin/sh\ntest -e {self._hanging} && sleep 600\nexec ssh "$@"\n')
        wrapper.chmod(0o700)
        boxes = [
            {"name": f"b{n}", "address": "127.0.0.1", "workdir": str(folder / f"b{n}")}
            for n in range(2)
        ]
        stub = str(write_stub(self._stubs))
        self.config: dict[str, Any] = server.config | {
            "boxes": boxes, "python": stub, "ssh": str(wrapper), "grace_seconds": 5
        }  # fmt: skip
        self.bad_config: dict[str, Any] = {"python": "/nowhere/python"}
