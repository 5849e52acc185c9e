"""A call of the REST API as a value: the request, and how to read its answer. Pure.

`repeatable` means that sending the call twice leaves the same state as sending it once, so the call
may be repeated after a lost answer.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from typing import TYPE_CHECKING, Any, Generic, TypeVar
from urllib.parse import quote

import msgspec

from holdfast import errors
from holdfast.wire.operations.operation import Operation, PageOf

if TYPE_CHECKING:
    from holdfast.wire.api import Problem

T = TypeVar("T")
_PLACE = re.compile(r"\{\w+\}")


class ResultPage(msgspec.Struct, Generic[T], frozen=True):
    """One page of a list. next: the cursor of the next page, None at the end."""

    items: list[T]
    next: str | None = None


class RestCall(msgspec.Struct, Generic[T], frozen=True):
    """One request. path: the path under the controller's URL. cursor_name: the query parameter that
    selects a page."""

    method: str
    path: str
    read: Callable[[bytes], T]
    query: tuple[tuple[str, str], ...] = ()
    body: bytes | None = None
    repeatable: bool = True
    cursor_name: str = "cursor"

    def at(self, cursor: str) -> RestCall[T]:
        """Return the call for the page of the list that begins at `cursor`."""
        kept = tuple(pair for pair in self.query if pair[0] not in (self.cursor_name, "tail"))
        return msgspec.structs.replace(self, query=(*kept, (self.cursor_name, cursor)))


PageCall = RestCall[ResultPage[T]]


def path_to(operation: Operation, *names: str) -> str:
    """Return the path of an operation. names: what stands in it, in order. Raises NotFound for a name
    that would name another path."""
    parts = iter(names)

    def fill(place: re.Match[str]) -> str:
        part = next(parts)
        if part in ("", ".", ".."):
            raise errors.NotFound(f"{part!r} names nothing")
        return quote(_sendable(part), safe="")

    return _PLACE.sub(fill, operation.path)


def ask(
    operation: Operation,
    /,
    *names: str,
    body: object = None,
    cursor_name: str = "cursor",
    **query: object,
) -> RestCall[Any]:
    """Return the call of an operation. names: what stands in its path, in order. body: `{}` is sent
    where none is given. Raises NotFound."""
    path = path_to(operation, *names)
    answer, data = operation.answer, None
    if operation.method not in ("GET", "DELETE"):
        data = b"{}" if body is None else _encode(body)
    read: Callable[[bytes], Any] = read_nothing if answer is None else read_as(answer)
    if isinstance(answer, PageOf):
        read = read_as(ResultPage[answer.item])  # type: ignore[name-defined]  # a value here, and a type to msgspec
    return RestCall(
        operation.method,
        path,
        read,
        query_of(**query),
        body=data,
        repeatable=operation.repeatable,
        cursor_name=cursor_name,
    )


def make_body(given: Mapping[str, Any], kind: type[T], complaint: str) -> T:
    """Return a body made of plain values. Raises ValidationError, which begins with `complaint`."""
    try:
        return msgspec.convert(dict(given), kind)
    except msgspec.ValidationError as error:
        raise errors.ValidationError(f"{complaint}: {error}") from error


def read_as(kind: type[T]) -> Callable[[bytes], T]:
    """Return the reader of an answer of this kind. The reader raises HoldfastError for any other
    answer."""

    def read(data: bytes) -> T:
        try:
            return msgspec.json.decode(data, type=kind)
        except msgspec.DecodeError as error:
            raise errors.HoldfastError(
                f"the controller's answer is not understood ({error}); its version may differ "
                "from this client's",
                code="bad_answer",
            ) from error

    return read


def read_nothing(data: bytes) -> None:
    """Read an answer without a body."""


def query_of(**given: object) -> tuple[tuple[str, str], ...]:
    """Return the pairs of a query. A list gives several pairs; None and empty text give none."""
    pairs: list[tuple[str, str]] = []
    for name, value in given.items():
        if value is None or value == "":
            continue
        values: Iterable[object] = value if isinstance(value, (list, tuple)) else (value,)
        pairs += [(name, str(int(v)) if isinstance(v, bool) else _sendable(str(v))) for v in values]
    return tuple(pairs)


def _sendable(text: str) -> str:
    """Return `text`. Raises ValidationError if it holds bytes of a name or argument that is not
    UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError:
        raise _not_utf8(text) from None
    return text


def _encode(value: object) -> bytes:
    try:
        data = msgspec.json.encode(value)
        if b"null" in data:  # as NaN is written, among others
            from holdfast.core.calls.floats import refuse_floats

            refuse_floats(value)
        return data
    except UnicodeEncodeError as error:
        raise _not_utf8(str(error.object)) from None


def _not_utf8(text: str) -> errors.ValidationError:
    return errors.ValidationError(f"{ascii(text)[:80]} is not UTF-8 text")


_BY_STATUS: Mapping[int, type[errors.HoldfastError]] = {
    400: errors.ValidationError,
    401: errors.Unauthorized,
    403: errors.Forbidden,
    404: errors.NotFound,
    409: errors.Conflict,
    413: errors.TooLarge,
    422: errors.ValidationError,
    429: errors.Unavailable,
    431: errors.TooLarge,
    502: errors.Unavailable,
    503: errors.Unavailable,
    504: errors.Unavailable,
}


def read_problem(status: int, data: bytes) -> errors.HoldfastError:
    """Return the error that an answer of 400 or above stands for, in the controller's own sentence
    where it gave one."""
    from holdfast.wire.api import Problem  # late, because few answers need it

    try:
        problem = msgspec.json.decode(data, type=Problem)
    except msgspec.DecodeError:
        # A proxy answered, or another server than Holdfast.
        text = data[:200].decode(errors="replace").strip()
        problem = Problem(
            status=status,
            detail=f"the answer was HTTP {status} without a reason{': ' + text if text else ''}",
        )
    return error_of(problem, status)


def error_of(problem: Problem, status: int) -> errors.HoldfastError:
    """Return the error that a problem document describes. status: the HTTP status of its answer."""
    kind = _BY_STATUS.get(status, errors.HoldfastError)
    if problem.code == errors.Stale.code:
        kind = errors.Stale
    elif problem.code == errors.QuotaExceeded.code:
        kind = errors.QuotaExceeded
    detail = problem.detail or problem.title or f"HTTP {status}"
    code = problem.code if problem.code != "error" else None
    error = kind(detail, code=code, field=problem.field)
    error.status = status
    return error
