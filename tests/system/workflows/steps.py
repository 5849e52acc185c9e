"""Functions that the tests' workflows call, on hosts that list the app `steps`."""

from __future__ import annotations

import fcntl
import os
import time
from pathlib import Path

import holdfast


@holdfast.task
def count(up_to: int) -> list[int]:
    """The numbers below."""
    return list(range(up_to))


@holdfast.task
def square(n: int, marker: str) -> int:
    """The square; 3 fails until the marker is there. Each run leaves a line."""
    with (holdfast.context().out_dir / "runs").open("a") as runs:
        runs.write(f"{n}\n")
    if n == 3 and not Path(marker).exists():
        raise ValueError("three is out of order")
    return n * n


@holdfast.task
def add(numbers: list[int]) -> int:
    """Their sum."""
    return sum(numbers)


@holdfast.task(retry={"max_retries": 50, "retry_delay": 0})
def mark(n: int, seconds: float) -> int:
    """Have one effect, whole under its name however often it is tried; say so where two attempts
    work at once."""
    folder = holdfast.context().out_dir
    lock = os.open(folder, os.O_RDONLY)
    try:
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        part = folder / f".part.{os.getpid()}"
        part.write_text(f"{n}\n")
        time.sleep(seconds)
        part.replace(folder / "effect")
    except BlockingIOError:
        (folder / "overlap").touch()
        raise
    finally:
        os.close(lock)
    return n
