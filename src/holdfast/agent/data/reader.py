"""Ask the program that serves a folder's files (`holdfast.work.files`). Blocking: call it in a
thread.

OUT-7  The program that reads a task's outputs has a control group of its own, with the memory limit
       of its task, as a session has (INSIDE-1), so no large folder takes memory that other jobs
       have. Its group is none of the task's, which may be gone by then, so no reading of the task
       counts it. The program ends with its agent, because its input ends then.
"""

import contextlib
import logging
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from holdfast.errors import HoldfastError, Unavailable, ValidationError
from holdfast.process.groups import GroupHome, TaskGroup, list_groups
from holdfast.work.files import make_frame, read_frame

log = logging.getLogger("holdfast.agent.data.reader")

LEAST_BYTES = 64 << 20
"""The memory that the program itself needs: with less it could read nothing."""
_PREFIX = "outputs"


class ReaderStarved(HoldfastError):
    """Raised where the program that reads was killed at its memory limit."""


class ReaderGroups:
    """Makes the control groups of the programs that read outputs (OUT-7), and removes those that a
    killed agent left.

    home: the folder of the host's groups, which the guardian made; "" where there is none. limits:
    True where the groups can limit memory.
    """

    def __init__(self, home: str = "", *, limits: bool = False) -> None:
        unified = os.path.exists(f"{home}/cgroup.controllers")
        self._home = GroupHome(home, unified=unified, memory=limits, prefix=_PREFIX)
        self._full: list[TaskGroup] = []
        self._said = False
        for group in list_groups(home) if home else ():
            if group.name.startswith(_PREFIX):
                self.drop(group)

    def make(self, memory_bytes: int) -> TaskGroup | None:
        """Return a new group for a program, limited as its task is; None where none can be made.
        memory_bytes: the limit of the task; 0 without one."""
        if not self._home.path:
            return None
        self._full = [group for group in self._full if not group.remove()]
        try:
            group = self._home.make_group()
            if memory_bytes and self._home.memory:
                group.set_limit(max(memory_bytes, LEAST_BYTES))
            return group
        except OSError as error:
            if not self._said:
                self._said = True
                log.warning(f"outputs are read without a control group: {error}")
            return None

    def drop(self, group: TaskGroup) -> None:
        """Remove a group whose program has ended."""
        if not group.remove():  # it can be busy for a moment longer
            self._full.append(group)


class FolderReader:
    """Reads below one folder by a process of its own, so that a file system that hangs does not
    freeze the agent, and so that a limit on this process does not hold for the reader.

    memory_bytes: the memory limit of the task; 0 without one.
    """

    def __init__(
        self, root: str, groups: ReaderGroups | None = None, memory_bytes: int = 0
    ) -> None:
        os.stat(root)  # a folder that is gone is no trouble of the program's
        self._groups = groups or ReaderGroups()
        self._group = self._groups.make(memory_bytes)
        argv = [sys.executable, "-I", "-m", "holdfast.work.files", "below", root]
        if self._group is not None:
            argv.append(self._group.procs_path)
        self._process = subprocess.Popen(
            argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def walk(self, paths: list[str], most: int) -> Iterator[dict[str, Any]]:
        """Yield the answers of a walk: the entries of everything below these names, then the names
        left out. Raises Unavailable."""
        answer, _ = self._ask({"do": "walk", "paths": paths, "most": most})
        yield answer
        while answer.get("more"):
            answer, _ = self._read()
            yield answer

    def read(self, path: str, at: int, size: int) -> tuple[dict[str, Any], bytes]:
        """Return the size of a file, its sign (three numbers that change when the file does), and a
        piece of it. Raises ValidationError where the file cannot be read, and Unavailable."""
        answer, data = self._ask({"do": "read", "path": path, "at": at, "size": size})
        if "error" in answer:
            raise ValidationError(str(answer["error"]))
        return answer, data

    def _ask(self, words: dict[str, Any]) -> tuple[dict[str, Any], bytes]:
        assert self._process.stdin is not None
        try:
            self._process.stdin.write(make_frame(words))
            self._process.stdin.flush()
        except OSError as error:
            raise self._name_end(str(error)) from error
        return self._read()

    def _read(self) -> tuple[dict[str, Any], bytes]:
        assert self._process.stdout is not None
        try:
            found = read_frame(self._process.stdout)  # type: ignore[arg-type]  # a BufferedReader
        except (OSError, EOFError, ValueError) as error:
            raise self._name_end(str(error)) from error
        if found is None:
            raise self._name_end("its output ended")
        return found

    def _name_end(self, why: str) -> HoldfastError:
        if self._group is not None and self._group.count_oom_kills():
            return ReaderStarved(
                "the program that reads the outputs needs more memory than the job may use, so "
                "the rest is left out; a job with a higher --memory, or with fewer files below its "
                "outputs, has them read"
            )
        return Unavailable(f"the reader of outputs has gone: {why}")

    def close(self) -> None:
        """End the process that reads."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._process.wait()
        if self._group is not None:
            self._groups.drop(self._group)
