"""Keep a log file's disk use under a limit, unnoticed by the process that writes it.

A task appends to its own file, so that its output survives the death of everything else. Rotation
by renaming would need the task's help; instead the middle of the file is freed as a hole. Offsets
stay true: a reader that remembers how far it got never reads a byte twice, and reads the hole as
zeros.
"""

import errno
import os
import stat
from enum import Enum

from holdfast.process.syscalls import punch_hole

HEAD_BYTES = 1 << 20
_BLOCK_BYTES = 4096
_UNSUPPORTED = (errno.EOPNOTSUPP, errno.ENOSYS, errno.EINVAL, errno.ENODEV)


class LogSizeOutcome(Enum):
    """The result of `limit_log_size` for one file."""

    WITHIN = "within"  # under its limit: nothing to do
    FREED = "freed"
    UNSUPPORTED = "unsupported"  # this filesystem has no holes; the file keeps growing
    MISSING = "missing"


def plan_hole(size: int, limit_bytes: int) -> tuple[int, int]:
    """Return the (offset, length) of the hole that leaves the first 1 MiB and the last half of
    the limit; length 0 means no hole. With a limit under 4 MiB the head shrinks to a quarter of
    the limit."""
    head = min(HEAD_BYTES, limit_bytes // 4)
    start = -(-head // _BLOCK_BYTES) * _BLOCK_BYTES
    end = (size - limit_bytes // 2) // _BLOCK_BYTES * _BLOCK_BYTES
    return start, max(0, end - start)


def limit_log_size(path: str, limit_bytes: int) -> LogSizeOutcome:
    """Bring a file's disk use under `limit_bytes`. Touch plain files only, and follow no link at
    the end of `path`, because a task may have put something else there."""
    try:
        if os.lstat(path).st_blocks * 512 <= limit_bytes:
            return LogSizeOutcome.WITHIN
        fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC | os.O_NOFOLLOW | os.O_NONBLOCK)
    except OSError:
        return LogSizeOutcome.MISSING
    try:
        found = os.fstat(fd)
        if not stat.S_ISREG(found.st_mode):
            return LogSizeOutcome.MISSING
        offset, length = plan_hole(found.st_size, limit_bytes)
        if length == 0:
            return LogSizeOutcome.WITHIN
        punch_hole(fd, offset, length)
    except OSError as error:
        return LogSizeOutcome.UNSUPPORTED if error.errno in _UNSUPPORTED else LogSizeOutcome.MISSING
    finally:
        os.close(fd)
    return LogSizeOutcome.FREED
