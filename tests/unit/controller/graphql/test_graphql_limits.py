"""GQL-1 and GQL-2: the cost of a query bounds what it answers, and deciding it is quick. By
property, on made-up queries."""

from __future__ import annotations

import asyncio
from collections.abc import Iterator
from typing import Any

import pytest
from graphql import GraphQLObjectType, OperationDefinitionNode, get_named_type, is_leaf_type, parse
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from holdfast.controller.graphql.endpoint import GraphqlRequest, Service
from holdfast.controller.graphql.limits import (
    MAX_PAGE,
    PAGE_ITEMS,
    SIZE_ARGUMENTS,
    WEIGHTS,
    Limits,
    Measure,
    QueryRefused,
    measure_query,
)
from holdfast.controller.graphql.schema import load_schema
from holdfast.controller.runtime.context import Controller
from holdfast.core.ids import make_id
from holdfast.store.postgres.store import PostgresStore
from tests.simulated.blobs import MemoryBlobs
from tests.store.pg_fixture import PgServer
from tests.store.rig import Rig, fails

PREPARED = load_schema()
SCHEMA = PREPARED.core
ENDLESS = Limits(cost=10**12, fields=10**6, depth=60, schema_depth=60, tokens=10**6, seconds=60)
JOBS = 6
FIRST_JOB = make_id(1, 1)


def measure(
    query: str, variables: dict[str, Any] | None = None, limits: Limits = ENDLESS
) -> Measure:
    document = parse(query)
    operation = next(d for d in document.definitions if isinstance(d, OperationDefinitionNode))
    return measure_query(SCHEMA, PREPARED.sizes, document, operation, variables or {}, limits)


def own_types() -> list[GraphQLObjectType]:
    return [
        t
        for t in SCHEMA.type_map.values()
        if isinstance(t, GraphQLObjectType) and not t.name.startswith("__")
    ]


def test_every_list_has_a_size() -> None:
    """A list without one would be counted as a whole page, and could be longer."""
    for shape in own_types():
        for name, found in shape.fields.items():
            if "[" not in str(found.type) or is_leaf_type(get_named_type(found.type)):
                continue
            if name == PAGE_ITEMS:
                assert shape.name.endswith("Page")
            else:
                assert set(SIZE_ARGUMENTS) & found.args.keys(), f"{shape.name}.{name}"
    assert WEIGHTS.keys() <= SCHEMA.type_map.keys()


# ---- made-up queries

ARGUMENTS = {
    "Query.job": f'id: "{FIRST_JOB}"',
    "Query.host": 'host: "h1"',
    "Query.queue": 'name: "cpu"',
    "Query.project": 'name: "p"',
    "Job.attempt": "number: 1",
}


@st.composite
def selections(draw: st.DrawFn, shape: GraphQLObjectType, depth: int) -> str:
    """A selection set on `shape`: fields, aliases, sizes, and inline fragments."""
    usable = [n for n, f in shape.fields.items() if depth or is_leaf_type(get_named_type(f.type))]
    parts = []
    for number, name in enumerate(draw(st.lists(st.sampled_from(usable), min_size=1, max_size=4))):
        found = shape.fields[name]
        inner = get_named_type(found.type)
        given_ = ARGUMENTS.get(f"{shape.name}.{name}", "")
        size = next((a for a in SIZE_ARGUMENTS if a in found.args), None)
        if size and draw(st.booleans()):
            given_ = f"{size}: {draw(st.integers(1, 12))}"
        text = f"a{number}: {name}" + (f"({given_})" if given_ else "")
        if isinstance(inner, GraphQLObjectType):
            text += " " + draw(selections(inner, depth - 1))
        parts.append(f"... on {shape.name} {{ {text} }}" if draw(st.integers(0, 4)) == 0 else text)
    return "{ " + " ".join(parts) + " }"


queries = selections(SCHEMA.type_map["Query"], 4)  # type: ignore[arg-type]  # the root is an object


def count_values(found: Any) -> int:
    """Leaves and objects of an answer. JSON counts as one, and so does a list of plain values."""
    if isinstance(found, dict):
        return 1 + sum(count_values(value) for value in found.values())
    if isinstance(found, list):
        return sum(map(count_values, found)) if found and isinstance(found[0], dict) else 1
    return 1


async def fill(store: PostgresStore) -> None:
    """Jobs with chains, members and tasks: gangs that failed twice and run again."""
    await store.open()
    rig = Rig(store)
    await rig.host(slots=400, gpus=4)
    for number in range(JOBS):
        await rig.submit(make_id(1, number + 1), project="p", tasks=3)
    for _ in range(2):
        ids = await rig.admit()
        keys = [
            t.key
            for tasks in (await store.jobs.list_tasks_of(ids, first=9)).values()
            for t in tasks
        ]
        await rig.sync(claimed=[(key, 1000 if key.rank == 0 else 0) for key in keys])
        await rig.sync(live=keys, started=keys)
        await rig.sync(ended=[(key, fails()) for key in keys])
        await rig.complete(max_retries=9)
        await rig.release()
    await rig.admit()


