"""Be a Mac, as far as Python shows one: `become_mac()` takes away what only Linux has, and
`python tests/mac.py WORDS` runs the command line so.

- `sys.platform` is darwin; `os`, `select`, `signal`, `socket`, `time`, `resource` and `fcntl` have
  no name that Python has on Linux alone; /proc and /sys are not there, also for C libraries that
  Python loads; of libc no Linux call is found.
- File names are found whatever their case and their Unicode form (`_Disk`), as on APFS; two names
  that differ by nothing else are one file.
"""

from __future__ import annotations

import builtins
import errno
import fcntl
import os
import re
import resource
import select
import selectors
import signal
import socket
import sys
import sysconfig
import time
import types
import unicodedata
from collections.abc import Callable
from typing import Any

# What CPython has on Linux and lacks on macOS, by its documentation and by configure's checks.
_ONLY_LINUX = {
    os: r"pidfd_open|PIDFD_.*|P_PIDFD|memfd_create|MFD_.*|eventfd.*|EFD_.*|timerfd.*|TFD_.*|pipe2|dup3"
    r"|sched_[gs]et.*|sched_param|sched_rr.*|SCHED_(BATCH|IDLE|RESET).*|O_PATH|O_TMPFILE|O_DIRECT"
    r"|O_LARGEFILE|O_NOATIME|O_RSYNC|copy_file_range|splice|SPLICE_.*|getrandom|GRND_.*|setns|unshare"
    r"|CLONE_.*|posix_fadvise|POSIX_FADV_.*|posix_fallocate|fdatasync|[gls]etxattr|listxattr|removexattr"
    r"|XATTR_.*|[gs]etresuid|[gs]etresgid|waitid|waitid_result|RWF_.*|EX_NOTFOUND|get_handle.*",
    select: r"epoll|EPOLL.*",
    signal: r"pidfd_send_signal|sigtimedwait|sigwaitinfo|struct_siginfo|SIGRT.*|SIGPWR|SIGSTKFLT|SIGPOLL|SIGCLD",
    socket: r"TCP_(INFO|USER_TIMEOUT|QUICKACK|KEEPIDLE|CORK|DEFER_ACCEPT|SYNCNT|LINGER2|WINDOW_CLAMP|CONGESTION)"
    r"|SO_(PEERCRED|PASSCRED|PEERSEC|MARK|BINDTODEVICE|PRIORITY|DOMAIN|PROTOCOL|INCOMING_CPU)|SCM_CRED.*"
    r"|AF_(VSOCK|NETLINK|PACKET|ALG|CAN|TIPC|QIPCRTR)|SOCK_(CLOEXEC|NONBLOCK)"
    r"|MSG_(NOSIGNAL|CMSG_CLOEXEC|ERRQUEUE|CONFIRM|MORE|FASTOPEN)|IP_RECVTOS|NETLINK_.*|CAN_.*|ALG_.*",
    time: r"CLOCK_(BOOTTIME|TAI|MONOTONIC_COARSE|REALTIME_COARSE|PROF)|pthread_getcpuclockid",
    resource: r"prlimit|RLIMIT_(MSGQUEUE|NICE|RTPRIO|RTTIME|SIGPENDING|OFILE|LOCKS)|RUSAGE_THREAD",
    fcntl: r"F_(OFD_.*|ADD_SEALS|GET_SEALS|SEAL_.*|[GS]ETPIPE_SZ|NOTIFY|[GS]ETLEASE|[GS]ETSIG)|DN_.*",
}  # fmt: skip
_LINUX_CALLS = re.compile(
    r"prctl|adjtimex|syscall|fallocate|clone|unshare|setns|mount|umount2?|pidfd_.*|renameat2|"
    r"close_range|sched_.*affinity|prlimit|memfd_create|openat2|timerfd_.*|eventfd"
)
_NO_SUCH = re.compile(r"/(proc|sys)(/|$)|/dev/shm(/|$)")


