"""Calls in PostgreSQL: what a call costs on its way."""

from __future__ import annotations

from typing import Any

import pytest

from holdfast.core.calls.values import FunctionSpec, find_family
from holdfast.store.postgres.calls.values import ExecutorTurn
from holdfast.store.postgres.connection.session import Tx
from holdfast.wire.calls import ExecutorReport
from tests.store.rig import Rig

DOUBLE = FunctionSpec(function="mytasks:double")


@pytest.fixture
def trips(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """The round trips of all transactions, but for a COMMIT alone."""
    found: list[str] = []
    real = Tx._run

    async def counted(tx: Tx, asked: Any, end: Any = ()) -> Any:
        found.append(f"{len(asked)}{'+commit' if end else ''}")
        return await real(tx, asked, end)

    monkeypatch.setattr(Tx, "_run", counted)
    return found


async def test_a_call_is_on_record_after_two_round_trips(
    rigs: tuple[Rig, Rig], trips: list[str]
) -> None:
    rig, _ = rigs
    await rig.store.calls.create_set("s1", DOUBLE, "cpu", args=["[1]"])
    trips.clear()
    view = await rig.store.calls.append_calls("s1", 1, ["[2]"])
    assert (view.submitted, trips) == (2, ["3", "3+commit"])
    trips.clear()
    await rig.store.calls.create_set("s2", DOUBLE, "cpu", args=["[1]"])
    assert trips == ["2", "3", "3+commit"]


async def test_an_exchange_that_writes_nothing_waits_for_no_disk(
    rigs: tuple[Rig, Rig], trips: list[str]
) -> None:
    """It locks its executor's batches, and a lock alone has the commit wait for the disk."""
    rig, _ = rigs
    await rig.host("h1")
    _, key = await rig.running(host="h1")
    turn = ExecutorTurn(
        host_id="h1",
        incarnation=rig.incarnations["h1"],
        family=find_family(DOUBLE, "cpu").name,
        report=ExecutorReport(key=key, want=1),
    )
    trips.clear()
    await rig.store.calls.exchange([turn])
    assert trips == ["1", "1+commit"]
