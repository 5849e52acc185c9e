"""A rank of a supervised job, as plain as can be: it lives until it is told otherwise. Standard
library only.

    host_member.py JOURNAL FILE

Rank 0, in the script's place, ends with 0 once FILE is there. Any other ends with 72 on SIGUSR1:
its host was given up.
"""

from __future__ import annotations

import os
import signal
import sys
import time
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3]))

from tests.system.gangs.journal import Journal

CODE = str(Path(__file__).resolve())


def main(path: Path, until: Path) -> int:
    """Live."""
    signal.signal(signal.SIGUSR1, lambda *_: os._exit(72))
    journal = Journal(path)
    journal.write("start")
    print(f"rank {journal.rank} under epoch {journal.epoch}", flush=True)
    while journal.rank or not until.exists():
        journal.write("alive")
        time.sleep(0.05)
    journal.write("end")
    return 0


if __name__ == "__main__":
    sys.exit(main(Path(sys.argv[1]), Path(sys.argv[2])))
