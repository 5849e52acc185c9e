"""Say which shared memory ended programs left behind, and how it is removed."""

import shlex
from collections.abc import Sequence

import msgspec

from holdfast.core.words import say_bytes

TOLD_BYTES = 1 << 20
"""Less than this is not told, because it harms nothing: a semaphore, an empty segment."""
MAX_NAMED = 4


class LeftMemory(msgspec.Struct, frozen=True, kw_only=True):
    """Shared memory that no process uses. path: its file, or the folder of its files, in /dev/shm;
    "" for a SysV segment. segment: that segment's id. bytes: the memory that it keeps."""

    bytes: int
    path: str = ""
    segment: int = 0


def is_told(found: Sequence[LeftMemory]) -> bool:
    """Return whether the memory is worth a sentence."""
    return sum(left.bytes for left in found) >= TOLD_BYTES


def say_left_memory(found: Sequence[LeftMemory]) -> str:
    """Return a phrase with the names and sizes of the memory, the largest first."""
    named = [
        f"{left.path or f'SysV segment {left.segment}'} ({say_bytes(left.bytes)})"
        for left in _sort(found)[:MAX_NAMED]
    ]
    if len(found) > MAX_NAMED:
        named.append(f"and {len(found) - MAX_NAMED} more")
    return f"{say_bytes(sum(left.bytes for left in found))} of shared memory: {', '.join(named)}"


def name_removal(found: Sequence[LeftMemory]) -> str:
    """Return the commands that remove the memory that `say_left_memory` names."""
    named = _sort(found)[:MAX_NAMED]
    files = [shlex.quote(left.path) for left in named if left.path]
    commands = [f"rm -r -- {' '.join(files)}"] if files else []
    commands += [f"ipcrm -m {left.segment}" for left in named if not left.path]
    return "; ".join(commands)


def _sort(found: Sequence[LeftMemory]) -> list[LeftMemory]:
    return sorted(found, key=lambda left: (-left.bytes, left.path, left.segment))
