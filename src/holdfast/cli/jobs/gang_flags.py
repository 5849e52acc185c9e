"""The flags of a job of several tasks, and how they are read into fields of a spec."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import click

_PLAIN = ("tasks", "placement", "on_partial", "preemptible")
_TIMES = ("start_timeout", "recovery_timeout")

PLACE_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.option(
        "--host-label",
        "host_labels",
        multiple=True,
        metavar="K=V",
        help="Only hosts with this label. Repeatable.",
    ),
    click.option(
        "--preemptible/--not-preemptible",
        default=None,
        help="A more important job may take its place; it is queued again at no charge.",
    ),
    click.option(
        "--start-timeout",
        metavar="TIME",
        help="From its reservation until every rank runs, pulls included.",
    ),
    click.option(
        "--recovery-timeout", metavar="TIME", help="The same for attempts after one that ran."
    ),
)
_LABEL, _PREEMPTIBLE, *_TIMEOUTS = PLACE_OPTIONS
GANG_OPTIONS: tuple[Callable[..., Any], ...] = (
    click.option("--tasks", type=int, metavar="N", help="Ranks that start and stop together; --gpus, … are of each."),
    click.option(
        "--placement", type=click.Choice(["pack", "spread"]),
        help="On as few hosts as possible, or one rank a host first; pack otherwise.",
    ),
    _LABEL,
    click.option(
        "--on-partial", type=click.Choice(["fail", "restart"]),
        help="When a rank fails after another was done: fail, or run all again.",
    ),
    _PREEMPTIBLE,
    *_TIMEOUTS,
)  # fmt: skip


def read_gang(fields: dict[str, Any], options: Mapping[str, Any]) -> None:
    """Put what the flags say over `fields`; host labels are read with the other labels."""
    for name in _PLAIN:
        if options[name] is not None:
            fields[name] = options[name]
    for name in _TIMES:
        if options[name] is not None:
            fields.pop(f"{name}_seconds", None)
            fields[name] = options[name]
