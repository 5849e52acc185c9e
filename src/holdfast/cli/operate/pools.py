"""`pools`: pools of hosts, made from files, scaled, paused, and looked into."""

from __future__ import annotations

import os
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.operate.resource import resource
from holdfast.cli.output import age, note, table, table_and_texts
from holdfast.client.synchronous import Client
from holdfast.core.fleet.actions import CycleSummary
from holdfast.core.fleet.pool_files import read_pools
from holdfast.core.fleet.pools import PoolSpec
from holdfast.errors import HoldfastError, ValidationError
from holdfast.wire.pools import PoolStatus
from holdfast.wire.states import tell_state


def pools_table(rows: Sequence[PoolStatus]) -> str:
    """Draw the table of `pools`."""
    return table_and_texts(
        ("POOL", "PROVIDER", "MIN", "MAX", "HOSTS", "$/H", "TODAY", "FORECAST", "STATE"),
        [
            (
                (
                    p.name,
                    p.spec.provider,
                    str(p.spec.min),
                    str(p.spec.max),
                    " ".join(f"{count} {state}" for state, count in sorted(p.hosts.items())) or "0",
                    f"{p.usd_per_hour:.2f}",
                    f"${p.spent_today_usd:.2f}",
                    f"${p.forecast_today_usd:.2f}",
                    tell_state(p).word,
                ),
                tell_state(p).sentence,
            )
            for p in rows
        ],
        "REASON",
    )


def pool_table(pool: PoolStatus) -> str:
    """Draw the table of one pool."""
    return pools_table([pool])


@resource(
    "NAME", pools_table, nothing="no pools. Make one with `holdfast pools create -f pool.toml`"
)
def pools(client: Client) -> Sequence[PoolStatus]:
    """List pools of hosts: sizes, cost per hour, today's spend and forecast.

    The forecast is today's spend if a pool costs until midnight UTC what it costs now. A pool whose
    state is `held` wants more hosts than it may rent, and says why.

    \b
    Examples:
      holdfast pools
      holdfast pools create -f pool.toml
      holdfast pools scale a100 --min 1 --max 8
      holdfast pools cycles a100
    """
    return client.pools()


@pools.command()
@click.argument("name")
@talks
def show(io: CommandIO, name: str) -> None:
    """Show a pool: what it may rent, its bounds, its money, and what its last cycle says.

    \b
    Example:
      holdfast pools show a100
    """
    with io.client() as client:
        pool = client.pool(name)
        last = client.pool_cycles(name, limit=1)[:1]
    lines = [pools_table([pool]), ""]
    for key in pool.spec.__struct_fields__:
        if key not in ("name", "offers"):
            value = msgspec.to_builtins(getattr(pool.spec, key))
            lines.append(f"{key.removesuffix('_seconds')} = {_say_value(key, value)}")
    for offer in pool.spec.offers:
        lines.append(f"offer {offer.name}: {_say_offer(offer)}")
    lines += [line for cycle in last for line in _say_reasons(cycle)]
    io.show(pool, "\n".join(lines))


def _say_value(key: str, value: Any) -> str:
    """Write a key's value as `pools set` takes it."""
    if key.endswith("_seconds"):
        whole = value >= 60 and value % 60 == 0
        return f"{value / 60:g}m" if whole else f"{value:g}s"
    if isinstance(value, float):
        return f"{value:g}"
    return "off" if value is None else msgspec.json.encode(value).decode()


def _say_offer(offer: Any) -> str:
    gpus = f"{offer.gpus} × {offer.gpu_type or 'GPU'}, " if offer.gpus else ""
    region = f", {offer.region}" if offer.region else ""
    slots = f"{offer.cpu_slots} CPU slot{'s' * (offer.cpu_slots != 1)}"
    return f"{gpus}{slots}, ${offer.usd_per_hour:.2f}/h{region}"


@pools.command()
@click.option(
    "-f", "--file", "path", required=True, metavar="FILE", help="TOML: [pool.NAME] tables."
)
@talks
def create(io: CommandIO, path: str) -> None:
    """Make the pools of a file, or replace them. Variables HOLDFAST_POOL_… override its keys.

    \b
    Example:
      holdfast pools create -f pool.toml
    """
    try:
        text = Path(path).read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise ValidationError(f"the pool file {path} cannot be read: {error}") from error
    read = read_pools(text, os.environ)
    for line in read.notes:
        note(line)
    with io.client() as client:
        made = [client.put_pool(pool.name, msgspec.to_builtins(pool)) for pool in read.pools]
        there = (
            {queue.name for queue in client.queues()} if any(p.spec.queues for p in made) else ()
        )
    for pool in made:
        for queue in sorted({*pool.spec.queues} - {*there}):
            note(
                f"pool {pool.name} serves queue {queue}, which is not there yet; "
                f"`holdfast queues set {queue}` makes it"
            )
    io.show(made, pools_table(made))


@pools.add("set", pool_table)
@click.argument("changes", metavar="KEY=VALUE...", nargs=-1, required=True)
def set_pool(client: Client, name: str, changes: Sequence[str]) -> PoolStatus:
    """Change keys of a pool; times as 5m, `off` for no limit.

    \b
    Examples:
      holdfast pools set a100 idle_timeout=10m max_usd_per_day=40
      holdfast pools set a100 max_usd_per_hour=off
    """
    given: dict[str, Any] = {}
    for change in changes:
        key, sign, value = change.partition("=")
        if not sign:
            raise click.UsageError(f"{change!r} is no KEY=VALUE")
        long = f"{key}_seconds"
        given[long if long in PoolSpec.__struct_fields__ else key] = value
    return client.set_pool(name, given)


