"""BUNDLE-2…3: a project's bytes are its own, and what nothing names goes."""

from __future__ import annotations

import hashlib
from collections.abc import AsyncIterator
from datetime import UTC, datetime, timedelta

import pytest

from holdfast.core.bundles.code import CodeRef
from holdfast.core.bundles.packs import PackPart
from holdfast.core.calls.values import FunctionSpec
from holdfast.core.spec import JobSpec
from holdfast.core.workflows.check import check_workflow
from holdfast.core.workflows.values import CallWork, NodeSpec, WorkflowSpec
from holdfast.errors import Conflict
from holdfast.moves.values import NewJob
from holdfast.moves.workflows import NewRun
from holdfast.store.postgres.store import PostgresStore

NOW = datetime(2026, 3, 1, tzinfo=UTC)
DAY = 86_400.0
DIGEST = "d" * 64


def sha(text: str) -> bytes:
    return hashlib.sha256(text.encode()).digest()


def parts(*texts: str) -> list[PackPart]:
    return [PackPart(sha(text), 10 * n, 10) for n, text in enumerate(texts)]


@pytest.fixture
async def store(pg_emptied: str) -> AsyncIterator[PostgresStore]:
    made = PostgresStore(pg_emptied)
    await made.open()
    yield made
    await made.close()


async def test_a_digest_is_no_key_to_another_projects_bytes(store: PostgresStore) -> None:
    bundles = store.bundles
    assert await bundles.add_pack("a", "p1", 100, parts("one", "two"), now=NOW)
    assert not await bundles.add_pack("a", "p2", 100, parts("two", "one"), now=NOW)
    assert await bundles.add_pack("a", "p3", 50, parts("three", "one"), now=NOW)
    names = [sha(text).hex() for text in ("one", "two", "three", "four")]
    assert await bundles.find_places("a", names) == {
        names[0]: ("p1", 0), names[1]: ("p1", 10), names[2]: ("p3", 0),
    }  # fmt: skip
    assert await bundles.find_places("b", names) == {}
    assert (await bundles.measure_bundles("a")).project == 150
    assert (await bundles.measure_bundles("b")).whole == 150
    with pytest.raises(Conflict, match="a pack of the bundle"):
        await bundles.add_bundle("b", DIGEST, "plan", files=1, size=1, packs=["p1"], now=NOW)
    assert not await bundles.is_pack_used("b", DIGEST, "p1")


async def test_a_bundle_stays_while_a_job_names_it_and_some_days_more(store: PostgresStore) -> None:
    bundles = store.bundles
    await bundles.add_pack("default", "p1", 100, parts("one"), now=NOW)
    await bundles.add_pack("default", "p2", 100, parts("two"), now=NOW)
    given = {"files": 1, "size": 10, "now": NOW}
    assert await bundles.add_bundle("default", DIGEST, "plan1", packs=["p1"], **given) == "plan1"
    assert await bundles.add_bundle("default", DIGEST, "plan2", packs=["p1"], **given) == "plan1"
    other = "e" * 64
    await bundles.add_bundle("default", other, "plan3", packs=["p1", "p2"], **given)
    spec = JobSpec(argv=("x",), code=CodeRef(digest=DIGEST))
    await store.jobs.submit_jobs([NewJob(id="06ch2v8wq1m4kz7d9x3t", spec=spec, queue="cpu")])

    late = NOW + timedelta(days=6)
    assert await bundles.drop_unused_bundles(7 * DAY, now=late) == ()
    late = NOW + timedelta(days=8)
    assert await bundles.drop_unused_bundles(7 * DAY, now=late) == ("plan3",)
    assert await bundles.drop_unused_packs(DAY, now=late) == ("p2",)
    assert await bundles.find_known(["p1", "p2"], ["plan1", "plan3"]) == {"p1", "plan1"}
    assert await bundles.find_places("default", [sha("two").hex()]) == {}
    found = await bundles.find_bundle("default", DIGEST)
    assert found is not None
    assert found.plan == "plan1"


async def test_a_use_keeps_a_bundle(store: PostgresStore) -> None:
    bundles = store.bundles
    await bundles.add_pack("a", "p1", 100, parts("one"), now=NOW)
    await bundles.add_bundle("a", DIGEST, "plan", files=1, size=1, packs=["p1"], now=NOW)
    late = NOW + timedelta(days=8)
    asked = [("a", DIGEST), ("b", DIGEST), ("a", "f" * 64)]
    assert await bundles.use_bundles(asked, now=late) == {("a", DIGEST)}
    assert await bundles.drop_unused_bundles(7 * DAY, now=late + timedelta(days=6)) == ()
    assert await bundles.drop_unused_bundles(7 * DAY, now=late + timedelta(days=8)) == ("plan",)


async def test_a_young_pack_waits_for_its_bundle(store: PostgresStore) -> None:
    await store.bundles.add_pack("a", "p1", 100, parts("one"), now=NOW)
    assert await store.bundles.drop_unused_packs(DAY, now=NOW + timedelta(hours=23)) == ()
    assert await store.bundles.drop_unused_packs(DAY, now=NOW + timedelta(hours=25)) == ("p1",)


async def test_calls_and_calls_of_workflows_keep_their_code(store: PostgresStore) -> None:
    bundles, digests = store.bundles, [letter * 64 for letter in "abc"]
    await bundles.add_pack("film", "p1", 100, parts("one"), now=NOW)
    for digest in digests:
        given = {"files": 1, "size": 10, "packs": ["p1"], "now": NOW}
        await bundles.add_bundle("film", digest, f"plan-{digest[0]}", **given)
    functions = [
        FunctionSpec(function="app:f", project="film", code=CodeRef(digest=digest))
        for digest in digests
    ]
    await store.calls.create_set("s1", functions[0], "cpu", count=1, args=["{}"], now=NOW)
    node = NodeSpec(name="n", call=CallWork(spec=functions[1]))
    spec = WorkflowSpec(name="flow", project="film", nodes=[node])
    new = NewRun(id="0" * 20, spec=spec, parents=check_workflow(spec).parents)
    await store.workflows.submit_run(new, now=NOW)
    late = NOW + timedelta(days=8)
    assert await bundles.drop_unused_bundles(7 * DAY, now=late) == ("plan-c",)
