"""Python functions as tasks, one with a model. In this folder:

    holdfast up --app mytasks

and in another terminal, in the same folder:

    python mytasks.py
"""

import time

import holdfast


@holdfast.task
def double(n: int) -> int:
    """The smallest task."""
    return 2 * n


@holdfast.task(retry={"max_retries": 3, "retry_delay": 0})
def flaky(n: int, ctx: holdfast.CallContext | None = None) -> str:
    """Fail at the first attempt, succeed at the second."""
    attempt = (ctx or holdfast.context()).attempt
    if attempt == 1:
        raise ConnectionError(f"item {n}: the first attempt always fails")
    return f"item {n} at attempt {attempt}"


@holdfast.model("alphabet")
def alphabet() -> dict[str, str]:
    """Stand for a model that takes a second to load."""
    time.sleep(1.0)
    return {letter: letter.upper() for letter in "abcdefghijklmnopqrstuvwxyz"}


@holdfast.task(model=alphabet, stall_timeout="1m")
def shout(text: str) -> str:
    """Use the loaded model."""
    letters = alphabet()
    return "".join(letters.get(letter, letter) for letter in text)


if __name__ == "__main__":
    print(double.submit(3).result(timeout=20))
    print(sum(double.map(range(10_000))))
    print(flaky.submit(1).result(timeout=60))
    handles = [shout.submit(word) for word in ("warm", "models", "load", "once")]
    for handle in holdfast.as_completed(handles, timeout=60):
        print(handle.id, handle.result())
