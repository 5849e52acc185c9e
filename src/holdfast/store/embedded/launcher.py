"""Becomes PostgreSQL: drops root, ties its life to its owner's, and execs. Run as a script, never
imported for use.

PostgreSQL refuses to run as uid 0, and the parent-death signal is forgotten by the kernel when
credentials change. So both happen here, in the one process that then execs the server: first the
new credentials, then the death signal. Doing it between fork and exec of the owner itself would run
Python in the child of a process with threads.

    python -I -S embedded_launcher.py MODE UID GID SIGNAL PARENT FOLDER COMMAND...

MODE is `namespace` (a user namespace in which we are UID, outside still ourselves), `switch`
(setuid to UID) or `self`. SIGNAL is sent to us when the thread that started us ends; PARENT is that
process's pid. FOLDER becomes the working folder before anything is dropped.

The launcher imports nothing of Holdfast: it must start in ten ms and also where the package cannot
be read.
"""

import ctypes
import os
import signal
import sys

EXIT_NO_NAMESPACE = 121
EXIT_NO_SWITCH = 122
EXIT_NO_EXEC = 123
EXIT_ORPHAN = 124

_CLONE_NEWUSER = 0x10000000
_PR_SET_PDEATHSIG = 1


def _stop_with(code: int, message: str) -> None:
    sys.stderr.write(f"launcher: {message}\n")
    sys.stderr.flush()
    os._exit(code)


def _write(path: str, text: str) -> None:
    descriptor = os.open(path, os.O_WRONLY)
    try:
        os.write(descriptor, text.encode())
    finally:
        os.close(descriptor)


def enter_namespace(libc: ctypes.CDLL, uid: int, gid: int) -> None:
    """Enter a user namespace of this process's own, and be the user `uid` there; files still see
    the earlier user. Raises OSError where that is forbidden."""
    outer_uid, outer_gid = os.geteuid(), os.getegid()
    if libc.unshare(_CLONE_NEWUSER) != 0:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
    # The kernel takes a gid map from a process without privileges outside only after this word.
    _write("/proc/self/setgroups", "deny")
    _write("/proc/self/gid_map", f"{gid} {outer_gid} 1")
    _write("/proc/self/uid_map", f"{uid} {outer_uid} 1")


def main(argv: list[str]) -> None:
    """Become PostgreSQL, or say why not and exit; never return."""
    mode, uid_text, gid_text, signal_text, parent_text, folder, *command = argv
    uid, gid = int(uid_text), int(gid_text)
    libc = ctypes.CDLL(None, use_errno=True)
    os.chdir(folder)
    os.umask(0o077)
    if mode == "namespace":
        try:
            enter_namespace(libc, uid, gid)
        except OSError as error:
            _stop_with(EXIT_NO_NAMESPACE, f"no user namespace: {error}")
    elif mode == "switch":
        try:
            os.setgroups([])
            os.setresgid(gid, gid, gid)
            os.setresuid(uid, uid, uid)
        except OSError as error:
            _stop_with(EXIT_NO_SWITCH, f"cannot become uid {uid}: {error}")
    libc.prctl(_PR_SET_PDEATHSIG, int(signal_text), 0, 0, 0)
    if os.getppid() != int(parent_text):
        _stop_with(EXIT_ORPHAN, "the owner died while the server was being started")
    # A blocked signal survives exec, and a server that cannot hear SIGINT cannot be stopped
    # cleanly.
    signal.pthread_sigmask(signal.SIG_SETMASK, [])
    try:
        os.execv(command[0], command)
    except OSError as error:
        _stop_with(EXIT_NO_EXEC, f"cannot run {command[0]}: {error}")


if __name__ == "__main__":
    main(sys.argv[1:])
