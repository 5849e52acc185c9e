"""A real guardian in its own process, with a stand-in agent that relays what the test says and
hears.

Run as a program this file is either of the two: `guardian_rig.py guardian CONFIG` and
`guardian_rig.py agent RELAY`.
"""

from __future__ import annotations

import json
import os
import resource
import select
import signal
import socket
import subprocess
import sys
import time
from pathlib import Path
from typing import TypeVar

from holdfast.agent.guardian.config import GuardianConfig
from holdfast.agent.guardian.guardian_folder import (
    GuardianFolder,
    read_group_homes,
    sweep_after_guardian,
)
from holdfast.agent.guardian.loop import run_guardian
from holdfast.core.ids import TaskKey
from holdfast.process import table
from holdfast.process.endings.ending import Signaller
from holdfast.process.sweep import sweep
from holdfast.process.syscalls import read_boottime
from holdfast.process.table import ProcessEntry
from holdfast.wire.frames import FrameReader, encode_frame
from holdfast.wire.guardian import (
    AgentAlive,
    AgentHello,
    Answer,
    LaunchTask,
    Request,
    Snapshot,
    TaskEnded,
    TaskStarted,
    decode_answer,
    encode,
)

# A program of its own finds the tests by this line.
sys.path.insert(0, str(Path(__file__).resolve().parents[3]))
from tests.system.forks import find_origin
from tests.waits import Patience, crowding

PATIENCE_SECONDS = 20.0
SPARED_WORD = b"holdfast-test-survives-sigkill"
CURSED_WORD = b"holdfast-test-breaks-its-guardian"
T = TypeVar("T")


def find_marked(host: str) -> list[int]:
    """Living processes whose environment names `host`."""
    return [
        e.pid for e in table.read_table().values() if e.alive and table.read_marks(e.pid)[1] == host
    ]


class Rig:
    """One guardian, its stand-in agent, and the line between the agent and the test."""

    def __init__(self, folder: Path, **config: object) -> None:
        self.folder = folder
        self.host = f"rig-{os.urandom(6).hex()}"
        self.state_dir = folder / "state"
        self.notes_path = folder / "notes"
        self._relay = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        # Short, because a socket's path has a limit and the test's own folder may be long.
        self._relay_path = f"/tmp/hf-rig-{os.urandom(6).hex()}"
        self._relay.bind(self._relay_path)
        self._relay.listen()
        self._config = {
            "state_dir": str(self.state_dir),
            "host_id": self.host,
            "agent_argv": [sys.executable, __file__, "agent", self._relay_path],
            **config,
        }
        self._line: socket.socket | None = None
        self._reader = FrameReader()
        self.heard: list[Answer] = []
        self.guardians: list[subprocess.Popen[bytes]] = []

    @property
    def guardian(self) -> subprocess.Popen[bytes]:
        return self.guardians[-1]

    def start(self, *, forked: bool = True, **more: object) -> subprocess.Popen[bytes]:
        """Start a guardian without waiting for its agent. forked: see tests/system/forks.py."""
        config = json.dumps({**self._config, **more})
        with self.notes_path.open("ab") as notes:
            if forked:
                process = find_origin("rig").start([config], dict(os.environ), notes.fileno())
            else:
                command = [sys.executable, __file__, "guardian", config]
                process = subprocess.Popen(command, stderr=notes)
        self.guardians.append(process)
        return process

    def meet(self) -> Snapshot:
        """Wait for the next agent, say hello, return the snapshot.

        A guardian that is killed a moment after its agent may have started another, whose line is
        then dead: the one after it is met.
        """
        while True:
            self._relay.settimeout(PATIENCE_SECONDS * crowding())
            line, _ = self._relay.accept()
            if self._line is not None:
                self._line.close()  # not before: an agent whose test hangs up goes by itself
            self._line = line
            self._line.settimeout(PATIENCE_SECONDS)
            self._reader = FrameReader()
            self.heard.clear()
            try:
                self.agent_pid = int.from_bytes(self._line.recv(4, socket.MSG_WAITALL), "big")
                self.say(AgentHello(pid=self.agent_pid))
                return self.expect(Snapshot)
            except (ConnectionResetError, BrokenPipeError):
                continue

    def say(self, *requests: Request) -> None:
        self.send_frames(*(encode_frame(encode(request)) for request in requests))

    def send_frames(self, *frames: bytes) -> None:
        """Say what may be no message at all."""
        assert self._line is not None
        self._line.sendall(b"".join(frames))

    def hear(self, timeout_seconds: float) -> bool:
        """Read more of what the guardian says. False when nothing came or the line ended."""
        assert self._line is not None
        if not select.select([self._line], [], [], timeout_seconds)[0]:
            return False
        data = self._line.recv(1 << 18)
        self.heard += [decode_answer(frame) for frame in self._reader.feed(data)]
        return bool(data)

    def expect(self, kind: type[T], key: TaskKey | None = None) -> T:
        """Wait for the first unread answer of this kind (and key), and take it out of what was
        heard."""
        patience = Patience(PATIENCE_SECONDS)
        while True:
            for index, answer in enumerate(self.heard):
                if isinstance(answer, kind) and (
                    key is None or getattr(answer, "key", None) == key
                ):
                    del self.heard[index]
                    return answer
            assert not patience.over, (
                f"no {kind.__name__} for {key}; heard {self.heard}; {self.notes()}"
            )
            self.hear(0.1)

    def launch(self, argv: list[str], *, job: str = "job", **more: object) -> TaskKey:
        """Ask for a task with sensible defaults; its output goes to out and err in the rig's
        folder."""
        key = TaskKey(job, 0, 1)
        fields: dict[str, object] = {
            "contain": True,  # where the rig has groups, they are what is tried
            "env": {"PATH": os.environ["PATH"]},
            "cwd": str(self.folder),
            "stdout": str(self.folder / f"{job}.out"),
            "stderr": str(self.folder / f"{job}.err"),
            "deadline": time.clock_gettime(time.CLOCK_BOOTTIME) + 600,
            "grace_seconds": 5.0,
            **more,
        }
        self.say(LaunchTask(key=key, argv=argv, **fields))  # type: ignore[arg-type]  # plain words stand for the typed value in a test
        return key

    def start_task(
        self, argv: list[str], *, job: str = "job", **more: object
    ) -> tuple[TaskKey, int]:
        """Launch and wait until it runs; return its key and pid."""
        key = self.launch(argv, job=job, **more)
        return key, self.expect(TaskStarted, key).pid

    def run_task(self, argv: list[str], *, job: str = "job", **more: object) -> TaskEnded:
        """Launch and wait until it ended."""
        return self.expect(TaskEnded, self.launch(argv, job=job, **more))

    def read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""

    def wait_word(self, name: str) -> str:
        """Wait until the file has a whole line; return it stripped."""
        from tests.waits import wait_until  # this file is also run by itself, without `tests`

        return wait_until(
            lambda: self.read(name).endswith("\n") and self.read(name), what=f"a line in {name}"
        ).strip()

    def notes(self) -> str:
        return self.notes_path.read_text()

    def close(self) -> None:
        """End everything, in any state that the test left it in."""
        for guardian in self.guardians:
            guardian.kill()
            guardian.wait()
        sweep(self.host, group_homes=read_group_homes(self.state_dir))
        if self.state_dir.exists():
            GuardianFolder(
                self.state_dir
            ).close()  # removes what a killed guardian left outside its folder
        if self._line is not None:
            self._line.close()
        self._relay.close()
        os.unlink(self._relay_path)


