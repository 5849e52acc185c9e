"""`contexts`: the servers that were logged in to, by name."""

from __future__ import annotations

import os
from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import msgspec

from holdfast.cli.command_io import CommandIO, prints
from holdfast.cli.operate.resource import Columns, draw_columns, resource
from holdfast.cli.where.keeping import change_contexts
from holdfast.client.contexts.file import LOCAL, CliContexts, read_contexts
from holdfast.client.locate import NoController, locate


class ContextRow(msgspec.Struct, frozen=True, kw_only=True):
    """A context as it may be shown, without its token."""

    name: str
    current: bool
    urls: tuple[str, ...]
    has_token: bool
    ca_file: str | None = None


COLUMNS: Columns[ContextRow] = {
    "NAME": lambda row: row.name,
    "CURRENT": lambda row: "yes" if row.current else "-",
    "SERVER": lambda row: ", ".join(row.urls) or "(no `up` runs here)",
    "TOKEN": lambda row: "kept" if row.has_token else "-",
    "TRUSTS": lambda row: row.ca_file or "-",
}


@contextmanager
def _open(io: CommandIO) -> Iterator[None]:
    """Open no connection, because the contexts are a file of the user."""
    yield None


def _list_rows(contexts: CliContexts) -> list[ContextRow]:
    named = [
        ContextRow(
            name=name, current=contexts.current == name, urls=kept.urls,
            has_token=kept.token is not None, ca_file=kept.ca_file,
        )
        for name, kept in sorted(contexts.contexts.items())
    ]  # fmt: skip
    try:
        place = locate(context=LOCAL, environ={})
        urls, has_token = place.urls, place.token is not None
    except NoController:
        urls, has_token = (), False
    local = ContextRow(
        name=LOCAL, current=contexts.current == LOCAL, urls=urls, has_token=has_token
    )
    return [local, *named]


@resource("NAME", lambda rows: draw_columns(COLUMNS, rows, elastic=2), opens=_open, options=prints)
def contexts(_: None) -> Sequence[ContextRow]:
    """List the servers that were logged in to, and `local`: the `holdfast up` of this folder.

    Commands go to the current one. One command goes to another with `holdfast -c NAME …`, and all
    commands of a shell do with HOLDFAST_CONTEXT.

    \b
    Examples:
      holdfast contexts
      holdfast contexts use prod
      holdfast -c staging jobs
    """
    return _list_rows(read_contexts(os.environ))


@contexts.add("show", lambda row: draw_columns(COLUMNS, [row], elastic=2))
def show(_: None, name: str) -> ContextRow:
    """Show one context, without its token.

    \b
    Example:
      holdfast contexts show prod
    """
    kept = read_contexts(os.environ)
    if name != LOCAL:
        kept.get(name)
    return next(row for row in _list_rows(kept) if row.name == name)


@contexts.add(
    "use",
    lambda row: f"commands go to {row.name} now: {', '.join(row.urls) or 'no `up` runs here'}",
)
def use(_: None, name: str) -> ContextRow:
    """Make a context the current one. `local` is the `holdfast up` of the folder one works in.

    \b
    Examples:
      holdfast contexts use prod
      holdfast contexts use local
    """
    kept = change_contexts(os.environ, lambda before: before.use(name))
    return next(row for row in _list_rows(kept) if row.name == name)


@contexts.deletes()
def delete(_: None, name: str) -> None:
    """Forget a context and its token, as `holdfast logout NAME` does.

    \b
    Example:
      holdfast contexts delete staging
    """
    change_contexts(os.environ, lambda before: before.without(name))
