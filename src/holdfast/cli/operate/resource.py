"""Build the commands that all kinds of things have in common: list, show, set, delete.

The module of a kind gives its columns, its options, and the commands that it alone has. The name of
a kind by itself lists, as its `list` does. Another word for an act is answered with its own word
(`cli.foreign`).
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable, Mapping, Sequence
from contextlib import AbstractContextManager
from typing import Any, TypeVar

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.output import note, say_state, table
from holdfast.client.synchronous import Client
from holdfast.wire.states import tell_state

R = TypeVar("R")
Columns = Mapping[str, Callable[[R], str]]  # head → the cell of a row
Ask = Callable[..., Any]  # gets a client, the id of one thing where it is about one, and options
Opens = Callable[[CommandIO], AbstractContextManager[Any]]
Wraps = Callable[[Callable[..., Any]], Callable[..., Any]]

_YES = click.option("--yes", "-y", is_flag=True, help="Do not ask.")


def draw_columns(columns: Columns[R], rows: Sequence[R], elastic: int = -1) -> str:
    """Draw rows as a table; the elastic column is the first to be narrowed."""
    cells = [[cell(row) for cell in columns.values()] for row in rows]
    return table(tuple(columns), cells, elastic=elastic)


def say_state_of(label: str, thing: object) -> str:
    """Return a line with a thing's state and why it is in it."""
    shown = tell_state(thing)
    return f"{label}: {say_state(shown.word, shown.sentence)}"


class Resource(click.Group):
    """The commands on one kind of thing."""

    subject: Callable[[Callable[..., Any]], Callable[..., Any]]
    find: Callable[[Client, str], str]  # from the word that a person gives to the id
    opens: Opens  # what the commands' functions get: a client, if nothing else is said
    wraps: Wraps  # adds the options that all of the commands have

    def add(
        self, name: str, says: Callable[[Any], str], *, act: str = "", asks: bool = False
    ) -> Callable[[Ask], Ask]:
        """Add a command on one thing, which prints what its function returns. act: the name of what it
        does (`wire.operations.acts`), whose consequence a person is told. asks: a person at a terminal is asked
        first, because the act ends or holds work."""

        def add(function: Ask) -> Ask:
            def run(io: CommandIO, subject: str, yes: bool = False, **options: Any) -> None:
                told = _tell(act, subject, asks and not yes) if act else ""
                with self.opens(io) as client:
                    found = function(client, self.find(client, subject), **options)
                io.show(found, says(found))
                if told:
                    note(told)

            made = _as_command(function, run, wraps=self.wraps)
            self.command(name)(self.subject(_YES(made) if asks else made))
            return function

        return add

    def deletes(
        self, name: str = "delete", done: str = "deleted", *, act: str = ""
    ) -> Callable[[Ask], Ask]:
        """Add the command that ends one thing. act: as in `add`; a person is asked first."""

        def add(function: Ask) -> Ask:
            def run(io: CommandIO, subject: str, yes: bool = False) -> None:
                told = _tell(act, subject, not yes) if act else ""
                with self.opens(io) as client:
                    function(client, self.find(client, subject))
                io.show({done: subject}, f"{subject}: {done}")
                if told:
                    note(told)

            made = _as_command(function, run, wraps=self.wraps)
            self.command(name)(self.subject(_YES(made) if act else made))
            return function

        return add


def _tell(name: str, subject: str, asks: bool) -> str:
    """Return the consequence of an act, which is said once it is done; "" where a person was asked
    with it. Raises click.Abort where the person says no."""
    from holdfast.wire.operations.acts import ACTS

    act = ACTS[name]
    if not (asks and sys.stdin.isatty() and sys.stderr.isatty()):
        return act.ask
    click.confirm(f"{act.button} {subject}? {act.ask}", abort=True, err=True)
    return ""


def resource(
    metavar: str,
    draw: Callable[[Any], str],
    *,
    nothing: str = "",
    find: Callable[[Client, str], str] = lambda _, word: word,
    opens: Opens = lambda io: io.client(),
    options: Wraps = talks,
) -> Callable[[Ask], Resource]:
    """Make the group of a kind of the function that lists it, whose text is the group's help.

    metavar: names one thing on the command line. nothing: is said in place of a table without rows.
    opens: opens what the functions get in place of a client. options: adds the options of a command
    that asks no controller.
    """

    def make(function: Ask) -> Resource:
        own = _take_options(function)

        def run(io: CommandIO, **given: Any) -> None:
            with opens(io) as client:
                rows = function(client, **given)
            io.show(rows, nothing if nothing and not rows else draw(rows))

        def run_alone(io: CommandIO, context: click.Context, **given: Any) -> None:
            if context.invoked_subcommand is None:
                run(io, **given)

        alone = _as_command(function, run_alone, own, options)
        made = click.group(cls=Resource, invoke_without_command=True)(click.pass_context(alone))
        made.subject = click.argument("subject", metavar=metavar)
        made.find, made.opens, made.wraps = find, opens, options
        each, name = _as_command(function, run, own, options), function.__name__
        kind = name.removesuffix("s") if metavar in ("NAME", "ID") else metavar.lower()
        text = f"List {kind}s.\n\n\b\nExample:\n  holdfast {name} list --json"
        made.command("list", help=text)(each)
        return made

    return make


def _take_options(function: Ask) -> list[click.Parameter]:
    found: list[click.Parameter] = vars(function).pop("__click_params__", [])
    return found


def _as_command(
    function: Ask,
    run: Callable[..., Any],
    options: list[click.Parameter] | None = None,
    wraps: Wraps = talks,
) -> Callable[..., Any]:
    """Return `run` with the text and the options of `function`, before those of every command."""
    own = _take_options(function) if options is None else options
    made = wraps(functools.wraps(function)(run))
    vars(made)["__click_params__"] = [*vars(made)["__click_params__"], *own]
    return made
