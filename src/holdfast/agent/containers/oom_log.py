"""Read OOM kills from the kernel log, for a container whose runtime does not count them (podman
under control groups of version 1)."""

import contextlib
import errno
import os
from typing import Self

_CHUNK_BYTES = 8192  # no record is longer; the kernel refuses shorter buffers


class OomLog:
    """Reads the records written after it was opened. Finds nothing if the log may not be read
    (that needs root, or CAP_SYSLOG)."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        self._fd = -1
        with contextlib.suppress(OSError):
            self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
            os.lseek(self._fd, 0, os.SEEK_END)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        if self._fd >= 0:
            os.close(self._fd)

    def names_container(self, container_id: str) -> bool:
        """Return True if an OOM kill since the log was opened was in this container's control
        group."""
        own = f"libpod-{container_id}"
        if not container_id or self._fd < 0:
            return False
        while True:
            try:
                record = os.read(self._fd, _CHUNK_BYTES).decode(errors="replace")
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # records were overwritten before they were read; read the next
                return False
            if not record:
                return False
            priority, _, _ = record.partition(",")
            # Only the kernel's own records count (facility 0), because other processes may write,
            # too.
            by_kernel = priority.isdigit() and int(priority) < 8
            if by_kernel and "oom-kill:" in record and own in record:
                return True
