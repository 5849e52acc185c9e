"""Connect a command with its controller, and print the answer as JSON or as text."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, TypeVar

import click
import msgspec

from holdfast.cli.output import note, print_line, print_text
from holdfast.cli.waiting import WaitingNotice
from holdfast.errors import ValidationError

if TYPE_CHECKING:
    from holdfast.client.locate import ControllerPlace
    from holdfast.client.synchronous import Client

T = TypeVar("T")
# Long enough for a controller that restarts, short enough for a person at the terminal.
RETRY_SECONDS = 3.0


class CommandIO:
    """A command's controller and the form of its output."""

    def __init__(
        self,
        as_json: bool,
        url: str | None = None,
        token_file: str | None = None,
        context: str | None = None,
    ) -> None:
        self.as_json, self.url, self.token_file = as_json, url, token_file
        self.context = context
        self.waiting = WaitingNotice()

    def client(self, retry_seconds: float = RETRY_SECONDS) -> Client:
        """Return a client. Raises NoController and ValidationError, with the remedy."""
        from holdfast.client.synchronous import Client

        token = self.read_token()
        watch, context = self.waiting.watch, self.context
        made = Client(self.url, token, retry_seconds=retry_seconds, context=context, watch=watch)
        made.on_note = note
        return made

    def locate(self) -> ControllerPlace:
        """Return the place of the controller, for a command that needs no client, because making
        one costs more than a short session does. Raises as `client`."""
        from holdfast.client.locate import locate

        return locate(self.url, self.read_token(), context=self.context)

    def read_token(self) -> str | None:
        """Return the token of --token-file; None without one. Raises ValidationError."""
        return None if self.token_file is None else read_token_file(self.token_file)

    def answer(self, ask: Callable[[Client], T], describe: Callable[[T], str]) -> T:
        """Ask the controller, show its answer, and return it."""
        with self.client() as client:
            found = ask(client)
        self.show(found, describe(found))
        return found

    def show_json(self, value: Any) -> None:
        """Print one JSON document."""
        text = msgspec.json.format(msgspec.json.encode(value), indent=2)
        print_line(text.decode())

    def show_json_line(self, value: Any) -> None:
        """Print one line of JSON, for streams."""
        print_line(msgspec.json.encode(value).decode())

    def show(self, value: Any, text: str) -> None:
        """Print `value` with `--json`, otherwise the text."""
        if self.as_json:
            self.show_json(value)
        elif text:
            print_text(text)


def read_token_file(path: str) -> str:
    """Return the token that a file holds. Raises ValidationError."""
    try:
        with open(path) as file:
            token = file.read().strip()
    except (OSError, ValueError) as error:
        why = error.strerror if isinstance(error, OSError) else "it is no text"
        raise ValidationError(f"the token file {path} cannot be read: {why}") from error
    if not token:
        raise ValidationError(f"the token file {path} is empty")
    return token


def prints(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the option of a command that calls no controller; its first argument is a `CommandIO`."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @functools.wraps(function)
    def command(*args: Any, as_json: bool, **options: Any) -> Any:
        return function(CommandIO(as_json), *args, **options)

    return command


def talks(function: Callable[..., Any]) -> Callable[..., Any]:
    """Add the options of a command that calls a controller; its first argument is a `CommandIO`."""

    @click.option("--json", "as_json", is_flag=True, help="Print JSON.")
    @click.option(
        "--url", metavar="URL", help="The controller. [default: HOLDFAST_URL, or a context]"
    )
    @click.option(
        "-c",
        "--context",
        metavar="NAME",
        help="The server of this name. [default: the current one]",
    )
    @click.option(
        "--token-file", metavar="FILE", help="A file with the token. [default: HOLDFAST_TOKEN]"
    )
    @functools.wraps(function)
    def command(
        *args: Any,
        as_json: bool,
        url: str | None,
        token_file: str | None,
        context: str | None,
        **options: Any,
    ) -> Any:
        before = click.get_current_context().find_root().params.get("context")
        io = CommandIO(as_json, url, token_file, context or (None if url else before))
        try:
            return function(io, *args, **options)
        finally:
            io.waiting.close()

    return command
