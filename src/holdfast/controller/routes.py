"""The table of all routes. `wire/api.py` lists them in prose, and a test compares the two."""

import functools
from typing import Any

import msgspec
from starlette.responses import Response

from holdfast.controller.api import (
    arrays,
    events,
    hosts,
    jobs,
    logs,
    pools,
    projects,
    queues,
    retries,
    schedules,
    sign_ins,
    system,
    tokens,
    webhooks,
)
from holdfast.controller.api.checkpoints import routes as checkpoints
from holdfast.controller.api.ledger import routes as ledger
from holdfast.controller.api.readings import routes as readings
from holdfast.controller.api.settings import config, rules
from holdfast.controller.bundles import downloads, uploads
from holdfast.controller.bundles import outputs as job_outputs
from holdfast.controller.calls import checkpoints as call_checkpoints
from holdfast.controller.calls import exchange, outputs, sets, values
from holdfast.controller.graphql import endpoint as graphql
from holdfast.controller.http import queries
from holdfast.controller.http.endpoints import ApiCall, Endpoint, PageOf
from holdfast.controller.logs import errors, search
from holdfast.controller.notices import routes as notice_routes
from holdfast.controller.openapi import build_openapi
from holdfast.controller.report import routes as reports
from holdfast.controller.runtime.auth import Role
from holdfast.controller.sessions import routes as session_routes
from holdfast.controller.sessions import tickets
from holdfast.controller.sessions.open import open_session
from holdfast.controller.sync import caches as host_caches
from holdfast.controller.sync import controllers, route
from holdfast.controller.sync import health as host_health
from holdfast.controller.workflows import workflows
from holdfast.core.arrays.records import ArrayRecord, ScheduleRecord, ScheduleRunRecord
from holdfast.core.bundles.code import CodeRef
from holdfast.core.data.outputs import OutputFile, OutputsRecord
from holdfast.core.fleet.actions import CycleSummary, PoolPlan
from holdfast.core.ledger.values import LedgerView
from holdfast.core.logs.likeness import ErrorGroup
from holdfast.core.readings.records import HostTelemetryView, JobTelemetryView
from holdfast.core.records import (
    AttemptRecord,
    CheckpointRecord,
    EventRecord,
    HostCheckRecord,
    JobRecord,
    LogStreamRecord,
    OrchestratorStatus,
    ProjectRecord,
    QueueRecord,
    TaskRecord,
    TokenRecord,
    WorkerHealth,
    WorkerPerformance,
)
from holdfast.core.report.depths import QueueDepth
from holdfast.core.report.idle import IdleJob
from holdfast.core.report.money import PriceEffect
from holdfast.core.report.rows import HoursReport
from holdfast.core.schedules import ScheduleSpec
from holdfast.core.settings.resolve import Effective
from holdfast.core.spec import JobSpec
from holdfast.core.stragglers.records import SuspectRecord
from holdfast.core.webhooks.values import DeliveryRecord, WebhookRecord
from holdfast.core.workflows.records import NodeRecord, RunRecord
from holdfast.wire import agent, api, bundles, calls, health
from holdfast.wire import pools as fleet
from holdfast.wire import webhooks as hooks
from holdfast.wire import workflows as flow
from holdfast.wire.arrays import ArrayRequest
from holdfast.wire.data.caches import CachesReport
from holdfast.wire.data.outputs import OutputsMissing, OutputsStored
from holdfast.wire.forecasts.values import JobForecast
from holdfast.wire.logs.uploads import LogsAnswer
from holdfast.wire.schedules import SchedulePause, ScheduleTimes
from holdfast.wire.sessions import messages as sessions

R, S, A = Role.READ, Role.SUBMIT, Role.ADMIN
_SSE = ("text/event-stream",)
_BYTES = ("application/octet-stream",)
_KEY = {
    "Idempotency-Key": "A second submission with this key in the same project returns the first "
    "job."
}


@functools.cache
def _render_openapi() -> bytes:
    return msgspec.json.encode(build_openapi(ENDPOINTS))


async def get_openapi(call: ApiCall) -> Response:
    """Describe every route. Here and not in `api/`, because it needs the table below."""
    return Response(_render_openapi(), 200, None, "application/json")


def _get(
    path: str, handle: Any, summary: str, answer: Any, query: Any = None, **more: Any
) -> Endpoint:
    return Endpoint("GET", path, R, handle, summary, query=query, answers={200: answer}, **more)


