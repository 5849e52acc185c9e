"""Turn the words of `tasks call` into a call, and wait for its result."""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Mapping
from subprocess import DEVNULL, PIPE, Popen, TimeoutExpired
from typing import TYPE_CHECKING, Any

import msgspec

from holdfast.cli.code.workdir import find_code
from holdfast.cli.options import read_pairs, read_seconds
from holdfast.cli.output import note
from holdfast.core.calls.values import FunctionSpec
from holdfast.errors import ValidationError
from holdfast.wire.mismatch import refuse

if TYPE_CHECKING:
    from holdfast.client import Client
    from holdfast.wire.calls import CallResult

FIRST_SECONDS, RESULT_SECONDS = 2, 20
IMPORT_SECONDS = 120.0


def wait_for(client: Client, set_id: str, timeout: float | None) -> CallResult | None:
    """Return the result of a set's only call, None after `timeout`; say what holds it up."""
    until = None if timeout is None else time.monotonic() + timeout
    most, said = FIRST_SECONDS, set()
    while True:
        left = most if until is None else until - time.monotonic()
        wait = max(0.0, min(most, left))
        found = client.call_results(set_id, limit=1, wait_seconds=wait).results
        if found:
            return found[0]
        if until is not None and time.monotonic() >= until:
            return None
        most = RESULT_SECONDS
        for line in client.call_view(set_id, 0).why[:1]:
            if line.code not in said:
                said.add(line.code)
                hint = f" ({line.hint})" if line.hint else ""
                note(f"waiting: {line.message}{hint}")


def check_arguments(text: str) -> None:
    """Raise ValidationError for what is no JSON object."""
    try:
        found = json.loads(text)
    except ValueError as error:
        raise ValidationError(f"ARGUMENTS is no JSON: {error}") from None
    if not isinstance(found, dict):
        raise ValidationError("ARGUMENTS is a JSON object of parameters by name, as '{\"x\": 3}'")


def read_declared(function: str) -> tuple[FunctionSpec | None, str | None]:
    """Return the options, and the folder to take along, that a function of this folder, or of the
    packages here, declares; None for both, with a note to the user, where the function cannot be
    imported here, as for an app that only hosts have."""
    out, into = os.pipe()
    words = [sys.executable, "-P", "-m", "holdfast.functions.declared", function, str(into)]
    try:
        with os.fdopen(out, "rb") as pipe:
            process = Popen(words, stdin=DEVNULL, stdout=DEVNULL, stderr=PIPE, pass_fds=(into,))
            os.close(into)
            try:
                _, said = process.communicate(timeout=IMPORT_SECONDS)
            except TimeoutExpired:
                process.kill()
                _, said = process.communicate()
                said += f"\nits import took over {IMPORT_SECONDS:g} s".encode()
            if process.returncode == 0:
                return msgspec.json.decode(pipe.read(), type=tuple[FunctionSpec, str | None])
    except OSError as error:
        said = str(error).encode()
    why = (said.decode(errors="replace").strip().splitlines() or ["no reason was given"])[-1]
    note(
        f"{function} cannot be imported here, so that the call has the options of this command alone, "
        f"not those that the function declares: {why}"
    )
    return None, None


def take_code_flags(options: dict[str, Any], folder: str | None) -> dict[str, Any]:
    """Take the flags about code out of a command's options. folder: what goes along where they name
    neither a folder nor a repository."""
    names = ("workdir", "git", "workdir_max", "send_anyway")
    flags = {name: options.pop(name) for name in names}
    return flags if flags["workdir"] or flags["git"] else {**flags, "workdir": folder}


def bring_code(client: Client, spec: FunctionSpec, flags: Mapping[str, Any]) -> FunctionSpec:
    """Return the function with the code that the flags name, which is sent now."""
    if not (flags["workdir"] or flags["git"]):
        return spec
    return msgspec.structs.replace(spec, code=find_code(client, flags, spec.project))


def make_spec(function: str, *, max_retries: int | None, **options: Any) -> FunctionSpec:
    """Return the function as the options declare it. Raises ValidationError."""
    declared = options.pop("declared", None)
    time_limit = options.pop("time_limit")
    options["host_labels"] = read_pairs("--host-label", options["host_labels"], "host_labels")
    fields = {name: value for name, value in options.items() if value is not None}
    if time_limit is not None:
        off = time_limit.strip().lower() == "off"
        fields["time_limit_seconds"] = "off" if off else read_seconds("--time-limit", time_limit)
    if max_retries is not None:
        fields["retry"] = {"max_retries": max_retries}
    if declared is not None:
        merged = {"host_labels": {**declared.host_labels, **fields.pop("host_labels")}, **fields}
        if declared.retry is not None and max_retries is not None:
            merged["retry"] = {**msgspec.to_builtins(declared.retry), **fields["retry"]}
        fields = {**msgspec.to_builtins(declared), **merged}
    try:
        return msgspec.convert({"function": function, **fields}, FunctionSpec)
    except msgspec.ValidationError as error:
        if "$.function" in str(error):
            message = f"{function!r} is not MODULE:FUNCTION, as mytasks:double"
            raise ValidationError(message) from None
        raise refuse(error, fields, FunctionSpec) from None
