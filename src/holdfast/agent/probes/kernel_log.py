"""Read faults of GPUs from the kernel log: Xids, and amdgpu's resets and hangs.

Only the probe's worker process reads it (PROBE-1). /dev/kmsg needs root, or CAP_SYSLOG.

A record reads `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;MESSAGE` and ends with a line break; lines that
begin with a space continue it (Linux, Documentation/ABI/testing/dev-kmsg). The sequence number only
grows, so that it orders records better than the microseconds, which drift against every other
clock.
"""

import errno
import os
import time

import msgspec

from holdfast.core.endings.xids import parse_amd_line, parse_xid_line
from holdfast.process.syscalls import read_boottime

MAX_XIDS = 1024
AMD_FAULT = 0
"""Code for a line of amdgpu, which numbers no faults."""
_MAX_LINE = 500
_CHUNK_BYTES = 8192  # no record is longer; the kernel refuses shorter buffers


class SeenXid(msgspec.Struct, frozen=True, kw_only=True):
    """One Xid, or a line of amdgpu (code `AMD_FAULT`), in the kernel log.

    sequence: the number of its record. at: its instant (CLOCK_BOOTTIME), as exactly as the
    kernel's log clock allows. pci: domain, bus and device. line: the message.
    """

    sequence: int
    at: float
    pci: tuple[int, int, int]
    code: int
    line: str = ""


class KernelXids(msgspec.Struct, frozen=True, kw_only=True):
    """The Xids still in the log. sequence: the number of the log's last record; -1 for none."""

    sequence: int
    xids: list[SeenXid] = []


class KernelLog:
    """Reads the log on from where the last call ended."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        """Open the kernel log. Raises OSError if it may not be read."""
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._rest = b""
        self._sequence = -1
        self._xids: list[SeenXid] = []

    def read(self) -> KernelXids:
        """Return all Xids up to now. Raises OSError."""
        ahead = read_boottime() - time.monotonic()  # its clock stops in suspension
        while True:
            try:
                chunk = os.read(self._fd, _CHUNK_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # records were overwritten before they were read; read the next
                raise
            if not chunk:
                break
            *lines, self._rest = (self._rest + chunk).split(b"\n")
            for line in lines:
                self._take(line, ahead)
        return KernelXids(sequence=self._sequence, xids=list(self._xids))

    def _take(self, line: bytes, ahead: float) -> None:
        head, semicolon, message = line.partition(b";")
        fields = head.split(b",")
        if not semicolon or len(fields) < 3 or not fields[1].isdigit() or not fields[2].isdigit():
            return
        self._sequence = max(self._sequence, int(fields[1]))
        # Only the kernel's own records count (facility 0), because other processes may write, too.
        if not fields[0].isdigit() or int(fields[0]) >= 8:
            return
        text = message.decode(errors="replace")[:_MAX_LINE]
        xid = parse_xid_line(text) if "NVRM: Xid" in text else None
        pci = xid.pci if xid is not None else parse_amd_line(text)
        if pci is not None:
            number, at = int(fields[1]), int(fields[2]) / 1e6 + ahead
            code = xid.code if xid is not None else AMD_FAULT
            seen = SeenXid(sequence=number, at=at, pci=pci, code=code, line=text)
            self._xids = [*self._xids, seen][-MAX_XIDS:]

    def close(self) -> None:
        """Close the log."""
        os.close(self._fd)
