"""Real host managers on a machine that has no room for them: which of them are lost though nothing
befell them.

    python -m bench.supervisor_crowd STARTS MANAGERS PER_HOST LOAD SECONDS REST

Beside LOAD processes that burn every core, a script starts MANAGERS managers with PER_HOST ranks
each, lets them be for REST seconds, and ends them; STARTS times, or until SECONDS are over. Prints
JSON: hosts that were lost in each start, with what was said of them, and how long each took.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time

from holdfast.supervisor import Context, wait

_PATIENCE = 240.0


def run_once(managers: int, per_host: int, rest_seconds: float) -> dict[str, object]:
    """One start; what it took, and which hosts were lost."""
    began = time.monotonic()
    with Context(bind="127.0.0.1", log_interval=None) as ctx:
        hosts = ctx.request_hosts(managers)
        ctx.start_local_managers(managers)
        group = ctx.create_process_group(hosts, ["sleep", "6000"], processes_per_host=per_host)
        missing = wait(
            [process.pid() for process in group], timeout=_PATIENCE, log_interval=None
        ).not_done
        started = time.monotonic() - began
        time.sleep(rest_seconds)
        lost = [host.lost_reason or "" for host in hosts if host.connection_lost()]
        ctx.shutdown(60)
    return {"started": started, "lost": lost, "missing": len(missing), "load": os.getloadavg()[0]}


def main(arguments: list[str]) -> None:
    """Start again and again, and print what was found."""
    starts, managers, per_host, load = (int(word) for word in arguments[:4])
    give_up_at, rest_seconds = time.monotonic() + float(arguments[4]), float(arguments[5])
    burners = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(load)]
    found = []
    try:
        while len(found) < starts and time.monotonic() < give_up_at:
            found.append(run_once(managers, per_host, rest_seconds))
            print(found[-1], file=sys.stderr, flush=True)
    finally:
        for burner in burners:
            burner.kill()
        for burner in burners:
            burner.wait()
    print(json.dumps({key: [one[key] for one in found] for key in found[0]}))


if __name__ == "__main__":
    main(sys.argv[1:])
