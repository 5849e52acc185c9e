"""A host for tests: a real guardian with a real agent under it, against the fake controller, in a
folder of its own."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from holdfast.agent.config import AgentConfig
from holdfast.agent.guardian.guardian_folder import LOCK_FILE, GuardianFolder, read_group_homes
from holdfast.process.files import read_bound
from holdfast.process.sweep import sweep
from tests.system.agent.fake_controller import JOIN_TOKEN, FakeController, serve
from tests.system.forks import find_origin
from tests.waits import wait_exit, wait_until


class Host:
    """One host under test."""

    def __init__(
        self, folder: Path, url: str, *, environment: Mapping[str, str] | None = None, **fields: Any
    ) -> None:
        self.folder = folder
        self._environment = environment or {}
        token_file = folder / "join-token"
        token_file.write_text(JOIN_TOKEN)
        self.config = AgentConfig(
            url=url,
            state_dir=str(folder / "state"),
            name="testhost",
            join_token_file=str(token_file),
            **fields,
        )
        self.process: subprocess.Popen[bytes] | None = None
        self.journal = folder / "journal.txt"

    def start(self) -> Host:
        path = self.folder / "config.json"
        path.write_bytes(msgspec.json.encode(self.config))
        with open(self.journal, "ab") as journal:
            environment = {**os.environ, **self._environment}
            self.process = find_origin("host").start([str(path)], environment, journal.fileno())
        return self

    @property
    def guardian_pid(self) -> int:
        assert self.process is not None
        return self.process.pid

    def agent_pid(self, *, but: int = 0) -> int:
        """The agent's pid, once there is one that is not `but`."""

        def find() -> int:
            path = f"/proc/{self.guardian_pid}/task/{self.guardian_pid}/children"
            for word in Path(path).read_text().split():
                with contextlib.suppress(OSError):
                    if (
                        b"holdfast.agent\0" in Path(f"/proc/{word}/cmdline").read_bytes()
                        and int(word) != but
                    ):
                        return int(word)
            return 0

        pid: int = wait_until(find)
        return pid

    def said(self, words: str) -> bool:
        return words in self.journal.read_text()

    def stop(self) -> int:
        """TERM, and wait."""
        assert self.process is not None
        self.process.send_signal(signal.SIGTERM)
        return wait_exit(self.process, 30)

    def end(self) -> None:
        """End it in any state, so that nothing of it runs afterwards."""
        if self.process is not None and self.process.poll() is None:
            self.process.kill()
            wait_exit(self.process, 10)
        state = Path(self.config.state_dir)
        mark = state / "mark"
        if mark.exists():
            homes = read_group_homes(state)
            assert sweep(read_bound(mark)[0], group_homes=homes) == []
        if (state / LOCK_FILE).exists():
            GuardianFolder(state).close()  # removes what a killed guardian left outside its folder


@pytest.fixture
def controller() -> FakeController:
    return FakeController()


@pytest.fixture
def url(controller: FakeController) -> Iterator[str]:
    with serve(controller) as address:
        yield address


@pytest.fixture
def make_host(tmp_path: Path, url: str) -> Iterator[Callable[..., Host]]:
    hosts: list[Host] = []

    def make(address: str | None = None, **fields: Any) -> Host:
        folder = tmp_path / f"host{len(hosts)}"
        folder.mkdir()
        host = Host(folder, address or url, **fields)
        hosts.append(host)
        return host

    yield make
    for host in hosts:
        host.end()
        if os.environ.get("SHOW_JOURNAL"):
            print(host.journal.read_text())


@pytest.fixture
def host(make_host: Callable[..., Host]) -> Host:
    return make_host().start()
