"""Faults of GPUs in the kernel log: Xids, and amdgpu's resets and hangs.

Read in the probe's worker process only (PROBE-1): /dev/kmsg takes root, or CAP_SYSLOG.

A record reads `PRIORITY,SEQUENCE,MICROSECONDS,FLAGS;MESSAGE` and ends with a line break; lines that
begin with a space continue it (Linux, Documentation/ABI/testing/dev-kmsg). The sequence number only
grows, which makes it the better clock: the microseconds drift against every other.
"""

import errno
import os
import time

import msgspec

from holdfast.core.endings.xids import parse_amd_line, parse_xid_line
from holdfast.process.syscalls import read_boottime

MAX_XIDS = 1024
AMD_FAULT = 0
"""The code of a line of amdgpu, which numbers no faults."""
_MAX_LINE = 500
_CHUNK_BYTES = 8192  # a record is never longer, and a shorter buffer is refused


class SeenXid(msgspec.Struct, frozen=True, kw_only=True):
    """One Xid, or a line of amdgpu (code 0). at: CLOCK_BOOTTIME, as the kernel's own clock allows.
    pci: domain, bus, device. line: the message."""

    sequence: int
    at: float
    pci: tuple[int, int, int]
    code: int
    line: str = ""


class KernelXids(msgspec.Struct, frozen=True, kw_only=True):
    """The Xids still in the log, and the sequence number of its last record, -1 for none."""

    sequence: int
    xids: list[SeenXid] = []


class KernelLog:
    """Reads on from where it was at the last call."""

    def __init__(self, path: str = "/dev/kmsg") -> None:
        """Raises OSError where the log may not be read."""
        self._fd = os.open(path, os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC)
        self._rest = b""
        self._sequence = -1
        self._xids: list[SeenXid] = []

    def read(self) -> KernelXids:
        """All Xids up to now. Raises OSError."""
        ahead = read_boottime() - time.monotonic()  # the log's clock stands still in suspension
        while True:
            try:
                chunk = os.read(self._fd, _CHUNK_BYTES)
            except BlockingIOError:
                break
            except OSError as error:
                if error.errno == errno.EPIPE:
                    continue  # records were overwritten before they were read; the next is there
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
        # Only the kernel's own records (facility 0): other writers of /dev/kmsg have others.
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
