"""Real containers and a real registry on this machine: podman, docker's engine, docker-registry,
one static program."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest

from holdfast.agent.config import MARK_FILE
from holdfast.agent.containers.runtimes import Kind
from holdfast.core.ids import TaskKey
from holdfast.process.files import read_bound
from tests.store.pg_fixture import PgServer
from tests.system.agent.conftest import Host
from tests.system.agent.fake_controller import FakeController, serve
from tests.system.cluster import Cluster
from tests.system.conftest import make_cluster
from tests.system.containers.engines import ENDS_WITH_US, IMAGE, CannotServe, Docker, Engine, Podman
from tests.waits import Patience, wait_until

HERE = Path(__file__).parent


def skip(reason: str) -> None:
    """Skip, but not where the tools have been installed for these tests (`.ci/run`)."""
    if os.environ.get("HOLDFAST_TESTS_NEED_CONTAINERS"):
        pytest.fail(f"a container test would be skipped: {reason}")
    pytest.skip(reason)


def mark_of(host: Host) -> str:
    """What the containers of this host are called after."""
    return read_bound(Path(host.config.state_dir) / MARK_FILE)[0]


class Registry:
    """A registry on loopback that can be stopped and started."""

    def __init__(self, folder: Path) -> None:
        with socket.socket() as probe:
            probe.bind(("127.0.0.1", 0))
            self.port = probe.getsockname()[1]
        self._config = folder / "registry.yml"
        self._config.write_text(
            "version: 0.1\nlog:\n  level: error\nstorage:\n  filesystem:\n    rootdirectory: "
            f"{folder}/registry\n"
            f"http:\n  addr: 127.0.0.1:{self.port}\n"
        )
        self._log = folder / "registry.log"
        self._process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                [*ENDS_WITH_US, "docker-registry", "serve", str(self._config)],
                stdout=log,
                stderr=log,
            )
        wait_until(self._answers)

    def _answers(self) -> bool:
        with socket.socket() as probe:
            return probe.connect_ex(("127.0.0.1", self.port)) == 0

    def stop(self) -> None:
        if self._process is not None:
            self._process.kill()
            self._process.wait()
            self._process = None


@pytest.fixture(scope="session")
def program(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """What runs inside."""
    if shutil.which("gcc") is None:
        skip("gcc is not installed (`make tools` does it)")
    path = tmp_path_factory.mktemp("program") / "inside"
    subprocess.run(["gcc", "-static", "-O1", "-o", str(path), str(HERE / "inside.c")], check=True)
    return path


@pytest.fixture(scope="session")
def podman(program: Path, memory_home: Path) -> Iterator[Podman]:
    missing = [
        tool
        for tool in ("podman", "docker-registry", "catatonit", "setpriv")
        if shutil.which(tool) is None
    ]
    if missing:
        skip(f"{', '.join(missing)} not installed (`make tools` does it)")
    if (
        os.getuid() != 0
        and subprocess.run(
            ["podman", "unshare", "true"], capture_output=True, check=False
        ).returncode
    ):
        skip(
            "podman cannot run here without root (it needs sub-ids, newuidmap and XDG_RUNTIME_DIR)"
        )
    folder = make_folder(memory_home, "podman")
    made = Podman(folder)
    os.environ["CONTAINERS_REGISTRIES_CONF"] = str(folder / "registries.conf")
    (folder / "registries.conf").write_text(
        '[[registry]]\nlocation = "127.0.0.1"\ninsecure = true\n'
    )
    try:
        made.make_image(IMAGE, program)
        yield made
    finally:
        del os.environ["CONTAINERS_REGISTRIES_CONF"]
        end(made)


@pytest.fixture(scope="session")
def docker(program: Path, memory_home: Path) -> Iterator[Docker]:
    """Skips where no engine can run: docker is not what these tests need, and not every machine
    lets a daemon mount and clone."""
    missing = [
        tool
        for tool in ("dockerd", "docker", "docker-init", "docker-registry", "setpriv")
        if shutil.which(tool) is None
    ]
    if missing:
        pytest.skip(f"{', '.join(missing)} not installed (`make tools` does it)")
    if os.getuid() != 0:
        pytest.skip("docker's engine is started by root alone")
    made = Docker(make_folder(memory_home, "docker"))
    try:
        made.start()
    except CannotServe as error:
        made.close()
        pytest.skip(f"docker's engine cannot run here: {error}")
    try:
        made.make_image(IMAGE, program)
        yield made
    finally:
        end(made)


def make_folder(memory_home: Path, name: str) -> Path:
    """Make a folder for an engine, in memory where that is: it copies a whole image for each
    container. podman takes no --runroot of more than 50 characters, a socket's path has 107 at
    most."""
    folder = memory_home / name
    if len(f"{folder}/run") > 50:
        return Path(tempfile.mkdtemp(prefix=f"hf-{name}-"))
    folder.mkdir()
    return folder


def end(engine: Engine) -> None:
    """Close an engine; fails where tests left something in it."""
    left = engine.containers()
    engine.close()
    shutil.rmtree(engine.folder, ignore_errors=True)
    assert not left, f"containers left behind: {left}"
    assert not engine.folder.exists(), f"still mounted: {engine.folder}"


@pytest.fixture(scope="session", params=["podman", "docker"])
def engine(request: pytest.FixtureRequest) -> Engine:
    """Each of the two: what is tested with it holds for both."""
    made: Engine = request.getfixturevalue(request.param)
    return made


@pytest.fixture(scope="session")
def image(engine: Engine) -> str:
    """An image that is on this machine."""
    return IMAGE


@pytest.fixture(scope="session")
def limits_memory(engine: Engine) -> None:
    """Skips where the kernel lets no container have a limit of its own."""
    asked = "{{.MemoryLimit}}" if engine.kind == "docker" else "{{.Host.CgroupControllers}}"
    said = engine.run("info", "--format", asked)
    if "memory" not in said and said.strip() != "true":
        skip("no memory controller is handed down to this machine")


@pytest.fixture(scope="module")
def cluster(
    tmp_path_factory: pytest.TempPathFactory, pg_server: PgServer, engine: Engine
) -> Iterator[Cluster]:
    """A controller for the tests of a module, which leave no container behind."""
    with ExitStack() as stack:
        yield make_cluster(stack, tmp_path_factory.mktemp("cluster"), pg_server)
    assert engine.containers() == []


class BoxController(FakeController):
    """Asks for the runtime under test."""

    runtime: Kind | None = None

    def launch(self, *argv: str, job: str = "job", epoch: int = 1, **fields: Any) -> TaskKey:
        if "image" in fields:
            fields.setdefault("runtime", self.runtime)
        return super().launch(*argv, job=job, epoch=epoch, **fields)


@pytest.fixture
def controller() -> BoxController:
    return BoxController()


@pytest.fixture
def make_host(
    tmp_path: Path, controller: BoxController, engine: Engine
) -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []
    controller.runtime = engine.kind

    def make(**fields: Any) -> Host:
        folder = tmp_path / f"host{len(hosts)}"
        folder.mkdir()
        hosts.append(
            Host(folder, url, environment=engine.environment, pass_env=["FAKE_*"], **fields)
        )
        return hosts[-1]

    with serve(controller) as url:
        yield make
        for host in hosts:
            orderly = host.process is not None and host.process.poll() is None
            if orderly:
                host.stop()
            if os.environ.get("SHOW_JOURNAL"):
                print(host.journal.read_text())
            left = (
                engine.containers(mark_of(host))
                if Path(host.config.state_dir, MARK_FILE).exists()
                else []
            )
            engine.run("rm", "--force", *left) if left else None
            host.end()
            assert not orderly or not left, f"left behind: {left}"
    patience = Patience(10)
    while engine.remnants() and not patience.over:
        time.sleep(0.05)
    assert engine.remnants() == []


@pytest.fixture
def host(make_host: Callable[..., Host]) -> Host:
    return make_host().start()
