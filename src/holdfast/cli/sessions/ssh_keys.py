"""The keys of the ssh sessions that run from here into one job at the same time.

The first session makes them, and the last one removes them: ssh finds them by the job's name, which
is all that its configuration can say. The folder is the user's alone.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import shutil
import signal
import subprocess
from collections.abc import Iterator
from pathlib import Path
from types import FrameType

from holdfast.errors import ValidationError

ALIAS = "holdfast"
"""The name under which ssh looks for the server's key."""
_ENDS = (signal.SIGHUP, signal.SIGTERM)


@contextlib.contextmanager
def hold_keys(folder: Path) -> Iterator[bytes]:
    """Make the keys in the folder, or use those of a session at work; yield what its server is to
    be told. A signal that would end this program removes them first, because ssh sends SIGHUP as
    soon as its connection is over. Raises ValidationError."""
    folder.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
    turn = folder.parent / f".{folder.name}.turn"
    users = os.open(folder.parent / f".{folder.name}.users", os.O_RDWR | os.O_CREAT, 0o600)
    before = {number: signal.getsignal(number) for number in _ENDS}
    try:
        with _locked(turn):
            if _is_unused(users):
                shutil.rmtree(folder, ignore_errors=True)
                _make_keys(folder)
            fcntl.flock(users, fcntl.LOCK_SH)
            told = (folder / "user.pub").read_bytes() + (folder / "server").read_bytes() + b".\n"
        try:
            with _ends_raise():
                yield told
        finally:
            with _locked(turn):
                if _is_unused(users):
                    shutil.rmtree(folder, ignore_errors=True)
    finally:
        os.close(users)
        for number, handler in before.items():
            signal.signal(number, handler)


@contextlib.contextmanager
def _ends_raise() -> Iterator[None]:
    """Have the first signal of `_ENDS` raise SystemExit, and drop those that come afterwards."""

    def end(number: int, frame: FrameType | None) -> None:
        _drop_ends()
        raise SystemExit(128 + number)

    try:
        for number in _ENDS:
            signal.signal(number, end)
        yield
    finally:
        _drop_ends()


def _drop_ends() -> None:
    for number in _ENDS:
        signal.signal(number, signal.SIG_IGN)


@contextlib.contextmanager
def _locked(path: Path) -> Iterator[None]:
    fd = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    try:
        fcntl.flock(fd, fcntl.LOCK_EX)
        yield
    finally:
        os.close(fd)


def _is_unused(users: int) -> bool:
    """Return whether no other session holds the keys."""
    try:
        fcntl.flock(users, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return False
    return True


def _make_keys(folder: Path) -> None:
    folder.mkdir(mode=0o700)
    words = ["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-C", ALIAS, "-f"]
    for name in ("user", "server"):
        try:
            subprocess.run([*words, str(folder / name)], check=True, stdin=subprocess.DEVNULL)
        except FileNotFoundError:
            raise ValidationError(
                "there is no ssh-keygen on this machine: apt install openssh-client", field="ssh"
            ) from None
        except subprocess.CalledProcessError as error:
            raise ValidationError(f"ssh-keygen made no key: {error}", field="ssh") from None
    kind, key, *_ = (folder / "server.pub").read_text().split()
    (folder / "known_hosts").write_text(f"{ALIAS} {kind} {key}\n")
