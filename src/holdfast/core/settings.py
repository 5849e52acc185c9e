"""Every constant a user may change, in one registry, and where its effective value came from.

Layers, strongest first: job > queue > cluster > environment > default. A layer says nothing by leaving the name
out; `None` as a value means "off" where the setting allows it. Values are read when they are used, so a change
reaches running work at its next sync.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, Literal, cast

import msgspec

from holdfast.errors import ValidationError

Value = float | int | bool | str | None
Kind = Literal["seconds", "int", "number", "bool", "word"]


class Setting(msgspec.Struct, frozen=True):
    """One setting: `name` carries its unit last; `low` and `high` bound it; `words` lists a word's choices."""

    name: str
    kind: Kind
    default: Value
    help: str
    low: float = 0
    high: float = math.inf
    may_be_off: bool = False
    words: tuple[str, ...] = ()
    scope: Literal["job", "queue", "cluster"] = "job"  # the most specific layer that may set it

    @property
    def environment_name(self) -> str:
        """The environment variable that sets it."""
        return "HOLDFAST_" + self.name.upper()


class Effective(msgspec.Struct, frozen=True):
    """A setting's value in force, and the layer it came from."""

    name: str
    value: Value
    source: str


_DAY = 86_400.0
_ALL = (
    # watchdogs (DESIGN §4)
    Setting(
        "time_limit_seconds",
        "seconds",
        None,
        "wall clock a task may take",
        low=0.05,
        high=366 * _DAY,
        may_be_off=True,
    ),
    Setting("stall_watch", "bool", True, "watch for beats that stop"),
    Setting(
        "stall_timeout_seconds",
        "seconds",
        120.0,
        "silence after the first beat that is suspected",
        low=0.05,
        high=_DAY,
        may_be_off=True,
    ),
    Setting(
        "stall_samples",
        "int",
        3,
        "samples that must all say idle before a stall is believed",
        low=1,
        high=100,
    ),
    Setting("stall_sample_interval_seconds", "seconds", 1.0, "time between those samples", low=0.01, high=60),
    Setting(
        "silence_limit_seconds",
        "seconds",
        1800.0,
        "silence after the first beat that needs no confirmation",
        low=0.05,
        high=30 * _DAY,
        may_be_off=True,
    ),
    Setting(
        "section_factor",
        "number",
        5.0,
        "a named section's learned timeout is its longest pass times this",
        low=1,
        high=100,
    ),
    Setting(
        "health_watch",
        "word",
        "auto",
        "idle-and-static watch: auto = tasks with GPUs",
        words=("auto", "on", "off"),
    ),
    Setting(
        "health_window_seconds",
        "seconds",
        300.0,
        "idle and static for this long is wedged",
        low=0.05,
        high=_DAY,
    ),
    Setting(
        "health_load_grace_seconds",
        "seconds",
        1200.0,
        "the first window, while a job loads; any beat ends it",
        low=0.05,
        high=_DAY,
    ),
    Setting("health_sample_interval_seconds", "seconds", 5.0, "time between health samples", low=0.01, high=600),
    Setting("gpu_idle_percent", "number", 5.0, "GPU utilisation at or under this is idle", low=0, high=100),
    Setting(
        "gpu_memory_moving_mb",
        "number",
        5120.0,
        "GPU memory that moved more than this over a window is working",
        low=0,
    ),
    Setting(
        "cpu_idle_percent",
        "number",
        5.0,
        "CPU time of the tree, in percent of one core, at or under this is idle",
        low=0,
        high=6400,
    ),
    Setting(
        "cpu_memory_moving_mb",
        "number",
        8.0,
        "memory of the tree that moved more than this over a window is working",
        low=0,
    ),
    Setting(
        "io_moving_mb",
        "number",
        1.0,
        "bytes read and written by the tree over a window beyond this are working",
        low=0,
    ),
    Setting(
        "watchdog_cap",
        "int",
        3,
        "watchdog trips a job is requeued after; the next one fails it",
        low=0,
        high=1000,
    ),
    Setting("on_trip", "word", "requeue", "what a trip does", words=("requeue", "fail"), scope="queue"),
    # endings (DESIGN §3.4)
    Setting("grace_seconds", "seconds", 15.0, "time between TERM and KILL", low=0, high=_DAY),
    Setting(
        "drain_force_seconds",
        "seconds",
        45.0,
        "a drain not confirmed by then is forced, once the lease allows it",
        low=1,
        high=_DAY,
        scope="cluster",
    ),
    Setting(
        "forensics_seconds",
        "seconds",
        10.0,
        "bound on what is gathered before a kill",
        low=0,
        high=60,
        scope="cluster",
    ),
    # leases (DESIGN §3.1)
    Setting(
        "lease_ttl_seconds",
        "seconds",
        300.0,
        "a host's right to run a task, renewed at every sync",
        low=15,
        high=3600,
    ),
    Setting(
        "sync_interval_seconds",
        "seconds",
        5.0,
        "time between an agent's syncs when nothing happens",
        low=0.05,
        high=60,
        scope="cluster",
    ),
    Setting(
        "reservation_seconds",
        "seconds",
        30.0,
        "time a reservation may wait for its start",
        low=1,
        high=_DAY,
        scope="cluster",
    ),
    Setting(
        "dead_host_seconds",
        "seconds",
        30.0,
        "a heartbeat older than this while work runs flags the host",
        low=1,
        high=_DAY,
        scope="cluster",
    ),
    # budgets (DESIGN §3.2)
    Setting(
        "infra_cap",
        "int",
        10,
        "infrastructure failures a job is requeued after; the next one fails it",
        low=0,
        high=1000,
    ),
    # limits
    Setting(
        "log_keep_mb",
        "number",
        16.0,
        "log kept by the controller per stream and attempt: its head and its tail",
        low=0.1,
        high=4096,
    ),
    Setting(
        "log_disk_mb",
        "number",
        256.0,
        "log kept on the host's disk per stream",
        low=1,
        high=1 << 20,
        scope="cluster",
    ),
    Setting(
        "max_running",
        "int",
        None,
        "jobs of a queue that may run at once",
        low=0,
        high=1 << 30,
        may_be_off=True,
        scope="queue",
    ),
    Setting(
        "history_days",
        "number",
        30.0,
        "ended jobs, their attempts and logs are deleted after this",
        low=0.01,
        high=36_500,
        may_be_off=True,
        scope="cluster",
    ),
)
SETTINGS: Mapping[str, Setting] = {s.name: s for s in _ALL}