@pools.add("scale", pool_table, act="pool.scale")
@click.option("--min", "least", type=int, help="Hosts kept, with or without work.")
@click.option("--max", "most", type=int, help="Hosts at most.")
@click.option("--buffer", type=int, help="Idle hosts kept ready while others are busy.")
def scale(
    client: Client, name: str, least: int | None, most: int | None, buffer: int | None
) -> PoolStatus:
    """Change a pool's bounds.

    \b
    Example:
      holdfast pools scale a100 --min 1 --max 8
    """
    return client.scale_pool(name, min=least, max=most, buffer=buffer)


@pools.add("pause", pool_table, act="pool.pause", asks=True)
@click.option("--reason", default="", help="Shown by `pools` and `why`.")
def pause(client: Client, name: str, reason: str) -> PoolStatus:
    """Have a pool rent no machine and end none until it is resumed.

    \b
    Example:
      holdfast pools pause a100 --reason "a bill"
    """
    return client.pause_pool(name, reason)


@pools.add("resume", pool_table, act="pool.resume")
def resume(client: Client, name: str) -> PoolStatus:
    """Have a pool rent and end machines again, at once, as if no rental had failed.

    \b
    Example:
      holdfast pools resume a100
    """
    return client.resume_pool(name)


@pools.add("delete", pool_table, act="pool.delete", asks=True)
@click.option(
    "--forget",
    is_flag=True,
    help="At once, on your word that its machines are gone: where its provider is no more.",
)
def delete(client: Client, name: str, forget: bool) -> PoolStatus:
    """Delete a pool: its hosts go as they fall idle, then it is forgotten.

    A pool whose provider answers no more confirms no end, and stays until it is deleted with --forget:
    then its work is placed again at once, and no machine of it is ended or listed any more.

    \b
    Examples:
      holdfast pools delete a100
      holdfast pools delete old-cluster --forget
    """
    return client.delete_pool(name, forget=forget)


@pools.command()
@click.argument("name")
@click.option("-n", "--last", default=20, help="So many, the newest last.")
@talks
def cycles(io: CommandIO, name: str, last: int) -> None:
    """Show a pool's last cycles: what it found, what it did, and why.

    \b
    Example:
      holdfast pools cycles a100 -n 5
    """
    with io.client() as client:
        found = client.pool_cycles(name, limit=last)[:last]
    io.show(found, cycles_table(found[::-1]) if found else "no cycle has run yet")


def cycles_table(found: Sequence[CycleSummary]) -> str:
    """Draw cycles, a line each, and below them every reason, with the age of its cycle."""
    rows = [
        (
            age(c.timestamp),
            str(c.status.queued_tasks),
            str(c.status.spawning_hosts),
            str(c.status.active_hosts),
            str(c.status.terminating_hosts),
            str(c.status.total_hosts),
            _say_actions(c),
        )
        for c in found
    ]
    head = ("AGO", "QUEUED", "STARTING", "ACTIVE", "ENDING", "TOTAL", "DID")
    said = [line for cycle in found for line in _say_reasons(cycle)]
    return "\n".join([table(head, rows), *([""] if said else []), *said])


def _say_reasons(cycle: CycleSummary) -> list[str]:
    reasons = (cycle.error,) if cycle.error else cycle.reasons
    return [f"{age(cycle.timestamp)} ago: {reason}" for reason in reasons]


def _say_actions(cycle: CycleSummary) -> str:
    done = {
        name.removeprefix("hosts_"): getattr(cycle.actions, name)
        for name in cycle.actions.__struct_fields__
    }
    return " ".join(f"{word}:{count}" for word, count in done.items() if count) or "-"


@pools.command()
@click.argument("name")
@talks
def plan(io: CommandIO, name: str) -> int:
    """Show what a pool's cycle would do now, and why. Nothing is changed.

    \b
    Example:
      holdfast pools plan a100
    """
    with io.client() as client:
        found = client.plan_pool(name)
    io.show(found, cycles_table([found.summary]))
    return 1 if found.summary.error else 0


@pools.command()
@click.argument("names", metavar="[POOL]...", nargs=-1)
@click.option("--once", is_flag=True, help="One cycle of each pool, then exit.")
@click.option("--dry-run", is_flag=True, help="Only say what would be done.")
@talks
def run(io: CommandIO, names: Sequence[str], once: bool, dry_run: bool) -> int:
    """Run cycles by hand: JSON summaries on stdout, exit code 1 after an error.

    The controller runs them by itself; this is for watching one, or for a schedule of one's own.

    \b
    Examples:
      holdfast pools run --once
      holdfast pools run a100 --once --dry-run
    """
    failed = False
    with io.client() as client:
        while True:
            known = {pool.name: pool for pool in client.pools()}
            for name in names or known:
                try:
                    one = client.plan_pool(name).summary if dry_run else client.run_pool(name)
                except HoldfastError as error:
                    note(f"{name}: {error.message}")
                    failed = True
                    continue
                failed = failed or bool(one.error)
                io.show_json_line(one)
            if once:
                return int(failed)
            polls = [p.spec.poll_seconds for p in known.values()]
            time.sleep(min(polls, default=30.0))
