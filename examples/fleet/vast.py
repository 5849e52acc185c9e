#!/usr/bin/env python3
"""Machines at Vast.ai for `provider = "command"`, by its tool `vastai` (pip install vastai).

Not yet tried at Vast itself: docs/reference/untried.md. An offer's settings:

    [pool.vast.offers.config.settings]
    query = "gpu_name=RTX_4090 num_gpus=1 reliability>0.98 rentable=true"
    image = "pytorch/pytorch:2.5.1-cuda12.4-cudnn9-runtime"
    disk = 40
    wheel = "https://files.example/holdfast_gpu-0.1.0-py3-none-any.whl"
"""

from __future__ import annotations

import json
import shlex
import subprocess
import sys
from typing import Any, NoReturn

NO_CAPACITY, REFUSED = 69, 78
STATES = {"running": "running", "exited": "gone", "offline": "running"}
Told = dict[str, Any]


def fail(code: int, why: str) -> NoReturn:
    print(why, file=sys.stderr)
    raise SystemExit(code)


def vastai(*words: str) -> Any:
    done = subprocess.run(["vastai", *words, "--raw"], capture_output=True, text=True, check=False)
    if done.returncode != 0:
        fail(1, done.stderr or done.stdout)  # any other code: the outcome is unknown
    return json.loads(done.stdout)


def settings_of(offer: Told, told: Told) -> Told:
    return {**told["settings"], **offer.get("config", {}).get("settings", {})}


def find_asks(settings: Told) -> list[Told]:
    found: list[Told] = vastai("search", "offers", settings["query"], "-o", "dph_total")
    return found


def create(told: Told) -> Told:
    order = told["order"]
    settings = told["settings"]
    asks = find_asks(settings)
    if not asks:
        fail(NO_CAPACITY, f"no machine for {settings['query']}")
    start = f"pip install -q {shlex.quote(settings['wheel'])} && {shlex.join(told['agent_words'])}"
    variables = " ".join(f"-e {k}={shlex.quote(v)}" for k, v in sorted(order["env"].items()))
    made = vastai(
        "create", "instance", str(asks[0]["id"]), "--image", settings["image"],
        "--disk", str(settings.get("disk", 40)), "--label", label_of(order), "--env", variables,
        "--onstart-cmd", start,
    )  # fmt: skip
    if not made.get("success"):
        fail(NO_CAPACITY, json.dumps(made))
    return {"ref": str(made["new_contract"]), "usd_per_hour": asks[0]["dph_total"]}


def label_of(order: Told) -> str:
    return "/".join(["holdfast", order["installation"], order["pool"], order["intent"]])


def list_machines(told: Told) -> Told:
    machines = []
    for instance in vastai("show", "instances"):
        words = (instance.get("label") or "").split("/")
        if len(words) != 4 or words[0] != "holdfast":
            continue  # not made by Holdfast
        machines.append(
            {
                "ref": str(instance["id"]),
                "installation": words[1],
                "pool": words[2],
                "intent": words[3],
                "state": STATES.get(instance.get("actual_status") or "", "starting"),
                "reason": instance.get("status_msg") or "",
                "usd_per_hour": instance.get("dph_total"),
            }
        )
    return {"machines": machines}


def terminate(told: Told) -> Told:
    vastai("destroy", "instance", told["machine"]["ref"])
    return {}


def quote(told: Told) -> Told:
    quotes = []
    for offer in told["offers"]:
        asks = find_asks(settings_of(offer, told))
        price = asks[0]["dph_total"] if asks else None
        quotes.append({"offer": offer["name"], "usd_per_hour": price, "available": bool(asks)})
    return {"quotes": quotes}


if __name__ == "__main__":
    actions = {"create": create, "list": list_machines, "terminate": terminate, "quote": quote}
    told = json.load(sys.stdin)
    print(json.dumps(actions[told["action"]](told)))
