"""A scripted agent: the agent's end of an executor's line, with a real executor at the other end."""

from __future__ import annotations

import contextlib
import json
import os
import select
import signal
import socket
import struct
import subprocess
import sys
import time
from collections import deque
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.calls.values import FunctionSpec
from holdfast.wire.calls import (
    PLACE_BYTES,
    PLACE_FORMAT,
    AgentFrame,
    Batch,
    CallEnd,
    CallError,
    CallOrder,
    ExecutorFrame,
    SetInfo,
)
from holdfast.wire.frames import FrameReader, encode_frame
from tests.waits import Patience

KEY = "0123456789abcdefghjk:0:1"


class ScriptedAgent:
    """The socket, the place file, and what the executor said. `app`: source of its module."""

    def __init__(self, folder: Path, app: str, limits: dict[str, Any] | None = None) -> None:
        self.folder = folder
        (folder / "pages.py").write_text("import holdfast\n" + app)
        self._listener = socket.socket(socket.AF_UNIX)
        self._listener.bind(str(folder / "s"))
        self._listener.listen()
        self._line: socket.socket | None = None
        self._reader = FrameReader()
        self._frames: deque[ExecutorFrame] = deque()
        self.heard: list[ExecutorFrame] = []
        self.ends: dict[tuple[int, int], CallEnd] = {}
        self.place_path = folder / "place"
        self.place_path.write_bytes(bytes(PLACE_BYTES))
        self.blobs = folder / "blobs"
        self.blobs.mkdir()
        env = {
            **os.environ,
            "HOLDFAST_TASK": KEY,
            "HOLDFAST_CALLS_SOCKET": str(folder / "s"),
            "HOLDFAST_CALLS_PLACE": str(self.place_path),
            "HOLDFAST_CALLS_BLOBS": str(self.blobs),
            "HOLDFAST_CALLS_FILES": str(folder / "files"),
            "HOLDFAST_APP": "pages",
            "HOLDFAST_APP_PATH": str(folder),
            "HOLDFAST_EXECUTOR_LIMITS": json.dumps(limits or {}),
            "HOLDFAST_HOST_NAME": "box",
        }
        with (folder / "stdout").open("wb") as out, (folder / "stderr").open("wb") as err:
            argv = [sys.executable, "-P", "-m", "holdfast.functions.executor"]
            self.process = subprocess.Popen(argv, env=env, cwd=folder, stdout=out, stderr=err)

    # ---- the line

    def accept(self, *, record: bool = True) -> ExecutorFrame:
        """Take the executor's next connection; return its hello."""
        self._listener.settimeout(30)
        self._line, _ = self._listener.accept()
        self._reader = FrameReader()
        self._frames.clear()
        return self.hear(lambda frame: frame.hello, record=record)

    def hang_up(self) -> None:
        assert self._line is not None
        self._line.close()

    def say(self, **fields: Any) -> None:
        assert self._line is not None
        self._line.sendall(encode_frame(msgspec.msgpack.encode(AgentFrame(**fields))))

    def hear(self, wanted: Any, *, record: bool = True) -> ExecutorFrame:
        """Read frames, recording their ends, until one is as wanted."""
        assert self._line is not None
        patience = Patience(5)
        while True:
            while self._frames:
                frame = self._frames.popleft()
                self.heard.append(frame)
                recorded = [(b.batch, end.position) for b in frame.ends for end in b.ends]
                for batch in frame.ends:
                    self.ends |= {(batch.batch, end.position): end for end in batch.ends}
                if recorded and record:
                    with contextlib.suppress(ConnectionError):  # it may have left since
                        self.say(recorded=recorded)
                if wanted(frame):
                    return frame
            if select.select([self._line], [], [], 0.1)[0]:
                try:
                    data = self._line.recv(1 << 18)
                except ConnectionResetError:  # it left before it read the last of what it was told
                    data = b""
                if not data:
                    break
                for body in self._reader.feed(data):
                    self._frames.append(msgspec.msgpack.decode(body, type=ExecutorFrame))
            elif patience.over:
                break
        raise AssertionError(f"not heard; {self.heard[-3:]}\n{self.read('stderr')}")

    # ---- words

    def batch(self, number: int, *calls: tuple[str, Any], **more: Any) -> Batch:
        """A batch of calls, each a function's name and its arguments."""
        names = list(dict.fromkeys(name for name, _ in calls))
        model = more.pop("model", None)
        sets = [
            SetInfo(id=f"set{names.index(n)}", spec=FunctionSpec(function=f"pages:{n}"), **more)
            for n in names
        ]
        orders = [
            CallOrder(set=names.index(name), index=at, attempt=1, args=json.dumps(args))
            for at, (name, args) in enumerate(calls)
        ]
        return Batch(id=number, model=model, sets=sets, calls=orders)

    def run(self, number: int, *calls: tuple[str, Any], **more: Any) -> list[CallEnd]:
        """Have a batch run; return its ends."""
        self.say(batches=[self.batch(number, *calls, **more)])
        wanted = {(number, at) for at in range(len(calls))}
        self.hear(lambda frame: wanted <= self.ends.keys())
        return [self.ends[key] for key in sorted(wanted)]

    def place(self) -> tuple[int, ...]:
        """Batch, position, phase, calls."""
        found = struct.unpack(PLACE_FORMAT, self.place_path.read_bytes())
        return tuple(int(part) for part in found[1:5])

    def read(self, name: str) -> str:
        return (self.folder / name).read_text()

    def close(self) -> None:
        if self.process.poll() is None:
            self.process.kill()
        self.process.wait()
        if self._line is not None:
            self._line.close()
        self._listener.close()

    def wait(self, seconds: float = 20) -> int:
        """The exit status, heard out: what it said last may be read after its end."""
        patience = Patience(seconds)
        while self.process.poll() is None and not patience.over:
            if self._line is not None and select.select([self._line], [], [], 0.02)[0]:
                try:
                    self.hear(lambda frame: True)
                except AssertionError:
                    time.sleep(0.02)
        status = self.process.wait(timeout=1)
        with contextlib.suppress(AssertionError):
            while self._line is not None and self._line.fileno() >= 0:
                self.hear(lambda frame: True)
        return status

    def terminate(self) -> None:
        self.process.send_signal(signal.SIGTERM)


def error_of(end: CallEnd) -> CallError:
    assert end.error
    return msgspec.json.decode(end.value, type=CallError)
