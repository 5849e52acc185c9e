"""The root fields that mirror what REST reads: one for each operation whose answer is records, named
by its path (`/v1/pools/{name}/cycles` is `poolCycles`), asked of REST itself for the same caller."""

import inspect
import re
from collections.abc import Callable, Iterable
from inspect import Parameter
from itertools import pairwise
from typing import Any, Generic, TypeVar, get_args, get_origin, get_type_hints

import msgspec
import strawberry
from strawberry import Info

from holdfast.client.rest import ask
from holdfast.controller.graphql.mirror import MIRRORS, mirrors, translate
from holdfast.controller.graphql.scalars import BigInt, Json
from holdfast.controller.graphql.shapes import json_field, reads_of
from holdfast.wire.operations.every import list_operations
from holdfast.wire.operations.operation import Operation, PageOf, Role

T = TypeVar("T")
_SINGULAR = re.compile("ies$")


class Paged(msgspec.Struct, Generic[T], frozen=True):
    """The source of the schema's pages. next: the value for `after`; None at the end."""

    nodes: list[T]
    next: str | None


def list_mirrored(operations: Iterable[Operation]) -> dict[str, Operation]:
    """Return the operations that read records as JSON, by the names of their fields in Python."""
    return {
        name_root(operation.path): operation
        for operation in operations
        if operation.method == "GET"
        and operation.role <= Role.ADMIN
        and operation.media == ("application/json",)
        and issubclass(_item(operation), msgspec.Struct)
    }


def _item(operation: Operation) -> Any:
    answer = operation.answer
    found = answer.item if isinstance(answer, PageOf) else answer
    if get_origin(found) is list:
        (found,) = get_args(found)
    return found if isinstance(found, type) and get_origin(found) is None else object


def name_root(path: str) -> str:
    """Return the name of a path: the words between its parameters, where a word before a parameter
    names one thing."""
    words = []
    for word, after in pairwise([*path.removeprefix("/v1/").split("/"), ""]):
        if not word.startswith("{"):
            words.append(_SINGULAR.sub("y", word).removesuffix("s") if after[:1] == "{" else word)
    return "_".join(words).replace("-", "_")


def mirror_every(root: type[T], operations: Iterable[Operation] = ()) -> type[T]:
    """Add the fields of all mirrored operations to the root, but those that the root has itself.
    operations: those of a test; otherwise all."""
    given = operations or list_operations().values()
    for name, operation in list_mirrored(given).items():
        if name not in root.__annotations__:
            shape = _mirror(_item(operation))
            paged = isinstance(operation.answer, PageOf) or get_origin(operation.answer) is list
            root.__annotations__[name] = (_make_page(shape) if paged else shape) | None
            resolver = _make_resolver(operation, paged=paged)
            description = f"{operation.summary} REST: `{operation.path}`."
            setattr(root, name, strawberry.field(resolver=resolver, description=description))
    return root


def _mirror(record: Any) -> Any:
    """Return the type of a record: the one of `shapes`, or one of its plain fields and of JSON."""
    if record not in MIRRORS:
        hints = get_type_hints(record)
        names = [n for n in record.__struct_fields__ if translate(n, hints[n]) is None]
        shape = type(record.__name__, (), {n: json_field(n, "As REST writes it.") for n in names})
        shape.__annotations__ = dict.fromkeys(names, Json | None)
        mirrors(record, record.__doc__.partition("\n\n")[0], whole=BigInt)(shape)
    return MIRRORS[record]


_pages: dict[Any, Any] = {}


def _make_page(shape: Any) -> Any:
    if shape not in _pages:
        name = f"{shape.__name__.removesuffix('Type')}Page"
        page = type(name, (), {"__annotations__": {"nodes": list[shape], "next": str | None}})
        _pages[shape] = strawberry.type(page, description="A page of REST's list.")
    return _pages[shape]


def _make_resolver(operation: Operation, *, paged: bool) -> Callable[..., Any]:
    """Return the resolver of a root field. Its arguments are those of the path, of the query, and of
    the page; REST checks them."""
    query = operation.query or msgspec.Struct
    hints = get_type_hints(query)
    own = {"limit", "cursor"} & {*query.__struct_fields__} if paged else set[str]()
    names = [part[1:-1] for part in operation.path.split("/") if part.startswith("{")]

    async def resolve(info: Info, first: int = 50, after: str | None = None, **given: Any) -> Any:
        page = {"limit": first, "cursor": after}
        asked = {name: value for name, value in given.items() if name not in names}
        asked |= {name: page[name] for name in own}
        call = ask(operation, *(given[name] for name in names), **asked)
        reads = reads_of(info)
        found = await reads.call(lambda: reads.api.call(call))
        if not paged:
            return found
        if own:
            return Paged(found.items, found.next)
        items = found if isinstance(found, list) else found.items
        begin = int(after) if after is not None and after.isdecimal() else 0
        end = begin + first
        return Paged(items[begin:end], str(end) if len(items) > end else None)

    kinds: dict[str, tuple[Any, Any]] = {"info": (Info, Parameter.empty)}
    kinds |= dict.fromkeys(names, (str, Parameter.empty))
    kinds |= {
        name: ((translate("", hints[name], BigInt) or str) | None, None)
        for name in query.__struct_fields__
        if name not in own
    }
    if paged:
        kinds |= {"first": (int, 50), "after": (str | None, None)}
    parameters = [
        Parameter(name, Parameter.KEYWORD_ONLY, default=default, annotation=kind)
        for name, (kind, default) in kinds.items()
    ]
    signature = inspect.Signature(parameters, return_annotation=Any)
    vars(resolve)["__signature__"] = signature  # where `inspect` looks first
    return resolve
