"""Settings: read and check a value, and find the one in force and its source. `table` lists them.

Layers, strongest first: job > queue > project > cluster > environment > default. Most settings belong
to queues or to projects, and the time limit to both. A layer that leaves a name out has no value
for it; `None` means "off" where the setting allows it. Values are read when they are used, so a
change reaches running work at its next sync.
"""

import math
from collections.abc import Mapping, Sequence
from typing import Any, cast

import msgspec

from holdfast.core.causes import parse_causes
from holdfast.core.retry import fields_layer
from holdfast.core.settings.table import BUILTIN_QUEUES, SETTINGS, Scope, Setting, Value
from holdfast.errors import ValidationError

__all__ = [
    "BUILTIN_QUEUES",
    "SETTINGS",
    "Effective",
    "Scope",
    "Setting",
    "Value",
    "check_layer",
    "job_layer",
    "layer_from_environment",
    "parse_duration",
    "parse_value",
    "resolve",
    "resolve_all",
]


class Effective(msgspec.Struct, frozen=True):
    """A setting's value in force, and the layer it came from."""

    name: str
    value: Value
    source: str


_RANK = {"job": 0, "queue": 1, "project": 1, "cluster": 2}
_ON, _OFF = ("true", "on", "yes", "1"), ("false", "off", "no", "0")
_SWITCH = {**dict.fromkeys(_ON, True), **dict.fromkeys(_OFF, False)}


def parse_value(name: str, raw: object) -> Value:
    """Read `raw` (text from a person or an environment, or a JSON value) as the setting `name`.

    Raises:
        ValidationError: no such setting, or a value of the wrong kind or out of bounds.
    """
    setting = SETTINGS.get(name)
    if setting is None:
        none = f"there is no setting {name!r}; `holdfast config` lists them"
        raise ValidationError(none, field=name)
    word = str(raw).strip().lower()
    if raw is None and not setting.may_be_off:
        raise ValidationError(f"{name} cannot be switched off", field=name)
    off = isinstance(raw, str) and word in ("off", "none") and setting.may_be_off
    if raw is None or off:
        return None
    if setting.kind == "bool":
        if word not in _SWITCH:
            raise ValidationError(f"{name} is on or off, not {raw!r}", field=name)
        return _SWITCH[word]
    if setting.kind == "causes":
        return word if word in ("all", "none") else ",".join(parse_causes(raw))
    if setting.kind == "text":
        return _read_text(setting, raw)
    if setting.kind == "word":
        if str(raw) not in setting.words:
            words = ", ".join(setting.words)
            raise ValidationError(f"{name} is one of {words}, not {raw!r}", field=name)
        return str(raw)
    return _read_number(setting, raw)


def _read_number(setting: Setting, raw: object) -> float | int:
    name = setting.name
    if isinstance(raw, bool):
        raise ValidationError(f"{name} is a number, not {raw!r}", field=name)
    try:
        timed = setting.kind == "seconds" and isinstance(raw, str)
        number = parse_duration(str(raw)) if timed else float(cast(Any, raw))
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


def _read_text(setting: Setting, raw: object) -> str:
    if not isinstance(raw, str) or not raw.isprintable() or len(raw) > setting.high:
        form = f"{setting.name} is a line of at most {setting.high:g} printable characters"
        raise ValidationError(form, field=setting.name)
    return raw


_UNITS = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86_400.0}


def parse_duration(text: str) -> float:
    """Read `90`, `1.5s`, `2m`, `1h30m` or `7d` as seconds. Raises ValueError on anything else."""
    import re

    text = text.strip().lower()
    if re.fullmatch(r"[0-9]+(\.[0-9]+)?", text):
        return _finite(float(text))
    parts = re.findall(r"([0-9]+(?:\.[0-9]+)?)(ms|s|m|h|d)", text)
    if not parts or "".join(n + u for n, u in parts) != text:
        raise ValueError(f"{text!r} is not a duration; write 90, 90s, 2m, 1h30m or 7d")
    return _finite(sum(float(n) * _UNITS[u] for n, u in parts))


def _finite(seconds: float) -> float:
    if math.isinf(seconds):
        raise ValueError("nothing takes that long")
    return seconds


def layer_from_environment(environ: Mapping[str, str]) -> dict[str, Value]:
    """Return the settings that the environment sets. Raises ValidationError naming the variable."""
    layer: dict[str, Value] = {}
    for setting in SETTINGS.values():
        if setting.environment_name in environ:
            layer[setting.name] = parse_value(setting.name, environ[setting.environment_name])
    return layer


def resolve(name: str, layers: Sequence[tuple[str, Mapping[str, Any]]]) -> Effective:
    """Return the value in force: that of the first (strongest) layer with the name, or the default;
    for a switch whose `off` wins, the widest layer that sets it to off."""
    if SETTINGS[name].off_wins:
        for source, layer in reversed(layers):
            if layer.get(name) is False:
                return Effective(name, False, source)
    for source, layer in layers:
        if name in layer:
            return Effective(name, layer[name], source)
    return Effective(name, SETTINGS[name].default, "default")


def resolve_all(layers: Sequence[tuple[str, Mapping[str, Any]]]) -> dict[str, Effective]:
    """Return every setting's value in force."""
    return {name: resolve(name, layers) for name in SETTINGS}


def check_layer(layer: Mapping[str, object], scope: Scope) -> dict[str, Value]:
    """Check a user's layer for `scope`; raise ValidationError at the first bad name or value."""
    checked: dict[str, Value] = {}
    for name, raw in layer.items():
        value = parse_value(name, raw)
        setting = SETTINGS[name]
        if _RANK[scope] < _RANK[setting.scope]:
            raise ValidationError(f"{name} is set per {setting.scope}, not per {scope}", field=name)
        if scope in ("queue", "project") and scope not in setting.layer.split(" or "):
            raise ValidationError(f"{name} is set per {setting.layer}, not per {scope}", field=name)
        checked[name] = value
    return checked


_OF_A_JOB = (
    "time_limit_seconds", "stall_timeout_seconds", "silence_limit_seconds", "grace_seconds", "stop_tells",
    "lease_ttl_seconds", "watchdog_cap", "no_progress_limit", "budget_reset_seconds", "image_pull_seconds",
    "setup_seconds", "start_timeout_seconds",
    "recovery_timeout_seconds", "first_beat_timeout_seconds", "idle_timeout_seconds",
    "preempt_min_run_seconds", "notice_seconds",
    "on_straggler", "straggler_seconds", "on_corruption", "on_standstill", "standstill_seconds",
)  # fmt: skip


def job_layer(spec: Any) -> dict[str, Value]:
    """Return the settings a `JobSpec` sets itself."""
    layer = fields_layer(spec.retry)
    for name in _OF_A_JOB:
        value = getattr(spec, name)
        if value is not None:
            layer[name] = None if value == "off" else value
    return layer
