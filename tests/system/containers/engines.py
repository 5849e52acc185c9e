"""The two runtimes under test, each with a storage of its own: podman, and an engine of docker's
that is started here and ended here."""

from __future__ import annotations

import io
import json
import os
import shlex
import shutil
import subprocess
import tarfile
import time
from pathlib import Path

from holdfast.agent.containers.runtimes import Kind, find_runtime
from holdfast.process.table import read_table
from tests.waits import Patience, run_patiently, wait_exit

IMAGE = "localhost/inside:latest"
START_SECONDS = 30.0
# Before a daemon's words: the kernel ends it when these tests are gone, also after a kill.
ENDS_WITH_US = (shutil.which("setpriv") or "setpriv", "--pdeathsig", "TERM")
KEY = Path(
    "/etc/docker/key.json"
)  # written by engines before 24 wherever they are told to keep the rest


class Engine:
    """One storage for all tests of a session, none of them the machine's own. `args`: the global
    options that lead to it."""

    kind: Kind
    args: list[str]

    def __init__(self, folder: Path, args: list[str]) -> None:
        self.folder = folder
        self.args = args
        self.runtime = find_runtime(self.kind, {self.kind: args}, os.environ)

    @property
    def environment(self) -> dict[str, str]:
        """What tells an agent of this storage."""
        return {f"HOLDFAST_{self.kind.upper()}_ARGS": shlex.join(self.args)}

    def run(self, *words: str, check: bool = True, data: bytes | None = None) -> str:
        """A command against this storage; what it printed."""
        done = run_patiently(self.runtime.call(*words), capture_output=True, input=data, seconds=60)
        assert not check or done.returncode == 0, (
            f"{self.kind} {' '.join(words)}: {done.stderr.decode()}"
        )
        return done.stdout.decode()

    def make_image(self, name: str, *files: Path) -> None:
        """Make an image of these files, the first of which is its program. One layer."""
        layer = io.BytesIO()
        with tarfile.open(fileobj=layer, mode="w") as tar:
            for file in files:
                tar.add(file, file.name)
        self.import_image(name, layer.getvalue(), f"/{files[0].name}")

    def import_image(self, name: str, layer: bytes, *entrypoint: str) -> None:
        """Make an image of one layer, a tar archive."""
        self.run(
            "import", "--change", f"ENTRYPOINT {json.dumps(entrypoint)}", "-", name, data=layer
        )

    def containers(self, mark: str = "") -> list[str]:
        """Names of all containers (of one host)."""
        return [
            name
            for name in self.run("ps", "--all", "--format", "{{.Names}}").split()
            if mark in name
        ]

    def forget(self, image: str) -> None:
        """Remove an image, so that it has to be pulled."""
        self.run("image", "rm", "--force", image, check=False)

    def push(self, image: str, to: str) -> None:
        """Send an image to a registry; nothing of it stays here under that name."""
        self.run("tag", image, to)
        self.run("push", to)
        self.forget(to)

    def remnants(self) -> list[str]:
        """Monitors, pullers, clients and mounts of this storage that are still there."""
        found = []
        own = self._own_pids()
        for entry in read_table().values():
            try:
                words = (
                    Path(f"/proc/{entry.pid}/cmdline")
                    .read_bytes()
                    .replace(b"\0", b" ")
                    .decode(errors="replace")
                )
            except OSError:
                continue
            if (
                str(self.folder) in words
                and entry.alive
                and entry.pid not in own
                and "registry serve" not in words
            ):
                found.append(f"{entry.pid} {words[:400]}")
        return found + self._list_mounts()

    def _own_pids(self) -> list[int]:
        return []

    def _list_mounts(self) -> list[str]:
        raise NotImplementedError  # podman and docker keep theirs in different places

    def close(self) -> None:
        """Remove everything that the storage holds, and end what was started for it."""
        raise NotImplementedError  # each engine's own way


def _read_mounts() -> list[str]:
    return Path("/proc/self/mounts").read_text().splitlines()


