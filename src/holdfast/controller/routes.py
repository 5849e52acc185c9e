"""The table of all routes: each operation with its handler."""

import functools

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
from holdfast.controller.calls import call_poll, outputs, sets, values
from holdfast.controller.calls import checkpoints as call_checkpoints
from holdfast.controller.graphql import endpoint as graphql
from holdfast.controller.http.endpoints import ApiCall, Endpoint, bind
from holdfast.controller.logs import errors, search
from holdfast.controller.notices import routes as notice_routes
from holdfast.controller.openapi import build_openapi
from holdfast.controller.report import routes as reports
from holdfast.controller.sessions import routes as session_routes
from holdfast.controller.sessions import tickets
from holdfast.controller.sessions.open import open_session
from holdfast.controller.sync import caches as host_caches
from holdfast.controller.sync import controllers, route
from holdfast.controller.sync import health as host_health
from holdfast.controller.workflows import workflows
from holdfast.wire.operations.cluster import events as on_events
from holdfast.wire.operations.cluster import graphql as on_graphql
from holdfast.wire.operations.cluster import notices as on_notices
from holdfast.wire.operations.cluster import projects as on_projects
from holdfast.wire.operations.cluster import queues as on_queues
from holdfast.wire.operations.cluster import reports as on_reports
from holdfast.wire.operations.cluster import server as on_server
from holdfast.wire.operations.cluster import settings as on_settings
from holdfast.wire.operations.cluster import tokens as on_tokens
from holdfast.wire.operations.cluster import webhooks as on_webhooks
from holdfast.wire.operations.fleet import agents as on_agents
from holdfast.wire.operations.fleet import hosts as on_hosts
from holdfast.wire.operations.fleet import pools as on_pools
from holdfast.wire.operations.work import arrays as on_arrays
from holdfast.wire.operations.work import bundles as on_bundles
from holdfast.wire.operations.work import calls as on_calls
from holdfast.wire.operations.work import jobs as on_jobs
from holdfast.wire.operations.work import outputs as on_outputs
from holdfast.wire.operations.work import schedules as on_schedules
from holdfast.wire.operations.work import sessions as on_sessions
from holdfast.wire.operations.work import workflows as on_workflows


@functools.cache
def _render_openapi() -> bytes:
    return msgspec.json.encode(build_openapi(ENDPOINTS))


async def get_openapi(call: ApiCall) -> Response:
    """Describe every route. Here and not in `api/`, because it needs the table below."""
    return Response(_render_openapi(), 200, None, "application/json")


