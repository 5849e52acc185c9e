"""`version`: the version of Holdfast."""

import json
import platform

import click

from holdfast.cli.output import print_line
from holdfast.version import VERSION


@click.command()
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
def version(as_json: bool) -> None:
    """Print the version.

    \b
    Example:
      holdfast version
    """
    if as_json:
        print_line(json.dumps({"version": VERSION, "python": platform.python_version()}))
    else:
        print_line(f"holdfast {VERSION}")
