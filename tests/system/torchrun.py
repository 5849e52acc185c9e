"""Plain torchrun as the reference of tests."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from tests.waits import run_patiently

# gloo's own threads race with the interpreter's end: after the work is done, a rank in some hundred aborts in torch.
ABORTED_AT_EXIT = "terminate called without an active exception"
TRIES = 4


def run_torchrun(
    python: str,
    ranks: int,
    program: Callable[[int], Sequence[str]],
    *,
    seconds: float,
    environment: Mapping[str, str],
) -> str:
    """Run `program(try)` in `ranks` processes and return its output; once more where torch itself
    aborted at a rank's exit. Fails the test where it fails otherwise."""
    for number in range(TRIES):
        done = run_patiently(
            [
                *(python, "-m", "torch.distributed.run", "--standalone"),
                *("--nproc-per-node", str(ranks)),
                *program(number),
            ],
            capture_output=True,
            text=True,
            seconds=seconds,
            env=dict(environment),
        )
        if done.returncode == 0 or ABORTED_AT_EXIT not in done.stderr:
            break
    assert done.returncode == 0, done.stderr
    return done.stdout
