"""The flags of a job's gang, retry policy and container, and how they become fields of a spec."""

from collections.abc import Callable, Mapping
from typing import Any

import click

from holdfast.client.specs import SHORT_NAMES, read_retry

_GANG_PLAIN = (
    "tasks", "placement", "on_partial", "preemptible", "on_straggler", "on_corruption"
)  # fmt: skip
_GANG_TIMES = ("min_runtime", "notice", "start_timeout", "recovery_timeout")

PLACE_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.option(
        "--host-label",
        "host_labels",
        multiple=True,
        metavar="K=V",
        help="Only hosts with this label.",
    ),
    click.option(
        "--preemptible/--not-preemptible",
        default=None,
        help="Let a more important job take its place, at no charge.",
    ),
    click.option(
        "--min-runtime",
        metavar="TIME",
        help="An attempt runs at least so long before another job may take its place.",
    ),
    click.option(
        "--notice",
        metavar="TIME",
        help="How long it has to save when another job takes its place. [default: 60s]",
    ),
    click.option(
        "--start-timeout", metavar="TIME", help="From its reservation until every rank runs."
    ),
    click.option("--recovery-timeout", metavar="TIME", help="The same after an attempt that ran."),
)
_LABEL, _PREEMPTIBLE, *_TIMEOUTS = PLACE_OPTIONS
WATCH_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.option(
        "--on-straggler", type=click.Choice(["ignore", "tell", "blame", "replace", "restart"]),
        help="When a rank is slow by itself. [default: tell]",
    ),
    click.option(
        "--on-corruption", type=click.Choice(["ignore", "tell", "restart"]),
        help="When ranks' checksums differ. [default: restart]",
    ),
)  # fmt: skip
GANG_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.option(
        "--tasks", type=int, metavar="N",
        help="Ranks that start and stop together; --gpus, … are for each.",
    ),
    click.option(
        "--placement", type=click.Choice(["pack", "spread"]),
        help="On few hosts, or on many. [default: pack]",
    ),
    _LABEL,
    click.option(
        "--on-partial", type=click.Choice(["fail", "restart"]),
        help="After a rank's failure beside a finished rank.",
    ),
    *WATCH_OPTIONS,
    _PREEMPTIBLE,
    *_TIMEOUTS,
)  # fmt: skip


def read_gang(fields: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Put the flags' values over `fields`; the other labels' reader takes the host labels."""
    for name in _GANG_PLAIN:
        if options.get(name) is not None:
            fields[name] = options[name]
    for name in _GANG_TIMES:
        if options[name] is not None:
            fields.pop(SHORT_NAMES[name], None)
            fields[name] = options[name]


# flag's parameter → field of the policy
_RETRY = {
    "max_retries": "max_retries",
    "retry_delay": "retry_delay",
    "retry_backoff": "backoff",
    "retry_multiplier": "backoff_multiplier",
    "max_retry_delay": "max_retry_delay",
    "retry_jitter": "jitter",
    "retry_jitter_ratio": "jitter_ratio",
}
_POLICY_PLAIN = ("image", "runtime", "pull", "pull_timeout", "no_progress_limit", "budget_reset")

NOTIFY = click.option(
    "--notify", multiple=True, metavar="TARGET[:KIND,…]",
    help="Tell this notice target of its end, a failure, a stall; repeatable.",
)  # fmt: skip
POLICY_OPTIONS = (
    NOTIFY,
    click.option("--max-retries", type=int, help="Retries after the first attempt; 0 is none."),
    click.option("--retry-delay", metavar="TIME", help="The delay of the first retry, as 30s. [default: 60s]"),
    click.option("--retry-backoff", type=click.Choice(["fixed", "exponential"]), help="Whether the delay grows."),
    click.option("--retry-multiplier", type=float, help="The factor of an exponential delay at each retry."),
    click.option("--max-retry-delay", metavar="TIME", help="The longest delay; off leaves the ceiling of 24h."),
    click.option("--retry-jitter", type=click.Choice(["none", "deterministic", "random"]), help="Their spread."),
    click.option("--retry-jitter-ratio", type=float, help="The largest jitter, as a part of the delay."),
    click.option(
        "--retry-on", multiple=True, metavar="CAUSE",
        help="Retry only after these; also failures, infra, watchdog, system, all, none. Repeatable.",
    ),
    click.option("--no-retry-events", is_flag=True, help="Write no job.retry_* events."),
    click.option("--once", "interactive", is_flag=True, help="Never run it again by itself, whatever ends it."),
    click.option("--no-progress-limit", metavar="N", help="Fail after N attempts without progress, or off."),
    click.option("--budget-reset", metavar="TIME", help="Restore all budgets after a run of this length, or off."),
)  # fmt: skip

CONTAINER_OPTIONS = (
    click.option("--image", metavar="REF", help="Run in this image; CMD may be left out."),
    click.option(
        "--runtime",
        type=click.Choice(["podman", "docker"]),
        help="The runtime. [default: the host's]",
    ),
    click.option(
        "--pull", type=click.Choice(["missing", "always", "never"]), help="When to fetch the image."
    ),
    click.option(
        "--volume", "volumes", multiple=True, metavar="HOST:INSIDE[:ro]", help="A shared folder."
    ),
    click.option("--pull-timeout", metavar="TIME", help="The longest the image's pull may take."),
)  # fmt: skip

DATA_OPTIONS = (
    click.option(
        "--outputs", multiple=True, metavar="PATH",
        help="Keep this file or folder of the job's folder after each attempt, as out/; repeatable.",
    ),
    click.option(
        "--cache", "caches", multiple=True, metavar="NAME[:/PATH]",
        help="A folder that stays on the host: HOLDFAST_CACHE_NAME, or PATH in a container; repeatable.",
    ),
    click.option(
        "--mount", "mounts", multiple=True, metavar="NAME[:/PATH]",
        help="A folder that the host's agent offers: HOLDFAST_MOUNT_NAME, or PATH; repeatable.",
    ),
)  # fmt: skip


def read_policy(fields: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Put the flags' values over `fields`, one policy field at a time. Raises ValidationError."""
    given = {field: options[name] for name, field in _RETRY.items() if options[name] is not None}
    if options["retry_on"]:
        given["eligible_causes"] = list(options["retry_on"])
    if options["no_retry_events"]:
        given["emit_retry_events"] = False
    if given:
        fields["retry"] = {**read_retry(fields.get("retry") or {}), **given}
    if options["interactive"]:
        fields["interactive"] = True
    for name in _POLICY_PLAIN:
        if options[name] is not None:
            fields.pop("image_pull_seconds" if name == "pull_timeout" else f"{name}_seconds", None)
            fields[name] = options[name]
    if options["notify"]:
        fields["notify"] = [*(fields.get("notify") or ()), *options["notify"]]
    if options["volumes"]:
        fields["volumes"] = [*(fields.get("volumes") or ()), *options["volumes"]]


def read_data(fields: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Put the flags of outputs, caches and mounts over `fields`."""
    for name in ("outputs", "caches", "mounts"):
        if options[name]:
            fields[name] = [*(fields.get(name) or ()), *options[name]]
