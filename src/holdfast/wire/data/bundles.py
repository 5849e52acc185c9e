"""Messages about bundles: what is missing, and what was made."""

from __future__ import annotations

from typing import Annotated

import msgspec
from msgspec import Meta

from holdfast.core.spec import Name

MAX_ASKED = 20_000
Digest = Annotated[str, Meta(pattern=r"^[0-9a-f]{64}$(?!\n)")]


class MissingRequest(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """The question which of these SHA-256 digests a project has no bytes of."""

    project: Name = "default"
    digests: Annotated[list[Digest], Meta(max_length=MAX_ASKED)]


class MissingAnswer(msgspec.Struct, frozen=True, kw_only=True):
    """The digests that the project has no bytes of."""

    missing: list[str]


class BundleView(msgspec.Struct, frozen=True, kw_only=True):
    """A bundle that is kept. digest: the SHA-256 of its manifest, its name in `code`. files, bytes:
    how many, and how large together."""

    digest: str
    project: str
    files: int
    bytes: int
