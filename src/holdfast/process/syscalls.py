"""Linux calls that Python has no name for, bound at import: nothing is looked up after a fork."""

import ctypes
import os
import time

PR_SET_PDEATHSIG = 1
PR_SET_CHILD_SUBREAPER = 36
FALLOC_KEEP_SIZE_PUNCH_HOLE = 0x01 | 0x02
MAX_FD = 0xFFFFFFFF
RLIMIT_LOCKS = 10  # "Max file locks", which the kernel has not enforced since 2.4.25 (getrlimit(2))

# PyDLL keeps the interpreter lock: these calls never block, and a fork must not wait for a lock.
_quick = ctypes.PyDLL(None, use_errno=True)
_slow = ctypes.CDLL(None, use_errno=True)

_prctl = _quick.prctl
_prctl.argtypes = [ctypes.c_int, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong, ctypes.c_ulong]
_signal = _quick.signal
_signal.argtypes = [ctypes.c_int, ctypes.c_void_p]
_signal.restype = ctypes.c_void_p
_sigprocmask = _quick.sigprocmask
_sigprocmask.argtypes = [ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_SIGSET_BYTES = 128  # glibc's and musl's
_ALL_SIGNALS = ctypes.create_string_buffer(b"\xff" * _SIGSET_BYTES, _SIGSET_BYTES)
_NO_SIGNALS = ctypes.create_string_buffer(_SIGSET_BYTES)
_SIG_SETMASK = 2
_execve = _quick.execve
_execve.argtypes = [ctypes.c_char_p, ctypes.c_void_p, ctypes.c_void_p]
_timerfd_create = _quick.timerfd_create
_timerfd_create.argtypes = [ctypes.c_int, ctypes.c_int]
_timerfd_settime = _quick.timerfd_settime
_timerfd_settime.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_void_p, ctypes.c_void_p]
_TFD_TIMER_ABSTIME = 1
_NEVER_SECONDS = 2.0**33  # about KTIME_SEC_MAX, where the kernel's nanoseconds end: 272 years
_fallocate = _slow.fallocate
_fallocate.argtypes = [ctypes.c_int, ctypes.c_int, ctypes.c_int64, ctypes.c_int64]
# glibc has close_range since 2.34; an older libc is served by Python's own close-on-exec default.
_close_range = getattr(_quick, "close_range", None)
if _close_range is not None:
    _close_range.argtypes = [ctypes.c_uint, ctypes.c_uint, ctypes.c_int]

# 9 and 19 cannot be set; 32 and 33 are the C library's own, which cannot be set either.
_RESETTABLE_SIGNALS = tuple(number for number in range(1, 65) if number not in (9, 19, 32, 33))


def _check(result: int, what: str) -> None:
    if result != 0:
        code = ctypes.get_errno()
        raise OSError(code, f"{what}: {os.strerror(code)}")


def read_boottime() -> float:
    """Return the seconds of CLOCK_BOOTTIME: one clock for all processes of the host, which counts
    suspension."""
    return time.clock_gettime(time.CLOCK_BOOTTIME)


class BootTimer:
    """A timer of CLOCK_BOOTTIME, readable when due; it can be nested in any poll. Raises OSError.

    Unlike a poll's time-out it runs on while the host is suspended, and is due when it wakes.
    """

    def __init__(self) -> None:
        self._fd: int = _timerfd_create(time.CLOCK_BOOTTIME, os.O_CLOEXEC | os.O_NONBLOCK)
        if self._fd < 0:
            _check(self._fd, "timerfd_create")
        self._due: float | None = None

    def fileno(self) -> int:
        """Return the descriptor to poll."""
        return self._fd

    def set(self, due: float) -> None:
        """Make the timer readable from `due` on, in seconds of CLOCK_BOOTTIME; never, where `due`
        is infinity or centuries away."""
        if due == self._due:
            return
        self._due = due
        # Zero would switch it off, so a time that has passed becomes a nanosecond after the boot.
        nanoseconds = 0 if due > _NEVER_SECONDS else max(1, int(due * 1e9))
        when = (ctypes.c_long * 4)(0, 0, *divmod(nanoseconds, 1_000_000_000))
        _check(_timerfd_settime(self._fd, _TFD_TIMER_ABSTIME, when, None), "timerfd_settime")

    def clear(self) -> None:
        """Make the timer unreadable until the next `set`."""
        self._due = None
        try:
            os.read(self._fd, 8)
        except BlockingIOError:
            pass

    def close(self) -> None:
        """Close the descriptor."""
        os.close(self._fd)


def set_parent_death_signal(number: int) -> None:
    """Request signal `number` for when the thread that forked this process dies; 0 switches it
    off."""
    _check(_prctl(PR_SET_PDEATHSIG, number, 0, 0, 0), "PR_SET_PDEATHSIG")


def become_subreaper() -> None:
    """Have orphaned descendants re-parented to this process, not to the system's init."""
    _check(_prctl(PR_SET_CHILD_SUBREAPER, 1, 0, 0, 0), "PR_SET_CHILD_SUBREAPER")


def reset_signal_handlers() -> None:
    """Set every ordinary signal to its default, also those that Python or `nohup` ignores."""
    for number in _RESETTABLE_SIGNALS:
        _signal(number, None)


def block_all_signals() -> ctypes.Array[ctypes.c_char]:
    """Block all signals that can be blocked; return the mask before, for `restore_signals`."""
    before = ctypes.create_string_buffer(_SIGSET_BYTES)
    _sigprocmask(_SIG_SETMASK, _ALL_SIGNALS, before)
    return before


def restore_signals(mask: ctypes.Array[ctypes.c_char]) -> None:
    """Restore a mask of signals that `block_all_signals` returned."""
    _sigprocmask(_SIG_SETMASK, mask, None)


def unblock_all_signals() -> None:
    """Let every signal through."""
    _sigprocmask(_SIG_SETMASK, _NO_SIGNALS, None)


def close_descriptors_from(low: int, keep: tuple[int, ...]) -> None:
    """Close every descriptor from `low` upwards except those in `keep`."""
    if _close_range is None:
        return
    for fd in sorted(keep):
        if fd > low:
            _close_range(low, fd - 1, 0)
        low = max(low, fd + 1)
    _close_range(low, MAX_FD, 0)


class WordArray:
    """A NULL-terminated `char **` of `count` words, built before the fork, because the child may
    only pass a pointer."""

    __slots__ = ("_words", "address", "count")

    def __init__(self, words: list[bytes]) -> None:
        self.count = len(words)
        self._words = (ctypes.c_char_p * (len(words) + 1))(*words, None)
        self.address = ctypes.addressof(self._words)


def execve(path: bytes, argv: WordArray, env: WordArray) -> int:
    """Replace this process; return the errno if that failed."""
    _execve(path, argv.address, env.address)
    return ctypes.get_errno()


def write_file(path: str, text: str) -> None:
    """Write to an existing file, in one call. Raises OSError."""
    fd = os.open(path, os.O_WRONLY | os.O_CLOEXEC)
    try:
        os.write(fd, text.encode())
    finally:
        os.close(fd)


def punch_hole(fd: int, offset: int, length: int) -> None:
    """Free the blocks of [offset, offset + length); the size stays. Raises OSError."""
    _check(_fallocate(fd, FALLOC_KEEP_SIZE_PUNCH_HOLE, offset, length), "fallocate")
