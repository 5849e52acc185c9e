"""A workflow read from a TOML file, or from YAML where PyYAML is installed.

    name = "nightly"

    [node.fetch]
    argv = ["python", "fetch.py"]          # a job: the fields of `holdfast submit`
    gpus = 1
    secrets = ["HF_TOKEN"]                 # the words of `--secret`, or a table

    [node.decode]
    task = "mytasks:decode"                # a call, with the fields of @holdfast.task
    args = {path = "in.png", after_fetch = "${fetch.exit_code}"}

    [node.variant]
    task = "mytasks:variant"               # a call for each item of a list
    over = "${decode.frames}"
    item = "frame"

    [node.publish]
    ask = "publish it?"                    # a question to a person
    choices = ["yes", "no"]
    after = ["variant"]

A text `"${NODE.key.0}"` is the result of a node, or a part of it; `"$${…}"` is the text itself.
"""

import os
import re
import tomllib
from collections.abc import Callable, Collection, Mapping
from pathlib import Path
from typing import Any

import msgspec

from holdfast.client.specs import FUNCTION_WORDS, build_spec, read_function_fields, read_secrets
from holdfast.core.calls.values import FunctionSpec
from holdfast.core.settings.resolve import parse_duration
from holdfast.core.workflows.check import check_workflow
from holdfast.core.workflows.values import AskWork, WorkflowSpec
from holdfast.errors import ValidationError
from holdfast.wire.mismatch import refuse

_REFERENCE = re.compile(r"\$\{([^${}]+)\}")
_GRAPH = ("after", "skip_if")
_FUNCTION = tuple(name for name in FunctionSpec.__struct_fields__ if name != "function")
_INSIDE = re.compile(r"\$\{\s*([^${}.\s]+)[^${}]*\}")
_ASK = tuple(name for name in AskWork.__struct_fields__ if name != "prompt")
_JOB = {"argv", "shell", "image"}
_TOP = tuple(name for name in WorkflowSpec.__struct_fields__ if name != "nodes")


def read_workflow(
    path: Path, settle: Callable[[dict[str, Any]], None] | None = None
) -> WorkflowSpec:
    """Return the workflow in a file. `settle` completes the fields of each job or call before they
    are read. Raises ValidationError, which names the file."""
    try:
        return build_workflow(_read(path), settle)
    except ValidationError as error:
        raise ValidationError(
            f"{path}: {error.message}", code=error.code, field=error.field
        ) from None


def _read(path: Path) -> Any:
    try:
        data = path.read_bytes()
    except OSError as error:
        raise ValidationError(f"it cannot be read: {error.strerror}") from error
    if path.suffix.lower() in (".yaml", ".yml"):
        return _read_yaml(data)
    try:
        return tomllib.loads(data.decode())
    except (ValueError, RecursionError) as error:  # a number of 5000 digits, too
        raise ValidationError(f"it is no TOML: {error}") from None


def _read_yaml(data: bytes) -> Any:
    try:
        import yaml
    except ImportError:
        raise ValidationError(
            "YAML needs the package PyYAML, which is not installed; write the workflow in TOML"
        ) from None
    try:
        return yaml.safe_load(data)
    except yaml.YAMLError as error:
        raise ValidationError(f"it is no YAML: {error}") from None


def build_workflow(
    given: Any, settle: Callable[[dict[str, Any]], None] | None = None
) -> WorkflowSpec:
    """Return the workflow that a file's tables describe. Raises ValidationError."""
    if not isinstance(given, Mapping):
        raise ValidationError("a workflow is a table with `name` and [node.NAME] tables")
    nodes = given.get("node", {})
    unknown = sorted(given.keys() - {*_TOP, "node"})
    if unknown:
        known = ", ".join((*_TOP, "[node.NAME]"))
        raise ValidationError(
            f"there is no field {unknown[0]!r}; there are {known}", field=unknown[0]
        )
    if not isinstance(nodes, Mapping) or not nodes:
        raise ValidationError("a workflow has at least one [node.NAME] table", field="node")
    plain = {name: given[name] for name in _TOP if name in given}
    plain["nodes"] = [_build_node(str(name), table, settle) for name, table in nodes.items()]
    for name, table in nodes.items():
        _refuse_mixed(str(name), table, nodes)
    try:
        spec = msgspec.convert(plain, WorkflowSpec)
    except msgspec.ValidationError as error:
        raise refuse(error, plain, WorkflowSpec) from None
    check_workflow(spec)
    return spec


