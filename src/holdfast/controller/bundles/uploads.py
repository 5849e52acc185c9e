"""The routes by which a bundle is sent: what is missing, its packs, and then its manifest."""

import asyncio
from collections.abc import Mapping, Sequence

from starlette.responses import Response

from holdfast.controller.api.jobs import check_project, knows_project
from holdfast.controller.http.bodies import read_body
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.problems import answer_json
from holdfast.controller.runtime.auth import make_new_id
from holdfast.controller.runtime.bundles.kept import PACKS, PLANS
from holdfast.core.bundles.manifest import (
    FILE,
    MAX_MANIFEST_BYTES,
    Entry,
    count_bytes,
    decode_manifest,
    list_digests,
    show_path,
)
from holdfast.core.bundles.packs import MAX_PACK_BYTES, BundlePlan, encode_plan, read_pack
from holdfast.core.records import JobTokenRecord
from holdfast.errors import Conflict, Forbidden, NotFound, TooLarge
from holdfast.wire.data.bundles import BundleView, MissingAnswer, MissingRequest
from holdfast.wire.operations.work.bundles import ProjectQuery

_SHOWN = 5
_MEGA = 1 << 20


async def enter(call: ApiCall, project: str) -> str:
    """Return the project in which a caller's request is made: the project that was asked for, or
    the job's own where a job calls. Raises ValidationError for an unknown project, and Forbidden
    where a job names another project than its own."""
    token = call.caller
    if isinstance(token, JobTokenRecord):
        if project not in (token.project, "default"):
            raise Forbidden(f"a job sends code to its own project, {token.project}, not {project}")
        project = token.project
    settings = await call.controller.settings.recent()
    if not knows_project(project, settings):
        settings = await call.controller.settings.refresh()
    check_project(project, settings)
    return project


async def find_missing(call: ApiCall) -> Response:
    """Answer which digests a project has no bytes of (BUNDLE-2)."""
    request = await call.body(MissingRequest, limit_bytes=4 * _MEGA)
    project = await enter(call, request.project)
    held = await call.store.bundles.find_places(project, request.digests)
    missing = [digest for digest in dict.fromkeys(request.digests) if digest not in held]
    return answer_json(MissingAnswer(missing=missing))


async def put_pack(call: ApiCall) -> Response:
    """Keep a pack; the body is its bytes, of which every digest is checked."""
    project = await enter(call, call.query(ProjectQuery).project)
    await _check_room(call, project, int(call.header("content-length") or 0))
    data = await read_body(call.scope, call.receive, MAX_PACK_BYTES)
    await keep_pack(call, project, data)
    return Response(status_code=204)


async def keep_pack(call: ApiCall, project: str, data: bytes) -> None:
    """Keep a pack for a project. Raises ValidationError where the bytes differ from their digests,
    and TooLarge."""
    controller = call.controller
    parts = await asyncio.to_thread(read_pack, data)
    await _check_room(call, project, len(data))
    pack = make_new_id()
    await controller.bundles.write(PACKS + pack, data)
    if not await controller.store.bundles.add_pack(project, pack, len(data), parts):
        await controller.bundles.delete([PACKS + pack])
    else:
        controller.room.add(project, len(data))


async def _check_room(call: ApiCall, project: str, size: int) -> None:
    """Raise TooLarge where the bundles would take more room than the settings allow."""
    settings = await call.controller.settings.recent()
    kept = await call.controller.room.measure(project, call.store.bundles.measure_bundles)
    of_project = settings.value("bundle_project_max_mb", project=project)
    assert isinstance(of_project, (int, float))
    in_all = settings.number("bundle_max_mb")
    for used, most, what, name in (
        (kept.project, of_project, f"project {project}", "bundle_project_max_mb"),
        (kept.whole, in_all, "the cluster", "bundle_max_mb"),
    ):
        if used + size > most * _MEGA:
            raise TooLarge(
                f"the store of code and outputs is full: {what} keeps {used // _MEGA} MiB of the "
                f"{most:g} that it may ({name}), and {max(1, size // _MEGA)} more would come. "
                "What no job on record names is removed by itself after bundle_keep_days; an "
                "admin can raise the limit. Jobs that run are not touched",
                code="bundles_full",
            )


async def put_bundle(call: ApiCall) -> Response:
    """Make a bundle of a manifest, whose bytes the project holds already (BUNDLE-2)."""
    query = call.query(ProjectQuery)
    project = await enter(call, query.project)
    data = await read_body(call.scope, call.receive, MAX_MANIFEST_BYTES)
    digest, entries = await asyncio.to_thread(decode_manifest, data)
    return answer_json(await keep_bundle(call, project, digest, data, entries), 201)


async def keep_bundle(
    call: ApiCall, project: str, digest: str, data: bytes, entries: Sequence[Entry]
) -> BundleView:
    """Write the plan of a checked manifest to the blob store, and its rows. Raises Conflict where
    bytes are missing."""
    controller = call.controller
    files, size = count_bytes(entries)
    view = BundleView(digest=digest, project=project, files=files, bytes=size)
    if await controller.store.bundles.use_bundles([(project, digest)]):
        return view
    wanted = await asyncio.to_thread(_list_wanted, entries)
    places = await controller.store.bundles.find_places(project, wanted)
    if len(places) < len(wanted):
        raise _say_missing(project, entries, places)
    plan = make_new_id()
    packs, planned = await asyncio.to_thread(_make_plan, data, wanted, places)
    await controller.bundles.write(PLANS + plan, planned)
    kept = await controller.store.bundles.add_bundle(
        project, digest, plan, files=files, size=size, packs=packs
    )
    if kept != plan:
        await controller.bundles.delete([PLANS + plan])
    return view


def _list_wanted(entries: Sequence[Entry]) -> list[str]:
    return [sha256.hex() for sha256 in list_digests(entries)]


def _make_plan(
    data: bytes, wanted: Sequence[str], places: Mapping[str, tuple[str, int]]
) -> tuple[list[str], bytes]:
    """Return the packs of a bundle, and its plan; called in a thread, because there may be a million
    places."""
    packs = list(dict.fromkeys(pack for pack, _ in places.values()))
    numbers = {pack: number for number, pack in enumerate(packs)}
    found = [(numbers[places[sha256][0]], places[sha256][1]) for sha256 in wanted]
    return packs, encode_plan(BundlePlan(data, packs, found))


def _say_missing(
    project: str, entries: Sequence[Entry], places: Mapping[str, tuple[str, int]]
) -> Conflict:
    missing = [
        show_path(entry.path)
        for entry in entries
        if entry.kind == FILE and any(d.hex() not in places for d, _, _ in entry.list_pieces())
    ]
    shown = ", ".join(missing[:_SHOWN]) + (", …" if len(missing) > _SHOWN else "")
    return Conflict(
        f"the bytes of {len(missing)} files were not uploaded to project {project}: {shown}. A digest "
        "is no key: upload them, also if another project holds them",
        code="bundle_incomplete",
    )


async def get_bundle(call: ApiCall) -> Response:
    """Return a bundle of a project, and note that it was used."""
    project = await enter(call, call.query(ProjectQuery).project)
    digest = call.params["digest"]
    await call.store.bundles.use_bundles([(project, digest)])
    found = await call.store.bundles.find_bundle(project, digest)
    if found is None:
        raise NotFound(f"project {project} holds no bundle {digest[:80]}")
    view = BundleView(digest=digest, project=project, files=found.files, bytes=found.bytes)
    return answer_json(view)
