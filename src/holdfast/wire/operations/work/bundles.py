"""The operations on bundles."""

from typing import Annotated

from msgspec import Meta

from holdfast.core.spec import Name
from holdfast.wire.data.bundles import BundleView, MissingAnswer, MissingRequest
from holdfast.wire.operations.operation import Operation, Query, Role

JOB = "/v1/jobs/{id}"
_BYTES = ("application/octet-stream",)


class ProjectQuery(Query, frozen=True, kw_only=True):
    """The project whose bundles are meant."""

    project: Annotated[Name, Meta(description="The project that the bundle belongs to.")] = (
        "default"
    )


FIND_MISSING = Operation(
    "POST", "/v1/bundles/missing", Role.SUBMIT, "Which digests a project has no bytes of.",
    body=MissingRequest, answers={200: MissingAnswer}
)  # fmt: skip
PUT_PACK = Operation(
    "PUT", "/v1/bundles/packs", Role.SUBMIT, "Keep a pack of files; the body is its bytes.",
    query=ProjectQuery, raw=True, media_in=_BYTES, answers={204: None}
)  # fmt: skip
PUT_BUNDLE = Operation(
    "POST", "/v1/bundles", Role.SUBMIT, "Make a bundle of a manifest, which is the body.",
    query=ProjectQuery, raw=True, media_in=_BYTES, answers={201: BundleView}
)  # fmt: skip
GET_BUNDLE = Operation(
    "GET", "/v1/bundles/{digest}", Role.SUBMIT, "A bundle that a project holds.",
    query=ProjectQuery, answers={200: BundleView}
)  # fmt: skip
GET_JOB_PLAN = Operation(
    "GET", JOB + "/code", Role.READ, "The manifest of its code, and the places of its bytes.",
    answers={200: None}, media=_BYTES
)  # fmt: skip
GET_JOB_PACK = Operation(
    "GET", JOB + "/code/packs/{pack}", Role.READ, "A pack of its code.", answers={200: None},
    media=_BYTES
)  # fmt: skip
