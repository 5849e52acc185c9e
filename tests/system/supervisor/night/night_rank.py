"""One rank of a bad night: `night_rank.py TRAINER FOLDER STEPS EVERY STEP_SECONDS`, or
`night_rank.py check FOLDER`.

TRAINER is `ddp` (`examples/policies/train_ddp.py`, PyTorch over gloo) or `sockets`
(`examples/gang/train_sockets.py`, numpy). The rank signs a journal when it starts, at each step and
fifty times a second between, and when it comes to the next fault of FOLDER/faults.json
that names it, has that happen: each fault once, in the order of the file, in any
attempt. What a rank cannot do to itself it asks for, by a line in FOLDER/asked that names its host
manager.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import os
import sys
import threading
import time
from pathlib import Path
from types import ModuleType
from typing import Any

ROOT = Path(__file__).resolve().parents[4]
sys.path.insert(0, str(ROOT))

from tests.system.gangs.journal import Journal  # noqa: E402  a program of its own finds the tests by the line above

SIGN_SECONDS = 0.02
EXIT_PLANNED = 3


def load_example(path: str) -> ModuleType:
    """An example as a module."""
    spec = importlib.util.spec_from_file_location(Path(path).stem, ROOT / "examples" / path)
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def find_manager() -> int:
    """The host manager's pid: the parent of the warden, which is our parent."""
    with open(f"/proc/{os.getppid()}/status", encoding="ascii") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("PPid:"))


def claim(path: Path) -> bool:
    """True for the first to ask, over all attempts."""
    try:
        os.close(os.open(path, os.O_CREAT | os.O_EXCL))
    except FileExistsError:
        return False
    return True


def hang() -> None:
    """Wait for the end from outside."""
    while True:
        time.sleep(60)


class Faults:
    """What goes wrong for this rank."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._plan: list[dict[str, Any]] = json.loads((folder / "faults.json").read_text())

    def meet(self, rank: int, step: int) -> None:
        """Have the next one happen, where it is this rank's and its step has come."""
        done = len(list(self._folder.glob("met-*")))
        if done == len(self._plan):
            return
        fault = self._plan[done]
        if fault["rank"] == rank and step >= fault["step"] and claim(self._folder / f"met-{done}"):
            self._happen(fault["kind"])

    def _happen(self, kind: str) -> None:
        print("as planned:", kind, flush=True)
        if kind == "exit":
            os._exit(EXIT_PLANNED)
        if kind == "exception":
            raise RuntimeError("as planned")
        if kind == "hang":
            hang()
        with open(self._folder / "asked", "a", encoding="utf-8") as file:
            file.write(json.dumps({"kind": kind, "manager": find_manager()}) + "\n")
        if kind != "script killed":  # that one is none of the ranks' business
            hang()


def check(folder: Path) -> None:
    """The health check: the first host and a later one hang in it, the others measure themselves as
    the library's own does."""
    from holdfast.supervisor.policy.measures import main as measure

    number = 0
    while not claim(folder / f"checked-{number}"):
        number += 1
    if number in (0, 4):
        hang()
    measure()


def run_sockets(folder: Path, steps: int, every: int, on_step: Any) -> dict[str, Any]:
    """The numpy trainer, made to report its steps as the other does."""
    from holdfast.supervisor import get_message_queue

    queue = get_message_queue()

    def told(step: int) -> None:
        queue.send({"step": step})
        on_step(step)

    weights = load_example("gang/train_sockets.py").train(folder / "saved", steps, every, 0.0, told)
    return {"digest": hashlib.sha256(weights.tobytes()).hexdigest()}


def main() -> int:
    """Be what the command line says."""
    folder = Path(sys.argv[2])
    if sys.argv[1] == "check":
        check(folder)
        return 0
    rank = os.environ["HOLDFAST_RANK"] = os.environ["RANK"]
    journal = Journal(folder / "journal")
    journal.write("start")

    def sign() -> None:
        while True:
            time.sleep(SIGN_SECONDS)
            journal.write("alive")

    threading.Thread(target=sign, daemon=True).start()
    faults = Faults(folder)
    steps, every, step_seconds = int(sys.argv[3]), int(sys.argv[4]), float(sys.argv[5])

    def on_step(step: int) -> None:
        journal.write(f"step-{step}")
        faults.meet(int(rank), step)
        time.sleep(step_seconds)

    if sys.argv[1] == "ddp":
        found = load_example("policies/train_ddp.py").train(folder / "saved", steps, every, on_step)
    else:
        found = run_sockets(folder, steps, every, on_step)
    (folder / f"result-{rank}.json").write_text(json.dumps(found))
    return 0


if __name__ == "__main__":
    sys.exit(main())
