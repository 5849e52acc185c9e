"""The OpenAPI page, made from the route table and the shared structs."""

import re
from collections.abc import Sequence
from typing import Any

import msgspec

from holdfast import __doc__ as _package_doc
from holdfast.controller.http.endpoints import Endpoint
from holdfast.wire.api import Problem
from holdfast.wire.operations.operation import PageOf, Role

_REF = "#/components/schemas/{name}"
_PARAMETER = re.compile(r"\{(\w+)\}")


def build_openapi(endpoints: Sequence[Endpoint]) -> dict[str, Any]:
    """Return the page that describes `endpoints`, as plain values."""
    types: list[Any] = [Problem]
    for endpoint in endpoints:
        answers = (a.item if isinstance(a, PageOf) else a for a in endpoint.answers.values())
        types += [type_ for type_ in (endpoint.body, *answers) if type_ is not None]
    schemas, components = msgspec.json.schema_components(types, ref_template=_REF)
    schema_of = {_key(t): s for t, s in zip(types, schemas, strict=True)}
    paths: dict[str, dict[str, Any]] = {}
    for endpoint in endpoints:
        operation = _operation(endpoint, schema_of)
        paths.setdefault(endpoint.path, {})[endpoint.method.lower()] = operation
    description = (_package_doc or "Holdfast").strip()
    return {
        "openapi": "3.1.0",
        "info": {"title": "Holdfast", "version": "1", "description": description},
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _key(type_: Any) -> str:
    return repr(type_)


def _operation(endpoint: Endpoint, schema_of: dict[str, Any]) -> dict[str, Any]:
    found: dict[str, Any] = {
        "operationId": endpoint.handle.__name__,
        "summary": endpoint.summary,
        "tags": [endpoint.path.split("/")[2] if endpoint.path.startswith("/v1/") else "server"],
        "parameters": _parameters(endpoint),
        "security": [] if endpoint.role is Role.ANYONE else [{"token": []}],
        "x-holdfast-role": endpoint.role.name.lower(),
    }
    if endpoint.body is not None:
        content = {"application/json": {"schema": schema_of[_key(endpoint.body)]}}
        found["requestBody"] = {"required": not endpoint.optional_body, "content": content}
    elif endpoint.raw:
        content = {
            media: {"schema": {"type": "string", "format": "binary"}} for media in endpoint.media_in
        }
        found["requestBody"] = {"required": True, "content": content}
    responses: dict[str, Any] = {}
    for status, answer in endpoint.answers.items():
        responses[str(status)] = {"description": endpoint.summary}
        if status == 204:
            continue
        if answer is None:
            schema: Any = None
        elif isinstance(answer, PageOf):
            schema = {
                "type": "object",
                "required": ["items", "next"],
                "properties": {
                    "items": {"type": "array", "items": schema_of[_key(answer.item)]},
                    "next": {"type": ["string", "null"]},
                },
            }
        else:
            schema = schema_of[_key(answer)]
        responses[str(status)]["content"] = {
            media: (
                {"schema": schema} if schema is not None and media == "application/json" else {}
            )
            for media in endpoint.media
        }
    problem = {"application/problem+json": {"schema": schema_of[_key(Problem)]}}
    for status in _problem_statuses(endpoint):
        responses[str(status)] = {
            "description": "A problem (RFC 9457); `code` is the stable word.",
            "content": problem,
        }
    found["responses"] = responses
    return found


def _problem_statuses(endpoint: Endpoint) -> list[int]:
    statuses = [503, 426] if endpoint.socket else [503]
    if endpoint.role is not Role.ANYONE:
        statuses += [401]
    if endpoint.role in (Role.SUBMIT, Role.ADMIN):
        statuses += [403]
    if "{" in endpoint.path or endpoint.query is not None:
        statuses += [404]
    if endpoint.body is not None or endpoint.raw:
        statuses += [400, 408, 413, 422]
    elif endpoint.query is not None:
        statuses += [422]
    if endpoint.method in ("POST", "PUT", "DELETE"):
        statuses += [409]
    if endpoint.headers and 422 not in statuses:
        statuses += [422]
    return sorted(statuses)


def _parameters(endpoint: Endpoint) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in _PARAMETER.findall(endpoint.path)
    ]
    for name, text in endpoint.headers.items():
        schema = {"type": "string", "minLength": 1, "maxLength": 256, "pattern": r"^[\x21-\x7e]+$"}
        found.append(
            {"name": name, "in": "header", "required": False, "description": text, "schema": schema}
        )
    if endpoint.query is not None:
        _, components = msgspec.json.schema_components([endpoint.query], ref_template=_REF)
        own = components[endpoint.query.__name__]
        for name, schema in own["properties"].items():
            found.append(
                {
                    "name": name,
                    "in": "query",
                    "required": name in own.get("required", []),
                    "schema": _inline(schema, components),
                }
            )
    return found


def _inline(schema: Any, components: dict[str, Any]) -> Any:
    """Return a query's schema without references and without null, because a parameter is present
    or absent."""
    if "$ref" in schema:
        return _inline(components[schema["$ref"].rsplit("/", 1)[-1]], components)
    if "anyOf" in schema:
        rest = [s for s in schema["anyOf"] if s != {"type": "null"}]
        more = {k: v for k, v in schema.items() if k not in ("anyOf", "default")}
        return (
            {**more, **_inline(rest[0], components)} if len(rest) == 1 else {**more, "anyOf": rest}
        )
    found = {k: v for k, v in schema.items() if k not in ("title", "description", "default")}
    if "items" in found:
        found["items"] = _inline(found["items"], components)
    return found
