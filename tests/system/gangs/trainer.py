"""`examples/gang/train_sockets.py` with a journal: `trainer.py JOURNAL STATE STEPS EVERY
STEP_SECONDS`.

STATE is the folder of the ranks' own files, or `-` for `holdfast.checkpoint`.
"""

from __future__ import annotations

import hashlib
import importlib.util
import sys
from pathlib import Path
from types import ModuleType

ROOT = Path(__file__).resolve().parents[3]
sys.path.insert(0, str(ROOT))

from tests.system.gangs.journal import Journal  # noqa: E402  a program of its own finds the tests by the line above

CODE = str(Path(__file__).resolve())


def load_example() -> ModuleType:
    """The example as a module."""
    spec = importlib.util.spec_from_file_location(
        "train_sockets", ROOT / "examples" / "gang" / "train_sockets.py"
    )
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def main() -> int:
    """Be one rank, and say at the end what it came to."""
    journal = Journal(Path(sys.argv[1]))
    journal.write("start")
    steps, every = int(sys.argv[3]), int(sys.argv[4])
    state = None if sys.argv[2] == "-" else Path(sys.argv[2])
    weights = load_example().train(
        state, steps, every, float(sys.argv[5]), lambda step: journal.write(f"step-{step}")
    )
    print(f"digest {hashlib.sha256(weights.tobytes()).hexdigest()}", flush=True)
    journal.write("end")
    return 0


if __name__ == "__main__":
    sys.exit(main())
