"""`docs`: the documents of this version, which need no network."""

from __future__ import annotations

import difflib
import json
import webbrowser

import click

from holdfast.cli.extras import find_docs
from holdfast.cli.output import print_text
from holdfast.cli.watch.dashboard import has_display
from holdfast.errors import HoldfastError, NotFound


@click.command()
@click.argument("word", default="index")
@click.option("--no-open", is_flag=True, help="Only print the address of the page.")
def docs(word: str, no_open: bool) -> None:
    """Open the documents of this version, offline, and print the page's address.

    WORD is a cause, the code of an error, or the name of a page. `llms.txt` and the skill file for
    coding agents lie in the same folder.

    \b
    Examples:
      holdfast docs
      holdfast docs oom_killed    what the cause means, and what to do
      holdfast docs gangs         the guide of that name
    """
    site = find_docs()
    if site is None:
        raise HoldfastError(
            "the documents are a package of their own, holdfast_docs, which is not installed. In a "
            "clone: make docs-wheel, then pip install dist/holdfast*_docs-*.whl",
            code="missing_extra",
        )
    words: dict[str, str] = json.loads((site / "words.json").read_text())
    if word not in words:
        close = difflib.get_close_matches(word, words, 3) or ["index"]
        raise NotFound(
            f"no page is named {word!r}; close to it: {', '.join(close)}", code="no_page"
        )
    address = (site / words[word]).as_uri()
    print_text(address)
    if not no_open and has_display():
        webbrowser.open(address)
