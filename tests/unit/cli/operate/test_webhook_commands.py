"""`holdfast webhooks` against a stub controller: what it sends, what it prints, how it ends."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.unit.cli.stub import Answer, Stub

HOOK = "06ch2v8wq1m4kz7d9x3t"
DELIVERY = "06ch2v8wq1m4kz7d9x4v"


def hook(**fields: Any) -> dict[str, Any]:
    return {
        "id": HOOK,
        "name": "",
        "url": "https://hooks.example/h",
        "events": ["job.*"],
        "project": None,
        "state": "active",
        "reason": "",
        "created_at": "2026-01-01T00:00:00Z",
        "pending": 3,
        "dead": 2,
        **fields,
    }


def delivery(**fields: Any) -> dict[str, Any]:
    return {
        "id": DELIVERY,
        "webhook_id": HOOK,
        "event_id": "0-1",
        "event_kind": "job.failed",
        "job_id": None,
        "state": "dead",
        "tries": 12,
        "status": 503,
        "error": "the receiver answered 503",
        "created_at": "2026-01-01T00:00:00Z",
        **fields,
    }


def sent(stub: Stub) -> Any:
    return json.loads(stub.requests[-1].body)


def test_add_prints_the_secret_alone_on_stdout(stub: Stub, tmp_path: Path) -> None:
    stub.on("POST /v1/webhooks", Answer(hook(secret="hfw_abc"), 201))
    own = tmp_path / "secret"
    own.write_text("my-own-secret-0123\n")
    done = stub.run(
        *"webhooks create https://hooks.example/h --event job.* --event host.dead".split(),
        *"--project vision --name pager --secret-file".split(),
        str(own),
    )
    assert (done.exit_code, done.stdout) == (0, "hfw_abc\n"), done.stderr
    assert "not shown again" in done.stderr
    assert sent(stub) == {
        "url": "https://hooks.example/h",
        "events": ["job.*", "host.dead"],
        "project": "vision",
        "name": "pager",
        "secret": "my-own-secret-0123",
    }


def test_a_bad_pattern_or_secret_is_refused_before_anything_is_sent(
    stub: Stub, tmp_path: Path
) -> None:
    short = tmp_path / "short"
    short.write_text("short")
    for more in (
        ["--event", "job .*"],
        ["--secret-file", str(short)],
        ["--secret-file", str(tmp_path / "none")],
    ):
        done = stub.run("webhooks", "create", "https://hooks.example/h", *more)
        assert done.exit_code == 2, done.stderr
    assert stub.requests == []


def test_the_list_as_a_table_and_as_json(stub: Stub) -> None:
    stub.on(
        "GET /v1/webhooks", Answer({"items": [hook(state="paused", name="pager")], "next": None})
    )
    done = stub.run("webhooks")
    assert done.exit_code == 0
    row = [HOOK, "pager", "paused", "https://hooks.example/h", "job.*", "-", "3", "2"]
    assert done.stdout.splitlines()[1].split() == row
    rows = json.loads(stub.run("webhooks", "list", "--json").stdout)
    assert (rows[0]["id"], rows[0]["dead"]) == (HOOK, 2)


def test_a_webhook_is_named_by_its_name(stub: Stub) -> None:
    other = "06ch2v8wq1m4kz7d9x3v"
    hooks = [hook(name="pager"), hook(id=other, name="mail"), hook(name="twin"), hook(name="twin")]
    stub.on("GET /v1/webhooks", Answer({"items": hooks, "next": None}))
    stub.on(f"POST /v1/webhooks/{other}/pause", Answer(hook(id=other, state="paused")))
    assert stub.run("webhooks", "pause", "mail").exit_code == 0
    assert stub.requests[-1].path == f"/v1/webhooks/{other}/pause"
    assert "there is no webhook 'mial'" in stub.run("webhooks", "pause", "mial").stderr
    assert "names several webhooks" in stub.run("webhooks", "delete", "twin").stderr


def test_set_sends_what_was_named_and_nothing_else(stub: Stub) -> None:
    stub.on(f"PATCH /v1/webhooks/{HOOK}", Answer(hook()))
    assert (
        stub.run(
            "webhooks", "set", HOOK, "--to", "https://new.example/", "--all-projects"
        ).exit_code
        == 0
    )
    assert sent(stub) == {"url": "https://new.example/", "project": None}
    assert stub.run("webhooks", "set", HOOK, "--all-events", "--name", "x").exit_code == 0
    assert sent(stub) == {"events": [], "name": "x"}
    assert stub.run("webhooks", "set", HOOK, "--event", "a.*", "--all-events").exit_code == 2


def test_test_exits_with_what_the_receiver_said(stub: Stub) -> None:
    good = {"delivered": True, "status": 204, "error": "", "seconds": 0.012}
    bad = {"delivered": False, "status": None, "error": "no answer within 10 s", "seconds": 10.0}
    stub.on(f"POST /v1/webhooks/{HOOK}/test", Answer(good), Answer(bad))
    done = stub.run("webhooks", "test", HOOK)
    assert (done.exit_code, done.stdout) == (0, "delivered: the receiver answered 204 in 12 ms\n")
    done = stub.run("webhooks", "test", HOOK)
    assert (done.exit_code, done.stdout) == (1, "not delivered: no answer within 10 s\n")


def test_deliveries_and_one_delivery(stub: Stub) -> None:
    path = f"GET /v1/webhooks/{HOOK}/deliveries"
    stub.on(path, Answer({"items": [delivery()], "next": "more"}))
    stub.on(f"{path}/{DELIVERY}", Answer(delivery(body='{"a":1}')))
    done = stub.run("webhooks", "deliveries", HOOK, "--state", "dead", "--limit", "2")
    assert done.exit_code == 0, done.stderr
    assert done.stdout.count(DELIVERY) == 2  # two pages of one
    assert stub.requests[0].path.endswith("/deliveries?state=dead&limit=2")
    assert stub.run("webhooks", "deliveries", HOOK, DELIVERY).stdout == '{"a":1}\n'


def test_redeliver_some_or_all_the_dead(stub: Stub) -> None:
    stub.on(f"POST /v1/webhooks/{HOOK}/redeliver-dead", Answer({"count": 7}))
    stub.on(
        f"POST /v1/webhooks/{HOOK}/deliveries/{DELIVERY}/redeliver",
        Answer(delivery(state="pending")),
    )
    assert (
        stub.run("webhooks", "redeliver", HOOK, "--dead").stdout
        == "7 dead deliveries are sent again\n"
    )
    assert stub.run("webhooks", "redeliver", HOOK, DELIVERY).exit_code == 0
    assert stub.run("webhooks", "redeliver", HOOK).exit_code == 2
    assert stub.run("webhooks", "redeliver", HOOK, DELIVERY, "--dead").exit_code == 2
    assert len(stub.requests) == 2


def test_rotate_pause_resume_show_and_remove(stub: Stub) -> None:
    stub.on(f"POST /v1/webhooks/{HOOK}/rotate", Answer(hook(secret="hfw_new")))
    stub.on(f"POST /v1/webhooks/{HOOK}/pause", Answer(hook(state="paused", reason="moving")))
    stub.on(f"POST /v1/webhooks/{HOOK}/resume", Answer(hook()))
    stub.on(f"GET /v1/webhooks/{HOOK}", Answer(hook(old_secret_until="2026-01-02T03:04:00Z")))
    stub.on(f"DELETE /v1/webhooks/{HOOK}", Answer(b"", 204))
    assert stub.run("webhooks", "rotate", HOOK, "--grace", "1h").stdout == "hfw_new\n"
    assert sent(stub) == {"secret": None, "grace_seconds": 3600.0}
    assert stub.run("webhooks", "rotate", HOOK, "--grace", "soon").exit_code == 2
    assert (
        stub.run("webhooks", "pause", HOOK, "--reason", "moving").stdout
        == f"{HOOK}: paused: moving; 2 deliveries were given up after the last try\n"
    )
    assert (
        stub.run("webhooks", "resume", HOOK).stdout
        == f"{HOOK}: active: 2 deliveries were given up after the last try\n"
    )
    assert "2026-01-02 03:04 UTC" in stub.run("webhooks", "show", HOOK).stdout
    assert stub.run("webhooks", "delete", HOOK).stdout == f"{HOOK}: deleted\n"
    assert stub.run("webhooks", "delete", "other").exit_code == 3


def test_no_webhooks_say_how_one_is_made(stub: Stub) -> None:
    stub.on("GET /v1/webhooks", Answer({"items": [], "next": None}))
    assert "holdfast webhooks create URL" in stub.run("webhooks").stdout
