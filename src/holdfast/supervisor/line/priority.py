"""A better scheduling priority for the few threads whose delay would be mistaken for a loss."""

import contextlib
import os
from collections.abc import Iterator

# A rank that burns every core has 0: ten steps are about ten times its weight, and a thread that
# sleeps uses none of it.
NICE = -10


@contextlib.contextmanager
def preferred() -> Iterator[None]:
    """Prefer threads started within the block, ZeroMQ's among them, for good, and the calling
    thread within the block.

    Where that is not allowed (it takes root, CAP_SYS_NICE or RLIMIT_NICE) nothing changes.
    Processes forked within the block would inherit the priority.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    prefer_this_thread()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


def prefer_this_thread() -> None:
    """Prefer the calling thread alone; Linux keeps priorities by thread."""
    with contextlib.suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, 0) > NICE:
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
