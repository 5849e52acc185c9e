"""`pools create` and `pools show`: what is said beside the tables."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

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


WHY = "pool a100 at its $/hour ceiling of $5.00: one more host would make it $6.00"


@pytest.mark.parametrize("columns", ["", "80"])
def test_what_holds_a_pool_back_is_never_cut(
    stub: Stub, monkeypatch: pytest.MonkeyPatch, columns: str
) -> None:
    """A table of 80 columns had room for its first words only."""
    monkeypatch.setenv("COLUMNS", columns)
    stub.on("GET /v1/pools", Answer({"items": [pool() | {"blocked": WHY}], "next": None}))
    shown = stub.run("pools").stdout
    assert WHY in " ".join(shown.split())
    assert "held" in shown
    assert all(len(line) <= 80 for line in shown.splitlines()) == bool(columns)


def test_every_key_of_a_pool_is_shown_as_set_takes_it(stub: Stub) -> None:
    stub.on("GET /v1/pools/a100", Answer(pool(poll_seconds=5)))
    stub.on("GET /v1/pools/a100/cycles", Answer({"items": [], "next": None}))
    shown = stub.run("pools", "show", "a100").stdout
    for key in ("poll = 5s", "idle_timeout = 5m", "max = 10", "max_usd_per_hour = off"):
        assert f"\n{key}\n" in shown
