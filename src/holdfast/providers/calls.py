"""Calls that end by their deadline (RENT-5): a block of code, and a program with its output."""

import asyncio
import contextlib
import os
import secrets
import signal
import subprocess
import time
from collections.abc import AsyncIterator, Mapping, Sequence
from datetime import UTC
from email.utils import parsedate_to_datetime
from typing import BinaryIO, NamedTuple

from holdfast.process import table
from holdfast.providers.interface import ProviderDown, Refused

_MARK = "HOLDFAST_PROVIDER_CALL"
_MAX_OUTPUT_BYTES = 8 << 20
_POLL_SECONDS = 0.02


@contextlib.asynccontextmanager
async def within(seconds: float, what: str) -> AsyncIterator[None]:
    """Give the block at most so many seconds.

    Raises:
        ProviderDown: the time is over; whether `what` took effect is unknown.
    """
    try:
        async with asyncio.timeout(seconds):
            yield
    except TimeoutError:
        raise ProviderDown(f"{what} did not end within {seconds:g} s") from None


def read_retry_after(value: str | None) -> float | None:
    """Return the seconds of a header `Retry-After`, which may be a number or a date (RFC 9110);
    None where it is neither."""
    try:
        return max(0.0, float(value or ""))
    except ValueError:
        pass
    try:
        at = parsedate_to_datetime(value or "")
    except ValueError:
        return None
    return max(0.0, (at if at.tzinfo else at.replace(tzinfo=UTC)).timestamp() - time.time())


class ProgramEnd(NamedTuple):
    """The end of a program. code: its exit code; negative for a signal, as in subprocess."""

    code: int
    stdout: bytes
    stderr: bytes

    @property
    def complaint(self) -> str:
        """Return the end of the program's stderr, on one line."""
        return " ".join(self.stderr.decode(errors="replace").split())[-600:]


async def run_program(
    argv: Sequence[str],
    *,
    seconds: float,
    env: Mapping[str, str] | None = None,
    input: bytes = b"",
    cwd: str | None = None,
    max_bytes: int = _MAX_OUTPUT_BYTES,
) -> ProgramEnd:
    """Run a program in a session of its own and return its output.

    At the deadline, or where it prints more than `max_bytes`, it is killed with all processes that
    it started. Processes that it leaves running after an end of its own are left alone, because the
    tools of some clouds keep a server of their own.

    Raises:
        Refused: the program is not there, or may not be run.
        ProviderDown: the deadline passed, or it printed too much.
    """
    what, mark = os.path.basename(argv[0]), secrets.token_hex(8)
    whole = {**(os.environ if env is None else env), _MARK: mark}
    with contextlib.ExitStack() as stack:
        # Files in memory, not pipes, which a child of the program could hold open after its end.
        told, output, errors = (stack.enter_context(_open_memory()) for _ in range(3))
        told.write(input)
        told.seek(0)
        process = _start(argv, (told, output, errors), whole, cwd)
        try:
            async with within(seconds, what):
                while process.poll() is None:
                    if any(os.fstat(f.fileno()).st_size > max_bytes for f in (output, errors)):
                        raise ProviderDown(f"{what} printed more than {max_bytes} bytes")
                    await asyncio.sleep(_POLL_SECONDS)
        finally:
            if process.returncode is None:
                await asyncio.shield(asyncio.to_thread(_end, process, mark))
        return ProgramEnd(process.returncode, *(_read(f, max_bytes) for f in (output, errors)))


def _start(
    argv: Sequence[str], files: tuple[BinaryIO, ...], env: Mapping[str, str], cwd: str | None
) -> subprocess.Popen[bytes]:
    told, output, errors = files
    try:
        return subprocess.Popen(
            argv, stdin=told, stdout=output, stderr=errors, env=env, cwd=cwd, start_new_session=True
        )
    except OSError as error:
        raise Refused(f"{argv[0]} cannot be run: {error.strerror}") from error


def _open_memory() -> BinaryIO:
    return open(os.memfd_create("holdfast-call"), "w+b", buffering=0)


def _read(file: BinaryIO, max_bytes: int) -> bytes:
    return os.pread(file.fileno(), max_bytes, 0)


def _end(process: subprocess.Popen[bytes], mark: str) -> None:
    """Kill the program, its group, and processes that left the group but carry the call's mark."""
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    _kill_marked(f"{_MARK}={mark}".encode())
    process.wait()


def _kill_marked(mark: bytes) -> None:
    for _ in range(5):  # a marked process may fork while the table is read
        found = False
        for entry in table.read_table().values():
            if entry.alive and mark in (table.read_environ(entry.pid) or b"").split(b"\0"):
                found = table.send_signal(entry, signal.SIGKILL) or found
        if not found:
            return
