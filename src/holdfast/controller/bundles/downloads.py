"""The routes by which a bundle is fetched: to the hosts of its jobs, and to people.

BUNDLE-5  A host gets the bundle of a task that it has, and the packs which that bundle needs; no
          digest is a key to another's bytes.
"""

from starlette.responses import Response

from holdfast.controller.api.jobs import find_job
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.runtime.bundles.kept import PACKS, PLANS
from holdfast.core.ids import TaskKey
from holdfast.errors import NotFound
from holdfast.wire.operations.fleet.agents import AgentBundleQuery

_BYTES = "application/octet-stream"


async def get_agent_plan(call: ApiCall) -> Response:
    """Send a host the manifest of its task's bundle, and the places of its bytes."""
    project, digest = await _check_task(call)
    return await answer_plan(call, project, digest)


async def get_agent_pack(call: ApiCall) -> Response:
    """Send a host a pack of its task's bundle."""
    project, digest = await _check_task(call)
    return await answer_pack(call, project, digest)


async def _check_task(call: ApiCall) -> tuple[str, str]:
    """Return the project and the digest of the bundle that a host's task has (BUNDLE-5)."""
    host, query = call.host, call.query(AgentBundleQuery)
    assert host is not None
    key = TaskKey(query.job, query.rank, query.epoch)
    await call.store.checkpoints.check_checkpoint(host.id, query.incarnation, key)
    _, spec = await call.controller.specs.find(query.job)
    digest = call.params["digest"]
    if spec.code is None or spec.code.digest != digest:
        raise NotFound(f"task {key} has no code {digest[:80]}")
    return spec.project, digest


async def get_job_plan(call: ApiCall) -> Response:
    """Send the manifest of a job's bundle, and the places of its bytes."""
    return await answer_plan(call, *await _find_bundle(call))


async def get_job_pack(call: ApiCall) -> Response:
    """Send a pack of a job's bundle."""
    return await answer_pack(call, *await _find_bundle(call))


async def _find_bundle(call: ApiCall) -> tuple[str, str]:
    job = await find_job(call)
    if job.spec.code is None or not job.spec.code.digest:
        raise NotFound(f"job {job.id} was submitted without a folder of code (--workdir)")
    return job.project, job.spec.code.digest


async def answer_plan(call: ApiCall, project: str, digest: str) -> Response:
    """Send the manifest of a project's bundle, and the places of its bytes."""
    found = await call.store.bundles.find_bundle(project, digest)
    if found is None:
        raise NotFound(f"project {project} holds no bundle {digest} any more", code="bundle_gone")
    data = await call.controller.bundles.read(PLANS + found.plan)
    return Response(data, 200, None, _BYTES)


async def answer_pack(call: ApiCall, project: str, digest: str) -> Response:
    """Send a pack of a project's bundle."""
    pack = call.params["pack"]
    if not await call.store.bundles.is_pack_used(project, digest, pack):
        raise NotFound(f"bundle {digest} needs no pack {pack[:80]}")
    return Response(await call.controller.bundles.read(PACKS + pack), 200, None, _BYTES)
