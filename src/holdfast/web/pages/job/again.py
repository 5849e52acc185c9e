"""Run again with changes: the spec of a job in a form, submitted as a new job."""

from __future__ import annotations

import shlex
from collections.abc import Mapping
from typing import Any

import msgspec

from holdfast.core.spec import JobSpec
from holdfast.web.page import Page, PageRequest, together
from holdfast.wire.operations.acts import ActField

_OF_ONE_RUN = ("idempotency_key", "parent", "start_at", "after", "terminal", "attended", "secrets")
"""Fields that belong to the one submission. A terminal needs a person at `holdfast attach`."""


def write_pairs(pairs: Mapping[str, str]) -> str:
    """Return variables or labels as lines of NAME=value."""
    return "\n".join(f"{name}={value}" for name, value in pairs.items())


def make_base(spec: JobSpec) -> dict[str, Any]:
    """Return the spec that a new job begins from, as the API takes it."""
    built: dict[str, Any] = msgspec.to_builtins(spec)
    return {name: value for name, value in built.items() if name not in _OF_ONE_RUN}


def list_fields(spec: JobSpec, title: str, queue: str) -> list[ActField]:
    """Return the fields that people change, with the values of the job."""

    def field(name: str, label: str, value: object = "", **more: Any) -> ActField:
        return ActField(name=name, label=label, value="" if value is None else str(value), **more)

    command = field("shell", "Shell command", spec.shell, kind="area")
    if spec.shell is None:
        command = field("argv", "Command", shlex.join(spec.argv), kind="area")
    retries = getattr(spec.retry, "max_retries", None)
    retries = None if retries is msgspec.UNSET else retries
    number: dict[str, Any] = {"kind": "number"}
    fields = [
        field("name", "Name", title),
        command,
        field("queue", "Queue", spec.queue, hint=f"the default: {queue}"),
        field("project", "Project", spec.project),
        field("priority", "Priority", spec.priority, hint="0 to 100", **number),
        field("tasks", "Ranks", spec.tasks, **number),
        field("gpus", "GPUs of a rank", spec.gpus, **number),
        field("cpus", "CPU slots of a rank", spec.cpus, hint="the default", **number),
        field("memory_bytes", "Memory of a rank, in bytes", spec.memory_bytes or "", **number),
        field(
            "time_limit_seconds", "Time limit in seconds", spec.time_limit_seconds,
            hint="the queue's, or off", **number,
        ),
        field("retry.max_retries", "Retries", retries, hint="the project's", **number),
        field("env", "Environment", write_pairs(spec.env), kind="pairs", hint="NAME=value, a line each"),
        field("labels", "Labels", write_pairs(spec.labels), kind="pairs", hint="NAME=value, a line each"),
    ]  # fmt: skip
    if spec.secrets:
        names = "\n".join(f"{name}=" for name in spec.secrets)
        fields.append(field("secrets", "Secrets, whose values no page has", names, kind="pairs"))
    if spec.image is not None:
        fields.insert(2, field("image", "Image", spec.image))
    return fields


async def show(ask: PageRequest) -> Page:
    """Make the page. Raises NotFound."""
    job, queues, projects = await together(
        ask.reader.job(ask.params["job"]),
        ask.reader.queues(waiting=False),
        ask.reader.projects(waiting=False),
    )
    fields = list_fields(job.spec, job.name, job.queue)
    changed = {each.name.partition(".")[0] for each in fields}
    values = {
        "job": job,
        "fields": fields,
        "base": msgspec.json.encode(make_base(job.spec)).decode(),
        "kept": [name for name in sorted(make_base(job.spec)) if name not in changed],
        "left": [name for name in ("after", "start_at", "terminal") if getattr(job.spec, name)],
        "offered": {
            "queue": [each.name for each in queues],
            "project": [each.name for each in projects],
        },
    }
    return Page(template="job_again.html", title=f"Run {job.name} again", values=values)
