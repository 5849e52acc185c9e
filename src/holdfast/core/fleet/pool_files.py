"""Read pools from TOML, one table `[pool.NAME]` each, and from the environment of a container.

The environment overrides a file: `HOLDFAST_POOL_<NAME>_<KEY>` for one pool (upper case, anything
else than letters and digits as `_`), `HOLDFAST_POOL_<KEY>` for every pool. The names that existing
deployments use are accepted as aliases of the second kind.
"""

import re
import tomllib
from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import msgspec

from holdfast.core.fleet.pools import PoolSpec, check_pool
from holdfast.core.settings.resolve import parse_duration
from holdfast.errors import ValidationError

ALIASES: Mapping[str, str] = {
    "ORCHESTRATOR_POLL_SEC": "poll_seconds",
    "MIN_ACTIVE_GPUS": "min",
    "MAX_ACTIVE_GPUS": "max",
    "TASKS_PER_GPU_THRESHOLD": "jobs_per_host",
    # In those deployments this is the age at which a heartbeat expires, not a time of idleness.
    "GPU_IDLE_TIMEOUT_SEC": "heartbeat_timeout_seconds",
    "TASK_STUCK_TIMEOUT_SEC": "stuck_timeout_seconds",
    "SPAWNING_TIMEOUT_SEC": "spawn_timeout_seconds",
    "GRACEFUL_SHUTDOWN_TIMEOUT_SEC": "shutdown_grace_seconds",
    "GPU_HEALTH_CHECK_TIMEOUT_SEC": "telemetry_stale_seconds",
}
UNNEEDED = ("AUTO_START_WORKER_PROCESS",)
_ALIAS_BOUNDS = {"min": 2, "max": 10}  # defaults of deployments that use these aliases
_TEXT = ("name", "provider")
_TIMES = tuple(f for f in PoolSpec.__struct_fields__ if f.endswith("_seconds"))
_NUMBERS = ("min", "max", "buffer", "jobs_per_host", "max_usd_per_hour", "max_usd_per_day")
_SETTABLE = (*_TIMES, *_NUMBERS, "queues")


class PoolsRead(msgspec.Struct, frozen=True, kw_only=True):
    """The pools of a file, and a line to log for each alias that was used."""

    pools: tuple[PoolSpec, ...]
    notes: tuple[str, ...] = ()


def read_pools(text: str, environment: Mapping[str, str]) -> PoolsRead:
    """Return every pool of a TOML text, with the environment's changes. An empty variable counts as
    not set, because containers are given empty variables for settings that have no value.

    Raises:
        ValidationError: names the pool, the key and what would do.
    """
    try:
        document = tomllib.loads(text)
    except (ValueError, RecursionError) as error:  # a number of 5000 digits, too
        raise ValidationError(f"the pool file is not TOML: {error}", field="pool") from None
    tables = document.pop("pool", None)
    if document:
        first = sorted(document)[0]
        raise ValidationError(
            f"the pool file has {first!r} at its top; it takes one table [pool.NAME] for each pool",
            field=first,
        )
    if not isinstance(tables, dict) or not tables:
        raise ValidationError("the pool file has no table [pool.NAME]", field="pool")
    environment = {name: value for name, value in environment.items() if value.strip()}
    everywhere, notes = _read_aliases(environment)
    pools = tuple(
        _read_pool(name, table, everywhere, environment) for name, table in tables.items()
    )
    return PoolsRead(pools=pools, notes=notes)


def _read_aliases(environment: Mapping[str, str]) -> tuple[dict[str, str], tuple[str, ...]]:
    found = {key: environment[alias] for alias, key in ALIASES.items() if alias in environment}
    notes = [
        f"{alias} is taken as HOLDFAST_POOL_{key.upper()}"
        for alias, key in ALIASES.items()
        if alias in environment
    ]
    notes += [
        f"{name} is not needed: an agent starts its tasks by itself"
        for name in UNNEEDED
        if name in environment
    ]
    return found, tuple(notes)


def _implied_bounds(aliases: Mapping[str, str]) -> Mapping[str, int]:
    return _ALIAS_BOUNDS if aliases else {}


def _read_pool(
    name: str, table: Any, aliases: Mapping[str, str], environment: Mapping[str, str]
) -> PoolSpec:
    if not isinstance(table, dict):
        raise ValidationError(f"pool.{name} is no table", field=f"pool.{name}")
    values: dict[str, Any] = {}
    for key, value in table.items():
        full = f"{key}_seconds"
        known = full if full in _TIMES else key
        if known in values:
            raise ValidationError(f"pool.{name} says {key} and {full}", field=f"pool.{name}.{key}")
        values[known] = value
    # A bound that aliases imply fills a gap; a variable that is there overrides the file.
    values = {**_implied_bounds(aliases), **values, **aliases}
    sources = {key: alias for alias, key in ALIASES.items() if key in aliases}
    own = re.sub(r"[^A-Z0-9]", "_", name.upper())
    for key in _SETTABLE:
        for variable in (f"HOLDFAST_POOL_{key.upper()}", f"HOLDFAST_POOL_{own}_{key.upper()}"):
            if variable in environment:
                values[key], sources[key] = environment[variable], variable
    return make_pool(name, values, sources)


def make_pool(
    name: str, values: Mapping[str, Any], sources: Mapping[str, str] = MappingProxyType({})
) -> PoolSpec:
    """Make a pool of values from a file, flags or variables, where times may be written as "5m".

    sources: key → the environment variable that gave its value, for messages.

    Raises:
        ValidationError: names the pool, the key and what would do.
    """
    unknown = sorted(set(values) - set(PoolSpec.__struct_fields__))
    if unknown:
        raise ValidationError(
            f"pool {name} has no {unknown[0]!r}; it takes "
            + ", ".join(f for f in PoolSpec.__struct_fields__ if f != "name"),
            field=f"pool.{name}.{unknown[0]}",
        )
    read = {
        key: _read_value(name, key, value, sources.get(key, key)) for key, value in values.items()
    }
    try:
        return check_pool(msgspec.convert({**read, "name": name}, PoolSpec))
    except msgspec.ValidationError as error:
        raise ValidationError(f"pool {name}: {error}", field=f"pool.{name}") from None


def _read_value(pool: str, key: str, value: Any, source: str) -> Any:
    if not isinstance(value, str) or key in _TEXT:
        return value
    try:
        if key in _TIMES:
            return None if value == "off" else parse_duration(value)
        if key in _NUMBERS:
            return _read_number(value)
        if key == "queues":
            return [word for word in re.split(r"[,\s]+", value) if word]
    except (ValueError, ValidationError) as error:
        raise ValidationError(
            f"pool {pool}: {source} = {value!r} cannot be read: {error}", field=f"pool.{pool}.{key}"
        ) from None
    return value


def _read_number(text: str) -> float | None:
    """Read a number, or `off` for none. Raises ValueError."""
    if text == "off":
        return None
    try:
        return int(text) if text.isdecimal() else float(text)
    except ValueError:
        raise ValueError(f"{text!r} is no number; write 4, 2.5, or off for no limit") from None
