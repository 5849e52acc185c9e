"""`python -m bench.counts [--write] [--by-name] [NAME…]`: count what things cost."""

from __future__ import annotations

import argparse
import sys

from bench.counts.acts import ACTS, BURSTS, Act, Burst, Idle
from bench.counts.counts import Counts, tell_rises
from bench.counts.rig import start_rig
from bench.counts.table import read_page, render, write_page
from bench.scale import say


def main() -> int:
    """Count, print, and write the page where that is asked for."""
    parser = argparse.ArgumentParser(prog="python -m bench.counts", description=__doc__)
    parser.add_argument("names", nargs="*", help="parts of the names of acts; without, all")
    parser.add_argument("--write", action="store_true", help="write docs/reference/costs.md")
    parser.add_argument("--by-name", action="store_true", help="print each statement's count")
    given = parser.parse_args()
    every: list[Act | Burst | Idle] = [*ACTS, *BURSTS]
    chosen = [a for a in every if not given.names or any(n in a.name for n in given.names)]
    found: dict[str, Counts] = {}
    failed = False
    with start_rig() as rig:
        for act in chosen:
            allowed = read_page().get(act.name, Counts({}))
            try:
                counts = found[act.name] = act.count(rig)
            except (RuntimeError, TimeoutError, AssertionError) as error:
                failed = True
                say(f"{act.name}: {error}")
                continue
            say(f"{act.name}: {'; '.join(tell_rises(allowed, counts)) or 'no more than it was'}")
            if given.write:
                write_page({act.name: counts}, (each.name for each in every))
    text = render(found)
    print(text if given.by_name else text.partition("\n## ")[0])
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
