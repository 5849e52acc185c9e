"""Job specs made of keyword arguments or a file's table, with the short names that people write."""

import codecs
import os
import re
import secrets
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any

import msgspec

from holdfast.core.calls.values import FunctionSpec
from holdfast.core.causes import parse_causes
from holdfast.core.retry import RetryFields, RetryPolicy
from holdfast.core.settings.resolve import parse_duration
from holdfast.core.spec import JobSpec, check_spec
from holdfast.errors import ValidationError
from holdfast.wire.mismatch import clip, locate, say_mismatch

SHORT_NAMES = {
    "time_limit": "time_limit_seconds",
    "expected": "expected_seconds",
    "stall_timeout": "stall_timeout_seconds",
    "silence_limit": "silence_limit_seconds",
    "first_beat_timeout": "first_beat_timeout_seconds",
    "idle_timeout": "idle_timeout_seconds",
    "grace": "grace_seconds",
    "lease_ttl": "lease_ttl_seconds",
    "budget_reset": "budget_reset_seconds",
    "pull_timeout": "image_pull_seconds",
    "setup_timeout": "setup_seconds",
    "min_runtime": "preempt_min_run_seconds",
    "notice": "notice_seconds",
    "start_timeout": "start_timeout_seconds",
    "recovery_timeout": "recovery_timeout_seconds",
    "memory": "memory_bytes",
}
_VARIABLE = r"[A-Za-z_][A-Za-z0-9_]*"
_POSIX_ZONE = re.compile(r"(<[^>]+>|[A-Za-z]{3,})[+-]?\d")
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20, "g": 1 << 30, "t": 1 << 40}


def parse_bytes(text: str | int) -> int:
    """Read `1024`, `512M`, `4G`, `1.5GiB` as bytes (powers of 1024). Raises ValueError."""
    if isinstance(text, int):
        return text
    match = re.fullmatch(r"(\d+(?:\.\d+)?)\s*([kmgt]?)(?:i?b)?", text.strip().lower())
    if match is None:
        raise ValueError(f"{text!r} is not a size; write 512M, 4G or a number of bytes")
    try:
        return int(float(match.group(1)) * _UNITS[match.group(2)])
    except OverflowError:
        raise ValueError(f"{text[:20]!r}… is more than any machine has") from None


def parse_start(text: str, now: float) -> float:
    """Read `+10m`, an ISO 8601 time or Unix seconds as Unix seconds; `now` is Unix seconds.

    A time without a zone is the caller's local time. Raises ValueError for any other text, and
    ValidationError for a local time that does not exist, or comes twice, or of an unknown time zone.
    """
    text = text.strip()
    if text.startswith("+"):
        return now + parse_duration(text[1:])
    if re.fullmatch(r"\d+(\.\d+)?", text):
        return float(text)
    try:
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise ValueError(
            f"{text!r} is not a time; write +10m, 2027-01-31T18:00 or Unix seconds"
        ) from None
    return moment.timestamp() if moment.tzinfo is not None else _read_local(moment, text)


def _read_local(moment: datetime, text: str) -> float:
    """Return a local time as Unix seconds. Raises ValidationError."""
    zone = os.environ.get("TZ", "")
    if zone and not _POSIX_ZONE.match(zone) and not _knows_zone(zone.removeprefix(":")):
        raise ValidationError(
            f"{text!r} is a local time, and TZ={zone!r} names no time zone that is known here; "
            "write the time with its offset, as 2027-01-31T18:00+01:00",
            field="time",
        )
    first, second = (moment.replace(fold=fold) for fold in (0, 1))
    if first.timestamp() == second.timestamp():
        return first.timestamp()
    exists = datetime.fromtimestamp(first.timestamp()) == moment
    what = "comes twice" if exists else "does not exist"
    ways = " or ".join(f"{one:%z}" for one in (first.astimezone(), second.astimezone()))
    raise ValidationError(
        f"{text!r} {what}, because the clock is changed then; write it with its offset: {ways}",
        field="time",
    )


