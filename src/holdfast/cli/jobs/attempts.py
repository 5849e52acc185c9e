"""`attempts`: a job's attempts, and the retry policies that decided after each."""

from __future__ import annotations

import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.find.jobs import one_job
from holdfast.cli.operate.config import value_text
from holdfast.cli.options import JOB
from holdfast.cli.output import age, columns, facts, shorten, table
from holdfast.core.causes import ELIGIBLE, GROUPS
from holdfast.core.words import count_of, split_span

if TYPE_CHECKING:
    from holdfast.core.records import AttemptRecord
    from holdfast.core.retry import RetryPolicy
    from holdfast.wire.api import PolicyField, PolicyView


@click.command()
@JOB
@click.option("--cause", help="Only attempts that ended of this cause.")
@click.option("--policy", is_flag=True, help="Also the retry policy in force at each end.")
@talks
def attempts(io: CommandIO, job_id: str, cause: str | None, policy: bool) -> None:
    """List a job's attempts, oldest first, and under each the decision at its end.

    FROM is the attempt before it, RETRY the number of retries charged before it, CHARGED the budget
    that its end was charged to.

    \b
    Examples:
      holdfast attempts 06ch2v8wq1m4kz7d9x3t
      holdfast attempts 06ch2v8wq1m4kz7d9x3t --json | jq '.[-1].cause'
    """
    with io.client() as client, one_job(client, job_id) as found:
        rows = client.attempts(found, cause)
    nothing = (
        f"none ended of {cause}"
        if cause is not None
        else "no attempts yet; `holdfast why` says why"
    )
    io.show(rows, attempts_table(rows, policies=policy) if rows else nothing)


def attempts_table(rows: Sequence[AttemptRecord], *, policies: bool = False) -> str:
    """Draw the table of `attempts`: a line for each, and under it its reason in full."""
    head, *lines = table(
        ("TRY", "FROM", "RETRY", "OUTCOME", "CAUSE", "CHARGED", "EXIT", "HOST", "TOOK"),
        [
            (
                str(a.number),
                "-" if a.parent is None else str(a.parent),
                str(a.retry_count),
                a.outcome.value if a.outcome else a.state.value,
                a.cause.value if a.cause else "-",
                a.charged_to or "-",
                "-" if a.exit_code is None else str(a.exit_code),
                _fit_host(a.host or "-"),
                split_span((a.ended_at - a.started_at).total_seconds())
                if a.ended_at and a.started_at
                else age(a.started_at),
            )
            for a in rows
        ],
        elastic=7,
    ).splitlines()
    out = [head]
    for attempt, line in zip(rows, lines, strict=True):
        out.append(line)
        out += _under(attempt, policies)
    return "\n".join(out)


def _fit_host(host: str) -> str:
    """Cut a host's name to the room that the other columns leave at their widest."""
    return shorten(host, max(8, columns() - 72))


def _under(attempt: AttemptRecord, policies: bool) -> list[str]:
    said = attempt.outcome.value if attempt.outcome else attempt.state.value
    texts = [attempt.reason] if attempt.reason not in ("", said) else []
    if attempt.code is not None:
        texts.append(f"code {attempt.code.describe()}")
    if attempt.next_at is not None:
        texts.append(f"the next attempt was allowed from {attempt.next_at:%Y-%m-%d %H:%M:%S} UTC")
    if policies and attempt.policy is not None:
        texts.append(f"policy: {say_policy(attempt.policy)}")
    wraps = textwrap.TextWrapper(columns(), initial_indent="     ", subsequent_indent="     ")
    return [line for text in texts for line in wraps.wrap(text)]


def say_policy(policy: RetryPolicy) -> str:
    """Write a policy in one line."""
    if policy.max_retries == 0:
        return "no retries"
    text = count_of(policy.max_retries, "retry", "retries")
    text += f", {policy.retry_delay:g} s apart"
    if policy.backoff == "exponential":
        text += f", times {policy.backoff_multiplier:g} with each"
    if policy.max_retry_delay is not None:
        text += f", at most {policy.max_retry_delay:g} s"
    if policy.jitter != "none":
        text += f", {policy.jitter} jitter of up to {policy.jitter_ratio:.0%}"
    return f"{text}; after: {say_causes(policy.eligible_causes)}"


def say_causes(causes: Sequence[str]) -> str:
    """Write causes as `--retry-on` takes them: a whole group by its word."""
    left = set(causes)
    if left >= set(ELIGIBLE):
        return "all"
    words = [word for word, group in GROUPS.items() if left >= set(group)]
    for word in words:
        left -= set(GROUPS[word])
    return ", ".join([*words, *(cause for cause in causes if cause in left)]) or "none"


def _say_field(field: PolicyField) -> str:
    if isinstance(field.value, list):
        return say_causes(field.value)
    unit = " s" if field.field.endswith("_delay") and field.value is not None else ""
    return value_text(field.value) + unit


def policy_text(view: PolicyView) -> str:
    """Write the answer of `show --policy` for a person."""
    rows = [(f.field, _say_field(f), f.source) for f in view.fields]
    text = table(("FIELD", "VALUE", "SOURCE"), rows, elastic=1)
    if view.held is not None:
        text += "\n\n" + facts([("held", f"{view.held} holds all retries (holdfast retries)")])
    return text
