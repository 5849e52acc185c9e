"""What the hosts of a tree are asked, in a file that takes no time to load: a host's time for its
part counts from its order on, also while it loads the functions."""

from __future__ import annotations

import os
import time
from typing import Any


def look(number: int) -> dict[str, Any]:
    """What a host says."""
    return {"sum": number, "pids": [os.getpid()], "bytes": b"\x00"}


def merge(one: dict[str, Any], other: dict[str, Any]) -> dict[str, Any]:
    """Of two parts of the tree."""
    return {"sum": one["sum"] + other["sum"], "pids": one["pids"] + other["pids"], "bytes": b"\x01"}


def misbehave(word: str) -> list[str]:
    """Do as told."""
    if word == "raise":
        raise RuntimeError("as told")
    if word == "hang":
        time.sleep(6000)
    if word == "exit":
        os._exit(3)
    if word == "odd":
        return [object()]  # type: ignore[list-item]  # what no tree may send
    return [word]


def join(one: list[str], other: list[str]) -> list[str]:
    """Of two parts of the tree."""
    if "poison" in (*one, *other):
        raise ValueError("poison")
    return sorted(one + other)
