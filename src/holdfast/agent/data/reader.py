"""Ask the program that serves a folder's files (`holdfast.work.files`). Blocking: call it in a
thread."""

import contextlib
import os
import subprocess
import sys
from collections.abc import Iterator
from typing import Any

from holdfast.errors import Unavailable, ValidationError
from holdfast.work.files import make_frame, read_frame


class FolderReader:
    """Reads below one folder by a process of its own, so that a file system that hangs does not
    freeze the agent, and so that a limit on this process does not hold for the reader."""

    def __init__(self, root: str) -> None:
        os.stat(root)  # a folder that is gone is no trouble of the program's
        argv = [sys.executable, "-I", "-m", "holdfast.work.files", "below", root]
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
            raise Unavailable(f"the reader of outputs has gone: {error}") from error
        return self._read()

    def _read(self) -> tuple[dict[str, Any], bytes]:
        assert self._process.stdout is not None
        try:
            found = read_frame(self._process.stdout)  # type: ignore[arg-type]  # a BufferedReader
        except (OSError, EOFError, ValueError) as error:
            raise Unavailable(f"the reader of outputs has gone: {error}") from error
        if found is None:
            raise Unavailable("the reader of outputs has gone")
        return found

    def close(self) -> None:
        """End the process that reads."""
        self._process.kill()
        for stream in (self._process.stdin, self._process.stdout):
            if stream is not None:
                with contextlib.suppress(OSError):
                    stream.close()
        self._process.wait()
