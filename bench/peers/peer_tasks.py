"""The functions that Holdfast's own calls run in the comparison."""

import time

import holdfast


@holdfast.task(queue="bench")
def double(number: int) -> int:
    return number * 2


@holdfast.task(queue="bench")
def clock() -> float:
    return time.monotonic()  # of the whole machine
