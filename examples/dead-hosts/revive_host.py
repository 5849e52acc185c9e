#!/usr/bin/env python3
"""Restarts a host that its controller holds for dead: one look, at most one try.

    revive_host.py [--state DIR | --host NAME] [--pause SECONDS] [--tries N] [--within SECONDS]
                   [--record FILE] [-- COMMAND...]

COMMAND brings the host back: `systemctl restart holdfast-agent` (the default), `systemctl reboot`,
or, run on another machine, `ssh box-7 sudo reboot` with `--host box-7`. Run this every minute,
by holdfast-revive.timer beside this file or by cron. It asks `holdfast hosts --dead --json`, so it
needs HOLDFAST_URL and HOLDFAST_TOKEN (a read token does). Python's own library is all it uses.

A controller that does not answer is no reason to restart anything. Each try is on the disk before
it is made, so the bound holds over a reboot; where it cannot be written, no try is made.

Exit code: 0 nothing was to be done, or COMMAND succeeded; 1 the controller, the record or COMMAND
failed; 2 the tries are used up, and a person has to look.
"""

from __future__ import annotations

import argparse
import fcntl
import json
import os
import subprocess
import sys
import time
from pathlib import Path

ASK_SECONDS = 60.0
RESTART = ["systemctl", "restart", "holdfast-agent"]


def read_arguments() -> argparse.Namespace:
    """Read the command line."""
    parser = argparse.ArgumentParser(description="Restart a host that its controller holds dead.")
    which = parser.add_mutually_exclusive_group()
    which.add_argument("--state", default="/var/lib/holdfast", help="the agent's folder")
    which.add_argument("--host", help="a host's name or id, instead of the one of --state")
    parser.add_argument("--pause", type=float, default=600, help="seconds between two tries")
    parser.add_argument("--tries", type=int, default=3, help="at most so many within --within")
    parser.add_argument("--within", type=float, default=86_400, help="seconds that a try counts")
    parser.add_argument("--record", default="/var/lib/holdfast-revive/tries", help="kept tries")
    parser.add_argument("command", nargs="*", default=RESTART, metavar="COMMAND")
    return parser.parse_args()


def is_dead(host: str) -> bool:
    """Ask the controller. Raises OSError or ValueError where it gives no answer."""
    asked = ["holdfast", "hosts", "--dead", "--json"]
    try:
        done = subprocess.run(asked, stdout=subprocess.PIPE, timeout=ASK_SECONDS, check=True)
    except subprocess.SubprocessError as error:
        raise OSError(f"the controller could not be asked: {error}") from error
    return any(host in (entry["id"], entry["name"]) for entry in json.loads(done.stdout))


def decide_try(tries: list[float], now: float, arguments: argparse.Namespace) -> str:
    """Return "try", or why not: "pause" (the last try needs time), "spent" (a person has to look).

    A try in the future was made before the clock was set back; it counts, and holds up nothing.
    """
    if sum(now - at < arguments.within for at in tries) >= arguments.tries:
        return "spent"
    if any(0 <= now - at < arguments.pause for at in tries):
        return "pause"
    return "try"


def revive(host: str, arguments: argparse.Namespace) -> int:
    """Make a try if one is due; return the exit code."""
    with Path(arguments.record).open("a+") as record:
        try:
            fcntl.flock(record, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            print("another run is at it")
            return 0
        record.seek(0)
        tries = [float(line) for line in record.read().split()]
        now = time.time()
        verdict = decide_try(tries, now, arguments)
        if verdict == "pause":
            print(f"{host} is dead; the last try is less than {arguments.pause:g} s ago")
            return 0
        if verdict == "spent":
            print(f"{host} is dead after {arguments.tries} tries: look at it", file=sys.stderr)
            return 2
        record.write(f"{now}\n")
        record.flush()
        os.fsync(record.fileno())
        print(f"{host} is dead: {' '.join(arguments.command)}", flush=True)
        code = subprocess.run(arguments.command, check=False).returncode
    if code:
        print(f"{arguments.command[0]} failed with {code}", file=sys.stderr)
    return int(code != 0)


def main() -> int:
    """Look once."""
    arguments = read_arguments()
    try:
        state = Path(arguments.state, "host.json")
        host = arguments.host or json.loads(state.read_text())["host_id"]
        return revive(host, arguments) if is_dead(host) else 0
    except (OSError, ValueError, KeyError) as error:
        print(f"nothing was tried: {error!r}", file=sys.stderr)
        return 1


if __name__ == "__main__":
    sys.exit(main())