def _knows_zone(name: str) -> bool:
    import zoneinfo

    try:
        return os.path.isfile(name) or bool(zoneinfo.ZoneInfo(name))
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        return False


def build_spec(fields: Mapping[str, Any]) -> JobSpec:
    """Make a checked spec of `fields`, which are those of `JobSpec`.

    A duration may be "2h", a size "4G"; `memory`, `time_limit`, `grace`, … stand for the names that
    carry a unit; `retry` is a `RetryPolicy`, a `RetryFields`, or their fields by name.

    Raises:
        ValidationError: a field does not fit; the message names it and the values that it accepts.
    """
    return _make_spec(_read_fields(fields))


def _read_fields(fields: Mapping[str, Any]) -> dict[str, Any]:
    plain: dict[str, Any] = {}
    for given, value in fields.items():
        name = SHORT_NAMES.get(given, given)
        if name not in JobSpec.__struct_fields__:
            raise ValidationError(
                f"a job has no field {given!r}; there are {_names()}", field=given
            )
        if name in plain:
            raise ValidationError(f"{given} is given twice, as {name} too", field=given)
        if value is not None:
            plain[name] = _read_value(given, name, value)
    return plain


def _make_spec(plain: Mapping[str, Any]) -> JobSpec:
    try:
        return check_spec(msgspec.convert(plain, JobSpec))
    except msgspec.ValidationError as error:
        raise _explain(error, plain) from error


def _read_value(given: str, name: str, value: Any) -> Any:
    reader: Callable[[Any], Any] | None = None
    if isinstance(value, str):
        if name.endswith("_seconds"):
            if value.strip().lower() == "off" and name != "expected_seconds":
                return "off"
            reader = parse_duration
        elif name == "memory_bytes":
            reader = parse_bytes
    if name == "retry":
        return read_retry(value)
    if name == "no_progress_limit" and isinstance(value, str):
        word = value.strip().lower()
        return int(word) if re.fullmatch(r"[0-9]{1,18}", word) else word
    if name in ("env", "secrets", "labels", "host_labels") and isinstance(value, Mapping):
        return read_labels(value)
    if name == "start_at" and hasattr(value, "timestamp"):  # a TOML or YAML date
        try:
            return value.timestamp()
        except (ValueError, OverflowError):
            raise ValidationError(
                f"{given}: {value} is not a time that can be waited for", field=given
            ) from None
    if reader is None:
        return value
    try:
        return reader(value)
    except ValueError as error:
        raise ValidationError(f"{given}: {error}", field=given) from None


