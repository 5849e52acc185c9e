"""STORE-ID-1: servers of one database keep their blobs in one place, or one of them says so."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from holdfast.blobs.folder import FolderBlobs
from holdfast.blobs.identity import PlaceStanding, judge, read_id, say_missing
from holdfast.blobs.interface import BlobsUnavailable
from holdfast.controller.runtime.bundles.place import BlobPlace
from holdfast.controller.server import EXIT_OTHER_BLOBS
from holdfast.errors import Conflict
from holdfast.store.postgres.store import PostgresStore
from tests.store.pg_fixture import MakeStore
from tests.system.checkpoints.test_blobs import pieces
from tests.system.cluster import Controller
from tests.unit.controller.conftest import Served, served, store
from tests.waits import stretch

__all__ = ["served", "store"]
PACK = "packs/a1"


class Place(BlobPlace):
    """A blob place of one folder, whose looks are never too soon."""

    def __init__(self, store: PostgresStore, folder: Path) -> None:
        self._now = time.monotonic()
        self.blobs = FolderBlobs(folder)
        super().__init__(store, self.blobs, self._tick)

    def _tick(self) -> float:
        self._now += 60.0
        return self._now


@pytest.fixture
async def pair(pg_emptied: str) -> AsyncIterator[tuple[PostgresStore, PostgresStore]]:
    """The stores of two servers of one database."""
    first, second = (PostgresStore(pg_emptied, max_connections=2) for _ in range(2))
    await first.open()
    await second.open()
    yield first, second
    await first.close()
    await second.close()


async def name_a_pack(store: PostgresStore) -> None:
    row = {"pack": PACK.removeprefix("packs/"), "project": "default", "size": 4, "now": None}
    await store.session.transact(lambda tx: tx.run("insert_pack", **row))


async def test_a_server_with_another_place_does_not_join_one_that_serves(
    pair: tuple[PostgresStore, PostgresStore], tmp_path: Path
) -> None:
    first, second = pair
    await Place(first, tmp_path / "a").join()
    assert await first.leadership.try_lead()
    with pytest.raises(Conflict) as refused:
        await Place(second, tmp_path / "b").join()
    said = str(refused.value)
    for part in (tmp_path / "a", tmp_path / "b", "the same --blobs", "stop the other servers"):
        assert str(part) in said
    await Place(second, tmp_path / "a").join()
    await first.leadership.stop_leading()
    await Place(second, tmp_path / "b").join()
    known = await first.checkpoints.read_blob_store()
    assert known.id == await read_id(FolderBlobs(tmp_path / "b")), "no blob was named elsewhere"


async def test_a_server_alone_serves_and_says_what_it_cannot_find(
    served: Served, tmp_path: Path
) -> None:
    store = served.store
    await Place(store, tmp_path / "a").join()
    await name_a_pack(store)
    await Place(store, tmp_path / "a").join()
    alone = Place(store, tmp_path / "b")
    await alone.join()
    assert alone.problem is not None
    assert "cannot find 1 pack of code and files" in alone.problem.sentence
    served.controller.blob_place = alone
    [told] = (await served.call("GET", "/v1/server")).json()["problems"]
    assert (told["part"], told["sentence"]) == ("blobs", alone.problem.sentence)
    await alone.blobs.write(PACK, pieces(b"code"))
    assert (await served.call("GET", "/v1/server")).json()["problems"] == []
    assert (await store.checkpoints.read_blob_store()).id == await read_id(alone.blobs)


async def test_a_place_without_an_id_is_taken_where_it_holds_a_named_blob(
    pair: tuple[PostgresStore, PostgresStore], tmp_path: Path
) -> None:
    store, place = pair[0], Place(pair[1], tmp_path / "old")
    await name_a_pack(store)
    await place.blobs.write(PACK, pieces(b"code"))
    await Place(store, tmp_path / "strange").join()
    assert (await store.checkpoints.read_blob_store()).id == ""
    await place.join()
    known = await store.checkpoints.read_blob_store()
    assert (place.problem, known.id) == (None, await read_id(place.blobs))
    (tmp_path / "old" / "store-id").unlink()
    await store.leadership.try_lead()
    await place.join()
    assert await read_id(place.blobs) == known.id


async def test_of_two_first_starts_one_place_is_taken(
    make_store: MakeStore, tmp_path: Path
) -> None:
    store = await make_store()
    ids = []
    for name in ("a", "b"):  # both have looked before either writes
        place = Place(store, tmp_path / name)
        await place.join(0)
        ids.append(await read_id(place.blobs))
    assert ids[0] != ids[1]
    assert await store.checkpoints.adopt_blob_store("late", "late", instead_of="") != "late"


async def test_a_place_that_cannot_be_used_keeps_no_server_from_serving(
    make_store: MakeStore, tmp_path: Path
) -> None:
    (tmp_path / "file").touch()
    place = Place(await make_store(), tmp_path / "file" / "blobs")
    await place.join()
    assert place.problem is not None
    assert "cannot be used" in place.problem.sentence
    with pytest.raises(BlobsUnavailable):
        await place.blobs.claim("store-id", b"x")
    (tmp_path / "file").unlink()
    assert await place.find_problem() is None


@pytest.mark.parametrize(
    ("own", "known", "named", "held", "served", "standing"),
    [
        ("a", "a", 0, 0, True, PlaceStanding.SAME),
        ("a", "", 0, 0, True, PlaceStanding.ADOPTED),
        ("a", "", 3, 1, True, PlaceStanding.ADOPTED),
        ("a", "", 3, 0, False, PlaceStanding.STRANGE),
        ("a", "b", 0, 0, True, PlaceStanding.STRANGE),
        ("a", "b", 0, 0, False, PlaceStanding.ADOPTED),
        ("a", "b", 3, 3, False, PlaceStanding.ADOPTED),
        ("a", "b", 3, 2, False, PlaceStanding.STRANGE),
    ],
)
def test_how_a_place_stands(
    own: str, known: str, named: int, held: int, served: bool, standing: PlaceStanding
) -> None:
    assert judge(own, known, named, held, served=served) is standing


def test_what_is_missing_is_said_by_its_kind() -> None:
    missing = ["packs/a", "packs/b", "jobb/0.1.x", "joba/1.1.y", "joba/0.1.y"]
    assert say_missing(missing) == (
        "2 packs of code and files and 3 checkpoints of jobs (jobb, joba)"
    )


@pytest.mark.slow
def test_a_second_server_ends_with_the_reason(pg_emptied: str, tmp_path: Path) -> None:
    made = []
    try:
        for name in ("one", "two"):
            place = {"HOLDFAST_BLOBS": str(tmp_path / name)}
            made.append(Controller(tmp_path, name, pg_emptied, place).start(wait=name == "one"))
            if name == "one":
                made[0].wait_lead()
        second = made[1].process
        assert second is not None
        assert second.wait(stretch(60)) == EXIT_OTHER_BLOBS, made[1].log()
        assert made[1].messages("where another server keeps them")
        assert not made[1].messages("serving http")
    finally:
        for controller in made:
            controller.close()