class Answering:
    """A full store, and the event loop that its connections belong to."""

    def __init__(self, store: PostgresStore) -> None:
        self.store = store
        self.runner = asyncio.Runner()
        self.runner.run(fill(store))

    def answer(self, query: str, limits: Limits) -> Any:
        service = Service(Controller(self.store, blobs=MemoryBlobs()), PREPARED, limits)
        return self.runner.run(service.answer(GraphqlRequest(query=query)))

    def close(self) -> None:
        self.runner.run(self.store.close())
        self.runner.close()


@pytest.fixture(scope="module")
def answering(pg_server: PgServer) -> Iterator[Answering]:
    name = pg_server.take_emptied()
    made = Answering(PostgresStore(pg_server.dsn_of(name)))
    yield made
    made.close()
    pg_server.give_back(name)


@settings(max_examples=150, deadline=None, suppress_health_check=list(HealthCheck))
@given(queries)
def test_the_cost_bounds_the_answer(answering: Answering, query: str) -> None:
    """GQL-1."""
    measured = measure(query)
    answer = answering.answer(query, ENDLESS)
    assert "errors" not in answer, answer["errors"][:1]
    assert measured.cost >= count_values(answer["data"]) - 1
    assert measured.depth <= 5


@settings(max_examples=150, deadline=None)
@given(queries, queries)
def test_costs_add_up(one: str, other: str) -> None:
    """Aliases count as much as what they stand for, and a fragment as much as its text."""
    cost = measure(one).cost
    twice = "{ ...F ...G } fragment F on Query " + one + " fragment G on Query " + one
    assert measure(twice).cost == 2 * cost
    assert measure("{ ...F ...F } fragment F on Query " + one).cost == 2 * cost
    assert (
        measure("{ ... on Query " + one + " ... on Query " + other + " }").cost
        == cost + measure(other).cost
    )
    assert measure("query A " + one + " query B " + other).cost == cost
    assert measure("{ ... @skip(if: true) " + one + " }").cost == cost


@settings(max_examples=150, deadline=None)
@given(queries, st.integers(1, 20_000))
def test_a_limit_is_a_limit(query: str, limit: int) -> None:
    cost = measure(query).cost
    if cost <= limit:
        assert measure(query, limits=Limits(cost=limit)).cost == cost
    else:
        with pytest.raises(QueryRefused):
            measure(query, limits=Limits(cost=limit))


@given(st.integers(1, MAX_PAGE), st.integers(1, MAX_PAGE))
def test_pages_multiply(outer: int, inner: int) -> None:
    text = "query($o: Int!, $i: Int = 3) { jobs(first: $o) { nodes { attempts(last: $i) { number } } } }"
    found = measure(text, {"o": outer, "i": inner}).cost
    assert found == WEIGHTS["JobPage"] + outer * (WEIGHTS["Job"] + inner * (WEIGHTS["Attempt"] + 1))
    assert measure(text, {"o": outer}).cost == measure(text, {"o": outer, "i": 3}).cost
    literal = f"{{ jobs(first: {outer}) {{ nodes {{ attempts(last: {inner}) {{ number }} }} }} }}"
    assert measure(literal).cost == found


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 40), st.integers(1, 6), st.booleans())
def test_bombs_take_no_time(levels: int, width: int, ends: bool) -> None:
    """GQL-2: fragments that unfold to width ** levels are looked at no further than the limit on
    fields."""
    parts = [f"fragment F{n} on Query {{ {f'...F{n + 1} ' * width}}}" for n in range(levels)]
    last = f"fragment F{levels} on Query {{ __typename }}" if ends else ""
    text = "{ ...F0 } " + " ".join(parts) + last
    spreads = sum(width**n for n in range(levels + 1)) + (width**levels if ends else 0)
    if spreads > Limits().fields:
        with pytest.raises(QueryRefused):
            measure(text, limits=Limits())
    else:
        assert measure(text, limits=Limits()).fields == spreads


@given(st.text(max_size=60) | st.text(alphabet='{}()[]:$!@.#"a1 \n\\', max_size=80))
def test_any_text_is_answered(answering: Answering, text: str) -> None:
    answer = answering.answer(text, Limits())
    assert all(error["extensions"]["code"] != "internal" for error in answer.get("errors", ()))
    assert answer.get("errors") or answer["data"] is not None