class Podman(Engine):
    """podman, which needs no daemon."""

    kind = "podman"

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder,
            [
                "--root",
                f"{folder}/storage",
                "--runroot",
                f"{folder}/run",
                # Its own, too: a reset takes away the file by which podman knows that the machine
                # has not booted anew, and every other podman of it forgets what runs.
                "--tmpdir",
                f"{folder}/tmp",
                "--storage-driver",
                "vfs",
            ],
        )

    def forget_all(self) -> None:
        """Have it take the machine for booted anew."""
        (self.folder / "tmp" / "alive").unlink()
        self.run("ps")

    def _list_mounts(self) -> list[str]:
        return [
            line
            for line in _read_mounts()
            if f"{self.folder}/storage/" in line and "/vfs-containers/" in line
        ]

    def close(self) -> None:
        self.run("rm", "--force", "--all", check=False)
        self.run("system", "reset", "--force", check=False)


class CannotServe(Exception):
    """dockerd may not run here; in its own words."""


class Docker(Engine):
    """docker's engine: a daemon of this session alone, that touches neither the machine's network
    nor its storage."""

    kind = "docker"

    def __init__(self, folder: Path) -> None:
        super().__init__(
            folder, ["--config", f"{folder}/client", "--host", f"unix://{folder}/socket"]
        )
        self._log = folder / "dockerd.log"
        self._had_key = KEY.exists()
        self._process: subprocess.Popen[bytes] | None = None

    @property
    def pid(self) -> int:
        """The daemon's."""
        assert self._process is not None
        return self._process.pid

    def start(self, *options: str, path: str | None = None) -> None:
        """Start the daemon (with another PATH) and wait until it answers. It ends with the thread
        that calls this; call it from the main one. Raises CannotServe."""
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*ENDS_WITH_US, "dockerd", "--config-file", str(self._write_config()), "--data-root", f"{self.folder}/data",
                 "--exec-root", f"{self.folder}/exec", "--pidfile", f"{self.folder}/pid", "--host", f"unix://{self.folder}/socket",
                 "--storage-driver=vfs", "--iptables=false", "--ip6tables=false", "--bridge=none", *options],
                stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True,
                env={**os.environ, "PATH": path or os.environ["PATH"]},
            )  # fmt: skip
        patience = Patience(START_SECONDS)
        while subprocess.run(
            self.runtime.call("info"), capture_output=True, check=False
        ).returncode:
            if self._process.poll() is not None or patience.over:
                raise CannotServe(
                    " ".join(self._log.read_text(errors="replace").strip().splitlines()[-1:])[:500]
                )
            time.sleep(0.05)

    def _write_config(self) -> Path:
        """One try for each layer instead of five: between them it waits, five seconds longer each
        time."""
        path = self.folder / "daemon.json"
        path.write_text('{"max-download-attempts": 1}')
        return path

    def kill(self) -> None:
        """kill -9 of the daemon. Its containers go on; its containerd dies with it."""
        assert self._process is not None
        self._process.kill()
        wait_exit(self._process, 10)
        # Where the first process of a machine reaps no orphans, a zombie's pid makes the next daemon
        # wait for the old containerd.
        (self.folder / "exec/containerd/containerd.pid").unlink(missing_ok=True)

    def _own_pids(self) -> list[int]:
        if self._process is None:
            return []
        pid = self._process.pid
        return [pid, *(entry.pid for entry in read_table().values() if entry.ppid == pid)]

    def _list_mounts(self) -> list[str]:
        """All but the two that the daemon makes for itself."""
        own = (f" {self.folder}/data ", f" {self.folder}/exec/netns/default ")
        return [
            line
            for line in _read_mounts()
            if str(self.folder) in line and not any(word in line for word in own)
        ]

    def stop(self) -> None:
        """TERM to the daemon, which ends its containers."""
        assert self._process is not None
        self._process.terminate()
        try:
            self._process.wait(20)
        except subprocess.TimeoutExpired:
            self.kill()

    def close(self) -> None:
        if self._process is None:
            return
        if self._process.poll() is None:
            names = self.containers()
            self.run("rm", "--force", *names, check=False) if names else None
            self.stop()
        for line in _read_mounts():
            if f" {self.folder}/" in line:
                subprocess.run(["umount", line.split()[1]], check=False)
        if not self._had_key:
            KEY.unlink(missing_ok=True)
