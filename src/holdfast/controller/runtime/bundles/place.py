"""Check that this server keeps its blobs in the store in which the database's other servers look
for them."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from holdfast.blobs.identity import PlaceStanding, give_id, judge, name_place, read_id, say_missing
from holdfast.blobs.interface import BlobStore, BlobsUnavailable
from holdfast.errors import Conflict
from holdfast.store.postgres.connection.leadership import LEAD_SECONDS
from holdfast.store.postgres.store import PostgresStore
from holdfast.wire.api import ServerProblem

log = logging.getLogger("holdfast.controller")
OTHER_BLOBS = "other_blobs"
LOOK_SECONDS = 5.0
"""The least time between two looks at a blob store that is not as it should be."""
NAMED_BLOBS = 200
"""How many blobs of a kind are looked for, the newest that the database names."""
_SHARE = (
    "Start every server of this database with the same --blobs: a folder that they share, or "
    "s3://BUCKET/PREFIX"
)
_COPY = "Or copy the missing blobs into this place, which is then known as theirs"
_ALONE = (
    "Or stop the other servers first, because a server that is alone starts with another place, and "
    "`holdfast status` says what it cannot find"
)


class BlobPlace:
    """The blob store of this server beside the one that the database knows (STORE-ID-1). problem:
    what is wrong with it now, None for nothing."""

    def __init__(self, store: PostgresStore, blobs: BlobStore, clock: Callable[[], float]) -> None:
        self._store, self._blobs, self._clock = store, blobs, clock
        self._looked_at = 0.0
        self.problem: ServerProblem | None = None

    async def join(self, patience_seconds: float = LEAD_SECONDS + 1.0) -> None:
        """Look at the blob store before this server serves. A store that cannot be used now keeps
        no server from serving.

        patience_seconds: the time after which the lead of a server that was killed has run out.

        Raises:
            Conflict: the database's blobs are elsewhere, and another server serves.
        """
        until = self._clock() + patience_seconds
        while (why := await self._look()) and self._clock() < until:
            await asyncio.sleep(1.0)
        if why:
            raise Conflict(why, code=OTHER_BLOBS)
        if self.problem is not None:
            log.error("%s. %s", self.problem.sentence, self.problem.mend)

    async def find_problem(self) -> ServerProblem | None:
        """Return what is wrong with the blob store. A store that was right at the last look is not
        looked at again."""
        if self.problem is not None and self._clock() - self._looked_at > LOOK_SECONDS:
            await self._look()
        return self.problem

    async def _look(self) -> str:
        """Look at the blob store, and note what is wrong. Return why this server may not join those
        that serve, empty where it may."""
        self._looked_at = self._clock()
        try:
            return await self._compare()
        except BlobsUnavailable as error:
            self.problem = ServerProblem("blobs", error.message, "Mend it, or name another --blobs")
            return ""

    async def _compare(self) -> str:
        checkpoints, place = self._store.checkpoints, name_place(self._blobs.place)
        own = await read_id(self._blobs)
        known = await checkpoints.read_blob_store(self._store.leadership.holder)
        named: set[str] = set()
        held: set[str] = set()
        if not own or own != known.id:
            named = await checkpoints.list_named_blobs(NAMED_BLOBS)
            held = await self._blobs.find(named)
        own = own or await give_id(self._blobs, known.id if held else "")
        standing = judge(own, known.id, len(named), len(held), served=known.served)
        if standing is PlaceStanding.ADOPTED:
            now_known = await checkpoints.adopt_blob_store(own, place, instead_of=known.id)
            standing = PlaceStanding.SAME if now_known == own else PlaceStanding.STRANGE
        if standing is PlaceStanding.SAME:
            self.problem = None
            return ""
        there = f"the blobs of this database are in {known.place or 'another place'}"
        here = f"this server keeps blobs in {place}"
        missing = say_missing(sorted(named - held)) or "nothing that is on record now"
        sentence = f"{there}, and {here}, where it cannot find {missing}"
        self.problem = ServerProblem("blobs", sentence, f"{_SHARE}. {_COPY}")
        if not known.served:
            return ""
        return (
            f"{there}, where another server keeps them, and {here}, so jobs that one server starts "
            f"would not find what the other keeps. {_SHARE}. {_ALONE}"
        )
