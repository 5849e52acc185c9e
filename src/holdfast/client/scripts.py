"""The methods of the client, each written once for both clients. Pure: a script yields the steps
that it needs done.

A decorator turns a function that returns a call or a script into a method: the blocking client
returns the result, the asyncio client a coroutine or an asynchronous iterator.
"""

from __future__ import annotations

import os
from collections.abc import AsyncIterator, Callable, Coroutine, Generator, Iterator
from functools import partial, wraps
from typing import TYPE_CHECKING, Any, Concatenate, Generic, ParamSpec, Protocol, TypeVar, overload

import msgspec

from holdfast.client.follow import Follow
from holdfast.client.rest import PageCall, RestCall
from holdfast.errors import HoldfastError

if TYPE_CHECKING:
    from pathlib import Path

    from holdfast.client.locate import ControllerPlace

T = TypeVar("T")
P = ParamSpec("P")


class Caller(Protocol):
    """A sender of calls that waits for their answers. Threads may share a sender."""

    @property
    def place(self) -> ControllerPlace:
        """Return where the controller is."""

    def call(self, call: RestCall[T]) -> T:
        """Send one call and return its answer."""


class Sleep(msgspec.Struct, frozen=True):
    """The step of waiting for `seconds`."""

    seconds: float


class FetchFile(msgspec.Struct, frozen=True):
    """The step of writing the bytes at `path` of the API into the file `to`."""

    path: str
    query: tuple[tuple[str, str], ...]
    to: str | os.PathLike[str]


class SendFile(msgspec.Struct, frozen=True):
    """The step of sending a file's bytes to `path` of the API; the script gets the answer's
    bytes."""

    path: str
    query: tuple[tuple[str, str], ...]
    file: Path


class UseCaller(msgspec.Struct, frozen=True):
    """The step of calling `work` with a `Caller`; the script gets the result of `work`. For work
    with many calls at once, in threads."""

    work: Callable[[Caller], Any]


Step = RestCall[Any] | Sleep | FetchFile | SendFile | UseCaller
Script = Generator[Step, Any, T]


def take_answer(call: RestCall[T]) -> Script[T]:
    """Send one call and return its answer."""
    answer: T = yield call
    return answer


def take_list(call: PageCall[T]) -> Script[list[T]]:
    """Return every item of a list, from all of its pages."""
    items = []
    while True:
        page = yield from take_answer(call)
        items += page.items
        if page.next is None:
            return items
        call = call.at(page.next)


class Blocking:
    """A client whose methods return their results."""


class Awaited:
    """A client whose methods return coroutines and asynchronous iterators."""

    async def perform(self, begin: Callable[[], Script[T]]) -> T:
        """Carry out the steps of a script, and return its result. A step's failure is raised inside
        the script."""
        script = begin()
        go_on: Callable[[], Step] = partial(next, script)
        while True:
            try:
                step = go_on()
            except StopIteration as end:
                result: T = end.value
                return result
            try:
                go_on = partial(script.send, await self._do(step))
            except HoldfastError as error:
                go_on = partial(script.throw, error)

    async def _do(self, step: Step) -> Any:
        """Do one step of a script, and return the step's result for the script."""
        raise NotImplementedError


class AnswerMethod(Generic[P, T]):
    """A method that has one result."""

    def __init__(self, make: Callable[..., Any], begin: Callable[[Any], Script[T]]) -> None:
        self._make, self._begin = make, begin

    @overload
    def __get__(self, client: None, owner: object) -> Callable[..., Any]: ...
    @overload
    def __get__(self, client: Blocking, owner: object) -> Callable[P, T]: ...
    @overload
    def __get__(self, client: Awaited, owner: object) -> Callable[P, Coroutine[Any, Any, T]]: ...
    def __get__(self, client: Any, owner: object) -> Callable[..., Any]:
        make, begin = self._make, self._begin

        @wraps(make)
        def method(*given: Any, **named: Any) -> Any:
            return client.perform(lambda: begin(make(client, *given, **named)))

        return make if client is None else method


class StreamMethod(Generic[P, T]):
    """A method that yields its results one by one."""

    def __init__(self, make: Callable[..., Any]) -> None:
        self._make = make

    @overload
    def __get__(self, client: None, owner: object) -> Callable[..., Any]: ...
    @overload
    def __get__(self, client: Blocking, owner: object) -> Callable[P, Iterator[T]]: ...
    @overload
    def __get__(self, client: Awaited, owner: object) -> Callable[P, AsyncIterator[T]]: ...
    def __get__(self, client: Any, owner: object) -> Callable[..., Any]:
        make = self._make

        @wraps(make)
        def method(*given: Any, **named: Any) -> Any:
            return client.each(make(client, *given, **named))

        return make if client is None else method


def gives_one(make: Callable[Concatenate[Any, P], RestCall[T]]) -> AnswerMethod[P, T]:
    """Make a method of a call. The method returns the call's answer."""
    return AnswerMethod(make, take_answer)


def gives_list(make: Callable[Concatenate[Any, P], PageCall[T]]) -> AnswerMethod[P, list[T]]:
    """Make a method of a call for pages. The method returns the items of all pages."""
    return AnswerMethod(make, take_list)


def gives_each(make: Callable[Concatenate[Any, P], PageCall[T] | Follow[T]]) -> StreamMethod[P, T]:
    """Make a method of a call for pages, each fetched when it is needed, or of a stream."""
    return StreamMethod(make)


def runs(make: Callable[Concatenate[Any, P], Script[T]]) -> AnswerMethod[P, T]:
    """Make a method of a script. The method returns the script's result."""
    return AnswerMethod(make, lambda script: script)
