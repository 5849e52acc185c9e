"""A keeper: the small process between a guardian and one task (`starter.c`), the task's parent.

KEEPER-1  A keeper ends its task and all of the task's processes `SLACK_SECONDS` after the deadline,
          where the guardian has not: stopped by a debugger, a SIGSTOP or a freezer that took
          Holdfast alone. Both read the deadline in memory that they share, so an extension costs no
          message.
KEEPER-2  A task whose keeper is killed, from outside or by the task itself, dies with it. Its
          neighbours and its guardian do not notice. The end is charged as the host's, because
          nothing tells the two apart and the host's budget is bounded, too.
KEEPER-3  A keeper exits as its task did, at once; processes that the task leaves running become the
          guardian's. Signals to the keeper are passed on to the task.

The keeper is a part of the native starter. Where that is missing (STARTER-1), the guardian is the
parent itself and alone keeps the deadline.
"""

import mmap
import os
import struct

SLACK_SECONDS = 0.5
"""The time between a task's deadline and the keeper's kill. It is less than the margin of a lease,
so that the task ends before the controller counts on its end."""
_SLOT = struct.Struct("=QQQQ")  # deadline in ns of CLOCK_BOOTTIME, the task's pid, ended, passed
_NUMBER = struct.Struct("=Q")
_SLOTS = 1 << 15
_MAX_DEADLINE = float((1 << 63) // 10**9)


class Slot:
    """The shared memory of a guardian and one keeper: the deadline, the task's pid, and whether the
    keeper ended the task."""

    __slots__ = ("_memory", "fd", "offset")

    def __init__(self, memory: mmap.mmap, fd: int, offset: int) -> None:
        self._memory, self.fd, self.offset = memory, fd, offset

    def set_deadline(self, deadline: float) -> None:
        """Set when the keeper ends the task, in seconds of CLOCK_BOOTTIME, unless the guardian
        ended it before."""
        seconds = min(max(deadline + SLACK_SECONDS, 0.001), _MAX_DEADLINE)
        _NUMBER.pack_into(self._memory, self.offset, int(seconds * 1e9))

    @property
    def pid(self) -> int:
        """Return the pid of the task's first process; 0 before there is one."""
        return int(_SLOT.unpack_from(self._memory, self.offset)[1])

    @property
    def ended(self) -> bool:
        """Return whether the keeper has ended the task, because its deadline was over."""
        return bool(_SLOT.unpack_from(self._memory, self.offset)[2])

    @property
    def killed(self) -> bool:
        """Return whether the keeper of a task that is over was killed before the task ended."""
        _, pid, ended, passed = _SLOT.unpack_from(self._memory, self.offset)
        return bool(pid) and not ended and not passed

    def clear(self) -> None:
        """Reset the slot for another keeper."""
        _SLOT.pack_into(self._memory, self.offset, 0, 0, 0, 0)


class Keepers:
    """The slots of a guardian's keepers, in shared memory that only these keepers inherit."""

    def __init__(self) -> None:
        try:
            self._fd = os.memfd_create("holdfast-keepers", 0)
            os.ftruncate(self._fd, _SLOTS * _SLOT.size)
            self._memory: mmap.mmap | None = mmap.mmap(self._fd, _SLOTS * _SLOT.size)
        except OSError:
            self._fd, self._memory = -1, None
        self._next = 0
        self._free: list[int] = []

    def take_slot(self, deadline: float) -> Slot | None:
        """Return a slot for a task with this deadline; None where no slot is free."""
        if self._memory is None or (self._next == _SLOTS and not self._free):
            return None
        if self._free:
            offset = self._free.pop()
        else:
            offset, self._next = self._next * _SLOT.size, self._next + 1
        slot = Slot(self._memory, self._fd, offset)
        slot.clear()
        slot.set_deadline(deadline)
        return slot

    def give_back(self, slot: Slot) -> None:
        """Free the slot of a keeper that is gone."""
        self._free.append(slot.offset)

    def close(self) -> None:
        """Release the memory; the living keepers keep their share of it."""
        if self._memory is not None:
            self._memory.close()
            os.close(self._fd)
            self._memory = None
