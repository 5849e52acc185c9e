"""Routes as values: one record that the router, the access check and the OpenAPI page share."""

from __future__ import annotations

import functools
import re
from collections.abc import Awaitable, Callable, Mapping
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import parse_qsl

import msgspec
from msgspec.inspect import IntType, ListType, StructType, UnionType, VarTupleType
from starlette.responses import Response
from starlette.types import Receive, Scope

from holdfast.controller.http.bodies import decode_body, header, read_body
from holdfast.controller.http.problems import explain_bad_value
from holdfast.controller.http.sockets import Socket
from holdfast.core.records import HostRecord, TokenRecord
from holdfast.errors import ValidationError
from holdfast.wire.api import MAX_BODY_BYTES
from holdfast.wire.operations.operation import Operation

if TYPE_CHECKING:
    from holdfast.controller.runtime.context import Controller

T = TypeVar("T")
Handler = Callable[["ApiCall"], Awaitable[Response]]
MAX_QUERY_CHARS = 8192
_find_decoder = functools.cache(msgspec.json.Decoder)


class Endpoint(Operation, frozen=True, kw_only=True):
    """An operation with the handler that carries it out."""

    handle: Handler


def bind(operation: Operation, handle: Handler) -> Endpoint:
    """Return the operation with its handler."""
    return Endpoint(**msgspec.structs.asdict(operation), handle=handle)


class ApiCall:
    """One request on its way to its handler."""

    __slots__ = ("controller", "host", "params", "receive", "scope", "socket", "store", "token")

    def __init__(self, controller: Controller, scope: Scope, receive: Receive) -> None:
        self.controller = controller
        self.store = controller.store
        self.scope = scope
        self.receive = receive
        self.params: Mapping[str, str] = scope.get("path_params", {})
        self.token: TokenRecord | None = None
        self.host: HostRecord | None = None
        self.socket: Socket | None = None

    def header(self, name: str) -> str | None:
        """Return a header of the request, or None."""
        return header(self.scope, name.encode("latin-1"))

    def query(self, type_: type[T]) -> T:
        """Return the query's parameters as `type_`. Raises ValidationError for a parameter that is
        unknown, repeated or unfit."""
        return decode_query(self.scope["query_string"], type_)

    async def body(
        self, type_: type[T], *, default: T | None = None, limit_bytes: int = MAX_BODY_BYTES
    ) -> T:
        """Return the JSON body as `type_`, or `default` for an absent one."""
        data = await read_body(self.scope, self.receive, limit_bytes)
        if not data and default is not None:
            return default
        decoder: msgspec.json.Decoder[T] = _find_decoder(type_)  # type: ignore[arg-type]  # see below
        return decode_body(data, decoder)

    @property
    def caller(self) -> TokenRecord:
        """Return the record of the caller's token."""
        assert self.token is not None
        return self.token

    @property
    def user(self) -> str:
        """Return the user that the caller acts for: the owner of the work that it submits."""
        return self.caller.acts_for

    @property
    def caller_name(self) -> str:
        """Return the caller's name for reasons on record."""
        return self.caller.acts_for


def decode_query(query_string: bytes, type_: type[T]) -> T:
    """Read a query string into a struct; a field annotated as a tuple may be given many times."""
    if len(query_string) > MAX_QUERY_CHARS:
        raise ValidationError(f"the query is over {MAX_QUERY_CHARS} characters", field="query")
    try:
        text = query_string.decode("ascii")
        pairs = parse_qsl(text, keep_blank_values=True, errors="strict", max_num_fields=200)
    except (ValueError, UnicodeDecodeError):
        raise ValidationError("the query string is not text in UTF-8", field="query") from None
    many, whole = _read_kinds(type_)  # type: ignore[arg-type]  # mypy forgets that a class is hashable
    values: dict[str, Any] = {}
    for name, value in pairs:
        if "\x00" in name or "\x00" in value:
            raise ValidationError(
                f"query.{name}: a NUL character means nothing here".replace("\x00", "?"),
                field="query",
            )
        # Only whole numbers are read out of text: a laxer conversion would read a job called "null"
        # as no name.
        read = int(value) if name in whole and _WHOLE.fullmatch(value) else value
        if name in many:
            values.setdefault(name, []).append(read)
        elif name in values:
            raise ValidationError(f"query.{name}: given more than once", field=f"query.{name}")
        else:
            values[name] = read
    try:
        return msgspec.convert(values, type_)
    except msgspec.ValidationError as error:
        raise explain_bad_value(error, "query", type_) from None


_WHOLE = re.compile(r"-?[0-9]{1,20}")


@functools.cache
def _read_kinds(type_: type[Any]) -> tuple[frozenset[str], frozenset[str]]:
    """Return the names of the fields that may be repeated, and of the whole numbers."""
    info = msgspec.inspect.type_info(type_)
    assert isinstance(info, StructType)
    many, whole = set(), set()
    for field_ in info.fields:
        kind = field_.type
        for one in kind.types if isinstance(kind, UnionType) else (kind,):
            if isinstance(one, (VarTupleType, ListType)):
                many.add(field_.name)
                one = one.item_type
            if isinstance(one, IntType):
                whole.add(field_.name)
    return frozenset(many), frozenset(whole)