ENDPOINTS: tuple[Endpoint, ...] = (
    bind(on_agents.SYNC, route.sync),
    bind(on_agents.APPEND_LOGS, route.append_logs),
    bind(on_agents.PUT_FORENSICS, route.put_forensics),
    bind(on_agents.REGISTER, route.register),
    bind(on_agents.PUT_AGENT_CHECKPOINT, checkpoints.put_agent_checkpoint),
    bind(on_agents.GET_AGENT_CHECKPOINT, checkpoints.get_agent_checkpoint),
    bind(on_agents.SKIP_AGENT_CHECKPOINT, checkpoints.skip_agent_checkpoint),
    bind(on_agents.LIST_CONTROLLERS, controllers.list_controllers),
    bind(on_agents.PUT_HEALTH, host_health.put_health),
    bind(on_agents.PUT_CACHES, host_caches.put_caches),
    bind(on_agents.EXCHANGE, call_poll.poll_calls),
    bind(on_agents.PUT_CALL_CHECKPOINT, call_checkpoints.put_call_checkpoint),
    bind(on_agents.GET_CALL_CHECKPOINT, call_checkpoints.get_call_checkpoint),
    bind(on_agents.PUT_VALUE, values.put_value),
    bind(on_agents.GET_VALUE, values.get_value),
    bind(on_agents.GET_AGENT_PLAN, downloads.get_agent_plan),
    bind(on_agents.GET_AGENT_PACK, downloads.get_agent_pack),
    bind(on_agents.FIND_MISSING_OUTPUTS, job_outputs.find_missing_outputs),
    bind(on_agents.PUT_OUTPUTS_PACK, job_outputs.put_outputs_pack),
    bind(on_agents.PUT_OUTPUTS, job_outputs.put_outputs),
    bind(on_outputs.LIST_OUTPUTS, job_outputs.list_outputs),
    bind(on_outputs.LIST_OUTPUT_FILES, job_outputs.list_output_files),
    bind(on_outputs.GET_OUTPUTS_PLAN, job_outputs.get_outputs_plan),
    bind(on_outputs.GET_OUTPUTS_PACK, job_outputs.get_outputs_pack),
    bind(on_bundles.FIND_MISSING, uploads.find_missing),
    bind(on_bundles.PUT_PACK, uploads.put_pack),
    bind(on_bundles.PUT_BUNDLE, uploads.put_bundle),
    bind(on_bundles.GET_BUNDLE, uploads.get_bundle),
    bind(on_bundles.GET_JOB_PLAN, downloads.get_job_plan),
    bind(on_bundles.GET_JOB_PACK, downloads.get_job_pack),
    bind(on_sessions.DIAL_SESSION, session_routes.dial_session),
    bind(on_sessions.TAKE_RELAYED_DIAL, session_routes.take_relayed_dial),
    bind(on_sessions.REPORT_END, session_routes.report_end),
    bind(on_sessions.OPEN_SESSION, open_session),
    bind(on_sessions.CREATE_TICKET, tickets.create_ticket),
    bind(on_sessions.SHOW_RIGHT, tickets.show_right),
    bind(on_sessions.LIST_SESSIONS_OF_JOB, session_routes.list_sessions_of_job),
    bind(on_sessions.LIST_SESSIONS, session_routes.list_sessions),
    bind(on_sessions.STOP_SESSION, session_routes.stop_session),
    bind(on_jobs.SUBMIT_JOB, jobs.submit_job),
    bind(on_jobs.SUBMIT_BATCH, jobs.submit_batch),
    bind(on_jobs.CANCEL_JOBS, jobs.cancel_jobs),
    bind(on_jobs.RETRY_JOBS, retries.retry_jobs),
    bind(on_jobs.LIST_JOBS, jobs.list_jobs),
    bind(on_jobs.GET_JOB, jobs.get_job),
    bind(on_jobs.LIST_ATTEMPTS, retries.list_attempts),
    bind(on_jobs.GET_POLICY, retries.get_policy),
    bind(on_jobs.LIST_TASKS, jobs.list_tasks),
    bind(on_jobs.LIST_SUSPECTS, jobs.list_suspects),
    bind(on_jobs.GET_WHY, jobs.get_why),
    bind(on_jobs.LIST_FORECASTS, jobs.list_forecasts),
    bind(on_jobs.LIST_SETTINGS, jobs.list_settings),
    bind(on_jobs.GET_JOB_TELEMETRY, readings.get_job_telemetry),
    bind(on_jobs.LIST_FORENSICS, jobs.list_forensics),
    bind(on_jobs.GET_LOGS, logs.get_logs),
    bind(on_jobs.LIST_STREAMS, logs.list_streams),
    bind(on_jobs.LIST_ERRORS, errors.list_errors),
    bind(on_jobs.SEARCH_LOGS, search.search_logs),
    bind(on_jobs.LIST_CHECKPOINTS, checkpoints.list_checkpoints),
    bind(on_jobs.GET_CHECKPOINT, checkpoints.get_checkpoint),
    bind(on_jobs.PUT_CHECKPOINT, checkpoints.put_checkpoint),
    bind(on_jobs.DELETE_CHECKPOINTS, checkpoints.delete_checkpoints),
    bind(on_jobs.CANCEL_JOB, jobs.cancel_job),
    bind(on_jobs.RETRY_JOB, retries.retry_job),
    bind(on_arrays.SUBMIT_ARRAY, arrays.submit_array),
    bind(on_arrays.LIST_ARRAYS, arrays.list_arrays),
    bind(on_arrays.GET_ARRAY, arrays.get_array),
    bind(on_arrays.CANCEL_ARRAY, arrays.cancel_array),
    bind(on_arrays.RETRY_ARRAY, arrays.retry_array),
    bind(on_schedules.LIST_SCHEDULES, schedules.list_schedules),
    bind(on_schedules.GET_SCHEDULE, schedules.get_schedule),
    bind(on_schedules.PUT_SCHEDULE, schedules.put_schedule),
    bind(on_schedules.DELETE_SCHEDULE, schedules.delete_schedule),
    bind(on_schedules.PAUSE_SCHEDULE, schedules.pause_schedule),
    bind(on_schedules.RESUME_SCHEDULE, schedules.resume_schedule),
    bind(on_schedules.PIN_SCHEDULE, schedules.pin_schedule),
    bind(on_schedules.RUN_SCHEDULE, schedules.run_schedule),
    bind(on_schedules.LIST_NEXT, schedules.list_next),
    bind(on_schedules.LIST_RUNS, schedules.list_runs),
    bind(on_workflows.SUBMIT_WORKFLOW, workflows.submit_workflow),
    bind(on_workflows.LIST_RUNS, workflows.list_runs),
    bind(on_workflows.GET_RUN, workflows.get_run),
    bind(on_workflows.LIST_NODES, workflows.list_nodes),
    bind(on_workflows.GET_NODE, workflows.get_node),
    bind(on_workflows.GET_NODE_WHY, workflows.get_node_why),
    bind(on_workflows.ANSWER_NODE, workflows.answer_node),
    bind(on_workflows.CANCEL_RUN, workflows.cancel_run),
    bind(on_workflows.RESTART_RUN, workflows.restart_run),
    bind(on_calls.CREATE_SET, sets.create_set),
    bind(on_calls.LIST_SETS, sets.list_sets),
    bind(on_calls.GET_SET, sets.get_set),
    bind(on_calls.APPEND_CALLS, sets.append_calls),
    bind(on_calls.GET_RESULTS, sets.get_results),
    bind(on_calls.GET_CALL, sets.get_call),
    bind(on_calls.GET_CALL_LOGS, outputs.get_call_logs),
    bind(on_calls.CANCEL_CALLS, sets.cancel_calls),
    bind(on_calls.RETRY_CALLS, sets.retry_calls),
    bind(on_calls.PUT_VALUE, values.put_value),
    bind(on_calls.GET_VALUE, values.get_value),
    bind(on_queues.LIST_QUEUES, queues.list_queues),
    bind(on_queues.LIST_DEPTHS, queues.list_depths),
    bind(on_queues.GET_QUEUE, queues.get_queue),
    bind(on_queues.PUT_QUEUE, queues.put_queue),
    bind(on_queues.DELETE_QUEUE, queues.delete_queue),
    bind(on_queues.PAUSE_QUEUE, queues.pause_queue),
    bind(on_queues.RESUME_QUEUE, queues.resume_queue),
    bind(on_projects.LIST_PROJECTS, projects.list_projects),
    bind(on_projects.GET_PROJECT, projects.get_project),
    bind(on_projects.PUT_PROJECT, projects.put_project),
    bind(on_projects.DELETE_PROJECT, projects.delete_project),
    bind(on_projects.GET_RETRIES, retries.get_retries),
    bind(on_hosts.LIST_HOSTS, hosts.list_hosts),
    bind(on_hosts.GET_HOST, hosts.get_host),
    bind(on_hosts.GET_TELEMETRY, hosts.get_telemetry),
    bind(on_hosts.LIST_CHECKS, hosts.list_checks),
    bind(on_hosts.ACT_ON_HOST, hosts.act_on_host),
    bind(on_reports.GET_LEDGER, ledger.get_ledger),
    bind(on_pools.LIST_POOLS, pools.list_pools),
    bind(on_pools.GET_POOL, pools.get_pool),
    bind(on_pools.PUT_POOL, pools.put_pool),
    bind(on_pools.PATCH_POOL, pools.patch_pool),
    bind(on_pools.DELETE_POOL, pools.delete_pool),
    bind(on_pools.PAUSE_POOL, pools.pause_pool),
    bind(on_pools.RESUME_POOL, pools.resume_pool),
    bind(on_pools.SCALE_POOL, pools.scale_pool),
    bind(on_pools.LIST_CYCLES, pools.list_cycles),
    bind(on_pools.GET_PLAN, pools.get_plan),
    bind(on_pools.RUN_CYCLE, pools.run_cycle),
    bind(on_pools.GET_STATUS, pools.get_status),
    bind(on_pools.COUNT_HOSTS, pools.count_hosts),
    bind(on_pools.LIST_HEALTH, pools.list_health),
    bind(on_pools.LIST_PERFORMANCE, pools.list_performance),
    bind(on_reports.GET_REPORT, reports.get_report),
    bind(on_reports.LIST_IDLE_JOBS, reports.list_idle_jobs),
    bind(on_reports.PUT_PRICE, reports.put_price),
    bind(on_settings.GET_CONFIG, config.get_config),
    bind(on_settings.PATCH_CONFIG, config.patch_config),
    bind(on_settings.GET_RULES, rules.get_rules),
    bind(on_settings.PUT_RULES, rules.put_rules),
    bind(on_settings.TRY_RULES, rules.try_rules),
    bind(on_events.LIST_EVENTS, events.list_events),
    bind(on_tokens.LIST_TOKENS, tokens.list_tokens),
    bind(on_tokens.CREATE_TOKEN, tokens.create_token),
    bind(on_tokens.REVOKE_TOKEN, tokens.revoke_token),
    bind(on_tokens.LIST_SIGN_INS, sign_ins.list_sign_ins),
    bind(on_tokens.CREATE_LINK, sign_ins.create_link),
    bind(on_tokens.END_SIGN_IN, sign_ins.end_sign_in),
    bind(on_tokens.WHO_AM_I, tokens.who_am_i),
    bind(on_tokens.GET_SERVER, system.get_server),
    bind(on_notices.LIST_TARGETS, notice_routes.list_targets),
    bind(on_notices.GET_TARGET, notice_routes.get_target),
    bind(on_notices.PUT_TARGET, notice_routes.put_target),
    bind(on_notices.DELETE_TARGET, notice_routes.delete_target),
    bind(on_notices.TEST_TARGET, notice_routes.test_target),
    bind(on_webhooks.LIST_WEBHOOKS, webhooks.list_webhooks),
    bind(on_webhooks.CREATE_WEBHOOK, webhooks.create_webhook),
    bind(on_webhooks.GET_WEBHOOK, webhooks.get_webhook),
    bind(on_webhooks.PATCH_WEBHOOK, webhooks.patch_webhook),
    bind(on_webhooks.DELETE_WEBHOOK, webhooks.delete_webhook),
    bind(on_webhooks.ROTATE_WEBHOOK, webhooks.rotate_webhook),
    bind(on_webhooks.PAUSE_WEBHOOK, webhooks.pause_webhook),
    bind(on_webhooks.RESUME_WEBHOOK, webhooks.resume_webhook),
    bind(on_webhooks.TEST_WEBHOOK, webhooks.test_webhook),
    bind(on_webhooks.REDELIVER_DEAD, webhooks.redeliver_dead),
    bind(on_webhooks.LIST_DELIVERIES, webhooks.list_deliveries),
    bind(on_webhooks.GET_DELIVERY, webhooks.get_delivery),
    bind(on_webhooks.REDELIVER, webhooks.redeliver),
    bind(on_graphql.ANSWER_QUERY, graphql.answer_query),
    bind(on_server.GET_FRONT_PAGE, system.get_front_page),
    bind(on_server.GET_QUESTION_PAGE, system.get_question_page),
    bind(on_server.GET_OPENAPI, get_openapi),
    bind(on_server.GET_METRICS, system.get_metrics),
    bind(on_server.GET_HEALTH, system.get_health),
    bind(on_server.GET_READINESS, system.get_readiness),
)
