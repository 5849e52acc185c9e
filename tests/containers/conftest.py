"""Real containers and a real registry on this machine: podman with a storage of its own, docker-registry, one static program."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.config import MARK_FILE
from holdfast.agent.containers.runtimes import find_runtime
from holdfast.process.table import read_table
from tests.agent.conftest import Host, poll
from tests.agent.fake_controller import FakeController, serve

HERE = Path(__file__).parent
TOOLS = ("podman", "docker-registry", "gcc", "catatonit")


def skip(reason: str) -> None:
    """Skip, but not where the tools have been installed for these tests (`.ci/run`)."""
    if os.environ.get("HOLDFAST_TESTS_NEED_CONTAINERS"):
        pytest.fail(f"a container test would be skipped: {reason}")
    pytest.skip(reason)


def mark_of(host: Host) -> str:
    """What the containers of this host are called after."""
    return (Path(host.config.state_dir) / MARK_FILE).read_text().strip()


class Podman:
    """One storage for all tests of a session, none of them the machine's own."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.args = ["--root", str(folder / "storage"), "--runroot", str(folder / "run"), "--storage-driver", "vfs"]
        self._runtime = find_runtime("podman", {"podman": self.args}, os.environ)

    def run(self, *words: str, check: bool = True) -> str:
        """A command against this storage; what it printed."""
        done = subprocess.run(self._runtime.call(*words), capture_output=True, check=False, text=True, timeout=60)
        assert not check or done.returncode == 0, f"podman {' '.join(words)}: {done.stderr}"
        return done.stdout

    def containers(self, mark: str = "") -> list[str]:
        """Names of all containers (of one host)."""
        return [name for name in self.run("ps", "--all", "--format", "{{.Names}}").split() if mark in name]

    def forget(self, image: str) -> None:
        """Remove an image, so that it has to be pulled."""
        self.run("image", "rm", "--force", image, check=False)

    def remnants(self) -> list[str]:
        """Monitors, pullers and mounts of this storage that are still there."""
        found = []
        for entry in read_table().values():
            try:
                words = Path(f"/proc/{entry.pid}/cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
            except OSError:
                continue
            if str(self.folder) in words and entry.alive and "registry" not in words.split("/")[-1]:
                found.append(f"{entry.pid} {words[:200]}")
        mounts = Path("/proc/self/mounts").read_text().splitlines()
        return found + [line for line in mounts if f"{self.folder}/storage/" in line and "/vfs-containers/" in line]


class Registry:
    """A registry on loopback that can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._config = folder / "registry.yml"
        self._config.write_text(
            f"version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: {folder}/registry\n"
            f"http:\n  addr: 127.0.0.1:{self.port}\n"
        )
        self._log = folder / "registry.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(["docker-registry", "serve", str(self._config)], stdout=log, stderr=log)
        poll(self._answers)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def podman() -> Iterator[Podman]:
    missing = [tool for tool in TOOLS if shutil.which(tool) is None]
    if missing:
        skip(f"{', '.join(missing)} not installed (`make tools` does it)")
    if os.getuid() != 0 and subprocess.run(["podman", "unshare", "true"], capture_output=True, check=False).returncode:
        skip("podman cannot run here without root (it needs sub-ids, newuidmap and XDG_RUNTIME_DIR)")
    folder = Path(tempfile.mkdtemp(prefix="hf-podman-"))  # podman takes no --runroot of more than 50 characters
    made = Podman(folder)
    os.environ["CONTAINERS_REGISTRIES_CONF"] = str(folder / "registries.conf")
    (folder / "registries.conf").write_text('[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n')
    program = folder / "inside"
    subprocess.run(["gcc", "-static", "-O1", "-o", str(program), str(HERE / "inside.c")], check=True)
    (folder / "Containerfile").write_text('FROM scratch\nCOPY inside /inside\nENTRYPOINT ["/inside"]\n')
    made.run("build", "--quiet", "--tag", "inside", str(folder))
    yield made
    left = made.containers()
    made.run("rm", "--force", "--all", check=False)
    made.run("system", "reset", "--force", check=False)
    del os.environ["CONTAINERS_REGISTRIES_CONF"]
    shutil.rmtree(folder, ignore_errors=True)
    assert not left, f"containers left behind: {left}"


@pytest.fixture(scope="session")
def image(podman: Podman) -> str:
    """An image that is on this machine."""
    return "localhost/inside:latest"


@pytest.fixture(scope="session")
def limits_memory(podman: Podman) -> None:
    """Skips where the kernel lets no container have a limit of its own."""
    if "memory" not in podman.run("info", "--format", "{{.Host.CgroupControllers}}"):
        skip("no memory controller is handed down to this machine")


@pytest.fixture
def controller() -> FakeController:
    return FakeController()


@pytest.fixture
def make_host(tmp_path: Path, controller: FakeController, podman: Podman) -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []

    def make(**fields: Any) -> Host:
        folder = tmp_path / f"host{len(hosts)}"
        folder.mkdir()
        hosts.append(Host(folder, url, podman_args=podman.args, **fields))
        return hosts[-1]

    with serve(controller) as url:
        yield make
        for host in hosts:
            orderly = host.process is not None and host.process.poll() is None
            if orderly:
                host.stop()
            if os.environ.get("SHOW_JOURNAL"):
                print(host.journal.read_text())
            left = podman.containers(mark_of(host)) if Path(host.config.state_dir, MARK_FILE).exists() else []
            podman.run("rm", "--force", "--ignore", *left) if left else None
            host.end()
            assert not orderly or not left, f"left behind: {left}"
    deadline = time.monotonic() + 10
    while podman.remnants() and time.monotonic() < deadline:
        time.sleep(0.05)
    assert podman.remnants() == []


@pytest.fixture
def host(make_host: Callable[..., Host]) -> Host:
    return make_host().start()
