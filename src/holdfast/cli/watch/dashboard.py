"""`dashboard`: a link that signs a browser in."""

from __future__ import annotations

import os
import webbrowser

import click

from holdfast.cli.command_io import CommandIO, talks
from holdfast.cli.output import age, columns, note, print_text, table


@click.command()
@click.option("--no-open", is_flag=True, help="Only print the link.")
@click.option("--list", "listed", is_flag=True, help="List the browsers that are signed in.")
@click.option("--end", metavar="ID", help="Sign a browser out.")
@talks
def dashboard(io: CommandIO, no_open: bool, listed: bool, end: str | None) -> None:
    """Print a link that opens the dashboard, and open it where there is a display.

    The link signs one browser in, once, within ten minutes; the browser then acts as your token,
    for twelve hours at most.

    \b
    Examples:
      holdfast dashboard
      holdfast dashboard --no-open   over ssh: open the link in your own browser
      holdfast dashboard --list
      holdfast dashboard --end 06ch2v8wq1m4kz7d9x3t
    """
    if listed + (end is not None) > 1:
        raise click.UsageError("--list and --end go apart")
    with io.client() as client:
        if end is not None:
            client.end_sign_in(end)
            note(f"sign-in {end} has ended; its browser is signed out within 5 s")
            return
        if listed:
            found = client.sign_ins()
            rows = [[one.id, one.user, one.role, age(one.created_at), one.browser] for one in found]
            io.show(found, table(["ID", "USER", "ROLE", "AGE", "BROWSER"], rows, width=columns()))
            return
        link = client.create_sign_in_link()
    if io.as_json:
        io.show_json(link)
        return
    print_text(link.url)
    if not no_open and has_display():
        webbrowser.open(link.url)


def has_display() -> bool:
    """Return whether a browser can show itself here."""
    return bool(os.environ.get("DISPLAY") or os.environ.get("WAYLAND_DISPLAY"))
