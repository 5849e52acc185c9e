"""Sends the growth of files to the script: `python -m holdfast.supervisor.policy.tail`, on the host
of the files.

The script names the files and, later, those that grow no more. A file that does not exist yet is
waited for. Sending waits while the script does not read, so nothing is dropped.
"""

import contextlib
import os
from pathlib import Path
from typing import Any

from holdfast.supervisor.member.messages import MessageQueue, get_message_queue

POLL_SECONDS = 0.2
CHUNK_BYTES = 64 << 10
_LOOK_BACK_BYTES = 1 << 20


class GrowingFile:
    """One file, read on from where the last reading ended."""

    def __init__(self, rank: int, path: str, lines: int) -> None:
        self.rank = rank
        self.over = False  # nothing is added any more
        self._path = Path(path)
        self._offset = find_last_lines(self._path, lines)

    def read(self) -> bytes:
        """Return the bytes added since the last reading, up to `CHUNK_BYTES`. A file that is
        shorter than before is read from its beginning."""
        with contextlib.suppress(OSError), self._path.open("rb") as file:
            if os.fstat(file.fileno()).st_size < self._offset:
                self._offset = 0
            file.seek(self._offset)
            data = file.read(CHUNK_BYTES)
            self._offset += len(data)
            return data
        return b""


def find_last_lines(path: Path, count: int) -> int:
    """Return the offset at which the last `count` lines of a file begin; 0 without a file."""
    try:
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(0, size - _LOOK_BACK_BYTES)
            file.seek(start)
            lines = file.read(size - start).splitlines(keepends=True)
    except OSError:
        return 0
    return size - sum(len(line) for line in lines[len(lines) - min(count, len(lines)) :])


def send_growth(queue: MessageQueue, files: list[GrowingFile]) -> None:
    """Send the growth of the files until all are over."""
    order: Any = queue.recv_future()
    while files:
        grew = False
        for file in list(files):
            over = file.over  # read first, so that all bytes before the end are sent
            data = file.read()
            if data:
                queue.send({"rank": file.rank, "data": data})
                grew = True
            elif over:
                files.remove(file)
        if order.done():
            ended = order.result()["ended"]
            for file in files:
                file.over = file.over or file.rank in ended
            order = queue.recv_future()
        elif not grew:
            with contextlib.suppress(TimeoutError):
                order.exception(POLL_SECONDS)


def main() -> None:
    """Follow the files that one order of the script names."""
    queue = get_message_queue()
    order = queue.recv()
    lines = order["lines"]
    send_growth(queue, [GrowingFile(rank, path, lines) for rank, path in order["files"]])
    queue.close()


if __name__ == "__main__":
    main()
