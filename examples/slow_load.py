"""Load memory slowly, without a beat and almost without CPU, like a large model from a slow disk.

Holdfast must not kill it."""

from __future__ import annotations

import argparse
import time


def main() -> None:
    """Touch `--mb-per-second` of memory for `--seconds`."""
    args = argparse.ArgumentParser(description=__doc__)
    args.add_argument("--seconds", type=float, default=12.0)
    args.add_argument("--mb-per-second", type=float, default=15.0)
    opts = args.parse_args()
    weights: list[bytearray] = []
    until = time.monotonic() + opts.seconds
    while time.monotonic() < until:
        weights.append(bytearray(b"\x01") * int(opts.mb_per_second * 0.25 * 2**20))
        time.sleep(0.25)
    print(f"loaded {sum(map(len, weights)) // 2**20} MiB without one beat", flush=True)


if __name__ == "__main__":
    main()
