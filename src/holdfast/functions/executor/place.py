"""The position of this executor's running call, written into shared memory at each call: no
message, no system call."""

import mmap
import os
import struct
import time

from holdfast.wire.calls import PHASE_IDLE, PLACE_BYTES, PLACE_FORMAT

_PACK = struct.Struct(PLACE_FORMAT).pack_into
_SEQUENCE = struct.Struct("<Q").pack_into


class PlaceWriter:
    """The file of the position. Its sequence number is odd during a write, so that no reader uses
    half of it."""

    def __init__(self, path: str) -> None:
        """Map the file into memory. Raises OSError."""
        fd = os.open(path, os.O_RDWR | os.O_CLOEXEC)
        try:
            self._memory = mmap.mmap(fd, PLACE_BYTES)
        finally:
            os.close(fd)
        self._sequence = 0
        self._calls = 0
        self.phase = PHASE_IDLE
        self._batch = self._position = 0
        self.write(0, 0, PHASE_IDLE)

    def write(self, batch: int, position: int, phase: int, *, begins: bool = False) -> None:
        """Write the position of the running call into the place file. begins: True where another
        call began."""
        if begins:
            self._calls = (self._calls + 1) & 0xFFFF_FFFF
        self.phase, self._batch, self._position = phase, batch, position
        odd = self._sequence + 1
        _SEQUENCE(self._memory, 0, odd)
        _PACK(self._memory, 0, odd, batch, position, phase, self._calls, time.monotonic(), 0)
        self._sequence = odd + 1
        _SEQUENCE(self._memory, 0, self._sequence)

    def change_phase(self, phase: int) -> None:
        """Write into the place file that another phase of the same call began."""
        self.write(self._batch, self._position, phase)
