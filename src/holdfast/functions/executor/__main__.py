"""The process of an executor: `python -m holdfast.functions.executor`, started by its agent."""

import os
import sys
import threading
import time
from pathlib import Path

import msgspec

from holdfast.core.calls.values import ExecutorLimits
from holdfast.functions.executor.files import find_modules_of
from holdfast.functions.executor.held_batches import HeldBatches
from holdfast.functions.executor.place import PlaceWriter
from holdfast.functions.executor.runner import CallRunner, RunnerPlaces

_EXIT_SECONDS = 5.0


def main() -> int:
    """Run calls until there is a reason to end; return the exit status."""
    env = os.environ
    path = env.get("HOLDFAST_APP_PATH")
    if path:
        find_modules_of(path)
    runner = CallRunner(
        HeldBatches(env["HOLDFAST_TASK"], int(env.get("HOLDFAST_EXECUTOR_GPUS", "0"))),
        PlaceWriter(env["HOLDFAST_CALLS_PLACE"]),
        msgspec.json.decode(env.get("HOLDFAST_EXECUTOR_LIMITS", "{}"), type=ExecutorLimits),
        RunnerPlaces(
            app=env.get("HOLDFAST_APP", ""),
            path=path or "",
            blobs=Path(env["HOLDFAST_CALLS_BLOBS"]),
            files=Path(env["HOLDFAST_CALLS_FILES"]),
        ),
        env["HOLDFAST_CALLS_SOCKET"],
    )
    status = runner.run()
    end_soon(status)
    runner.close()
    return status


def end_soon(status: int) -> None:
    """Exit after a while even where a thread or an exit handler of the user's code does not end."""

    def end() -> None:
        time.sleep(_EXIT_SECONDS)
        os._exit(status)

    threading.Thread(target=end, daemon=True).start()


if __name__ == "__main__":
    sys.exit(main())
