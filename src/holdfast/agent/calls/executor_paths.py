"""Hold what executors of this host share: their command, and the paths in their environment."""

import os
import sys
from pathlib import Path

import msgspec

from holdfast.agent.config import AgentConfig
from holdfast.agent.guardian.guardian_folder import CALLS_SOCKET_FILE
from holdfast.process.files import make_private_folder
from holdfast.wire.agent import LaunchOrder
from holdfast.wire.calls import APP_CODE, PLACE_BYTES

PLACE_FILE = "place"


class ExecutorPaths(msgspec.Struct, frozen=True, kw_only=True):
    """The paths and the interpreter that executors of this host share.

    folder: the folder of blobs and of files of calls. socket: the path of the socket to which
    executors connect. python: the interpreter's path. path: the working directory of executors,
    from which they import first.
    """

    folder: Path
    socket: str
    python: str = sys.executable
    path: str = "/"

    @property
    def blobs(self) -> Path:
        """Return the folder of blobs on their way from and to executors, named by SHA-256."""
        return self.folder / "blobs"

    @property
    def files(self) -> Path:
        """Return the folder for the files of calls that name no folder of their own."""
        return self.folder / "files"

    def open(self) -> None:
        """Make the folders. Raises OSError."""
        for folder in (self.folder, self.blobs, self.files):
            make_private_folder(folder)

    def make_command(self) -> list[str]:
        """Return the argv of an executor."""
        return [self.python, "-P", "-m", "holdfast.functions.executor"]

    def find_path(self, order: LaunchOrder, work: str) -> str:
        """Return the folder from which an executor imports: its work folder where its code was
        brought there, else the folder that this host gives to all."""
        return self.path if order.code is None else work

    def make_environment(self, order: LaunchOrder, task_folder: Path, work: str) -> dict[str, str]:
        """Return the variables that an executor gets beside those of every task."""
        code = {} if order.code is None else {APP_CODE: msgspec.json.encode(order.code).decode()}
        return {
            **code,
            "HOLDFAST_CALLS_SOCKET": self.socket,
            "HOLDFAST_CALLS_PLACE": str(task_folder / PLACE_FILE),
            "HOLDFAST_CALLS_BLOBS": str(self.blobs),
            "HOLDFAST_CALLS_FILES": str(self.files),
            "HOLDFAST_APP": order.app,
            "HOLDFAST_APP_PATH": self.find_path(order, work),
            "HOLDFAST_EXECUTOR_GPUS": str(len(order.gpus)),
            "HOLDFAST_EXECUTOR_LIMITS": msgspec.json.encode(order.limits).decode(),
        }


def find_executor_paths(config: AgentConfig, beat_socket: str) -> ExecutorPaths:
    """Return the files and settings that the executors of this agent share; their socket lies
    beside the beat socket."""
    return ExecutorPaths(
        folder=config.state_path / "calls",
        socket=str(Path(beat_socket).with_name(CALLS_SOCKET_FILE)),
        python=config.app_python or sys.executable,
        path=config.app_path or os.getcwd(),
    )


def make_place(task_folder: Path) -> None:
    """Make an executor's place file, which names no call yet. Raises OSError."""
    flags = os.O_RDWR | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
    fd = os.open(task_folder / PLACE_FILE, flags, 0o600)
    try:
        os.ftruncate(fd, PLACE_BYTES)
    finally:
        os.close(fd)
