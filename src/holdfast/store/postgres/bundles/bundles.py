"""Bundles: the files of folders by their digests, each project's its own. The bytes are in the blob
store.

BUNDLE-2  A bundle is on record only when all of its bytes are, in packs of its own project: a
          manifest that names a digest which the project has not uploaded is refused, because a
          digest is no key to bytes.
BUNDLE-3  A pack or a plan is written to the blob store before its row, and its row is deleted
          before its blob; a blob without a row is swept. A pack stays while a bundle uses it, and a
          bundle while anything on record names it.
"""

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime

import msgspec

from holdfast.core.bundles.packs import PackPart
from holdfast.errors import Conflict
from holdfast.store.clock import Now
from holdfast.store.postgres.connection.parts import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Tx


class BundleRow(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle on record. plan: the name of the blob with its manifest and its places."""

    project: str
    digest: str
    plan: str
    files: int
    bytes: int
    created_at: datetime
    last_used_at: datetime


class BundleSizes(msgspec.Struct, frozen=True):
    """Bytes of packs: of one project, and of all."""

    project: int
    whole: int


class PostgresBundles(OnSession):
    """Bundles and packs."""

    async def find_places(
        self, project: str, digests: Sequence[str]
    ) -> Mapping[str, tuple[str, int]]:
        """Return digest → the pack and the offset of its bytes, for the digests that the project
        holds."""
        rows = await self.session.rows("find_bundle_files", project=project, digests=list(digests))
        return {row["sha256"]: (row["pack"], row["at"]) for row in rows}

    @reads
    async def measure_bundles(self, tx: Tx, project: str) -> BundleSizes:
        """Return the size of the packs of a project, and of all packs."""
        row = await tx.one("measure_bundles", project=project)
        return BundleSizes(**(row or {"project": 0, "whole": 0}))

    @transacts
    async def add_pack(
        self,
        tx: Tx,
        project: str,
        pack: str,
        size: int,
        parts: Sequence[PackPart],
        *,
        now: Now = None,
    ) -> bool:
        """Write a pack whose blob is in the blob store already. Return False, and write nothing,
        where the project had all parts of the pack already."""
        await tx.run("insert_pack", pack=pack, project=project, size=size, now=now)
        # In one order, so that two uploads of the same files do not wait for each other.
        whole = sorted(parts, key=lambda part: part.sha256)
        new = await tx.value(
            "insert_bundle_files",
            project=project,
            pack=pack,
            digests=[part.sha256.hex() for part in whole],
            offsets=[part.at for part in whole],
            sizes=[part.size for part in whole],
        )
        if not new:
            await tx.run("delete_pack", pack=pack)
        return bool(new)

    @transacts
    async def add_bundle(
        self,
        tx: Tx,
        project: str,
        digest: str,
        plan: str,
        *,
        files: int,
        size: int,
        packs: Collection[str],
        now: Now = None,
    ) -> str:
        """Write a bundle, and return the plan that stays, which is the earlier one where the bundle
        was on record. Raises Conflict where a pack is missing (BUNDLE-2)."""
        wanted = sorted(packs)
        if len(await tx.rows("lock_packs", project=project, packs=wanted)) != len(wanted):
            raise Conflict("a pack of the bundle was deleted meanwhile; send the code again")
        given = {"plan": plan, "files": files, "bytes": size, "now": now}
        kept = await tx.value("insert_bundle", project=project, digest=digest, **given)
        if kept == plan:
            await tx.run("insert_bundle_uses", project=project, digest=digest, packs=wanted)
        return str(kept)

    @reads
    async def find_bundle(self, tx: Tx, project: str, digest: str) -> BundleRow | None:
        """Return a bundle of the project."""
        return await tx.find(BundleRow, "find_bundle", project=project, digest=digest)

    async def use_bundles(
        self, wanted: Collection[tuple[str, str]], *, now: Now = None
    ) -> set[tuple[str, str]]:
        """Note that these bundles, each a project and a digest, were used now; return the bundles
        that are on record."""
        whole = sorted(wanted)
        given = {"projects": [p for p, _ in whole], "digests": [d for _, d in whole], "now": now}
        rows = await self.session.transact(lambda tx: tx.rows("use_bundles", **given))
        return {(row["project"], row["digest"]) for row in rows}

    async def is_pack_used(self, project: str, digest: str, pack: str) -> bool:
        """Return whether a bundle needs a pack."""
        given = {"project": project, "digest": digest, "pack": pack}
        return bool(await self.session.single(lambda tx: tx.value("is_pack_used", **given)))

    async def drop_unused_bundles(
        self, keep_seconds: float, *, limit: int = 1000, now: Now = None
    ) -> tuple[str, ...]:
        """Delete bundles that nothing on record names (BUNDLE-3), and return their plans."""
        given = {"keep_seconds": keep_seconds, "limit": limit, "now": now}
        rows = await self.session.transact(lambda tx: tx.rows("drop_unused_bundles", **given))
        return tuple(row["plan"] for row in rows)

    async def drop_unused_packs(
        self, young_seconds: float, *, limit: int = 1000, now: Now = None
    ) -> tuple[str, ...]:
        """Delete packs that no bundle uses and that are older than `young_seconds`, and return
        them."""
        given = {"young_seconds": young_seconds, "limit": limit, "now": now}
        rows = await self.session.transact(lambda tx: tx.rows("drop_unused_packs", **given))
        return tuple(row["pack"] for row in rows)

    async def find_known(self, packs: Sequence[str], plans: Sequence[str]) -> set[str]:
        """Return which of these packs and plans are on record."""
        unkept = await self.session.rows("find_orphan_packs", packs=list(packs))
        unplanned = await self.session.rows("find_orphan_plans", plans=list(plans))
        known = {*packs} - {row["pack"] for row in unkept}
        return known | ({*plans} - {row["plan"] for row in unplanned})