JOB = "/v1/jobs/{id}"
ARRAY = "/v1/arrays/{id}"
SET = "/v1/call-sets/{id}"
SCHEDULE = "/v1/schedules/{name}"
HOOK = "/v1/webhooks/{id}"
NOTICE = "/v1/notices/{name}"
POOL = "/v1/pools/{name}"
RUN = "/v1/workflows/{id}"
ENDPOINTS: tuple[Endpoint, ...] = (
    # agents: hot, so first
    Endpoint("POST", "/v1/agent/sync", Role.HOST, route.sync, "State up, commands down: a long poll.",
             body=agent.SyncRequest, answers={200: agent.SyncAnswer}),
    Endpoint("POST", "/v1/agent/logs", Role.HOST, route.append_logs, "Bytes of streams, a LogsRequest in msgpack.",
        raw=True, answers={200: LogsAnswer}),
    Endpoint("POST", "/v1/agent/forensics", Role.HOST, route.put_forensics, "What was gathered before a kill.",
             body=agent.Forensics, answers={204: None}),
    Endpoint("POST", "/v1/agent/register", Role.JOIN, route.register, "A new host, or a new incarnation of one.",
             body=agent.RegisterRequest, answers={200: agent.RegisterAnswer}),
    Endpoint("PUT", "/v1/agent/checkpoint", Role.HOST, checkpoints.put_agent_checkpoint,
             "What a task saved; the body is the bytes.", query=checkpoints.AgentCheckpointQuery, raw=True,
             media_in=_BYTES, answers={200: agent.CheckpointStored}),
    Endpoint("GET", "/v1/agent/checkpoint", Role.HOST, checkpoints.get_agent_checkpoint,
             "What an earlier attempt of a rank left.", query=checkpoints.AgentCheckpointQuery, media=_BYTES,
             answers={200: None}),
    Endpoint("POST", "/v1/agent/checkpoint/skip", Role.HOST, checkpoints.skip_agent_checkpoint,
             "What was offered cannot be used: the one before.", body=agent.CheckpointSkip,
             answers={200: agent.CheckpointOffer}),
    Endpoint("POST", "/v1/agent/controllers", Role.HOST, controllers.list_controllers,
             "The addresses at which the cluster's controllers serve.", answers={200: agent.ControllersAnswer}),
    Endpoint("POST", "/v1/agent/health", Role.HOST, host_health.put_health,
             "What a host's check measured, and which is due.", body=health.HealthRequest,
             answers={200: health.HealthAnswer}),
    Endpoint("POST", "/v1/agent/caches", Role.HOST, host_caches.put_caches, "The caches that are warm on a host.",
             body=CachesReport, answers={204: None}),
    Endpoint("POST", "/v1/agent/calls", Role.HOST, exchange.exchange,
             "A host's executors: ends up, batches down, msgpack both ways: a long poll.", raw=True,
             media=("application/msgpack",), answers={200: None}),
    Endpoint("PUT", "/v1/agent/call-checkpoint", Role.HOST, call_checkpoints.put_call_checkpoint,
             "What a running call saved; the body is the bytes.", query=call_checkpoints.CallCheckpointQuery,
             raw=True, media_in=_BYTES, answers={204: None}),
    Endpoint("GET", "/v1/agent/call-checkpoint", Role.HOST, call_checkpoints.get_call_checkpoint,
             "What an earlier attempt of a running call saved.", query=call_checkpoints.CallCheckpointQuery,
             media=_BYTES, answers={200: None}),
    Endpoint("PUT", "/v1/agent/values/{sha256}", Role.HOST, values.put_value,
             "Keep a large result of a call; the body is the bytes.", raw=True, media_in=_BYTES, answers={204: None}),
    Endpoint("GET", "/v1/agent/values/{sha256}", Role.HOST, values.get_value, "A large argument of a call.",
             media=_BYTES, answers={200: None}),
    Endpoint("GET", "/v1/agent/bundles/{digest}", Role.HOST, downloads.get_agent_plan,
             "The manifest of a task's code, and the places of its bytes.", query=downloads.AgentBundleQuery,
             media=_BYTES, answers={200: None}),
    Endpoint("GET", "/v1/agent/bundles/{digest}/packs/{pack}", Role.HOST, downloads.get_agent_pack,
             "A pack of a task's code.", query=downloads.AgentBundleQuery, media=_BYTES, answers={200: None}),
    Endpoint("POST", "/v1/agent/outputs/missing", Role.HOST, job_outputs.find_missing_outputs,
             "Which digests the project of a task has no bytes of.", query=job_outputs.AgentOutputsQuery,
             body=OutputsMissing, answers={200: bundles.MissingAnswer}),
    Endpoint("PUT", "/v1/agent/outputs/packs", Role.HOST, job_outputs.put_outputs_pack,
             "Keep a pack of a task's outputs; the body is its bytes.", query=job_outputs.AgentOutputsQuery, raw=True,
             media_in=_BYTES, answers={204: None}),
    Endpoint("PUT", "/v1/agent/outputs", Role.HOST, job_outputs.put_outputs,
             "What a host says of a task's outputs, an OutputsReport in msgpack.", query=job_outputs.AgentOutputsQuery,
             raw=True, answers={200: OutputsStored}),
    # outputs
    _get(f"{JOB}/outputs", job_outputs.list_outputs, "What the attempts of a job left.", list[OutputsRecord],
         job_outputs.OutputsQuery),
    _get(f"{JOB}/outputs/{{attempt}}/{{rank}}/files", job_outputs.list_output_files,
         "The files that one rank of an attempt left.", list[OutputFile]),
    Endpoint("GET", f"{JOB}/outputs/{{attempt}}/{{rank}}/plan", R, job_outputs.get_outputs_plan,
             "The manifest of these files, and the places of their bytes.", media=_BYTES, answers={200: None}),
    Endpoint("GET", f"{JOB}/outputs/{{attempt}}/{{rank}}/packs/{{pack}}", R, job_outputs.get_outputs_pack,
             "A pack of these files.", media=_BYTES, answers={200: None}),
    # bundles
    Endpoint("POST", "/v1/bundles/missing", S, uploads.find_missing, "Which digests a project has no bytes of.",
             body=bundles.MissingRequest, answers={200: bundles.MissingAnswer}),
    Endpoint("PUT", "/v1/bundles/packs", S, uploads.put_pack, "Keep a pack of files; the body is its bytes.",
             query=uploads.ProjectQuery, raw=True, media_in=_BYTES, answers={204: None}),
    Endpoint("POST", "/v1/bundles", S, uploads.put_bundle, "Make a bundle of a manifest, which is the body.",
             query=uploads.ProjectQuery, raw=True, media_in=_BYTES, answers={201: bundles.BundleView}),
    Endpoint("GET", "/v1/bundles/{digest}", S, uploads.get_bundle, "A bundle that a project holds.",
             query=uploads.ProjectQuery, answers={200: bundles.BundleView}),
    _get(JOB + "/code", downloads.get_job_plan, "The manifest of its code, and the places of its bytes.", None,
         media=_BYTES),
    _get(JOB + "/code/packs/{pack}", downloads.get_job_pack, "A pack of its code.", None, media=_BYTES),
    Endpoint("GET", "/v1/agent/sessions/{id}", Role.HOST, session_routes.dial_session,
             "A host's end of a session's link, as a WebSocket; the ticket stands in the header Holdfast-Ticket.",
             socket=True, answers={101: None}),
    Endpoint("GET", "/v1/replicas/sessions/{id}", Role.REPLICA, session_routes.take_relayed_dial,
             "The same, passed on by the replica that the host dialled; the cluster's own key proves it.",
             socket=True, answers={101: None}),
    Endpoint("POST", "/v1/agent/sessions/{id}/end", Role.HOST, session_routes.report_end, "A session is over.",
             body=sessions.SessionEnd, answers={204: None}),
    # sessions
    Endpoint("GET", f"{JOB}/sessions/open", R, open_session,
             "Come into a running task, as a WebSocket; the first message is a SessionRequest.",
             socket=True, answers={101: None}),
    Endpoint("POST", f"{JOB}/sessions/tickets", R, tickets.create_ticket,
             "A ticket with which the browser that asks opens one shell, once; it stands among the WebSocket's "
             "subprotocols as `ticket.` and itself.",
             body=sessions.TicketRequest, optional_body=True, answers={201: sessions.SessionTicket}),
    _get(f"{JOB}/sessions/right", tickets.show_right, "Whether the caller may come into its tasks, and why not.",
         sessions.SessionRight),
    _get(f"{JOB}/sessions", session_routes.list_sessions_of_job, "The sessions in a job's tasks.",
         PageOf(sessions.SessionRecord), session_routes.SessionsQuery),
    _get("/v1/sessions", session_routes.list_sessions, "The sessions in running tasks.",
         PageOf(sessions.SessionRecord), session_routes.SessionsQuery),
    Endpoint("DELETE", "/v1/sessions/{id}", S, session_routes.stop_session, "End a session.", answers={204: None}),
    # jobs
    Endpoint("POST", "/v1/jobs", S, jobs.submit_job, "Submit a job.", body=JobSpec, headers=_KEY,
             answers={201: JobRecord, 200: JobRecord}),
    Endpoint("POST", "/v1/jobs/batch", S, jobs.submit_batch, "Submit many jobs, all or none.",
             body=api.BatchRequest, answers={201: PageOf(JobRecord)}),
    Endpoint("POST", "/v1/jobs/cancel", S, jobs.cancel_jobs, "Cancel many jobs; a refused one holds up no other.",
             body=api.CancelManyRequest, answers={200: PageOf(api.JobOutcome)}),
    Endpoint("POST", "/v1/jobs/retry", S, retries.retry_jobs,
             "Another attempt for each of many jobs; a refused one holds up no other.",
             body=api.RetryManyRequest, answers={200: PageOf(api.JobOutcome)}),
    _get("/v1/jobs", jobs.list_jobs, "Jobs, newest first.", PageOf(JobRecord), queries.JobsQuery),
    _get(JOB, jobs.get_job, "One job, its chain of attempts and where it stands in it.", api.JobView),
    _get(JOB + "/attempts", retries.list_attempts, "Its attempts, oldest first.", PageOf(AttemptRecord),
         queries.AttemptsQuery),
    _get(JOB + "/policy", retries.get_policy, "Its retry policy, and where each field comes from.",
         api.PolicyView),
    _get(JOB + "/tasks", jobs.list_tasks, "The tasks of its current attempt.", PageOf(TaskRecord)),
    _get(JOB + "/suspects", jobs.list_suspects, "Slow and wrong ranks of all its attempts, with the evidence.",
         PageOf(SuspectRecord)),
    _get(JOB + "/why", jobs.get_why, "Why it is where it is, and what to do.", api.Why),
    _get("/v1/forecasts", jobs.list_forecasts, "The first queued jobs in their order, and when each should start.",
         PageOf(JobForecast)),
    _get(JOB + "/settings", jobs.list_settings, "Every setting in force for it.", PageOf(Effective)),
    _get(JOB + "/telemetry", readings.get_job_telemetry, "The processors and the memory of its ranks, now and lately.",
         JobTelemetryView, queries.RanksTelemetryQuery),
    _get(JOB + "/forensics", jobs.list_forensics, "What was gathered before its kills.",
         PageOf(api.ForensicsView), queries.AttemptQuery),
    _get(JOB + "/logs", logs.get_logs, "Its output: bytes, or a stream with `follow=1`.", None,
         queries.LogsQuery, media=_BYTES + _SSE),
    _get(JOB + "/logs/streams", logs.list_streams, "How far each stream goes.", PageOf(LogStreamRecord),
         queries.AttemptQuery),
    _get(JOB + "/errors", errors.list_errors, "The error lines of all its ranks, grouped by their likeness.",
         PageOf(ErrorGroup), queries.AttemptQuery),
    _get("/v1/logs", search.search_logs, "Lines of logs that match a pattern, as a stream of events.", None,
         queries.LogSearchQuery, media=_SSE),
    _get(JOB + "/checkpoints", checkpoints.list_checkpoints, "What is kept of what its tasks saved.",
         PageOf(CheckpointRecord)),
    _get(JOB + "/checkpoint", checkpoints.get_checkpoint, "The bytes of a checkpoint.", None,
         checkpoints.CheckpointQuery, media=_BYTES),
    Endpoint("PUT", JOB + "/checkpoint", S, checkpoints.put_checkpoint,
             "Leave a checkpoint for the next attempt; the body is the bytes.",
             query=checkpoints.CheckpointQuery, raw=True, media_in=_BYTES, answers={201: CheckpointRecord},
             owned="job"),
    Endpoint("DELETE", JOB + "/checkpoints", S, checkpoints.delete_checkpoints,
             "Forget checkpoints: all, those of one rank, or one.",
             query=checkpoints.WhichCheckpointsQuery, answers={204: None}, owned="job"),
    Endpoint("POST", JOB + "/cancel", S, jobs.cancel_job, "Cancel it.", body=api.CancelRequest,
             optional_body=True, answers={200: JobRecord, 202: JobRecord}, owned="job"),
    Endpoint("POST", JOB + "/retry", S, retries.retry_job,
             "Another attempt for a job that failed or was cancelled; of one that runs, another "
             "try for its parked members.",
             body=api.RetryRequest, optional_body=True, answers={200: JobRecord}, owned="job"),
    # arrays
    Endpoint("POST", "/v1/arrays", S, arrays.submit_array, "Submit an array: all of its jobs, or none.",
             body=ArrayRequest, headers=_KEY, answers={201: ArrayRecord, 200: ArrayRecord}),
    _get("/v1/arrays", arrays.list_arrays, "Arrays, newest first.", PageOf(ArrayRecord), queries.ArraysQuery),
    _get(ARRAY, arrays.get_array, "One array.", ArrayRecord),
    Endpoint("POST", ARRAY + "/cancel", S, arrays.cancel_array, "Cancel all of its members.", body=api.CancelRequest,
             optional_body=True, answers={200: ArrayRecord, 202: ArrayRecord}, owned="array"),
    Endpoint("POST", ARRAY + "/retry", S, arrays.retry_array, "Another attempt for its failed members.",
             answers={200: ArrayRecord}, owned="array"),
    # schedules
    _get("/v1/schedules", schedules.list_schedules, "Every schedule, by name.", PageOf(ScheduleRecord),
         queries.SchedulesQuery),
    _get(SCHEDULE, schedules.get_schedule, "One schedule and its newest run.", ScheduleRecord),
    Endpoint("PUT", SCHEDULE, S, schedules.put_schedule, "Make a schedule, or change it whole.", body=ScheduleSpec,
             answers={200: ScheduleRecord}, owned="schedule"),
    Endpoint("DELETE", SCHEDULE, S, schedules.delete_schedule, "Forget it; its jobs stay.", answers={204: None},
             owned="schedule"),
    Endpoint("POST", SCHEDULE + "/pause", S, schedules.pause_schedule, "No time of it comes.", body=SchedulePause,
             optional_body=True, answers={200: ScheduleRecord}, owned="schedule"),
    Endpoint("POST", SCHEDULE + "/resume", S, schedules.resume_schedule, "Its times come again, from now on.",
             answers={200: ScheduleRecord}, owned="schedule"),
    Endpoint("POST", SCHEDULE + "/code", S, schedules.pin_schedule, "Give its job other code, from its next run on.",
             body=CodeRef, answers={200: ScheduleRecord}, owned="schedule"),
    Endpoint("POST", SCHEDULE + "/run", S, schedules.run_schedule, "Submit its job now, beside its times.",
             answers={201: JobRecord}, owned="schedule"),
    _get(SCHEDULE + "/next", schedules.list_next, "Its times to come.", ScheduleTimes, queries.NextQuery),
    _get(SCHEDULE + "/runs", schedules.list_runs, "What became of its times, newest first.",
         PageOf(ScheduleRunRecord), queries.RunsOfScheduleQuery),
    # workflows
    Endpoint("POST", "/v1/workflows", S, workflows.submit_workflow,
             "Run a workflow; a repeat of its id changes nothing.", body=flow.NewWorkflow,
             answers={201: flow.RunView}),
    _get("/v1/workflows", workflows.list_runs, "Runs of workflows, newest first.", PageOf(RunRecord),
         workflows.RunsQuery),
    _get(RUN, workflows.get_run, "One run, and how many of its nodes are in each state.", flow.RunView),
    _get(RUN + "/nodes", workflows.list_nodes, "Its nodes, in the workflow's order.", PageOf(NodeRecord),
         workflows.NodesQuery),
    _get(RUN + "/nodes/{node}", workflows.get_node, "One node with what it does and its result.",
         flow.NodeView),
    _get(RUN + "/nodes/{node}/why", workflows.get_node_why, "Why a node is where it is.", flow.NodeWhy),
    Endpoint("POST", RUN + "/nodes/{node}/answer", S, workflows.answer_node, "Answer a node's question.",
             body=flow.AnswerRequest, answers={200: NodeRecord}, owned="run"),
    Endpoint("POST", RUN + "/cancel", S, workflows.cancel_run, "Cancel it: what runs, cooperatively.",
             body=flow.CancelRun, optional_body=True, answers={200: flow.RunView, 202: flow.RunView}, owned="run"),
    Endpoint("POST", RUN + "/restart", S, workflows.restart_run,
             "Run again what did not succeed; finished results are used again.", body=flow.RestartRun,
             optional_body=True, answers={200: flow.RunView}, owned="run"),
    # calls of Python functions
    Endpoint("POST", "/v1/call-sets", S, sets.create_set, "Submit calls of a function.", body=calls.NewCallSet,
             answers={201: calls.CallSetView}),
    _get("/v1/call-sets", sets.list_sets, "Call sets, newest first.", PageOf(calls.CallSetView), sets.SetsQuery),
    _get(SET, sets.get_set, "One call set and its counts.", calls.CallSetView),
    Endpoint("POST", SET + "/calls", S, sets.append_calls, "More calls of an open set.", body=calls.MoreCalls,
             answers={200: calls.CallSetView}, owned="set"),
    _get(SET + "/results", sets.get_results, "Results in order, or of some calls: a long poll.",
         calls.CallResults, sets.ResultsQuery),
    _get(SET + "/calls/{index}", sets.get_call, "One call: its failed attempts, and why it is where it is.",
         calls.CallView),
    _get(SET + "/calls/{index}/logs", outputs.get_call_logs, "What one call printed, as events.", calls.CallLogLine,
         outputs.CallLogsQuery, media=_SSE),
    Endpoint("POST", SET + "/cancel", S, sets.cancel_calls, "Cancel calls, or all of the set.",
             body=calls.CallsChange, optional_body=True, answers={200: calls.CallSetView}, owned="set"),
    Endpoint("POST", SET + "/retry", S, sets.retry_calls, "Failed and cancelled calls again, with fresh budgets.",
             body=calls.CallsChange, optional_body=True, answers={200: calls.CallSetView}, owned="set"),
    Endpoint("PUT", "/v1/values/{sha256}", S, values.put_value,
             "Keep a large argument of a call under the SHA-256 of its bytes, which are the body.", raw=True,
             media_in=_BYTES, answers={204: None}),
    _get("/v1/values/{sha256}", values.get_value, "The bytes of a large argument or result.", None, media=_BYTES),
    # queues
    _get("/v1/queues", queues.list_queues, "Every queue and what is in it.", PageOf(QueueRecord), queries.QueuesQuery),
    _get("/v1/queue-depths", queues.list_depths, "How many jobs were queued in each queue, and how old the oldest was.",
         PageOf(QueueDepth), queries.DepthsQuery),
    _get("/v1/queues/{name}", queues.get_queue, "One queue.", QueueRecord),
    Endpoint("PUT", "/v1/queues/{name}", A, queues.put_queue, "Make or change a queue.", body=api.SettingsPatch,
             optional_body=True, answers={200: QueueRecord}),
    Endpoint("DELETE", "/v1/queues/{name}", A, queues.delete_queue, "Delete an empty queue.", answers={204: None}),
    Endpoint("POST", "/v1/queues/{name}/pause", A, queues.pause_queue, "No new starts; `hard` also stops what runs.",
             body=api.PauseRequest, optional_body=True, answers={200: QueueRecord}),
    Endpoint("POST", "/v1/queues/{name}/resume", A, queues.resume_queue, "Starts again.",
             answers={200: QueueRecord}),
    # projects and retries
    _get("/v1/projects", projects.list_projects, "Every project that has settings or unfinished jobs.",
         PageOf(ProjectRecord), queries.ProjectsQuery),
    _get("/v1/projects/{name}", projects.get_project, "One project.", ProjectRecord),
    Endpoint("PUT", "/v1/projects/{name}", A, projects.put_project, "Make or change a project.",
             body=api.SettingsPatch, optional_body=True, answers={200: ProjectRecord}),
    Endpoint("DELETE", "/v1/projects/{name}", A, projects.delete_project, "Forget a project's settings.",
             answers={204: None}),
    _get("/v1/retries", retries.get_retries, "Which kill switches hold retries back, and how many jobs wait.",
         api.RetriesView),
    # hosts
    _get("/v1/hosts", hosts.list_hosts, "Every host.", PageOf(api.HostView), queries.HostsQuery),
    _get("/v1/hosts/{host}", hosts.get_host, "One host, by id or name.", api.HostView),
    _get("/v1/hosts/{host}/telemetry", hosts.get_telemetry, "The GPUs of one host, now and lately.",
         HostTelemetryView, queries.TelemetryQuery),
    _get("/v1/hosts/{host}/checks", hosts.list_checks, "The last health checks of one host, newest first.",
         PageOf(HostCheckRecord)),
    Endpoint("POST", "/v1/hosts/{host}/{action}", A, hosts.act_on_host,
             "drain, undrain, quarantine, release or terminate a host, or revoke its key.", body=api.HostActionRequest,
             optional_body=True, answers={200: api.HostView}),
    # the ledger
    _get("/v1/ledger", ledger.get_ledger, "What every second of every GPU or CPU slot was spent on.",
         LedgerView, queries.LedgerQuery),
    # pools
    _get("/v1/pools", pools.list_pools, "Every pool of hosts, its hosts and its money.", PageOf(fleet.PoolStatus)),
    _get(POOL, pools.get_pool, "One pool.", fleet.PoolStatus),
    Endpoint("PUT", POOL, A, pools.put_pool, "Make a pool, or replace it whole; the keys of a [pool.NAME] table.",
             body=dict[str, Any], answers={200: fleet.PoolStatus}),
    Endpoint("PATCH", POOL, A, pools.patch_pool, "Change some keys of a pool.", body=dict[str, Any],
             answers={200: fleet.PoolStatus}),
    Endpoint("DELETE", POOL, A, pools.delete_pool, "Shrink it to nothing as its hosts fall idle, then forget it.",
             query=pools.DeleteQuery, answers={200: fleet.PoolStatus}),
    Endpoint("POST", POOL + "/pause", A, pools.pause_pool, "Spawn nothing and shrink by nothing.",
             body=fleet.PoolPause, optional_body=True, answers={200: fleet.PoolStatus}),
    Endpoint("POST", POOL + "/resume", A, pools.resume_pool, "Scale again.", answers={200: fleet.PoolStatus}),
    Endpoint("POST", POOL + "/scale", A, pools.scale_pool, "Change its bounds.", body=fleet.ScaleRequest,
             answers={200: fleet.PoolStatus}),
    _get(POOL + "/cycles", pools.list_cycles, "Its last cycles, newest first.", PageOf(CycleSummary),
         pools.CyclesQuery),
    _get(POOL + "/plan", pools.get_plan, "What a cycle would do now, and why; nothing is changed.", PoolPlan),
    Endpoint("POST", POOL + "/run", A, pools.run_cycle, "Run one cycle now, by the replica that leads.",
             answers={200: CycleSummary}),
    _get("/v1/fleet/status", pools.get_status, "Counts of the whole fleet, and its health in a word.",
         OrchestratorStatus),
    _get("/v1/fleet/health", pools.list_health, "Active hosts: heartbeat, task, GPU memory, a verdict.",
         PageOf(WorkerHealth)),
    _get("/v1/fleet/performance", pools.list_performance, "What each host did.", PageOf(WorkerPerformance)),
    # reports
    _get("/v1/report", reports.get_report, "What hours were spent on, what they cost, and what was lost.", HoursReport,
         reports.ReportQuery),
    _get("/v1/report/idle", reports.list_idle_jobs, "Jobs that hold idle GPUs, the dearest first.", PageOf(IdleJob),
         reports.IdleQuery),
    Endpoint("PUT", "/v1/prices", A, reports.put_price,
             "Set a price of GPU-hours from a time on, and say what it does to hours on record.",
             body=api.PriceRequest, answers={200: PriceEffect}),
    # settings
    _get("/v1/config", config.get_config, "Every setting in force and where it comes from.", PageOf(Effective),
         queries.ConfigQuery),
    Endpoint("PATCH", "/v1/config", A, config.patch_config, "Change the cluster's settings.",
             body=api.SettingsPatch, answers={200: PageOf(Effective)}),
    # rules of classification
    _get("/v1/rules", rules.get_rules, "The operators' rules of classification.", api.RulesView),
    Endpoint("PUT", "/v1/rules", A, rules.put_rules,
             "Replace the operators' rules; a bad one is refused with its line.",
             body=api.RulesRequest, answers={200: api.RulesView}),
    Endpoint("POST", "/v1/rules/try", R, rules.try_rules, "What a task's end would be taken for.",
             body=api.RulesTrial, answers={200: api.RulesFinding}),
    # events
    _get("/v1/events", events.list_events, "What happened, in the one order all readers see.",
         PageOf(EventRecord), queries.EventsQuery, media=("application/json", *_SSE),
         headers={"Last-Event-ID": "Where a stream goes on: the id of the last event seen."}),
    # tokens
    Endpoint("GET", "/v1/tokens", A, tokens.list_tokens, "Every token, without its secret.",
             answers={200: PageOf(TokenRecord)}),
    Endpoint("POST", "/v1/tokens", A, tokens.create_token, "A new token; its secret is shown this once.",
             body=api.TokenRequest, answers={201: api.TokenCreated}),
    Endpoint("DELETE", "/v1/tokens/{id}", A, tokens.revoke_token, "Revoke a token.", answers={204: None}),
    _get("/v1/sign-ins", sign_ins.list_sign_ins, "Browsers that are signed in: one's own; for an admin all.",
         PageOf(api.SignInView)),
    Endpoint("POST", "/v1/sign-ins/links", R, sign_ins.create_link, "A link that signs one browser in, once.",
             answers={201: api.SignInLink}),
    Endpoint("DELETE", "/v1/sign-ins/{id}", R, sign_ins.end_sign_in, "End a browser's sign-in.", answers={204: None}),
    _get("/v1/whoami", tokens.who_am_i, "The caller's token.", TokenRecord),
    _get("/v1/server", system.get_server, "The controller's version and clock.", api.ServerView),
    # notices
    _get("/v1/notices", notice_routes.list_targets, "Every notice target.", PageOf(hooks.NoticeTarget)),
    _get(NOTICE, notice_routes.get_target, "One target.", hooks.NoticeTarget, notice_routes.TargetQuery),
    Endpoint("PUT", NOTICE, S, notice_routes.put_target, "Make a target, or give it another url.",
             query=notice_routes.TargetQuery, body=hooks.TargetRequest, answers={200: hooks.NoticeTarget}),
    Endpoint("DELETE", NOTICE, S, notice_routes.delete_target, "Forget a target and its messages.",
             query=notice_routes.TargetQuery, answers={204: None}),
    Endpoint("POST", NOTICE + "/test", S, notice_routes.test_target, "Send one message now; nothing is kept.",
             query=notice_routes.TargetQuery, answers={200: hooks.TestResult}),
    # webhooks
    Endpoint("GET", "/v1/webhooks", A, webhooks.list_webhooks, "Every webhook, without its secret.",
             answers={200: PageOf(WebhookRecord)}),
    Endpoint("POST", "/v1/webhooks", A, webhooks.create_webhook, "A new webhook; its secret is shown this once.",
             body=hooks.WebhookRequest, answers={201: hooks.WebhookCreated}),
    Endpoint("GET", HOOK, A, webhooks.get_webhook, "One webhook.", answers={200: WebhookRecord}),
    Endpoint("PATCH", HOOK, A, webhooks.patch_webhook, "Change a webhook.", body=hooks.WebhookPatch,
             answers={200: WebhookRecord}),
    Endpoint("DELETE", HOOK, A, webhooks.delete_webhook, "Forget a webhook and its deliveries.",
             answers={204: None}),
    Endpoint("POST", HOOK + "/rotate", A, webhooks.rotate_webhook, "A new secret; both sign during the grace.",
             body=hooks.RotateRequest, optional_body=True, answers={200: hooks.WebhookCreated}),
    Endpoint("POST", HOOK + "/pause", A, webhooks.pause_webhook, "Send nothing more; events are kept.",
             body=hooks.WebhookPause, optional_body=True, answers={200: WebhookRecord}),
    Endpoint("POST", HOOK + "/resume", A, webhooks.resume_webhook, "Go on where it stopped.",
             answers={200: WebhookRecord}),
    Endpoint("POST", HOOK + "/test", A, webhooks.test_webhook, "Send one test event now; nothing is kept.",
             answers={200: hooks.TestResult}),
    Endpoint("POST", HOOK + "/redeliver-dead", A, webhooks.redeliver_dead, "Send every dead delivery again.",
             answers={200: hooks.Redelivered}),
    Endpoint("GET", HOOK + "/deliveries", A, webhooks.list_deliveries, "Its deliveries, newest first.",
             query=webhooks.DeliveriesQuery, answers={200: PageOf(DeliveryRecord)}),
    Endpoint("GET", HOOK + "/deliveries/{delivery}", A, webhooks.get_delivery, "One delivery with its body.",
             answers={200: hooks.DeliveryView}),
    Endpoint("POST", HOOK + "/deliveries/{delivery}/redeliver", A, webhooks.redeliver, "Send a delivery again.",
             answers={200: DeliveryRecord}),
    Endpoint("POST", "/graphql", R, graphql.answer_query, "A query of GraphQL over everything above that is read.",
             body=graphql.GraphqlRequest, answers={200: graphql.GraphqlAnswer}),
    # the server itself
    Endpoint("GET", "/", Role.ANYONE, system.get_front_page, "A page for people: what this is.",
             answers={200: None}, media=("text/html",)),
    Endpoint("GET", "/questions/{run}/{node}", Role.ANYONE, system.get_question_page,
             "A page on which a person answers a node's question, with a token.", answers={200: None},
             media=("text/html",)),
    _get("/v1/openapi.json", get_openapi, "This description.", dict[str, Any]),
    _get("/metrics", system.get_metrics, "Prometheus metrics.", None, media=("text/plain",)),
    Endpoint("GET", "/healthz", Role.ANYONE, system.get_health, "The process answers. Asks nothing else.",
             answers={200: dict[str, str]}),
    Endpoint("GET", "/readyz", Role.ANYONE, system.get_readiness, "The store answers too.",
             answers={200: dict[str, str]}),
)  # fmt: skip