def become_mac() -> None:
    """Take away what only Linux has, in this process. Modules that Python loaded are left."""
    for module, names in _ONLY_LINUX.items():
        for name in [name for name in vars(module) if re.fullmatch(names, name)]:
            delattr(module, name)
    sysconfig.get_config_vars()  # read once, from a file that is named by the real platform
    sys.platform = "darwin"
    selectors.DefaultSelector = selectors.PollSelector  # type: ignore[misc]  # macOS has kqueue, and this
    os.uname = lambda: os.uname_result(("Darwin", "mac", "24.0.0", "Darwin Kernel", "arm64"))
    proxies = types.ModuleType("_scproxy")  # C of macOS's Python, for urllib
    vars(proxies).update(_get_proxy_settings=dict, _get_proxies=dict)
    sys.modules["_scproxy"] = proxies
    sys.addaudithook(_watch)
    _Disk().take_place()


def _watch(event: str, arguments: tuple[Any, ...]) -> None:
    if event in ("open", "os.listdir", "os.scandir") and isinstance(arguments[0], (str, bytes)):
        if _NO_SUCH.match(os.fsdecode(arguments[0])):
            raise FileNotFoundError(errno.ENOENT, "macOS has no such file", arguments[0])
    elif event == "ctypes.dlsym" and _LINUX_CALLS.fullmatch(str(arguments[1])):
        raise AttributeError(f"macOS has no {arguments[1]}")


def fold(name: str) -> str:
    """Return a name as APFS compares it."""
    return unicodedata.normalize("NFD", unicodedata.normalize("NFD", name).casefold())


class _Disk:
    """Python's calls with paths, which find a name whatever its case and its form."""

    _ONE = ("open", "stat", "lstat", "mkdir", "unlink", "remove", "rmdir", "readlink", "listdir",
            "scandir", "chmod", "utime", "access", "truncate", "chdir")  # fmt: skip
    _TWO = ("rename", "replace", "link")

    def __init__(self) -> None:
        self._lstat, self._listdir = os.lstat, os.listdir
        self._stat = os.stat

    def take_place(self) -> None:
        for name in self._ONE:
            setattr(os, name, self._wrap(getattr(os, name), ("dir_fd",)))
        for name in self._TWO:
            setattr(os, name, self._wrap(getattr(os, name), ("src_dir_fd", "dst_dir_fd")))
        real = builtins.open
        builtins.open = lambda file, *rest, **how: real(  # type: ignore[assignment]
            self.find(file, None), *rest, **how
        )
        os.symlink = self._wrap_link(os.symlink)

    def _wrap(self, real: Callable[..., Any], folders: tuple[str, ...]) -> Callable[..., Any]:
        def call(*given: Any, **how: Any) -> Any:
            words = list(given)
            for at, folder in enumerate(folders[: len(words)]):
                words[at] = self.find(words[at], how.get(folder))
            try:
                return real(*words, **how)
            except NotADirectoryError as error:
                flags = words[1] if real.__name__ == "open" else 0
                if flags & os.O_NOFOLLOW:  # macOS says this of a link
                    raise OSError(errno.ELOOP, "too many links", words[0]) from error
                raise

        for kept in (os.supports_dir_fd, os.supports_follow_symlinks, os.supports_fd):
            if real in kept:
                kept.add(call)
        return call

    def _wrap_link(self, real: Callable[..., Any]) -> Callable[..., Any]:
        return lambda target, name, *rest, dir_fd=None, **how: real(
            target, self.find(name, dir_fd), *rest, dir_fd=dir_fd, **how
        )

    def find(self, path: Any, folder: int | None) -> Any:
        """Return the path under which a file is there; the path itself where there is none."""
        if isinstance(path, int) or not (text := os.fsdecode(path)) or self._is(text, folder):
            return path
        at = "/" if text.startswith("/") else ""
        for part in text.split("/"):
            if part:
                at = os.path.join(at, self._find_one(at, part, folder))
        return os.fsencode(at) if isinstance(path, bytes) else at

    def _find_one(self, above: str, name: str, folder: int | None) -> str:
        if self._is(os.path.join(above, name), folder):
            return name
        try:
            if folder is None or above.startswith("/"):
                names = self._listdir(above or ".")
            else:
                names = self._listdir(f"/dev/fd/{folder}/{above}")
        except OSError:
            return name
        return next((one for one in names if fold(one) == fold(name)), name)

    def _is(self, path: str, folder: int | None) -> bool:
        try:
            self._stat(path, dir_fd=folder, follow_symlinks=False)
        except (OSError, ValueError):
            return False
        return True


if __name__ == "__main__":
    become_mac()
    from holdfast.__main__ import main

    sys.argv[0] = "holdfast"
    main()
