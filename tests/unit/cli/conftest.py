"""The stub controller as a fixture, for the CLI's and the clients' tests."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.unit.cli.stub import Answer, Stub, job_record, serve_stub


@pytest.fixture(autouse=True)
def _piped(monkeypatch: pytest.MonkeyPatch) -> None:
    """What a command prints here is piped; the workers of a parallel run say a width."""
    monkeypatch.delenv("COLUMNS", raising=False)


@pytest.fixture
def eighty_columns(_piped: None, monkeypatch: pytest.MonkeyPatch) -> None:
    """A screen of 80 columns."""
    monkeypatch.setenv("COLUMNS", "80")


@pytest.fixture
def stub() -> Iterator[Stub]:
    """A stub controller."""
    with serve_stub() as made:
        yield made


@pytest.fixture
def accepting(stub: Stub) -> Stub:
    """A stub that takes every job."""
    stub.on("POST /v1/jobs", Answer(job_record(state="queued"), 201))
    return stub