_QUEUE_RANK = {"job": 0, "queue": 1, "cluster": 2}

BUILTIN_QUEUES: Mapping[str, Mapping[str, Value]] = {
    "gpu": {"time_limit_seconds": 8100.0},
    "video": {"time_limit_seconds": 1800.0, "stall_watch": False},
    "cpu": {"time_limit_seconds": 2100.0},
    "ingest-fetch": {"time_limit_seconds": 7200.0, "on_trip": "fail"},
    "ingest-load": {"time_limit_seconds": 3600.0, "on_trip": "fail"},
    "input": {"time_limit_seconds": 120.0},
}
"""The queues a new cluster starts with, and their defaults (DESIGN §4)."""


def parse_value(name: str, raw: object) -> Value:
    """Read `raw` (text from a person or an environment, or a JSON value) as the setting `name`.

    Raises:
        ValidationError: no such setting, or a value of the wrong kind or out of bounds, with what would do.
    """
    setting = SETTINGS.get(name)
    if setting is None:
        raise ValidationError(f"there is no setting {name!r}; `holdfast config` lists them", field=name)
    if raw is None or (isinstance(raw, str) and raw.strip().lower() in ("off", "none") and setting.may_be_off):
        if not setting.may_be_off:
            raise ValidationError(f"{name} cannot be switched off", field=name)
        return None
    if setting.kind == "bool":
        words = {
            "true": True,
            "on": True,
            "yes": True,
            "1": True,
            "false": False,
            "off": False,
            "no": False,
            "0": False,
        }
        value = words.get(str(raw).strip().lower())
        if value is None:
            raise ValidationError(f"{name} is on or off, not {raw!r}", field=name)
        return value
    if setting.kind == "word":
        if str(raw) not in setting.words:
            raise ValidationError(f"{name} is one of {', '.join(setting.words)}, not {raw!r}", field=name)
        return str(raw)
    if isinstance(raw, bool):
        raise ValidationError(f"{name} is a number, not {raw!r}", field=name)
    try:
        number = parse_duration(raw) if setting.kind == "seconds" and isinstance(raw, str) else float(cast(Any, raw))
    except (TypeError, ValueError, OverflowError):
        raise ValidationError(f"{name} is a number, not {raw!r}", field=name) from None
    if not math.isfinite(number) or not setting.low <= number <= setting.high:
        high = "" if math.isinf(setting.high) else f" and at most {setting.high:g}"
        raise ValidationError(f"{name} is at least {setting.low:g}{high}, not {raw}", field=name)
    if setting.kind == "int":
        if number != int(number):
            raise ValidationError(f"{name} is a whole number, not {raw}", field=name)
        return int(number)
    return number


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": _DAY}


def parse_duration(text: str) -> float:
    """Read `90`, `1.5s`, `2m`, `1h30m` or `7d` as seconds. Raises ValueError on anything else."""
    import re

    text = text.strip().lower()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return float(text)
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", text)
    if not parts or "".join(n + u for n, u in parts) != text:
        raise ValueError(f"{text!r} is not a duration; write 90, 90s, 2m, 1h30m or 7d")
    return sum(float(n) * _UNITS[u] for n, u in parts)


def layer_from_environment(environ: Mapping[str, str]) -> dict[str, Value]:
    """Return the settings that the environment sets. Raises ValidationError naming the variable."""
    layer: dict[str, Value] = {}
    for setting in _ALL:
        if setting.environment_name in environ:
            layer[setting.name] = parse_value(setting.name, environ[setting.environment_name])
    return layer


def resolve(name: str, layers: Sequence[tuple[str, Mapping[str, Any]]]) -> Effective:
    """Return the value in force: the first of `layers` (strongest first) that names it, else the default."""
    for source, layer in layers:
        if name in layer:
            return Effective(name, layer[name], source)
    return Effective(name, SETTINGS[name].default, "default")


def resolve_all(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Effective]:
    """Return every setting's value in force."""
    return {name: resolve(name, layers) for name in SETTINGS}


def check_layer(layer: Mapping[str, object], scope: Literal["job", "queue", "cluster"]) -> dict[str, Value]:
    """Validate a whole layer given by a user for `scope`; raise ValidationError at the first bad name or value."""
    checked: dict[str, Value] = {}
    for name, raw in layer.items():
        value = parse_value(name, raw)
        if _QUEUE_RANK[scope] < _QUEUE_RANK[SETTINGS[name].scope]:
            raise ValidationError(f"{name} is set per {SETTINGS[name].scope}, not per {scope}", field=name)
        checked[name] = value
    return checked


def job_layer(spec: Any) -> dict[str, Value]:
    """Return the settings a `JobSpec` sets itself."""
    layer: dict[str, Value] = {}
    for name in (
        "time_limit_seconds",
        "stall_timeout_seconds",
        "silence_limit_seconds",
        "grace_seconds",
        "lease_ttl_seconds",
        "watchdog_cap",
    ):
        value = getattr(spec, name)
        if value is not None:
            layer[name] = None if value == "off" else value
    return layer
