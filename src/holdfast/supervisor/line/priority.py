"""A better place in the queue for a core, for the few threads whose lateness would be taken for
death."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator

# A rank that burns every core has 0: ten steps are about ten times its weight, and no claim to more
# than is used.
NICE = -10


@contextlib.contextmanager
def preferred() -> Iterator[None]:
    """Threads started within, ZeroMQ's among them, are preferred for good; the caller only
    meanwhile.

    Where that is not allowed (it takes root, CAP_SYS_NICE or RLIMIT_NICE) nothing changes.
    Processes forked within would inherit it.
    """
    before = os.getpriority(os.PRIO_PROCESS, 0)
    prefer_this_thread()
    try:
        yield
    finally:
        with contextlib.suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, 0, before)


def prefer_this_thread() -> None:
    """The same for the calling thread alone; Linux keeps it by thread."""
    with contextlib.suppress(OSError):
        if os.getpriority(os.PRIO_PROCESS, 0) > NICE:
            os.setpriority(os.PRIO_PROCESS, 0, NICE)