def read_env(pairs: Sequence[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Read variables given as K=V, or as K for that of `environ`. Raises ValidationError."""
    values = {}
    for pair in pairs:
        name, equals, value = pair.partition("=")
        if not equals and name not in environ:
            message = f"--env {name}: no such variable here; write {name}=VALUE"
            raise ValidationError(message, field=f"env.{name}")
        values[_as_utf8(name)] = _as_utf8(value if equals else environ[name])
    return values


def _as_utf8(word: str) -> str:
    """Return a word of the command line as UTF-8 text, in whichever locale Python read it."""
    try:
        return os.fsencode(word).decode()
    except ValueError:  # other text, or none: the submission judges it
        return word


def read_env_files(paths: Sequence[str]) -> dict[str, str]:
    """Read files of lines K=V in UTF-8; lines that are empty or begin with # say nothing. Raises
    ValidationError with the line."""
    values = {}
    for path in paths:
        try:
            # As bytes, because a text also has line ends inside of values, such as U+2028.
            data = Path(path).read_bytes().removeprefix(codecs.BOM_UTF8)
            lines = [line.decode() for line in data.splitlines()]
        except (OSError, ValueError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no UTF-8"
            raise ValidationError(
                f"--env-file {path}: cannot be read: {why}", field="env"
            ) from None
        for number, line in enumerate(lines, 1):
            text = line.strip().removeprefix("export ").lstrip()
            if not text or text.startswith("#"):
                continue
            name, equals, value = text.partition("=")
            if not equals or not name.strip():
                raise ValidationError(
                    f"--env-file {path}, line {number}: it is not K=V", field="env"
                )
            value = value.strip()
            if len(value) > 1 and value[0] == value[-1] and value[0] in "'\"":
                value = value[1:-1]
            values[name.strip()] = value
    return values


def read_secrets(words: Iterable[str], environ: Mapping[str, str]) -> dict[str, str]:
    """Return secrets that are given as `K=V`, `K=@FILE`, or the name of a variable of `environ`.
    Raises ValidationError."""
    values = {}
    for word in words:
        name, equals, value = word.partition("=")
        if not equals:
            if name not in environ:
                # The message does not repeat the word, because it may be a secret without its name.
                raise ValidationError(
                    "--secret needs K=V, K=@FILE, or the name of a variable set here",
                    field="secrets",
                )
            value = environ[name]
        elif value.startswith("@"):
            value = _read_secret_file(name, value[1:])
        values[name] = value
    return values


def _read_secret_file(name: str, path: str) -> str:
    """Return a file's text unchanged, except for one last line end. Raises ValidationError, which
    does not repeat the path, because the path may be a value that begins with an @."""
    try:
        with open(path, "rb") as file:
            text = file.read().decode()
    except UnicodeDecodeError:
        why = "it is not UTF-8, and a variable holds text"
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "its name cannot be one"
    else:
        return text[:-2] if text.endswith("\r\n") else text.removesuffix("\n")
    hint = "a value that begins with @ is given by the name of a variable, or in a file"
    sentence = f"--secret {name}: the file named after the @ cannot be read: {why} ({hint})"
    raise ValidationError(sentence, field="secrets")


FUNCTION_WORDS = {
    "time_limit": "time_limit_seconds",
    "stall_timeout": "stall_timeout_seconds",
    "silence_limit": "silence_limit_seconds",
    "first_beat_timeout": "first_beat_timeout_seconds",
    "cold_wait": "cold_wait_seconds",
    "memory": "memory_bytes",
}
"""Option of a function → the field of `FunctionSpec` that it stands for."""


def read_function_fields(given: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options of `@holdfast.task` as fields of a `FunctionSpec`: "2h", "4G", and a number
    of retries are read. Raises ValidationError."""
    fields: dict[str, Any] = {}
    for option, value in given.items():
        name = FUNCTION_WORDS.get(option, option)
        if name not in FunctionSpec.__struct_fields__ or name == "function":
            names = (n for n in FunctionSpec.__struct_fields__ if n != "function")
            known = ", ".join([*FUNCTION_WORDS, *names])
            raise ValidationError(f"a task has no option {option!r}; there are {known}")
        if value is None:
            continue
        try:
            fields[name] = _read_function_option(name, value)
        except ValueError as error:
            raise ValidationError(f"{option}: {error}", field=option) from None
    return fields


def _read_function_option(name: str, value: Any) -> Any:
    if name == "code":
        return msgspec.to_builtins(value)
    if name == "retry":
        return read_retry({"max_retries": value} if isinstance(value, int) else value)
    if name == "memory_bytes":
        return parse_bytes(value)
    if name == "host_labels":
        if not isinstance(value, Mapping):
            raise ValueError("a mapping, as {'rack': '!b12'}")
        return read_labels(value)
    if name.endswith("_seconds") and isinstance(value, str):
        word = value.strip().lower()
        return word if word == "off" else parse_duration(word)
    return value


def read_retry(given: Any) -> dict[str, Any]:
    """Return a retry policy's fields as plain values.

    Delays may be "5m", the ceiling "off", the causes "oom_killed,infra".

    Raises:
        ValidationError: a field does not fit; the message names it, as `retry.retry_delay`.
    """
    if isinstance(given, (RetryFields, RetryPolicy)):
        plain = msgspec.to_builtins(given)
        assert isinstance(plain, dict)
        return plain
    if not isinstance(given, Mapping):
        raise ValidationError(
            f"retry is a table of a policy's fields, not {given!r}", field="retry"
        )
    fields: dict[str, Any] = {}
    for name, value in given.items():
        where = f"retry.{name}"
        if name not in RetryFields.__struct_fields__:
            names = ", ".join(RetryFields.__struct_fields__)
            raise ValidationError(
                f"a retry policy has no field {name!r}; there are {names}", field=where
            )
        fields[name] = _read_retry_value(name, where, value)
    return fields


def _read_retry_value(name: str, where: str, value: Any) -> Any:
    if name == "eligible_causes":
        words = value if isinstance(value, (list, tuple)) else [value]
        if not words:
            return []
        try:
            return [str(cause) for cause in parse_causes(",".join(map(str, words)))]
        except ValidationError as error:
            raise ValidationError(
                error.message.replace("retry_on", where, 1), field=where
            ) from None
    if name == "max_retry_delay" and isinstance(value, str) and value.strip().lower() == "off":
        return None
    if name in ("retry_delay", "max_retry_delay") and isinstance(value, str):
        try:
            return parse_duration(value)
        except ValueError as error:
            raise ValidationError(f"{where}: {error}", field=where) from None
    return value


def read_labels(given: Mapping[Any, Any]) -> dict[str, Any]:
    """Return names and values as text. A file may say `SEED = 7`, but an environment and labels
    hold text only."""
    return {str(k): v if isinstance(v, str) else _as_text(v) for k, v in given.items()}


def _as_text(value: Any) -> Any:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value) if isinstance(value, (int, float)) else value


def _explain(error: msgspec.ValidationError, fields: Mapping[str, Any]) -> ValidationError:
    said, field = locate(error, dict(fields), JobSpec)
    message = say_mismatch(said, JobSpec, field)
    if field in ("queue", "project") and "a letter or digit first" in message:
        message = f"{clip(repr(fields[field]))} is not a name: {message.removeprefix('must be ')}"
    elif field.startswith("env[") and "no digit first" in message:
        field = "env"
        odd = next((k for k in fields[field] if not re.fullmatch(_VARIABLE, k)), "")
        message = f"{clip(repr(odd))} is not a variable's name: {message.removeprefix('must be ')}"
    elif field in fields and not isinstance(fields[field], (dict, list, tuple)):
        message = f"{message.partition(', not ')[0]}, not {clip(repr(fields[field]))}"
    return ValidationError(f"{field}: {message}" if field else message, field=field or None)


def _names() -> str:
    return ", ".join(JobSpec.__struct_fields__)


def merge_spec(spec: JobSpec | Sequence[str] | None, fields: Mapping[str, Any]) -> JobSpec:
    """Return `spec` with `fields` over it, checked; a list of words is the job's `argv`.

    Raises:
        ValidationError: a field does not fit; the message names it and the values that it accepts.
    """
    if isinstance(spec, str):
        words = 'a command is a list of words, as in ["python", "train.py"]'
        raise ValidationError(f"{words}; a line for the shell is shell={spec[:60]!r}", field="argv")
    if spec is not None and not isinstance(spec, JobSpec):
        if "argv" in fields:
            raise ValidationError("the command is given twice, as argv too", field="argv")
        return build_spec({**fields, "argv": spec})
    if spec is None:
        return build_spec(fields)
    if not fields:
        return check_spec(spec)
    cleared = {SHORT_NAMES.get(name, name) for name, value in fields.items() if value is None}
    kept = {
        n: v for n, v in msgspec.structs.asdict(spec).items() if v is not None and n not in cleared
    }
    return _make_spec(msgspec.to_builtins(kept | _read_fields(fields)))


def keyed(spec: JobSpec) -> JobSpec:
    """Return the spec with an idempotency key, so that it may be sent twice."""
    if spec.idempotency_key is not None:
        return spec
    return msgspec.structs.replace(spec, idempotency_key=f"auto-{secrets.token_hex(16)}")
