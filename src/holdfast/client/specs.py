"""Job specs from keyword arguments or a file's table, with the names people write and one sentence for a mistake."""

from __future__ import annotations

import re
import secrets
from collections.abc import Callable, Mapping
from typing import Any

import msgspec

from holdfast.core.settings import parse_duration
from holdfast.core.spec import JobSpec, check_spec
from holdfast.errors import ValidationError

_SHORT = {
    "time_limit": "time_limit_seconds",
    "stall_timeout": "stall_timeout_seconds",
    "silence_limit": "silence_limit_seconds",
    "grace": "grace_seconds",
    "lease_ttl": "lease_ttl_seconds",
    "memory": "memory_bytes",
}
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_bytes(text: str | int) -> int:
    """Read `1024`, `512M`, `4G`, `1.5GiB`, `2t` as bytes (powers of 1024). Raises ValueError on anything else."""
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write 512M, 4G or a number of bytes")
    return int(float(match.group(1)) * _UNITS[match.group(2)])


def parse_start(text: str, now: float) -> float:
    """Read `+10m`, an ISO 8601 time or Unix seconds as Unix seconds; `now` is Unix seconds.

    A time without a zone is the caller's local time. Raises ValueError on anything else.
    """
    text = text.strip()
    if text.startswith("+"):
        return now + parse_duration(text[1:])
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    from datetime import datetime

    try:
        return datetime.fromisoformat(text).timestamp()
    except ValueError:
        raise ValueError(f"{text!r} is not a time; write +10m, 2027-01-31T18:00 or Unix seconds") from None


def build_spec(fields: Mapping[str, Any]) -> JobSpec:
    """Make a checked spec of `fields`: those of `JobSpec`, where a duration may be "2h", a size "4G", and
    `memory`, `time_limit`, `grace`, … stand for the names that carry a unit.

    Raises:
        ValidationError: with the field and what would do.
    """
    plain: dict[str, Any] = {}
    for given, value in fields.items():
        name = _SHORT.get(given, given)
        if name not in JobSpec.__struct_fields__:
            raise ValidationError(f"a job has no field {given!r}; there are {_names()}", field=given)
        if name in plain:
            raise ValidationError(f"{given} is given twice, as {name} too", field=given)
        if value is not None:
            plain[name] = _read_value(given, name, value)
    try:
        return check_spec(msgspec.convert(plain, JobSpec))
    except msgspec.ValidationError as error:
        raise _explain(error, plain) from error


def _read_value(given: str, name: str, value: Any) -> Any:
    reader: Callable[[Any], Any] | None = None
    if isinstance(value, str):
        if name.endswith("_seconds") and value.strip().lower() != "off":
            reader = parse_duration
        elif name.endswith("_seconds"):
            return "off"
        elif name == "memory_bytes":
            reader = parse_bytes
    if name in ("env", "secrets", "labels") and isinstance(value, Mapping):
        # A file may say `SEED = 7`; an environment holds text only.
        return {str(k): v if isinstance(v, str) else _as_text(v) for k, v in value.items()}
    if name == "start_at" and not isinstance(value, (str, int, float)) and hasattr(value, "timestamp"):
        return value.timestamp()  # a TOML or YAML date
    if reader is None:
        return value
    try:
        return reader(value)
    except ValueError as error:
        raise ValidationError(f"{given}: {error}", field=given) from None


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else value


def _explain(error: msgspec.ValidationError, fields: Mapping[str, Any]) -> ValidationError:
    message, _, where = str(error).partition(" - at `$.")
    field = where.rstrip("`")
    name = re.split(r"[.\[]", field)[0]
    if "matching regex" in message and name in ("queue", "project"):
        message = f"{fields.get(name)!r} is not a name: letters, digits, `.`, `_`, `/` and `-`, a letter or digit first"
    elif "matching regex" in message and name == "cwd":
        message = f"{fields.get(name)!r} is not an absolute path"
    elif name in fields and not isinstance(fields[name], (dict, list, tuple)):
        message = f"{message}, not {fields[name]!r}"
    return ValidationError(f"{field}: {message}" if field else message, field=field or None)


def _names() -> str:
    return ", ".join(JobSpec.__struct_fields__)


def merge_spec(spec: JobSpec | None, fields: Mapping[str, Any]) -> JobSpec:
    """`spec` with `fields` over it, checked."""
    if spec is None:
        return build_spec(fields)
    return check_spec(msgspec.structs.replace(spec, **fields) if fields else spec)


def keyed(spec: JobSpec) -> JobSpec:
    """The spec with an idempotency key, made up where it has none, so that it may be sent twice."""
    if spec.idempotency_key is not None:
        return spec
    return msgspec.structs.replace(spec, idempotency_key=f"auto-{secrets.token_hex(16)}")
