"""The packs that a host keeps, so that a job finds here the packs that an earlier job fetched.

PACKS-1  A pack in the folder is whole or is not there, and its bytes are compared with their
         digests before they are used, because a disk may have lost bytes when the power went.
PACKS-2  The folder has at most `limit_bytes`. The pack that was used longest ago is deleted first,
         and a pack that is used now stays.
"""

import contextlib
import os
import secrets
import threading
from pathlib import Path

from holdfast.agent.folders import make_folder
from holdfast.process.files import write_all

LIMIT_BYTES = 20 << 30
_PART = ".part-"


class KeptPacks:
    """A folder of packs. Threads may share it."""

    def __init__(self, folder: Path, limit_bytes: int = LIMIT_BYTES) -> None:
        self._folder = folder
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._size: int | None = None

    def open_pack(self, pack: str) -> int | None:
        """Return a descriptor of a pack, and note that the pack was used; None where the pack is
        not on this host."""
        path = f"{self._folder}/{pack}"
        try:
            fd = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NOFOLLOW)
        except FileNotFoundError:
            return None
        with contextlib.suppress(OSError):
            os.utime(fd)
        return fd

    def add(self, pack: str, data: bytes) -> None:
        """Keep the bytes of a pack on this host (PACKS-1). Raises OSError."""
        make_folder(str(self._folder))
        part = f"{self._folder}/{_PART}{secrets.token_hex(8)}"
        fd = os.open(part, os.O_WRONLY | os.O_CREAT | os.O_EXCL | os.O_CLOEXEC, 0o600)
        try:
            try:
                write_all(fd, data)
            finally:
                os.close(fd)
            os.rename(part, f"{self._folder}/{pack}")
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(part)
            raise
        with self._lock:
            if self._size is not None:
                self._size += len(data)
        self._prune()

    def remove(self, pack: str) -> None:
        """Delete a pack, because its bytes are wrong."""
        with contextlib.suppress(OSError):
            os.unlink(f"{self._folder}/{pack}")

    def _prune(self) -> None:
        """Delete packs, the longest unused first, until the others fit into `limit_bytes`
        (PACKS-2)."""
        with self._lock:
            if self._size is not None and self._size <= self._limit_bytes:
                return
            found = []
            with os.scandir(self._folder) as entries:
                for entry in entries:
                    with contextlib.suppress(OSError):
                        status = entry.stat(follow_symlinks=False)
                        found.append((status.st_mtime_ns, status.st_size, entry.path))
            size = sum(one[1] for one in found)
            for _, bytes_, path in sorted(found):
                if size <= self._limit_bytes:
                    break
                with contextlib.suppress(OSError):
                    os.unlink(path)
                    size -= bytes_
            self._size = size
