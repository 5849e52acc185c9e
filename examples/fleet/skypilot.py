#!/usr/bin/env python3
"""Machines by SkyPilot for `provider = "command"`: every cloud that SkyPilot knows.

It runs under a Python that has SkyPilot. Not yet tried at a cloud: docs/reference/untried.md. An
offer's settings are SkyPilot's resources, and a wheel of Holdfast:

    [pool.sky.offers.config.settings]
    resources = { accelerators = "A100:1", use_spot = true }
    wheel = "https://files.example/holdfast_gpu-0.1.0-py3-none-any.whl"

A cluster is named `hf-INSTALLATION-POOL-INTENT`, as the order has it, and that is what a list goes by.
"""

from __future__ import annotations

import json
import shlex
import sys
from typing import Any, NoReturn

NO_CAPACITY, REFUSED = 69, 78
STATES = {"INIT": "starting", "UP": "running", "STOPPED": "running"}  # a stopped one still costs
Told = dict[str, Any]


def fail(code: int, why: str) -> NoReturn:
    print(why, file=sys.stderr)
    raise SystemExit(code)


def create(told: Told) -> Told:
    import sky

    order = told["order"]
    settings = told["settings"]
    marks = {key: order[key] for key in ("installation", "pool", "intent")}
    labels = {f"holdfast-{key}": value for key, value in marks.items()}
    task = sky.Task(
        name=order["name"],
        setup=f"pip install -q {shlex.quote(settings['wheel'])}",
        run=f"nohup sh -c {json.dumps(told['agent_script'])} >agent.log 2>&1 &",
    )
    task.set_resources(sky.Resources(**settings.get("resources", {}), labels=labels))
    try:
        sky.get(sky.launch(task, cluster_name=order["name"]))
    except sky.exceptions.ResourcesUnavailableError as error:
        fail(NO_CAPACITY, str(error))
    return {"ref": order["name"], "state": "running"}


def list_machines(told: Told) -> Told:
    import sky

    machines = []
    for cluster in sky.get(sky.status(refresh=sky.StatusRefreshMode.AUTO)):
        labels = getattr(cluster["handle"].launched_resources, "labels", None) or {}
        if "holdfast-intent" not in labels:
            continue
        machines.append(
            {
                "ref": cluster["name"],
                "installation": labels["holdfast-installation"],
                "pool": labels["holdfast-pool"],
                "intent": labels["holdfast-intent"],
                "state": STATES.get(cluster["status"].name, "starting"),
            }
        )
    return {"machines": machines}


def terminate(told: Told) -> Told:
    import sky

    sky.get(sky.down(told["machine"]["ref"]))
    return {}


if __name__ == "__main__":
    actions = {"create": create, "list": list_machines, "terminate": terminate}
    told = json.load(sys.stdin)
    answer, sys.stdout = sys.stdout, sys.stderr  # SkyPilot talks; its words are not the answer
    print(json.dumps(actions[told["action"]](told)), file=answer)
