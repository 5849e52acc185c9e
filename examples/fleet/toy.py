#!/usr/bin/env python3
"""A provider of toy machines for `provider = "command"`: each is a process of this machine.

It shows the whole contract (docs/guides/providers-command.md) in a few lines and is run by the tests.
TOY_FOLDER is where the machines are kept; TOY_AGENT is what runs in the place of the agent's words.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, NoReturn

NO_CAPACITY, REFUSED = 69, 78
FOLDER = Path(os.environ.get("TOY_FOLDER", "toy-machines"))
Told = dict[str, Any]


def fail(code: int, why: str) -> NoReturn:
    print(why, file=sys.stderr)
    raise SystemExit(code)


def lives(machine: Told) -> bool:
    """Whether the process is there and is the machine's, because a pid may be used again."""
    try:
        environ = Path(f"/proc/{machine['ref']}/environ").read_bytes().split(b"\0")
    except OSError:
        return False
    return f"HOLDFAST_INTENT={machine['intent']}".encode() in environ


def list_machines(told: Told) -> Told:
    """Print every machine, or fail: half a list would be taken for the whole."""
    found = [json.loads(path.read_text()) for path in sorted(FOLDER.glob("*.json"))]
    return {"machines": [m for m in found if lives(m)]}


def create(told: Told) -> Told:
    """Make one machine. A cloud would get `agent_script` as what the machine runs at its start."""
    order, settings = told["order"], told["settings"]
    if settings.get("size", "small") != "small":
        fail(REFUSED, f"there are no {settings['size']} toys")
    if len(list_machines(told)["machines"]) >= settings.get("max", 100):
        fail(NO_CAPACITY, "the box of toys is empty")
    FOLDER.mkdir(parents=True, exist_ok=True)
    words = [os.environ["TOY_AGENT"]] if "TOY_AGENT" in os.environ else told["agent_words"]
    process = subprocess.Popen(
        words,
        env={**os.environ, **order["env"]},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=subprocess.DEVNULL,
        start_new_session=True,
    )
    machine = {
        "ref": str(process.pid),
        "state": "running",
        **{key: order[key] for key in ("installation", "intent", "pool", "name")},
    }
    (FOLDER / f"{order['intent']}.json").write_text(json.dumps(machine))
    process.returncode = 0  # it lives on
    return {"ref": machine["ref"], "state": "running", "usd_per_hour": 0.01}


def terminate(told: Told) -> Told:
    """End one machine; of one that is gone, say nothing."""
    for machine in list_machines(told)["machines"]:
        if machine["ref"] == told["machine"]["ref"]:
            os.kill(int(machine["ref"]), signal.SIGTERM)
    return {}


def quote(told: Told) -> Told:
    return {
        "quotes": [
            {"offer": offer["name"], "usd_per_hour": 0.01, "available": True}
            for offer in told["offers"]
        ]
    }


if __name__ == "__main__":
    actions = {"create": create, "list": list_machines, "terminate": terminate, "quote": quote}
    told = json.load(sys.stdin)
    print(json.dumps(actions[told["action"]](told)))
