"""Feed the beats of a gang's rank into its ring, and read what the kernel says of the process that
beats.

The kernel passes the pid of a datagram's sender, in the numbers of this process, so the processor time is that
of the process that does the steps, also behind a shell or in a container.
"""

import os
import socket
import struct
from collections.abc import Sequence

from holdfast.agent.tasks.task import AgentTask
from holdfast.bounds import MAX_COUNT, NAN_BEATS
from holdfast.core.stragglers.agree import StepChecksum
from holdfast.wire.beat import Beat

_SENDER = struct.Struct("3i")  # struct ucred: pid, uid, gid
PASSED_BYTES = socket.CMSG_SPACE(_SENDER.size)


def pass_senders(beats: socket.socket) -> None:
    """Have the kernel name the sender of each datagram from now on."""
    beats.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)


def find_sender(told: Sequence[tuple[int, int, bytes]]) -> int:
    """Return the pid of the process that sent a datagram; 0 where the kernel does not say."""
    for level, kind, data in told:
        if level == socket.SOL_SOCKET and kind == socket.SCM_CREDENTIALS:
            return int(_SENDER.unpack_from(data)[0])
    return 0


def note_pace(task: AgentTask, beat: Beat, now: float, sender: int) -> None:
    """Put a beat of a gang's rank into its rings, and count what it waited as waiting."""
    if task.order is None or task.order.world_size < 2:
        return
    rings = task.rings
    if beat.waited is not None:
        clock, waited_ms = task.saved.tally, int(beat.waited * 1000)
        task.saved.tally, rings.waited_ms = clock.wait(waited_ms, rings.waited_ms)
    if beat.checksum is not None and beat.step is not None:
        rings.checksums.add(StepChecksum(beat.step, beat.checksum, beat.group))
    if beat.section is not None or beat.leave:
        rings.pace.skip()
    if beat.step is None:
        return
    full = rings.pace.beat(now, beat.step, beat.waited)
    if beat.waited is None and rings.pace.wants_cpu(now):
        rings.pace.read_cpu(now, read_cpu_seconds(sender))
    if full:
        rings.pace.end()


def note_loss(task: AgentTask, beat: Beat) -> None:
    """Note how many losses in a row were not finite, and tell the job's owner of the first few."""
    if beat.nan_beats is None:
        return
    before, task.saved.nan_beats = task.saved.nan_beats, min(beat.nan_beats, MAX_COUNT)
    if before < NAN_BEATS <= beat.nan_beats:
        at = "" if beat.step is None else f", up to step {beat.step}"
        task.add_notice(f"its loss was NaN or infinite for {beat.nan_beats} beats in a row{at}")


def read_cpu_seconds(pid: int) -> float | None:
    """Return for how long the first thread of a process used a processor, or was ready to and got
    none: a rank that is throttled has as much of it as one that computes, and one that waits for others
    has little. None: the kernel does not say."""
    if pid <= 0:
        return None
    try:
        fd = os.open(f"/proc/{pid}/schedstat", os.O_RDONLY | os.O_CLOEXEC)
        try:
            used, ready = os.read(fd, 128).split()[:2]
        finally:
            os.close(fd)
        return (int(used) + int(ready)) / 1e9
    except (OSError, ValueError):
        return None
