"""`hosts drain` and the rest of the hosts' commands: what is sent, what is shown."""

from __future__ import annotations

import json
from datetime import UTC, datetime, timedelta
from typing import Any

import msgspec
import pytest

from holdfast.client import AsyncClient, Client
from tests.unit.cli.stub import Answer, Stub


def host(**fields: Any) -> dict[str, Any]:
    return {
        "id": "h1",
        "name": "box-7",
        "pool": "",
        "state": "draining",
        "reason": "new driver",
        "incarnation": "i",
        "queues": [],
        "labels": {},
        "cpu_slots": 4,
        "memory_bytes": 0,
        "gpus": [],
        "address": "10.0.0.7",
        "version": "0",
        "probe": "real",
        "registered_at": "2026-01-01T00:00:00Z",
        "slots": {"cpu": {"total": 4, "busy": 1}},
        **fields,
    }


def sent(stub: Stub) -> dict[str, Any]:
    found: dict[str, Any] = msgspec.json.decode(stub.requests[-1].body)
    return {name: value for name, value in found.items() if value not in (None, False, "")}


def in_an_hour() -> str:
    return (datetime.now(UTC) + timedelta(hours=1)).isoformat()


def test_a_drain_takes_a_deadline_and_shows_it(stub: Stub) -> None:
    stub.on("POST /v1/hosts/box-7/drain", Answer(host(drain_deadline=in_an_hour())))
    done = stub.run("hosts", "drain", "box-7", "--deadline", "1h", "--reason", "new driver")
    assert done.exit_code == 0, done.stderr
    assert sent(stub) == {"deadline_seconds": 3600.0, "reason": "new driver"}
    assert done.stdout.startswith("box-7  draining  its tasks are stopped in 60 min")
    assert done.stdout.rstrip().endswith(": new driver")
    found = json.loads(stub.run("hosts", "drain", "box-7", "--deadline", "1h", "--json").stdout)
    assert found["drain_deadline"]


def test_the_list_shows_the_deadline(stub: Stub) -> None:
    rows = [
        host(drain_deadline=in_an_hour()),
        host(id="h2", name="box-8", state="active", reason=""),
    ]
    stub.on("GET /v1/hosts", Answer({"items": rows, "next": None}))
    lines = stub.run("hosts").stdout.splitlines()
    assert "stopped in 60 min" in lines[1]
    assert lines[2].split()[-1] == "-"
    shown = json.loads(stub.run("hosts", "--json").stdout)
    assert [bool(h["drain_deadline"]) for h in shown] == [True, False]
    rows[0]["drain_deadline"] = "2026-01-01T00:00:00Z"
    stub.on("GET /v1/hosts", Answer({"items": rows, "next": None}))
    assert "its tasks are stopped now" in stub.run("hosts").stdout


def test_hard_and_plain_drains_and_undrain(stub: Stub) -> None:
    stub.on("POST /v1/hosts/box-7/drain", Answer(host()))
    stub.on("POST /v1/hosts/box-8/drain", Answer(host(id="h2", name="box-8")))
    stub.on("POST /v1/hosts/box-7/undrain", Answer(host(state="active", reason="")))
    done = stub.run("hosts", "drain", "box-7", "box-8", "--hard")
    assert (done.exit_code, len(stub.requests), sent(stub)) == (0, 2, {"hard": True})
    assert stub.run("hosts", "drain", "box-7").exit_code == 0
    assert sent(stub) == {}
    assert stub.run("hosts", "drain", "box-7", "--scale-down", "--deadline", "1h").exit_code == 0
    assert sent(stub) == {"scale_down": True, "deadline_seconds": 3600.0}
    assert stub.run("hosts", "undrain", "box-7").stdout == "box-7  active\n"


@pytest.mark.parametrize(
    ("words", "sentence"),
    [
        (["--deadline", "soon"], "--deadline: 'soon' is not a duration"),
        (["--deadline", "0"], "--hard stops running tasks now"),
        (["--deadline", "1h", "--hard"], "give one of the two"),
        (["--scale-down", "--hard"], "leave --hard out"),
    ],
)
def test_mistakes_are_refused_before_anything_is_sent(
    stub: Stub, words: list[str], sentence: str
) -> None:
    done = stub.run("hosts", "drain", "box-7", *words)
    assert (done.exit_code, stub.requests) == (2, [])
    assert sentence in " ".join(done.stderr.split())


async def test_both_clients_send_it(stub: Stub) -> None:
    stub.on("POST /v1/hosts/box-7/drain", Answer(host(drain_deadline=in_an_hour())))
    with Client(stub.url, "t") as client:
        assert client.act_on_host("box-7", "drain", deadline_seconds=60).drain_deadline is not None
    assert sent(stub) == {"deadline_seconds": 60.0}
    async with AsyncClient(stub.url, "t") as other:
        await other.act_on_host("box-7", "drain", deadline_seconds=90)
    assert sent(stub) == {"deadline_seconds": 90.0}
