"""The flags of a job's retry policy and of its container, and how they are read into fields of a
spec."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import click

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
_PLAIN = ("image", "runtime", "pull", "pull_timeout", "no_progress_limit", "budget_reset")

POLICY_OPTIONS = (
    click.option("--max-retries", type=int, help="Retries after the first attempt; 0 is none."),
    click.option("--retry-delay", metavar="TIME", help="Before the first retry, as 30s; 60s otherwise."),
    click.option("--retry-backoff", type=click.Choice(["fixed", "exponential"]), help="Whether the delay grows."),
    click.option("--retry-multiplier", type=float, help="What an exponential delay grows by with every retry."),
    click.option("--max-retry-delay", metavar="TIME", help="No delay is longer; off leaves the ceiling of 24h."),
    click.option("--retry-jitter", type=click.Choice(["none", "deterministic", "random"]), help="Spreads retries."),
    click.option("--retry-jitter-ratio", type=float, help="Jitter is at most this part of the delay."),
    click.option(
        "--retry-on", multiple=True, metavar="CAUSE",
        help="Run it again after these causes only; also failures, infra, watchdog, system, all, "
        "none. Repeatable.",
    ),
    click.option("--no-retry-events", is_flag=True, help="Write no job.retry_* events."),
    click.option("--interactive", is_flag=True, help="A person waits at it: never run it again by itself."),
    click.option("--no-progress-limit", metavar="N", help="Attempts in a row that got no further before it fails, or off."),
    click.option("--budget-reset", metavar="TIME", help="An attempt that ran this long gives all budgets back, or off."),
)  # fmt: skip

CONTAINER_OPTIONS = (
    click.option(
        "--image", metavar="REF", help="Run in a container of this image; CMD may be left out."
    ),
    click.option(
        "--runtime",
        type=click.Choice(["podman", "docker"]),
        help="Which one; else what the host has.",
    ),
    click.option(
        "--pull",
        type=click.Choice(["missing", "always", "never"]),
        help="When the image is fetched.",
    ),
    click.option(
        "--volume",
        "volumes",
        multiple=True,
        metavar="HOST:INSIDE[:ro]",
        help="A folder to share; repeatable.",
    ),
    click.option("--pull-timeout", metavar="TIME", help="Time the pull of the image may take."),
)


def read_policy(fields: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Put what the flags say over `fields`, one field of the policy at a time. Raises
    ValidationError."""
    given: dict[str, Any] = {
        field: options[name] for name, field in _RETRY.items() if options[name] is not None
    }
    if options["retry_on"]:
        given["eligible_causes"] = list(options["retry_on"])
    if options["no_retry_events"]:
        given["emit_retry_events"] = False
    if given:
        from holdfast.client.specs import read_retry

        fields["retry"] = {**read_retry(fields.get("retry") or {}), **given}
    if options["interactive"]:
        fields["interactive"] = True
    for name in _PLAIN:
        if options[name] is not None:
            for other in (
                f"{name}_seconds",
                "image_pull_seconds" if name == "pull_timeout" else name,
            ):
                fields.pop(other, None)
            fields[name] = options[name]
    if options["volumes"]:
        fields["volumes"] = [*(fields.get("volumes") or ()), *options["volumes"]]
