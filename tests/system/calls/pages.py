"""The app of these tests: functions that hosts import from this folder."""

import os
import sys
import time
from pathlib import Path

import holdfast
from holdfast.client import Client
from holdfast.functions.connection import CONNECTION


@holdfast.task
def double(n: int) -> int:
    return 2 * n


@holdfast.task(retry={"max_retries": 3, "retry_delay": 0})
def fail_twice(path: str) -> int:
    """Fail until it was tried three times."""
    with open(path, "a") as tries:
        tries.write("x")
    done = Path(path).stat().st_size
    if done < 3:
        raise ValueError(f"try {done} is too early")
    return holdfast.context().attempt


@holdfast.task
def fail() -> None:
    raise KeyError("gone")


@holdfast.task(stall_timeout=1, watchdog_cap=1)
def wedge(path: str) -> str:
    """Beat once and hang for ever, the first time."""
    if not path or Path(path).exists():
        return "passed"
    Path(path).touch()
    holdfast.beat(1, 2)
    time.sleep(3600)
    return "never"


@holdfast.task(retry={"max_retries": 1, "retry_delay": 0})
def note(n: int, folder: str) -> int:
    """Leave a trace of each run, and take a millisecond."""
    with open(f"{folder}/{n}", "a") as trace:
        trace.write("x")
    time.sleep(0.001)
    return n


@holdfast.task
def stay(path: str) -> str:
    """Stay until it is cancelled."""
    ctx = holdfast.context()
    Path(path).touch()
    while not ctx.cancelled:
        time.sleep(0.02)
    Path(path).with_suffix(".told").write_text(ctx.cancel_reason)
    raise InterruptedError


@holdfast.task
def lengthen(text: str, times: int) -> str:
    return text * times


loads: list[str] = []


@holdfast.model("pages-a")
def model_a() -> str:
    loads.append("a")
    return "a"


@holdfast.model("pages-b")
def model_b() -> str:
    loads.append("b")
    return "b"


@holdfast.task(model=model_a)
def with_a() -> tuple[int, str, list[str]]:
    return os.getpid(), model_a(), loads


@holdfast.task(model=model_b)
def with_b() -> tuple[int, str, list[str]]:
    return os.getpid(), model_b(), loads


@holdfast.task(retry={"max_retries": 1, "retry_delay": 0})
def speak(path: str, n: int) -> int:
    """Say a few words; call 3 fails at its first attempt. Even ones are silent on stderr."""
    ctx = holdfast.context()
    print(f"out of {n}, attempt {ctx.attempt}")
    if n % 2:
        print(f"err of {n}", file=sys.stderr)
    if n == 3 and ctx.attempt == 1:
        raise ValueError("once")
    return n


@holdfast.task
def speak_and_stay(path: str) -> str:
    print("here")
    while not Path(path).exists():
        time.sleep(0.02)
    print("gone")
    return "done"


@holdfast.task(retry={"max_retries": 1, "retry_delay": 0})
def speak_on(folder: str, rounds: int) -> int:
    """Print, wait for a word, and print more; all attempts but the last fail."""
    attempt = holdfast.context().attempt
    print(f"attempt {attempt}", flush=True)
    while attempt == 1 and not Path(folder, "go1").exists():
        time.sleep(0.02)
    print("word\n" * 2000 + "last", flush=True)
    Path(folder, f"said{attempt}").touch()
    if attempt < rounds:
        raise ValueError("once more")
    return attempt


@holdfast.task(retry={"max_retries": 3, "retry_delay": 0})
def go_on(path: str, *, ctx: holdfast.CallContext | None = None) -> list[str]:
    """Leave a checkpoint and hang, the first time; then say what was left, and on which hosts."""
    assert ctx is not None
    host = os.environ["HOLDFAST_HOST_NAME"]
    left = ctx.checkpoint.load()
    if left is None:
        ctx.checkpoint.save(host.encode())
        Path(path).touch()
        time.sleep(3600)
        return []
    return [left.decode(), host]


@holdfast.task
def stubborn(path: str) -> str:
    """Hang for ever, whatever it is told, where there is a path."""
    if not path:
        return "passed"
    Path(path).touch()
    while True:
        time.sleep(0.1)


@holdfast.task
def locate() -> str:
    """Return the name of the host it runs on."""
    return os.environ["HOLDFAST_HOST_NAME"]


@holdfast.task
def hand_down(n: int) -> tuple[int, int]:
    """Submit a call with the executor's own token; return its result, and this process."""
    return double.submit(n).result(), os.getpid()


@holdfast.task
def sum_of_children(count: int, url: str, token: str) -> int:
    """Submit a call for each number, and wait for them."""
    CONNECTION.use(Client(url, token))
    one = double.submit(0).result()
    return int(one + sum(double.map(range(count))))
