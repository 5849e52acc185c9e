"""Real-time priority for the processes that kill task trees, so that forks cannot outpace them.

URGENT-1  The scheduler divides the cores among sessions (`autogroup`), so that forty families with
          a session each leave their guardian the forty-first part: they fork faster than it reads
          and reaps. A real-time thread does not share. What it starts is as ordinary as ever
          (SCHED_RESET_ON_FORK), and the kernel keeps a twentieth of every second from it
          (`sched_rt_runtime_us`), so that no mistake here can freeze a host. Watchdogs of clusters
          (corosync, sbd) do the same.

See sched(7), "The autogroup feature" and "Limiting the CPU usage of real-time and deadline
processes".
"""

import contextlib
import os
from collections.abc import Iterator


@contextlib.contextmanager
def urgent() -> Iterator[None]:
    """Run the calling thread at real-time priority within the block, before every ordinary thread.

    Nothing changes where that is not allowed (it takes root, CAP_SYS_NICE or RLIMIT_RTPRIO), or
    where the thread is a real-time one already.
    """
    policy, share = os.sched_getscheduler(0), os.sched_getparam(0)
    first = os.sched_param(1)
    raised = share.sched_priority == 0 and _set(os.SCHED_RR | os.SCHED_RESET_ON_FORK, first)
    try:
        yield
    finally:
        if raised:
            _set(policy, share)


def _set(policy: int, share: os.sched_param) -> bool:
    with contextlib.suppress(OSError):
        os.sched_setscheduler(0, policy, share)
        return True
    return False
