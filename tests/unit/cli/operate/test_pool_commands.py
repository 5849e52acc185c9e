"""`pools create` and `pools show`: what is said beside the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from tests.unit.cli.stub import Answer, Stub

FILE = """
[pool.a100]
provider = "local"
queues = ["gpu", "new"]
[[pool.a100.offers]]
name = "one"
"""
QUEUE = {"name": "gpu", "settings": {}, "created_at": "2026-01-01T00:00:00Z"}


def pool(**spec: Any) -> dict[str, Any]:
    """A pool as the controller shows it."""
    offers = [{"name": "one", "cpu_slots": 1}]
    return {
        "name": "a100",
        "spec": {"name": "a100", "provider": "local", "offers": offers, **spec},
        "created_at": "2026-01-01T00:00:00Z",
        "hosts": {},
    }


def test_a_queue_that_is_not_there_is_said(stub: Stub, tmp_path: Path) -> None:
    """A pool for a queue that is missing would wait for ever, and say that it scales."""
    path = tmp_path / "pool.toml"
    path.write_text(FILE)
    stub.on("PUT /v1/pools/a100", Answer(pool(queues=["gpu", "new"])))
    stub.on("GET /v1/queues", Answer({"items": [QUEUE], "next": None}))
    done = stub.run("pools", "create", "-f", str(path))
    assert done.exit_code == 0, done.stderr
    assert "`holdfast queues set new` makes it" in done.stderr
    assert "queues set gpu" not in done.stderr


def test_an_offer_is_shown_in_words(stub: Stub) -> None:
    stub.on("GET /v1/pools/a100", Answer(pool()))
    stub.on("GET /v1/pools/a100/cycles", Answer({"items": [], "next": None}))
    assert "offer one: 1 CPU slot, $0.00/h" in stub.run("pools", "show", "a100").stdout
