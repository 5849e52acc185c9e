"""A FUSE file system that takes requests and never answers: a process that opens one of its files
hangs and cannot be killed.

`stuck_files.py FOLDER` mounts it, says "ready" and waits. A process that looks a file up in it is
in an uninterruptible wait of the kernel, as in a driver that hangs, until this program ends. It
speaks the kernel's protocol by itself (include/uapi/linux/fuse.h).
"""

from __future__ import annotations

import ctypes
import errno
import os
import signal
import struct
import sys

CODE = os.path.abspath(__file__)
LOOKUP, FORGET, GETATTR, INIT, INTERRUPT, BATCH_FORGET = 1, 2, 3, 26, 36, 42
SILENT = (
    LOOKUP,
    FORGET,
    INTERRUPT,
    BATCH_FORGET,
)  # the first is the point; the others want no answer
MNT_DETACH = 2
_HEADER = struct.Struct("<IIQQIIIHH")
_ANSWER = struct.Struct("<IiQ")
_libc = ctypes.CDLL(None, use_errno=True)


def mount(folder: str) -> int:
    """Mount it. Returns the descriptor that requests come by. Raises OSError."""
    device = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    options = f"fd={device},rootmode=40000,user_id=0,group_id=0,allow_other"
    if _libc.mount(b"stuck", folder.encode(), b"fuse", 0, options.encode()):
        raise OSError(ctypes.get_errno(), f"{folder} cannot be mounted")
    return device


def answer(device: int, unique: int, body: bytes = b"", error: int = 0) -> None:
    """Answer one request."""
    os.write(device, _ANSWER.pack(_ANSWER.size + len(body), -error, unique) + body)


def serve(device: int) -> None:
    """Take requests until the file system is unmounted."""
    while True:
        try:
            request = os.read(device, 1 << 20)
        except OSError as gone:
            if gone.errno in (errno.EINTR, errno.ENOENT, errno.EAGAIN):
                continue
            return
        _, opcode, unique, *_ = _HEADER.unpack_from(request)
        if opcode == INIT:
            answer(device, unique, struct.pack("<IIIIHHIIHH32x", 7, 31, 0, 0, 12, 9, 4096, 1, 0, 0))
        elif opcode == GETATTR:
            attributes = struct.pack(
                "<6Q10I", 1, 0, 0, 0, 0, 0, 0, 0, 0, 0o40755, 2, 0, 0, 0, 4096, 0
            )
            answer(device, unique, struct.pack("<QII", 3600, 0, 0) + attributes)
        elif opcode not in SILENT:
            answer(device, unique, error=errno.ENOSYS)


def main() -> None:
    """Mount, serve, and unmount at SIGTERM."""
    folder = sys.argv[1]
    device = mount(folder)

    def leave(number: int, frame: object) -> None:
        _libc.umount2(folder.encode(), MNT_DETACH)
        os._exit(0)  # which closes the device: every wait ends

    signal.signal(signal.SIGTERM, leave)
    print("ready", flush=True)
    serve(device)


if __name__ == "__main__":
    main()
