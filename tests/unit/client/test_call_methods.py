"""Calls through both clients: sets cut into requests, results that are waited for."""

from urllib.parse import parse_qs

import msgspec
import pytest

from holdfast.client import AsyncClient, Client
from holdfast.client.methods import calls
from holdfast.core.calls.values import FunctionSpec
from holdfast.core.ids import ID_PATTERN
from holdfast.wire.calls import CallResult, CallResults, CallSetView, MoreCalls, NewCallSet
from tests.unit.cli.stub import Answer, Stub

SPEC = FunctionSpec(function="mytasks:double")
SET = "0" * 20


def view(count: int | None) -> CallSetView:
    return CallSetView(
        id=SET,
        spec=SPEC,
        state="open",
        count=count,
        submitted=count or 0,
        succeeded=0,
        failed=0,
        cancelled=0,
        created_at=0.0,
    )


def result(index: int) -> CallResult:
    return CallResult(index=index, state=1, value=str(index * 2), attempts=1, reason="")


def test_many_calls_are_cut_into_requests(stub: Stub, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(calls, "CHUNK_CALLS", 2)
    stub.on("POST /v1/call-sets", Answer(view(None), 201))
    stub.on(f"POST /v1/call-sets/{SET}/calls", Answer(view(None)), Answer(view(5)))
    with Client(stub.url, "t") as client:
        made = client.submit_calls(SPEC, (f'{{"args":[{n}]}}' for n in range(5)), set_id=SET)
    assert made.count == 5
    first, *more = (request.body for request in stub.requests)
    assert msgspec.json.decode(first, type=NewCallSet) == NewCallSet(
        id=SET, spec=SPEC, args=['{"args":[0]}', '{"args":[1]}']
    )
    assert [msgspec.json.decode(body, type=MoreCalls) for body in more] == [
        MoreCalls(first=2, args=['{"args":[2]}', '{"args":[3]}']),
        MoreCalls(first=4, args=['{"args":[4]}'], count=5),
    ]


def test_large_arguments_are_cut_by_their_bytes(
    stub: Stub, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(calls, "CHUNK_BYTES", 10)
    stub.on("POST /v1/call-sets", Answer(view(None), 201))
    stub.on(f"POST /v1/call-sets/{SET}/calls", Answer(view(2)))
    with Client(stub.url, "t") as client:
        client.submit_calls(SPEC, ["x" * 8, "y" * 8], set_id=SET)
    assert len(stub.requests) == 2


def test_an_empty_set_is_one_request_and_whole(stub: Stub) -> None:
    stub.on("POST /v1/call-sets", Answer(view(0), 201))
    with Client(stub.url, "t") as client:
        client.submit_calls(SPEC, [])
    sent = msgspec.json.decode(stub.requests[0].body, type=NewCallSet)
    assert sent.count == 0
    assert ID_PATTERN.fullmatch(sent.id)


def test_results_are_read_on_until_the_end(stub: Stub) -> None:
    stub.on(
        f"GET /v1/call-sets/{SET}/results",
        Answer(CallResults(results=[result(0), result(1)], next=2)),
        Answer(CallResults(results=[], next=2)),
        Answer(CallResults(results=[result(2)], next=3, ended=True)),
    )
    with Client(stub.url, "t") as client:
        found = list(client.each_result(SET))
    assert [r.value for r in found] == ["0", "2", "4"]
    queries = [parse_qs(request.path.partition("?")[2]) for request in stub.requests]
    assert [query["first"] for query in queries] == [["0"], ["2"], ["2"]]
    assert all(float(query["wait"][0]) > 1 for query in queries)


async def test_the_asynchronous_client_reads_them_too(stub: Stub) -> None:
    stub.on(
        f"GET /v1/call-sets/{SET}/results",
        Answer(CallResults(results=[result(0)], next=1)),
        Answer(CallResults(results=[result(1)], next=2, ended=True)),
    )
    async with AsyncClient(stub.url, "t") as client:
        assert [r.index async for r in client.each_result(SET)] == [0, 1]