def _build_node(
    name: str, table: Any, settle: Callable[[dict[str, Any]], None] | None
) -> dict[str, Any]:
    if not isinstance(table, Mapping):
        raise ValidationError(f"node {name} is not a table", field=f"node.{name}")
    fields = dict(table)
    node: dict[str, Any] = {"name": name}
    for key in _GRAPH:
        if key in fields:
            node[key] = fields.pop(key)
    if isinstance(node.get("after"), str):
        node["after"] = [node["after"]]
    if isinstance(node.get("skip_if"), str):
        node["skip_if"] = {"value": read_references(node["skip_if"])}
    elif "skip_if" in node:
        node["skip_if"] = read_references(node["skip_if"])
    try:
        if "task" in fields:
            if settle is not None:
                settle(fields)
            node["call"] = _build_call(fields)
        elif "ask" in fields:
            node["ask"] = _build_ask(fields)
        elif fields.keys() & _JOB:
            node["job"] = _build_job(fields, settle)
        else:
            given = ", ".join(sorted(fields)) or "nothing"
            raise ValidationError(
                "it does nothing: a job has argv, shell or image, a call of a function has "
                f"task, and a question has ask; here is {given}"
            )
    except ValidationError as error:
        raise ValidationError(
            f"node {name}: {error.message}", field=f"node.{name}.{error.field or ''}".rstrip(".")
        ) from None
    return node


def _build_call(fields: dict[str, Any]) -> dict[str, Any]:
    words = (*FUNCTION_WORDS, *_FUNCTION)
    spec = {"function": fields.pop("task")}
    given = {key: fields.pop(key) for key in words if key in fields}
    spec |= msgspec.to_builtins(read_function_fields(given))
    call: dict[str, Any] = {"spec": spec, "args": read_references(fields.pop("args", {}))}
    if "over" in fields:
        call |= {"over": read_references(fields.pop("over")), "item": fields.pop("item", "")}
    _refuse_others(fields, ("task", "args", "over", "item", *_GRAPH, *words))
    return call


def _build_ask(fields: dict[str, Any]) -> dict[str, Any]:
    ask = {"prompt": fields.pop("ask")}
    timeout = fields.pop("timeout", None)
    if timeout is not None:
        read = isinstance(timeout, str) and timeout != "off"
        ask["timeout_seconds"] = parse_duration(timeout) if read else timeout
    ask |= {key: fields.pop(key) for key in _ASK if key in fields}
    _refuse_others(fields, ("ask", "timeout", *_ASK, *_GRAPH))
    return ask


def _build_job(
    fields: dict[str, Any], settle: Callable[[dict[str, Any]], None] | None
) -> dict[str, Any]:
    secrets = fields.get("secrets")
    if isinstance(secrets, list):
        fields["secrets"] = read_secrets(map(str, secrets), os.environ)
    inputs = read_references(fields.pop("inputs", {}))
    if settle is not None:
        settle(fields)
    return {"spec": msgspec.to_builtins(build_spec(fields)), "inputs": inputs}


def _refuse_others(fields: Mapping[str, Any], known: tuple[str, ...]) -> None:
    if fields:
        first = sorted(fields)[0]
        raise ValidationError(
            f"there is no field {first!r}; there are {', '.join(known)}", field=first
        )


def _refuse_mixed(node: str, table: Mapping[str, Any], nodes: Collection[str]) -> None:
    """Refuse an argument that names a node within a longer text, because such a text would stay as
    it is."""
    inside = [table.get(field) for field in ("args", "over", "inputs")]
    while inside:
        value = inside.pop()
        if isinstance(value, Mapping):
            inside += value.values()
        elif isinstance(value, list):
            inside += value
        elif isinstance(value, str) and not value.startswith("$${"):
            if _REFERENCE.fullmatch(value):
                continue
            for name in _INSIDE.findall(value):
                if name in nodes:
                    raise ValidationError(
                        f"node {node}: {value!r} holds a reference to node {name} and more; "
                        "a reference is a text of its own, so put the two together where they are "
                        "used",
                        field=f"node.{node}",
                    )


def read_references(value: Any) -> Any:
    """Return a value with `"${node.key}"` texts as references."""
    if isinstance(value, str):
        if value.startswith("$${"):
            return value[1:]
        match = _REFERENCE.fullmatch(value)
        return _refer(match[1]) if match else value
    if isinstance(value, Mapping):
        return {str(key): read_references(part) for key, part in value.items()}
    return [read_references(part) for part in value] if isinstance(value, list) else value


def _refer(text: str) -> dict[str, Any]:
    name, *path = text.strip().split(".")
    keys = [int(key) if key.isdigit() else key for key in path]
    return {"$node": name, **({"path": keys} if keys else {})}
