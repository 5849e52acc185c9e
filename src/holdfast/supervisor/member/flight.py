"""Inside a rank: write torch's flight record when the policy script asks for it.

NCCL's watchdog does this by itself. A rank whose collectives are gloo's calls
`answer_flight_requests` once, after `init_process_group`; so does one with both.
"""

import contextlib
import os
import select
import threading
from pathlib import Path

from holdfast.supervisor.member.flight_records import name_files, name_pipe


def answer_flight_requests() -> bool:
    """Answer requests from a thread of its own, as long as this process lives. Returns False, and
    does nothing, where the environment names no pipe, torch's NCCL listens on it, or it cannot be
    made."""
    rank = int(os.environ.get("RANK", "0"))
    pipe = name_pipe(os.environ, rank)
    if pipe is None or _is_served(pipe):
        return False
    try:
        Path(pipe).unlink(missing_ok=True)
        os.mkfifo(pipe, 0o600)
        # Open for both, so that the pipe never reads as ended.
        fd = os.open(pipe, os.O_RDWR | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError:  # a record is not worth a rank
        return False
    file = name_files(os.environ, rank)[0]
    threading.Thread(target=_answer, args=(fd, file), name="holdfast-flight", daemon=True).start()
    return True


def _is_served(pipe: str) -> bool:
    """Return True where another reader has the pipe open."""
    try:
        os.close(os.open(pipe, os.O_WRONLY | os.O_NONBLOCK))
    except OSError:
        return False
    return True


def _answer(fd: int, file: str) -> None:
    from torch._C._distributed_c10d import _dump_fr_trace

    while True:
        select.select([fd], [], [])
        with contextlib.suppress(BlockingIOError):
            os.read(fd, 128)
        with contextlib.suppress(OSError):
            beside = f"{file}.new"
            # Without stacks: to name their lines torch would first load its compiler, for seconds.
            Path(beside).write_bytes(_dump_fr_trace(includeStackTraces=False))
            os.replace(beside, file)
