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
from typing import Protocol

import msgspec

from holdfast.core.bundles.packs import PackPart
from holdfast.store.port.clock import Now


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


class BundleStore(Protocol):
    """Bundles and packs."""

    async def find_places(
        self, project: str, digests: Sequence[str]
    ) -> Mapping[str, tuple[str, int]]:
        """Return the pack and the offset of each digest that the project holds."""

    async def measure_bundles(self, project: str) -> BundleSizes:
        """Return how many bytes are kept."""

    async def add_pack(
        self, project: str, pack: str, size: int, parts: Sequence[PackPart], *, now: Now = None
    ) -> bool:
        """Write a pack whose blob is there. Return False, and write nothing, where the project had
        all of its parts already."""

    async def add_bundle(
        self,
        project: str,
        digest: str,
        plan: str,
        *,
        files: int,
        size: int,
        packs: Collection[str],
        now: Now = None,
    ) -> str:
        """Write a bundle, and return the plan that stays, which is another where the bundle was
        there. Raises Conflict where a pack is gone (BUNDLE-2)."""

    async def find_bundle(self, project: str, digest: str) -> BundleRow | None:
        """Return a bundle of the project."""

    async def use_bundles(
        self, wanted: Collection[tuple[str, str]], *, now: Now = None
    ) -> set[tuple[str, str]]:
        """Note a use of bundles, each a project and a digest; return those that are on record."""

    async def is_pack_used(self, project: str, digest: str, pack: str) -> bool:
        """Return whether a bundle needs a pack."""

    async def drop_unused_bundles(
        self, keep_seconds: float, *, limit: int = 1000, now: Now = None
    ) -> tuple[str, ...]:
        """Delete bundles that nothing names (BUNDLE-3), and return their plans."""

    async def drop_unused_packs(
        self, young_seconds: float, *, limit: int = 1000, now: Now = None
    ) -> tuple[str, ...]:
        """Delete packs that no bundle uses and that are older, and return them."""

    async def find_known(self, packs: Sequence[str], plans: Sequence[str]) -> set[str]:
        """Return which of these packs and plans are on record."""
