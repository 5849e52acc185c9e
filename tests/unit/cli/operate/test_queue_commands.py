"""`queues`: presets."""

from __future__ import annotations

import json

from holdfast.core.settings.table import QUEUE_PRESETS
from tests.unit.cli.stub import Answer, Stub


def test_a_preset_makes_its_queues_with_their_settings(stub: Stub) -> None:
    for name, own in QUEUE_PRESETS["render"].items():
        made = {"name": name, "settings": dict(own), "created_at": "2026-03-01T12:00:00Z"}
        stub.on(f"PUT /v1/queues/{name}", Answer(made))
    done = stub.run("queues", "preset", "render")
    assert done.exit_code == 0, done.stderr
    sent = [(call.path.rpartition("/")[2], json.loads(call.body)["set"]) for call in stub.requests]
    assert dict(sent) == {name: dict(own) for name, own in QUEUE_PRESETS["render"].items()}
    assert "ingest-fetch" in done.stdout
    assert stub.run("queues", "preset", "other").exit_code == 2