class SparingSignaller(Signaller):
    """Spares processes whose command line says so: what a process stuck in a driver looks like from
    outside."""

    def send(self, entry: ProcessEntry, number: int) -> bool:
        try:
            words = Path(f"/proc/{entry.pid}/cmdline").read_bytes()
            names = Path(f"/proc/{entry.pid}/environ").read_bytes()
        except OSError:
            return False
        if CURSED_WORD in names:  # of the keeper, too: it would take its child with it
            raise RuntimeError("what a bug of the guardian's looks like")
        if number == signal.SIGKILL and SPARED_WORD in words:
            return False
        return super().send(entry, number)

    def kill_group(self, group: object) -> bool:
        return False


def _be_guardian(text: str) -> int:
    raw = json.loads(text)
    raw["state_dir"] = Path(raw["state_dir"])
    for name, (soft, hard) in raw.pop("limits", {}).items():
        resource.setrlimit(getattr(resource, name), (soft, hard))
    if "join" in raw:
        Path(raw.pop("join")).write_text("0")  # a control group made by the test
    asleep = raw.pop("asleep", None)
    clock = read_boottime if asleep is None else (lambda: read_boottime() + _read_sleep(asleep))
    return run_guardian(GuardianConfig(**raw), signaller=SparingSignaller(), read_clock=clock)


def _read_sleep(path: str) -> float:
    """How long the host of a test has slept: what its file holds, in seconds."""
    try:
        return float(Path(path).read_text() or 0)
    except OSError:
        return 0.0


def _be_agent(relay_path: str) -> int:
    """Relay between test and guardian; say `AgentAlive` by ourselves; sweep when the guardian is
    gone, as an agent must."""
    guardian = socket.socket(fileno=int(os.environ["HOLDFAST_GUARDIAN_FD"]))
    test = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    test.connect(relay_path)
    test.sendall(os.getpid().to_bytes(4, "big"))
    frames = FrameReader()
    while True:
        ready, _, _ = select.select([guardian, test], [], [], 0.1)
        if guardian in ready:
            try:
                data = guardian.recv(1 << 18)
            except ConnectionResetError:
                data = b""  # it was killed with words of ours unread
            if not data:
                return 1 if sweep_after_guardian(os.environ) else 0
            test.sendall(data)
        if test in ready:
            data = test.recv(1 << 18)
            if not data:
                return 0
            for frame in frames.feed(data):
                _tell(guardian, frame)
        _tell(guardian, encode(AgentAlive()))


def _tell(guardian: socket.socket, message: bytes) -> None:
    try:
        guardian.sendall(encode_frame(message))
    except (BrokenPipeError, ConnectionResetError):
        pass  # it is gone, which the next read says too


PARTS = {"guardian": _be_guardian, "agent": _be_agent}

if __name__ == "__main__":
    sys.exit(PARTS[sys.argv[1]](sys.argv[2]))
