"""The route of the processor time and memory of a job's ranks."""

from starlette.responses import Response

from holdfast.controller.api.jobs import find_job
from holdfast.controller.http.endpoints import ApiCall
from holdfast.controller.http.problems import answer_json
from holdfast.core.readings.points import MAX_RANKS, choose_point_seconds
from holdfast.core.readings.records import JobTelemetryView
from holdfast.wire.operations.queries import RanksTelemetryQuery


async def get_job_telemetry(call: ApiCall) -> Response:
    """Return the minutes or hours of the ranks that the query names, or of the first ones."""
    query = call.query(RanksTelemetryQuery)
    job = await find_job(call)
    ranks = query.rank or range(min(job.tasks, MAX_RANKS))
    point_seconds = choose_point_seconds(query.step, query.seconds, len(ranks))
    points = await call.store.telemetry.read_ranks(
        job.id,
        query.step,
        float(query.seconds),
        ranks=ranks,
        attempt=query.attempt,
        point_seconds=point_seconds,
    )
    view = JobTelemetryView(
        step=query.step,
        point_seconds=point_seconds,
        tasks=job.tasks,
        memory_limit_bytes=job.spec.memory_bytes,
        points=points,
    )
    return answer_json(view)
