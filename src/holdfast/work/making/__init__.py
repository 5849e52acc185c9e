"""Make the Python environments of jobs (`--setup`): standard library only, because a Python of a
container's image runs these files alone."""

from __future__ import annotations


def say(text: str) -> None:
    """Write a line into the task's log; what is no Unicode in it is replaced."""
    print(f"holdfast: {text.encode(errors='replace').decode()}", flush=True)
