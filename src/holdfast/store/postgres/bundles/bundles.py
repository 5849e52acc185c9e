"""Bundles in PostgreSQL: the rows."""

from collections.abc import Collection, Mapping, Sequence

from holdfast.core.bundles.packs import PackPart
from holdfast.errors import Conflict
from holdfast.store.port.bundles.bundles import BundleRow, BundleSizes
from holdfast.store.port.clock import Now
from holdfast.store.postgres.connection.ports import OnSession, reads, transacts
from holdfast.store.postgres.connection.session import Tx


class PostgresBundles(OnSession):
    """`BundleStore` on PostgreSQL."""

    async def find_places(
        self, project: str, digests: Sequence[str]
    ) -> Mapping[str, tuple[str, int]]:
        rows = await self.session.rows("find_bundle_files", project=project, digests=list(digests))
        return {row["sha256"]: (row["pack"], row["at"]) for row in rows}

    @reads
    async def measure_bundles(self, tx: Tx, project: str) -> BundleSizes:
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
        return await tx.find(BundleRow, "find_bundle", project=project, digest=digest)

    async def use_bundles(
        self, wanted: Collection[tuple[str, str]], *, now: Now = None
    ) -> set[tuple[str, str]]:
        whole = sorted(wanted)
        given = {"projects": [p for p, _ in whole], "digests": [d for _, d in whole], "now": now}
        rows = await self.session.transact(lambda tx: tx.rows("use_bundles", **given))
        return {(row["project"], row["digest"]) for row in rows}

    async def is_pack_used(self, project: str, digest: str, pack: str) -> bool:
        given = {"project": project, "digest": digest, "pack": pack}
        return bool(await self.session.single(lambda tx: tx.value("is_pack_used", **given)))

    async def drop_unused_bundles(
        self, keep_seconds: float, *, limit: int = 1000, now: Now = None
    ) -> tuple[str, ...]:
        given = {"keep_seconds": keep_seconds, "limit": limit, "now": now}
        rows = await self.session.transact(lambda tx: tx.rows("drop_unused_bundles", **given))
        return tuple(row["plan"] for row in rows)

    async def drop_unused_packs(
        self, young_seconds: float, *, limit: int = 1000, now: Now = None
    ) -> tuple[str, ...]:
        given = {"young_seconds": young_seconds, "limit": limit, "now": now}
        rows = await self.session.transact(lambda tx: tx.rows("drop_unused_packs", **given))
        return tuple(row["pack"] for row in rows)

    async def find_known(self, packs: Sequence[str], plans: Sequence[str]) -> set[str]:
        kept = await self.session.rows("find_known_packs", packs=list(packs))
        planned = await self.session.rows("find_known_plans", plans=list(plans))
        return {row["pack"] for row in kept} | {row["plan"] for row in planned}
